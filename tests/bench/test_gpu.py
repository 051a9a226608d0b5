"""`attnres bench gpu` without a GPU: every row, on the CPU's kernel; tests/gpu has what is right on one."""

from __future__ import annotations

import json

import pytest
import torch

from attnres.bench import gpu
from attnres.bench.measure import RatioRow, Setting
from attnres.cli import main

CPU = torch.device("cpu")
SETTING = Setting(rounds=1, quick=True)


def test_every_row(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = list(gpu.measure(SETTING))
    assert len(rows) == len(gpu.GOALS) and {row.measured for row in rows} == {"not measured"}
    measured = list(gpu.measure_on(CPU, gpu.QUICK, SETTING))
    assert {row.what.partition(", ")[0] for row in measured} == {row.what.partition(", ")[0] for row in rows}
    for row in measured:
        assert row.ratio is not None and row.where == "cpu"
    shares = [row for row in measured if "share of the copy bandwidth" in row.what]
    assert [row.ratio for row in shares] == pytest.approx([row.details["GB/s"] / 10 for row in shares])


def test_peers_take_part_with_and_without_their_stack():
    row = gpu._operator_row(gpu._operator_shape(CPU, 32, gpu.QUICK), "cpu", SETTING)
    timed = {name.removesuffix(", ms") for name in row.details if name.endswith(", ms")}
    assert timed >= {"attnres", "compiled reference", "stacked", "stacked, its stack given"}
    for name in ("fla-core, checkpoint level 0", "flash-attn-res", "liger-kernel"):
        assert "not measured" in str(row.details[name]), "what cannot run here says why"


def test_what_was_measured_before_a_stop_is_kept(monkeypatch, tmp_path, capsys):
    def measured(setting):
        yield RatioRow("decode", "gpu", "1", 0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure", measured)
    out = tmp_path / "gpu.json"
    assert main(["bench", "gpu", "--out", str(out)]) == 130
    assert [row["what"] for row in json.loads(out.read_text())["rows"]] == ["decode"]
    assert "decode" in capsys.readouterr().out
