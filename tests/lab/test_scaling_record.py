"""What a sweep does with the record of an earlier call; losses are made up."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnres.errors import UsageError
from attnres.lab.outcome import Outcome
from attnres.lab.record import read_record
from attnres.lab.scaling import run as sweep
from attnres.lab.scaling.plan import Options, plan
from attnres.lab.scaling.rates import CHECKED_AT, rounded
from attnres.lab.scaling.record import ScalingRecord
from attnres.train.sweep import JobState
from tests.lab import sample


@dataclass
class Machine:
    """Trains nothing: every loss has its optimum at the rate `best`, and runs with `broken` in their names fail."""

    best: float = 1.0
    broken: str | None = None
    trained: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def say(self, line):
        self.said.append(line)

    def during(self, what):
        return nullcontext()

    def train(self, jobs, labels, workers, costs, later):
        self.trained += [job.name for job in jobs]
        states = [JobState(job, status="done") for job in jobs]
        return [self.fail(state) if self.broken and self.broken in state.job.name else state for state in states]

    def fail(self, state):
        state.status, state.error = "failed", "killed"
        return state

    def outcome(self, folder, state) -> Outcome:
        config = state.job.config
        if state.status != "done":
            return Outcome(status="failed", error=state.error)
        loss = 3 - 0.3 * math.log(config.model.dim) + 0.1 * math.log(config.optimizer.lr / (0.02 * self.best)) ** 2
        return Outcome(status="done", loss=loss, step_seconds=0.1, curve=((0, 5.0), (config.steps, loss)))


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    header = {"versions": {}, "machine": {}, "corpus": {"sha256": "a" * 64}, "config": {"optimizer": {"decay": 0.25}}}
    monkeypatch.setattr(sweep, "open_corpus", lambda _: SimpleNamespace(vocab_size=256, sha256="a" * 64))
    monkeypatch.setattr(sweep, "check_length", lambda *_: None)
    monkeypatch.setattr(sweep, "outcome_of", made.outcome)
    monkeypatch.setattr(sweep, "run_record_of", lambda _: header)
    monkeypatch.setattr(sweep, "training_flops", lambda model: 1e6 * model.dim)
    return made


def go(machine: Machine, file: Path, seeds: int = 2, **others):
    options = Options(arms=("residual", "block"), sizes=("8x32", "8x48", "8x64"), seeds=seeds, grid=(0.5, 1.0, 2.0))
    return sweep.run(plan(replace(options, **others), file.parent / "runs"), file, machine)


def test_no_rate_is_chosen_while_a_run_of_the_grid_is_missing(machine, tmp_path):
    file = tmp_path / "record.json"
    machine.broken = "lr x2"
    ended = go(machine, file)
    assert len(ended.record.grid) == 12 and ended.record.runs == () == ended.record.check
    assert ended.failed.count("killed") == 4 and "the same command tries them again" in ended.notes[0]
    machine.broken, machine.trained = None, []
    ended = go(machine, file)
    assert machine.trained[:4] == [name for name in machine.trained if "lr x2, seed 1000" in name]
    assert not ended.failed and len(ended.record.runs) == 12 and len(ended.record.check) == 4


def test_a_mean_is_of_runs_at_one_rate(machine, tmp_path):
    """A record from before a grid had to be whole may have runs at a rate that is not the grid's."""
    file = tmp_path / "record.json"
    go(machine, file)
    record = json.loads(file.read_text())
    for run in record["runs"] + record["check"]:
        if run["arm"] == "block" and run["size"] != "8x32":
            run["factor"] = 1.5 * run.get("factor", 1.0)
    file.write_text(json.dumps(record))
    machine.trained = []
    ended = go(machine, file, seeds=1)
    assert len(machine.trained) == 4, "the first seed of two sizes, and the check of one at two rates"
    rates = {(run.arm, run.size): run.factor for run in ended.record.runs}
    assert all(run.factor == rates[run.arm, run.size] for run in ended.record.runs)
    checked = {(run.arm, run.factor) for run in ended.record.check}
    assert checked == {(arm, rounded(rates[arm, "8x64"] * by)) for arm in ("residual", "block") for by in CHECKED_AT}
    (line,) = {line for line in machine.said if "block, 8x48, seed 1" in line}
    assert "left out, it ran at x" in line


def test_a_record_of_before_settings_were_kept_is_not_replaced(machine, tmp_path):
    file = tmp_path / "record.json"
    go(machine, file)
    record = json.loads(file.read_text())
    del record["sweep"]
    file.write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"record\.json is from before a sweep's settings were kept"):
        go(machine, file)
    assert json.loads(file.read_text()) == record


def test_steps_are_timed_of_all_that_the_record_has(machine, tmp_path, monkeypatch):
    file = tmp_path / "record.json"
    go(machine, file)
    before = read_record(file, ScalingRecord)
    monkeypatch.setattr(sweep, "median_steps", lambda *_: pytest.fail("something was timed"))
    for fewer, missing in (({"arms": ("residual", "full")}, "block"), ({"sizes": ("8x32", "8x48", "8x80")}, "8x64")):
        with pytest.raises(UsageError, match=f"--time-steps times all .* name {missing} in the command, too"):
            go(machine, file, time_steps=True, **fewer)
    assert read_record(file, ScalingRecord) == before


def test_hours_on_a_gpu_are_told_apart(tmp_path):
    made = sample.scaling() | {"hours": 3.0}
    largest = [run for run in made["runs"] if run["size"] == "2"]

    def computing() -> str:
        (path := tmp_path / "scaling.json").write_text(json.dumps(made))
        return read_record(path, ScalingRecord).origin["computing"]

    assert computing() == "3.0 hours of one thread"
    for run in largest:
        run |= {"gpu": "H100", "step_seconds": 90.0}  # 10 steps each
    assert computing() == "2.0 hours of one thread, 1.0 of 4 runs of 2 on H100"
    for run in made["runs"]:
        run["gpu"] = "H100"
    assert computing() == "3.0 hours of one thread"


@pytest.mark.parametrize("config", [{}, {"optimizer": {"decay": "late"}}])
def test_a_record_that_does_not_say_how_the_rate_decays_is_damaged(config, tmp_path):
    (path := tmp_path / "scaling.json").write_text(json.dumps(sample.scaling() | {"config": config}))
    with pytest.raises(UsageError, match="damaged record of scaling, whose 'config'"):
        read_record(path, ScalingRecord)
