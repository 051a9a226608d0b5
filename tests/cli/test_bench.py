"""`attnres bench`: what it may print and write, with parts that measure nothing."""

from __future__ import annotations

import json
import os

import pytest

from attnres.bench import curves, decode, memory, operator, parts, step
from attnres.bench.measure import NOT_MEASURED, Row
from attnres.cli import main

POINT = {"elsewhere": "9 sources", "attnres, ms": 1.0, "stacked, ms": 20.0, "compiled reference, ms": 2.0}


@pytest.fixture(autouse=True)
def fake_parts(monkeypatch):
    for part in (operator, step, memory, decode):
        monkeypatch.setattr(part, "measure", lambda _, name=part.__name__: [Row(name, "here", "1.06", "1.03", 1.02)])
    limit = {"bytes that must move at the copy bandwidth, ms": 0.1}
    rows = [
        Row("operator", "here", "-", "-", 20.0, {"axis": axis, axis: value, **POINT, **limit})
        for axis in ("sources", "time", "dim")
        for value in (2.0, 4.0)
    ]
    monkeypatch.setattr(curves, "measure", lambda _: rows)


def bench(*arguments: str) -> int:
    return main(["bench", "--threads", "1", *arguments])


def test_writes_what_it_measured(tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert bench("--rounds", "3", "--out", str(out)) == 0
    record = json.loads(out.read_text())
    measured = [row["what"] for row in record["rows"] if row["ratio"] != NOT_MEASURED]
    assert measured == [f"attnres.bench.{part}" for part in ("operator", "decode", "step", "memory")]
    assert record["rounds"] == 3 and record["machine"]["threads"] == 1 and "fla-core" in record["versions"]
    text = capsys.readouterr().out
    assert "1.02" in text
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_only_the_parts_asked_for(tmp_path):
    out = tmp_path / "bench.json"
    assert bench("step", "decode", "--out", str(out)) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["what"] for row in rows] == ["attnres.bench.decode", "attnres.bench.step"]


def test_curves_can_be_drawn_again_from_the_record(tmp_path):
    from attnres.report.curves import draw_curves

    out, figures = tmp_path / "curves.json", tmp_path / "figures"
    assert bench("curves", "--out", str(out), "--figures", str(figures)) == 0
    drawn = (figures / "performance-curves.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    again = draw_curves(json.loads(out.read_text())["rows"], tmp_path / "again")
    assert again.read_bytes() == drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "100000"], f"--threads must be at most {os.cpu_count()}, the cores of this machine"),
        (["step", "--figures", "here"], "curves"),
        (["step", "--out", "no/such/folder/bench.json"], "no/such/folder"),
    ],
)
def test_bad_options_are_one_line(arguments, message, capsys):
    assert bench(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("part", "module"),
    [("hf", "transformers"), ("traffic", "triton")],
)
def test_a_part_without_what_it_needs_is_one_line_before_any_is_measured(part, module, monkeypatch, capsys):
    monkeypatch.setattr(parts, "find_spec", lambda name: None if name == module else name, raising=False)
    monkeypatch.setattr(step, "measure", lambda _: pytest.fail("measured"))
    assert bench("step", part) == 2
    error = capsys.readouterr().err
    assert f"bench {part} needs {module}: pip install" in error
