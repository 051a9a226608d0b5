from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from attnres.analysis import depth_profile
from attnres.cli import main
from attnres.data import open_corpus
from attnres.lab.experiments import compare as experiment
from attnres.lab.runs import read_record
from attnres.report.runs import validation_tokens
from attnres.train import load_run, read_metrics
from tests.cli.conftest import TINY, run_jobs_but

pytestmark = pytest.mark.usefixtures("no_page")


def test_a_comparison_leaves_tables_a_record_and_what_depth_does(comparison):
    out, said = comparison
    assert "block:block_size=2" in said and "Report: " in said and "look " in said
    record = read_record(out / "comparison.json", "comparison")
    assert experiment.EXPERIMENT.finding(record) in said and len(record.runs) == 4
    folders = [out / arm / f"seed-{seed}" for arm in ("residual", "block_block_size-2") for seed in (0, 1)]
    losses = [json.loads((folder / "summary.json").read_text())["validation_loss"] for folder in folders]
    pairs = [b - a for a, b in zip(losses[:2], losses[2:], strict=True)]
    _, block = experiment.rows(record)
    assert block.difference == pytest.approx(sum(pairs) / 2, abs=1e-6)
    assert list(block.differences.values()) == pytest.approx(pairs, abs=1e-6)
    trained = load_run(out / "block_block_size-2" / "seed-0")
    measured = depth_profile(trained.model, validation_tokens(open_corpus(trained.config.data), trained.config))
    np.testing.assert_allclose(experiment.profiles(record)["block:block_size=2"].output_rms, measured.output_rms, 1e-6)
    assert len(experiment.pictures(record)) == 3


def test_what_is_shown_is_of_the_seeds_that_all_have(comparison):
    """Where a run was lost a curve of other seeds than its neighbour's showed their difference as the rules'."""
    record = read_record(comparison[0] / "comparison.json", "comparison")
    left = replace(record, runs=tuple(run for run in record.runs if (run.arm, run.seed) != ("residual", 0)))
    curves = experiment.pictures(left)[0]
    assert curves.note == "One seed." and [len(row.losses) for row in experiment.rows(left)] == [1, 1]
    assert experiment.tables(left)[0].rows[1][5:7] == ("", ""), "one step time may be of a busy machine"
    none = replace(record, runs=tuple(run for run in record.runs if (run.arm == "residual") == (run.seed == 0)))
    assert "nothing is compared" in experiment.EXPERIMENT.finding(none) and len(experiment.pictures(none)) == 2


def test_arms_of_a_seed_are_paired(comparison):
    """Same shared weights and same data: at step 0 the zero-query Block model is the residual model, up to eps."""
    out, _ = comparison
    first = [
        read_metrics(out / arm / "seed-0" / "metrics.jsonl")[0]["loss"] for arm in ("residual", "block_block_size-2")
    ]
    assert first[0] == pytest.approx(first[1], abs=1e-4)
    assert load_run(out / "block_block_size-2" / "seed-0").config.model.connection == "block:block_size=2"


@pytest.mark.parametrize("lost", ["one", "all"])
def test_runs_that_failed_are_named_and_the_rest_is_shown(lost, tmp_path, corpus, capsys, monkeypatch):
    monkeypatch.setattr("attnres.train.sweep.run_jobs", run_jobs_but(lambda name: lost == "all" or "full" in name))
    code = main(["compare", "residual", "full", *TINY, *corpus, "--out", str(tmp_path), "--seeds", "1"])
    told = capsys.readouterr()
    if lost == "all":
        assert code == 2 and "no run was finished: residual, seed 0" in told.err
    else:
        assert code == 1 and "full, seed 0: killed" in told.err and (tmp_path / "comparison.json").exists()
