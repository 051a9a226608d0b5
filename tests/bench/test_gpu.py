"""`attnres bench gpu` without a GPU: every row, on the CPU's kernel; tests/gpu has what is right on one."""

from __future__ import annotations

import json

import pytest
import torch

from attnres.bench import decode, gpu
from attnres.bench.measure import RatioRow, Setting
from attnres.cli import main

CPU = torch.device("cpu")
SIZES = gpu.GpuSizes((32,), 3, 2**8, 2, decode.DecoderSizes(64, 1))


def test_every_row(monkeypatch):
    decoding, *operator = gpu.measure_on(CPU, SIZES, Setting(rounds=1))
    assert decoding.ratio is not None and decoding.where == "cpu"
    *shares, others = operator
    assert shares and [row.ratio for row in shares] == pytest.approx([row.details["GB/s"] / 10 for row in shares])
    timed = {name.removesuffix(", ms") for name in others.details if name.endswith(", ms")}
    assert timed >= {"attnres", "compiled reference", "stacked", "stacked, its stack given"}
    for name in ("fla-core, checkpoint level 0", "flash-attn-res", "liger-kernel"):
        assert "not measured" in str(others.details[name]), "what cannot run here says why"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [row.measured for row in gpu.measure(Setting())] == ["not measured"]


def test_what_was_measured_before_a_stop_is_kept(monkeypatch, tmp_path, capsys):
    def measured(setting):
        yield RatioRow("decode", "gpu", "1", 0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure", measured)
    out = tmp_path / "gpu.json"
    assert main(["bench", "gpu", "--out", str(out)]) == 130
    assert [row["what"] for row in json.loads(out.read_text())["rows"]] == ["decode"]
    assert "decode" in capsys.readouterr().out
