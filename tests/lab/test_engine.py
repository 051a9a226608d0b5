"""The engine: nothing is trained twice, whatever stops it, and only what compares goes on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from attnres.errors import UsageError
from attnres.lab.engine import Incomplete, beyond
from attnres.lab.experiments import scaling
from attnres.lab.experiments.scaling import ScalingOptions, plan
from attnres.lab.runs import RunResult, read_record, write_record
from tests.lab.machine import Machine

ALL = 12 + 12
"""Runs of the grid, and those reported."""


def go(machine: Machine, file: Path, **others):
    options = ScalingOptions(arms=("residual", "block"), sizes=("8x32", "8x48", "8x64"), seeds=2, grid=(0.5, 1.0, 2.0))
    return scaling.run(plan(replace(options, **others), file.parent / "runs"), file, machine)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "scaling.json"


@pytest.mark.parametrize("stop_at", [3, 14, 23])
def test_a_sweep_that_was_stopped_anywhere_goes_on(machine, file, stop_at):
    """From its record alone, as on another machine, which is there after kill -9, too."""
    machine.stop_at = stop_at
    with pytest.raises(KeyboardInterrupt):
        go(machine, file)
    assert len(read_record(file, "scaling").runs) == stop_at
    machine.stop_at = None
    record = go(machine, file).record
    assert len(machine.trained) == len(set(machine.trained)) == len(record.runs) == ALL, "nothing is trained twice"
    assert record.hours * 3600 == pytest.approx(sum(0.1 * run.steps for run in record.runs), rel=1e-6)
    again = go(machine, file).record
    assert len(machine.trained) == ALL and again == dataclasses.replace(record, commits=again.commits)


def test_a_run_is_recorded_when_it_ends(machine, file, monkeypatch):
    """kill -9 leaves no time to write."""
    kept = []
    monkeypatch.setattr("attnres.lab.engine.write_record", lambda path, record: kept.append(len(record.runs)))
    machine.stop_at = 3
    with pytest.raises(KeyboardInterrupt):
        go(machine, file)
    assert kept[:3] == [1, 2, 3]


def test_a_run_that_diverged_is_not_trained_again_and_one_that_failed_is(machine, file):
    record = go(machine, file).record
    diverged, failed = record.of("block", "8x64")
    changed = {diverged.key: "diverged", failed.key: "failed"}
    runs = tuple(replace(run, status=changed.get(run.key, run.status)) for run in record.runs)
    write_record(file, replace(record, runs=runs))
    machine.trained.clear()
    go(machine, file)
    assert machine.trained == [failed.name]


def test_progress_is_what_is_done_of_the_whole(machine, file):
    machine.stop_at = 5
    with pytest.raises(KeyboardInterrupt):
        go(machine, file)
    machine.stop_at = None
    machine.told.clear()
    go(machine, file)
    assert all(before[0] <= after[0] <= after[1] * 1.0001 for before, after in itertools.pairwise(machine.told))
    assert machine.told[0][0] == 0 and machine.told[-1][0] == pytest.approx(machine.told[-1][1])


def test_no_rate_is_chosen_while_a_run_of_the_grid_is_missing(machine, file):
    machine.broken = "lr x2"
    with pytest.raises(Incomplete) as stop:
        go(machine, file)
    (ended,) = stop.value.args
    assert len(ended.record.of(part="tuning")) == 12 == len(ended.record.runs)
    assert ended.failed.count("killed") == 4 and "the same command tries them again" in ended.notes[0]
    machine.broken, machine.trained = None, []
    ended = go(machine, file)
    assert sorted(machine.trained[:4]) == sorted(name for name in machine.trained if "lr x2, seed 1000" in name)
    assert not ended.failed and len(ended.record.of()) == 12


def test_a_mean_is_of_runs_at_one_rate(machine, file):
    """A record may have runs at a rate that is not the grid's."""
    record = go(machine, file).record
    moved = [run.part != "tuning" and run.arm == "block" and run.at != "8x32" for run in record.runs]
    runs = [replace(run, rate=1.5 * run.rate) if other else run for run, other in zip(record.runs, moved, strict=True)]
    write_record(file, replace(record, runs=tuple(runs)))
    machine.trained = []
    ended = go(machine, file)
    assert len(machine.trained) == 4, "two seeds of two sizes"
    rates = {(run.arm, run.at): run.rate for run in ended.record.of()}
    assert all(run.rate == rates[run.arm, run.at] for run in ended.record.of())
    assert any("left out, it has another learning rate than now: block, 8x48" in line for line in machine.said)


def test_an_arm_joins_and_those_that_are_not_named_stay(machine, file):
    before = go(machine, file).record
    machine.trained.clear()
    after = go(machine, file, arms=("residual", "full")).record
    assert {name.split(",")[0] for name in machine.trained} == {"full"}
    assert set(before.runs) < set(after.runs) and after.arms == ("residual", "full", "block")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"tokens_per_parameter": 0.2}, "another tokens_per_parameter"),
        ({"config": replace(scaling.DEFAULTS, batch_size=8)}, "another batch_size"),
    ],
)
def test_another_sweep_is_refused(machine, file, options, what):
    go(machine, file)
    machine.trained.clear()
    with pytest.raises(UsageError, match=f"holds a sweep with {what}; repeat its options"):
        go(machine, file, **options)
    assert not machine.trained


def test_what_decides_no_loss_may_differ(machine, file):
    go(machine, file)
    machine.trained.clear()
    config = replace(scaling.DEFAULTS, evaluate_every=7, keep=9, model=replace(scaling.DEFAULTS.model, dim=128))
    go(machine, file, config=config)
    assert not machine.trained


def test_a_record_on_another_text_is_refused(machine, file):
    record = go(machine, file).record
    for changed, message in (
        ({"corpus": {"sha256": "f" * 64}}, "holds runs on another text.*hash begins with ffffffff"),
        ({"files": {"block": "0"}}, "the file of block has changed since its runs"),
    ):
        write_record(file, replace(record, **changed))
        with pytest.raises(UsageError, match=message):
            go(machine, file)


def test_a_loss_that_is_no_number_is_written_and_read(machine, file):
    record = go(machine, file).record
    nan = replace(record, runs=(replace(record.runs[0], loss=math.nan, status="diverged"),), arms=("residual",))
    write_record(file, nan)
    assert json.loads(file.read_text())["runs"][0].get("loss") is None
    assert math.isnan(read_record(file, "scaling").runs[0].loss)


def test_a_damaged_record_is_named(machine, file):
    go(machine, file)
    data = json.loads(file.read_text())
    data["runs"].append(data["runs"][0])
    file.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"damaged record of scaling.*2 times.*put a copy back"):
        read_record(file, "scaling")
    with pytest.raises(UsageError, match="not a record of dynamics"):
        read_record(file, "dynamics")


def tried(rate: float, loss: float) -> RunResult:
    status = "done" if math.isfinite(loss) else "diverged"
    return RunResult(arm="full", rate=rate, seed=0, loss=loss, status=status)


@pytest.mark.parametrize(
    ("losses", "following"),
    [
        ({0.25: 3.0, 0.5: 2.0, 1.0: 3.0}, None),
        ({0.25: 1.0, 0.5: 2.0, 1.0: 3.0}, 0.125),
        ({0.25: 3.0, 0.5: 2.0, 1.0: 1.0}, 2.0),
        ({0.25: 1.0, 0.5: 2.0, 1.0: math.inf}, 0.125),
        ({0.25: math.inf, 0.5: math.inf}, None),
        ({0.1: 4.0, 0.2: 3.0, 0.8: 2.0, 1.6: 1.0}, 3.2),
        ({1.0: 1.0}, None),
    ],
)
def test_a_grid_goes_on_where_its_best_lies_at_an_edge(losses, following):
    assert beyond([tried(rate, loss) for rate, loss in losses.items()]) == following
