from __future__ import annotations

import json

import pytest

from attnres.cli import main
from attnres.lab.engine import choose
from attnres.lab.experiments import ablate
from attnres.lab.experiments.ablate import AblationOptions, plan, tables
from attnres.lab.runs import Record, RunResult, read_record
from tests.cli.conftest import TINY, run_jobs_here

STEPS = [*TINY[:6], "--steps", "3", "--batch-size", "2", "--evaluate-every", "3", "--validation-tokens", "64"]


pytestmark = pytest.mark.usefixtures("trained_here", "no_page")


@pytest.fixture(scope="module")
def sweep(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("ablation")
    options = [*STEPS, *corpus, "--seeds", "2", "--embedding-stds", "1", "--out", out / "runs"]
    options = [str(option) for option in (*options, "--record", out / "record.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)
        patch.setattr("attnres.lab.page.write_results", lambda records, out: out)
        assert main(["ablate", "residual", "full", *options, "--grid", "1", "30"]) == 0
    return out, options


def rates(record: Record) -> dict[str, float]:
    return {arm: record.of(arm)[0].rate for arm in record.arms}


def test_the_record_holds_every_run_and_the_choice(sweep):
    out, _ = sweep
    record = read_record(out / "record.json", "ablation")
    assert record.arms == ("residual", "full")
    for arm in record.arms:
        tuning, runs = record.of(arm, part="tuning"), record.of(arm)
        tuned = sorted((run.seed, run.rate) for run in tuning)
        assert tuned == [(1000, 1.0), (1000, 30.0), (1001, 1.0), (1001, 30.0)]
        total = {rate: sum(run.loss for run in tuning if run.rate == rate) for rate in (1.0, 30.0)}
        assert rates(record)[arm] == min(total, key=total.__getitem__)
        assert [run.seed for run in runs] == [0, 1]
        for run in runs:
            folder = out / "runs" / "std-1" / arm / f"lr-{run.rate:g}" / f"seed-{run.seed}"
            summary = json.loads((folder / "summary.json").read_text())
            assert run.loss == pytest.approx(summary["validation_loss"], rel=1e-6)
            config = json.loads((folder / "config.json").read_text())["config"]
            assert config["optimizer"]["adamw_lr"] == pytest.approx(3e-3 * run.rate)
    assert record.versions["commit"] and record.hours > 0 and record.settings["grid"] == [1, 30]
    of_residual, of_full = ([run.loss for run in record.of(arm)] for arm in record.arms)
    difference = sum(a - b for a, b in zip(of_full, of_residual, strict=True)) / 2
    assert float(tables(record)[0].rows[1][2]) == pytest.approx(difference, abs=6e-5)


def tried(rate: float, seed: int, loss: float, status: str = "done") -> RunResult:
    return RunResult(arm="full", at="std 1", part="tuning", rate=rate, seed=seed, loss=loss, status=status)


def test_the_best_two_rates_play_off_on_more_seeds(tmp_path):
    grid = [tried(0.25, 1000, 2.2), tried(0.5, 1000, 2.1), tried(1.0, 1000, 2.0), tried(2.0, 1000, 0.0, "diverged")]
    planned = plan(AblationOptions(arms=("residual", "full"), tuning_seeds=3), tmp_path)
    playoff = ablate._playoff(planned, {("full", "std 1"): grid})
    assert [(one.rate, one.seed) for one in playoff] == [(1.0, 1001), (0.5, 1001), (1.0, 1002), (0.5, 1002)]
    more = [tried(1.0, 1001, 2.3), tried(0.5, 1001, 2.1)]
    assert choose([*grid, *more]) == 0.5
    assert choose([*grid, more[0], tried(0.5, 1001, 0.0, "diverged")]) == 1.0
    assert choose([*grid, tried(1.0, 1001, 9.0), tried(0.5, 1001, 9.0)]) == 1.0, "0.25 has one seed only"
    assert choose(grid[3:]) is None
