from __future__ import annotations

import json
import textwrap

import pytest

from attnres.cli import main
from tests.evaluation.conftest import make_run, plain_run, run, tasks  # noqa: F401  fixtures


def test_a_run_beside_its_twin(run, plain_run, tasks, tmp_path, capsys, monkeypatch):  # noqa: F811
    out = tmp_path / "scores.json"
    monkeypatch.setenv("COLUMNS", "160")
    texts = [str(tasks[name]) for name in ("choice", "text")]
    assert main(["eval", str(run), "--beside", str(plain_run), "--tasks", *texts, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "sums_choice" in said and "acc_norm ↑" in said and "bits_per_byte ↓" in said
    record = json.loads(out.read_text())
    assert record["model"] == str(run) and record["beside"] == str(plain_run) and "lm-eval" in record["versions"]
    assert [score["metric"] for score in record["scores"]] == ["acc", "acc_norm", "bits_per_byte"]
    for score, other, difference in zip(record["scores"], record["others"], record["differences"], strict=True):
        assert difference["value"] == score["value"] - other["value"]
        assert f"{score['value']:.4f} ±{score['error']:.4f}" in said
        assert f"{difference['value']:+.4f}" in said


@pytest.mark.slow
def test_the_task_that_help_shows(run, tmp_path, monkeypatch):  # noqa: F811
    from attnres.cli import eval as command

    shown = (command.__doc__ or "").partition("for each:\n\n")[2].partition("\n\n")[0]
    (tmp_path / "held.yaml").write_text(textwrap.dedent(shown))
    texts = ["a text", "and another one, of several windows of that model"]
    (tmp_path / "held.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(run), "--tasks", "held.yaml", "--out", "scores.json"]) == 0
    (score,) = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert score["metric"] == "bits_per_byte" and 4 < score["value"] < 12
