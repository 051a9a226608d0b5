"""Sweeps that go on from their record alone, as on another machine, and records that they refuse to go on with."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from attnres.cli import main
from attnres.lab.record import read_record, write_record
from attnres.lab.scaling.record import ScalingRecord
from tests.cli.conftest import forget_rules, run_jobs_here

SMALL = [*("--model.context", "16", "--batch-size", "1", "--validation-tokens", "32")]
SIZES = ["--sizes", "1x16", "2x16", "1x32", "--tokens-per-parameter", "0.01", "--seeds", "1", "--grid", "0.5", "1"]
RULE = """
from attnres.connections.full import Full

class Mine(Full):
    pass
"""


@pytest.fixture(scope="module", autouse=True)
def no_rate_beyond_the_grid():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("run", "rates"):
            patch.setattr(f"attnres.lab.scaling.{module}.MOST_BEYOND", 0)
        yield


class Machine:
    """Trains here and counts what it trains; stops as by Ctrl-C before the run of that number."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.stop_at: int | None = None

    def __call__(self, jobs, workers, watch):
        states = []
        for job in jobs:
            if len(self.trained) == self.stop_at:
                raise KeyboardInterrupt
            self.trained.append(job.name)
            states += run_jobs_here([job], workers, watch)
        return states


@pytest.fixture
def machine(monkeypatch, no_page) -> Machine:
    made = Machine()
    monkeypatch.setattr("attnres.train.sweep.run_jobs", made)
    return made


@pytest.fixture
def attnres(tmp_path, corpus, capsys):
    """Run an experiment of tiny runs, with its record beside them."""

    def call(command: str, *arguments: str) -> tuple[int, str]:
        places = ["--out", str(tmp_path / "runs"), "--record", str(tmp_path / "record.json")]
        code = main([command, "residual", *arguments, *SMALL, *corpus, *places])
        told = capsys.readouterr()
        return code, told.out + told.err

    return call


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus) -> ScalingRecord:
    out = tmp_path_factory.mktemp("undisturbed")
    places = ["--out", str(out / "runs"), "--record", str(out / "record.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)
        patch.setattr("attnres.cli._experiment.write_results", lambda records, out: out)
        assert main(["scaling", "residual", "full", *SIZES, *SMALL, *corpus, *places]) == 0
    return read_record(out / "record.json", ScalingRecord)


def ended(record: ScalingRecord, part: str) -> dict[tuple, float]:
    return {(run.arm, run.size, run.seed, run.factor): run.loss for run in getattr(record, part)}


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [3, 10, 15])
def test_a_sweep_that_was_stopped_anywhere_goes_on_on_another_machine(stop_at, machine, attnres, tmp_path, undisturbed):
    """The folder of all runs is lost, and the record was written when the sweep was stopped."""
    machine.stop_at = stop_at
    code, told = attnres("scaling", "full", *SIZES)
    assert code == 130 and "stopped" in told
    kept = read_record(tmp_path / "record.json", ScalingRecord)
    assert len(kept.grid) + len(kept.runs) + len(kept.check) == stop_at
    shutil.rmtree(tmp_path / "runs")
    machine.stop_at = None
    code, told = attnres("scaling", "full", *SIZES)
    assert code == 0 and "are in" in told, told
    record = read_record(tmp_path / "record.json", ScalingRecord)
    for part in ("grid", "runs", "check"):
        assert ended(record, part) == pytest.approx(ended(undisturbed, part), rel=1e-6)
    assert [run.size for run in record.runs] == [run.size for run in undisturbed.runs]
    assert len(machine.trained) == len(set(machine.trained)), "nothing is trained twice"
    again = machine.trained.copy()
    assert attnres("scaling", "full", *SIZES)[0] == 0 and machine.trained == again
    assert read_record(tmp_path / "record.json", ScalingRecord) == record


def test_a_run_that_diverged_is_not_trained_again(machine, attnres, tmp_path, undisturbed):
    first = dataclasses.replace(undisturbed.grid[0], status="diverged", error="not finite")
    write_record(tmp_path / "record.json", dataclasses.replace(undisturbed, grid=(first, *undisturbed.grid[1:])))
    attnres("scaling", "full", *SIZES)
    assert not any("seed 1000" in name for name in machine.trained), "the rates are known"


@pytest.mark.slow
def test_a_record_of_rates_alone_is_drawn(machine, attnres, tmp_path, capsys):
    machine.stop_at = 3
    attnres("scaling", "full", *SIZES)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page")]) == 0
    assert "Fewer than 3 sizes are done" in (tmp_path / "page" / "results.html").read_text()


def test_an_arm_joins_a_scaling_record(machine, attnres, tmp_path, undisturbed):
    """And those that a later call does not name stay in it."""
    write_record(tmp_path / "record.json", undisturbed)
    assert attnres("scaling", "x0", *SIZES)[0] == 0
    assert {name.split(",")[0] for name in machine.trained} == {"x0"}
    record = read_record(tmp_path / "record.json", ScalingRecord)
    assert set(record.arms) == {"residual", "full", "x0"}
    assert set(undisturbed.runs) < set(record.runs) and len(record.runs) == 9


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--tokens-per-parameter", "0.02"], "another --tokens-per-parameter"),
        (["--sizes", "1x16", "3x16", "1x32"], "another pair of smallest sizes"),
        (["--grid", "0.5", "1", "2"], "another grid"),
        (["--optimizer.lr", "0.5"], "another --optimizer.lr"),
    ],
)
def test_another_scaling_sweeps_record_is_refused(options, what, machine, attnres, tmp_path, undisturbed):
    write_record(tmp_path / "record.json", undisturbed)
    before = (tmp_path / "record.json").read_bytes()
    code, told = attnres("scaling", "full", *SIZES, *options)
    assert code == 2 and f"holds a sweep with {what}; repeat its options" in told and not machine.trained
    assert (tmp_path / "record.json").read_bytes() == before


def test_what_each_size_has_of_its_own_makes_no_other_sweep(machine, attnres, tmp_path, undisturbed):
    write_record(tmp_path / "record.json", undisturbed)
    code, told = attnres("scaling", "full", *SIZES, "--evaluate-every", "7", "--model.dim", "128")
    assert code == 0 and not machine.trained, told


EXPERIMENTS = {
    "scaling": ["--sizes", "1x16", "2x16", "1x32", "--tokens-per-parameter", "0.01", "--seeds", "1"],
    "ablate": [*("--seeds", "1", "--grid", "1", "--embedding-stds", "1"), *("--steps", "2", "--model.layers", "1")],
}
EXPERIMENTS["ablate"] += ["--model.dim", "16", "--model.heads", "1"]


@pytest.mark.parametrize("command", [pytest.param("scaling", marks=pytest.mark.slow), "ablate"])
def test_a_rule_whose_file_has_changed_is_refused(command, machine, attnres, tmp_path, monkeypatch):
    """Its runs in the record are of another rule. Others go on."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(RULE)
    options = EXPERIMENTS[command]
    code, told = attnres(command, "mine.py:Mine", *options)
    assert code == 0, told
    Path("mine.py").write_text(RULE + "\n# another one\n")
    forget_rules()
    machine.trained.clear()
    code, told = attnres(command, "mine.py:Mine", *options)
    assert code == 2 and "the file of mine.py:Mine has changed since its runs in" in told and not machine.trained
    assert attnres(command, "full", *options)[0] == 0 and machine.trained
    code, told = attnres(command, "full", "mine.py:Mine", *options)
    assert code == 2 and "has changed since" in told, "an arm that a call did not name keeps its file's hash"
    Path("mine.py").write_text(RULE)
    forget_rules()
    assert attnres(command, "full", "mine.py:Mine", *options)[0] == 0


def test_a_record_on_another_text_is_refused(machine, attnres, tmp_path, undisturbed):
    write_record(
        tmp_path / "record.json",
        dataclasses.replace(undisturbed, corpus=dict(undisturbed.corpus) | {"sha256": "f" * 64}),
    )
    code, told = attnres("scaling", "x0", *SIZES)
    assert code == 2 and "holds runs on another text" in told and "hash begins with ffffffff" in told
    assert not machine.trained


@pytest.mark.parametrize("command", [pytest.param("scaling", marks=pytest.mark.slow), "ablate"])
def test_options_of_many_digits_are_found_again(command, machine, attnres):
    options = [*EXPERIMENTS[command], "--grid", "0.70710678118", "--optimizer.lr", "0.0014142136"]
    options += ["--embedding-stds", "0.03535533906"] if command == "ablate" else []
    assert attnres(command, "full", *options)[0] == 0
    machine.trained.clear()
    code, told = attnres(command, "full", *options)
    assert code == 0 and not machine.trained, told
