"""`attnres bench`: what it may print, on sizes too small to mean anything."""

from __future__ import annotations

import json

import pytest
import torch

from attnres.cli import _bench, bench, main
from attnres.cli._bench import NOT_MEASURED, Sizes

TINY = Sizes(batch=2, time=8, operator_dim=16, sources=3, dim=64, layers=1, decode_dim=64, rounds=1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bench, "Sizes", lambda *_, **__: TINY)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(_bench, "copy_bandwidth", lambda: 1e10)


def test_writes_what_it_measured(tmp_path, capsys):
    out = tmp_path / "bench.json"
    code = main(["bench", "--quick", "--threads", "1", "--only", "operator", "decode", "--out", str(out)])
    assert code == 0
    record = json.loads(out.read_text())
    measured = [row for row in record["rows"] if row["ratio"] != NOT_MEASURED]
    assert len(measured) == 3 and all(row["ratio"] > 0 for row in measured)
    unmeasured = [row["where"] for row in record["rows"] if row["ratio"] == NOT_MEASURED]
    assert unmeasured == ["one H100/H200-class GPU"] * 3, "no estimate for what could not be measured"
    assert record["sizes"]["sources"] == 3 and record["machine"]["threads"] == 1
    assert NOT_MEASURED.split()[0] in capsys.readouterr().out


def test_a_wrong_contender_gets_no_speed(monkeypatch):
    right = _bench.depth_attention
    monkeypatch.setattr(_bench, "depth_attention", lambda *x, **options: 0.999 * right(*x, **options))
    rows = _bench.operator_rows(TINY, "here", lambda _: None)
    assert all(row.ratio is None for row in rows)
    assert not any(name.startswith("attnres, ms") for name in rows[0].details)
    assert rows[0].details["attnres, error"] > _bench.TOLERANCE and "stacked, ms" in rows[0].details


def test_steps_take_turns():
    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) for name in "ab"}
    assert set(_bench.take_turns(contenders, 3, lambda _: None, "")) == {"a", "b"}
    assert order == list("ab") * 5


def test_bad_options_are_one_line(capsys):
    assert main(["bench", "--rounds", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
