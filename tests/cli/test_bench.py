"""`attnres bench`: what it may print and write, with parts that measure nothing."""

from __future__ import annotations

import json

import pytest

from attnres.bench import decode, gpu, operator, step
from attnres.bench.measure import NOT_MEASURED, RatioRow
from attnres.cli import main


@pytest.fixture(autouse=True)
def fake_parts(monkeypatch):
    for part in (operator, step, decode, gpu):
        monkeypatch.setattr(part, "measure", lambda _, name=part.__name__: [RatioRow(name, "here", "1.06", 1.02)])


def bench(*arguments: str) -> int:
    return main(["bench", "--threads", "1", *arguments])


def test_writes_what_it_measured(tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert bench("--rounds", "3", "--out", str(out)) == 0
    record = json.loads(out.read_text())
    measured = [row["what"] for row in record["rows"] if row["ratio"] != NOT_MEASURED]
    assert measured == [f"attnres.bench.{part}" for part in ("operator", "decode", "step", "gpu")]
    assert record["rounds"] == 3 and record["machine"]["threads"] == 1 and "fla-core" in record["versions"]
    text = capsys.readouterr().out
    assert "1.02" in text
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
