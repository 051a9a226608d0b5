"""`attnres models`: what attaches, each type tried in a process of its own, and the record of all of them."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import transformers

from attnres.cli import main
from attnres.hf import survey
from attnres.hf.survey import NoAnswer, alone, known_types

RECORD = json.loads((Path(__file__).parents[2] / "results" / "models.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_function_that_crashes_hangs_or_grows_ends_alone():
    assert alone(os.path.join, "a", "b") == "a/b"
    with pytest.raises(NoAnswer, match="died of SIGABRT"):
        alone(os.abort)
    with pytest.raises(NoAnswer, match="longer than"):
        alone(time.sleep, 60, seconds=0.2)
    with pytest.raises(NoAnswer, match="it failed"):
        alone(torch.zeros, survey.BYTES)  # four times as much as it may take


@pytest.mark.slow
def test_the_record_is_what_comes_of_trying(tmp_path, capsys):
    """A few types of every outcome; all of them would take minutes."""
    if RECORD["versions"]["transformers"] != transformers.__version__:
        pytest.skip(f"the record is of transformers {RECORD['versions']['transformers']}; run attnres models --out")
    by_outcome = {row["outcome"]: row for row in RECORD["rows"]}
    chosen = sorted({"llama", "bert", *(row["model_type"] for row in by_outcome.values())})
    assert main(["models", *chosen, "--out", str(tmp_path / "models.json")]) == 0
    found = json.loads((tmp_path / "models.json").read_text())
    expected = [row for row in RECORD["rows"] if row["model_type"] in chosen]
    for rows in found["rows"], expected:
        for row in rows:
            assert row.pop("difference") <= 1e-5  # its last digits are the machine's
    assert found["rows"] == expected and found["connection"] == RECORD["connection"]
    assert f"{len(chosen)} model types: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_type_with_another_types_class_and_names_of_its_own():
    """Loaded with the other's configuration it was saved under names that no class reads."""
    trial = survey.attempt("exaone", "AutoModelForCausalLM")
    assert (trial.outcome, trial.why) == ("attaches", "")


def test_every_type_is_in_the_record_once():
    if RECORD["versions"]["transformers"] == transformers.__version__:
        assert [row["model_type"] for row in RECORD["rows"]] == list(known_types())


def test_other_logits_are_a_failure_and_exit_code_1(monkeypatch, capsys):
    trial = survey.Trial(
        "llama", "AutoModelForCausalLM", "failed", "the logits differ by 1.0e-01 of the largest", 8, 0.1
    )
    monkeypatch.setattr(survey, "alone", lambda *_: trial)
    assert main(["models", "llama"]) == 1
    said = capsys.readouterr().out
    assert "the logits differ" in said and "1 model types: 1 failed" in said
    assert asdict(trial).keys() == RECORD["rows"][0].keys()


def test_unknown_types_are_refused_before_any_work(capsys):
    assert main(["models", "lama", "llama", "brt"]) == 2
    assert "has no model type 'lama', 'brt' of" in capsys.readouterr().err
