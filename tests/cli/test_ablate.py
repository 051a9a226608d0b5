from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from attnres.cli import main
from attnres.lab import steptime
from attnres.lab.engine import choose
from attnres.lab.experiments import ablation
from attnres.lab.experiments.ablation import DEFAULTS, Options, plan, tables
from attnres.lab.runs import Record, Run, read_record
from attnres.model.flops import training_flops
from attnres.train import environment
from tests.cli.conftest import TINY, run_jobs_but, run_jobs_here

STEPS = [*TINY[:6], "--steps", "3", "--batch-size", "2", "--evaluate-every", "3", "--validation-tokens", "64"]


pytestmark = pytest.mark.usefixtures("trained_here", "no_page")


@pytest.fixture
def ablate(capsys):
    def call(*arguments):
        code = main(["ablate", *map(str, arguments)])
        return code, capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def sweep(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("ablation")
    options = [*STEPS, *corpus, "--seeds", "2", "--embedding-stds", "1", "--out", out / "runs"]
    options = [str(option) for option in (*options, "--record", out / "record.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)
        patch.setattr("attnres.cli._experiment.write_results", lambda records, out: out)
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


def test_arms_that_are_recorded_are_not_run_again_and_new_ones_join(sweep, ablate):
    out, options = sweep
    before = read_record(out / "record.json", "ablation")
    code, told = ablate("residual", "full", "x0", *options, "--grid", "1", "30")
    assert code == 0 and "final runs: 4 of 6 runs are there already" in told.out and "tuning: 2 runs" in told.out
    after = read_record(out / "record.json", "ablation")
    assert set(before.runs) < set(after.runs) and after.arms == ("residual", "full", "x0")
    assert after.hours > before.hours


def test_another_sweeps_record_is_refused(sweep, ablate):
    code, told = ablate("residual", "full", *sweep[1], "--grid", "1")
    assert code == 2 and "another grid" in told.err and told.err.count("\n") == 1


def test_a_budget_says_what_it_leaves_out(tmp_path, ablate, corpus):
    options = [*STEPS, *corpus, "--out", tmp_path, "--record", tmp_path / "r.json"]
    code, told = ablate("residual", "full", "--budget", "1s", *options)
    assert code == 2 and "too small for any arm" in told.err and "left out: full" in told.out
    assert not (tmp_path / "r.json").exists()


def test_a_budget_counts_what_may_come_beyond_the_edge(tmp_path, monkeypatch):
    """A cell has 3 runs of the grid, 2 of the best two again and 3 seeds; a run takes a minute."""
    monkeypatch.setattr("attnres.lab.steptime.seconds_of_a_run", lambda config, corpus: 60.0)
    progress = SimpleNamespace(say=lambda line: None, during=lambda what: nullcontext())
    for wider, grid, runs in ((0, (0.5, 1.0, 2.0), 8), (4, (0.5, 1.0, 2.0), 12), (4, (1.0,), 3)):
        options = Options(arms=("residual", "full"), embedding_stds=(1.0,), wider=wider, grid=grid, workers=1)
        planned = replace(plan(options, tmp_path), seconds=60.0 * (2 * runs - 1))
        bought = ablation._within_budget(planned, SimpleNamespace(ran={}, progress=progress, corpus=None))
        assert [arm for arm, _ in bought] == ["residual"]
        assert (
            ablation._within_budget(
                replace(planned, seconds=120.0 * runs), SimpleNamespace(ran={}, progress=progress, corpus=None)
            )
            == planned.cells
        )


def test_diverged_runs_are_kept_and_never_chosen(tmp_path, ablate, corpus):
    """A learning rate of 1e38: the run stops on a number that is not finite."""
    record = tmp_path / "r.json"
    options = [*STEPS, *corpus, "--seeds", "1", "--embedding-stds", "1", "--out", tmp_path, "--record", record]
    code, told = ablate("residual", "full", *options, "--grid", "1", "1e38")
    assert code == 0, told.err
    written = read_record(record, "ablation")
    for arm in written.arms:
        assert sorted(run.status for run in written.of(arm, part="tuning")) == ["diverged", "done", "done"]
    assert rates(written) == {"residual": 1.0, "full": 1.0}


@pytest.mark.slow
def test_more_seeds_are_added_and_none_is_lost(tmp_path, ablate, corpus):
    record = tmp_path / "r.json"
    options = [*STEPS, *corpus, "--grid", "1", "--embedding-stds", "1", "--out", tmp_path, "--record", record]

    def seeds(number: int) -> set[tuple[str, int]]:
        code, told = ablate("residual", "full", *options, "--seeds", str(number))
        assert code == 0, told.err
        return {(run.arm, run.seed) for run in read_record(record, "ablation").runs}

    assert seeds(1) == {("residual", 0), ("full", 0)}
    both = seeds(2)
    assert len(both) == 4
    written = read_record(record, "ablation")
    assert written.hours * 3600 == pytest.approx(sum(run.step_seconds * 3 for run in written.runs), rel=1e-4)
    assert seeds(1) == both and read_record(record, "ablation") == written


def test_a_tuning_run_that_was_killed_is_made_up_for(tmp_path, ablate, corpus, monkeypatch):
    """The better of two rates is killed while it is tried: no rate is chosen until the same command again."""
    options = [*STEPS, *corpus, "--seeds", "1", "--embedding-stds", "1", "--tuning-seeds", "1", "--out", tmp_path]
    with monkeypatch.context() as patch:
        patch.setattr("attnres.train.sweep.run_jobs", run_jobs_but(lambda name: "lr x30" in name))
        code, told = ablate("residual", "full", *options, "--grid", "1", "30")
    assert (
        code == 1 and "full, std 1, lr x30, seed 1000: killed" in told.err and "Learning rates are chosen" in told.out
    )
    assert not read_record(tmp_path / "ablation.json", "ablation").of()
    assert ablate("residual", "full", *options, "--grid", "1", "30")[0] == 0
    record = read_record(tmp_path / "ablation.json", "ablation")
    assert rates(record) == {"residual": 30, "full": 30} and {run.status for run in record.runs} == {"done"}


@pytest.mark.slow
def test_the_record_names_every_commit_that_its_runs_were_made_at(tmp_path, ablate, corpus, monkeypatch):
    options = [*STEPS, *corpus, "--grid", "1", "--embedding-stds", "1", "--out", tmp_path]
    for commit, arms in (("aaa", ("residual", "full")), ("bbb", ("residual", "full", "x0"))):
        monkeypatch.setattr(environment, "_commit", lambda commit=commit: commit)
        code, told = ablate(*arms, *options, "--seeds", "1", "--record", tmp_path / "r.json")
        assert code == 0, told.err
    record = read_record(tmp_path / "r.json", "ablation")
    assert [run.commit for run in record.runs] == ["aaa", "aaa", "bbb"]
    assert record.origin["commit"] == "aaa, bbb"


def tried(rate: float, seed: int, loss: float, status: str = "done") -> Run:
    return Run(arm="full", at="std 1", part="tuning", rate=rate, seed=seed, loss=loss, status=status)


def test_the_first_arm_is_the_baseline_of_what_is_there_too(sweep, ablate):
    out, options = sweep
    kept = (out / "record.json").read_text()
    code, printed = ablate("full", "residual", *options, "--grid", "1", "30")
    assert code == 0 and "difference to full" in printed.out
    code, printed = ablate("residual", "full", *options, "--grid", "1", "30")
    assert code == 0 and "difference to residual" in printed.out and (out / "record.json").read_text() == kept


@pytest.mark.slow
def test_a_grid_goes_on_where_the_best_lies_at_its_edge(ablate, corpus, tmp_path):
    """At a few steps of a tiny model the higher of two small rates is the better one, and a higher one still."""
    options = [*STEPS, *corpus, "--seeds", "1", "--embedding-stds", "1", "--workers", "1", "--tuning-seeds", "1"]
    options += ["--grid", "0.01", "0.1", "--wider", "1", "--out", tmp_path]
    code, printed = ablate("residual", "full", *options)
    assert code == 0 and "6 runs, 0.0 million tokens in all, and up to 2 runs" in printed.out
    record = read_record(tmp_path / "ablation.json", "ablation")
    for arm in record.arms:
        assert sorted(run.rate for run in record.of(arm, part="tuning")) == [0.01, 0.1, 1.0]
    assert rates(record) == {"residual": 1.0, "full": 1.0}
    code, printed = ablate("residual", "full", *options, "--wider", "2")
    assert code == 2 and "holds a sweep with another wider" in printed.err


def test_the_best_two_rates_play_off_on_more_seeds(tmp_path):
    grid = [tried(0.25, 1000, 2.2), tried(0.5, 1000, 2.1), tried(1.0, 1000, 2.0), tried(2.0, 1000, 0.0, "diverged")]
    planned = plan(Options(arms=("residual", "full"), tuning_seeds=3), tmp_path)
    playoff = ablation._playoff(planned, {("full", "std 1"): grid})
    assert [(one.rate, one.seed) for one in playoff] == [(1.0, 1001), (0.5, 1001), (1.0, 1002), (0.5, 1002)]
    more = [tried(1.0, 1001, 2.3), tried(0.5, 1001, 2.1)]
    assert choose([*grid, *more]) == 0.5
    assert choose([*grid, more[0], tried(0.5, 1001, 0.0, "diverged")]) == 1.0
    assert choose([*grid, tried(1.0, 1001, 9.0), tried(0.5, 1001, 9.0)]) == 1.0, "0.25 has one seed only"
    assert choose(grid[3:]) is None


def test_arms_may_spend_the_same_operations(tmp_path):
    """Counted apart from the plan: no arm spends more than half a step more or less than the first one."""
    vocabulary = 2048  # not the model's own: a tokenizer's
    config = replace(DEFAULTS, model=replace(DEFAULTS.model, layers=6, dim=32))
    options = Options(arms=("residual", "block", "full"), equal="operations", config=config)
    costs = steptime.operations_of_steps(options.arms, options.config, SimpleNamespace(vocab_size=vocabulary))
    planned = replace(plan(options, tmp_path), costs=costs)
    spent = {}
    for arm, at in planned.cells[:3]:
        config = planned.run(arm, at, 1.0, 0).config
        assert config.evaluate_every == config.save_every == config.steps
        spent[arm] = config.steps, training_flops(replace(config.model, vocab_size=vocabulary))
    assert spent["residual"][0] == DEFAULTS.steps > spent["block"][0] > spent["full"][0]
    budget = DEFAULTS.steps * spent["residual"][1]
    assert all(abs(steps * each - budget) <= each / 2 for steps, each in spent.values())


def test_an_arm_must_have_a_step(ablate, corpus, tmp_path):
    sizes = ["--model.dim", "16", "--model.layers", "4", "--model.heads", "1", "--model.context", "8", *corpus]
    options = ["--steps", "1", "--equal", "operations", *sizes, "--out", tmp_path]
    code, printed = ablate("residual", "hc:streams=64", *options)
    assert code == 2 and "1 steps of residual cost less than one of hc:streams=64; raise --steps" in printed.err


@pytest.mark.slow
def test_a_budget_counts_a_tokenizers_vocabulary(ablate, corpus, tmp_path):
    options = ["--data.tokenizer", "bpe:300", "--seeds", "1", "--grid", "1", "--embedding-stds", "1", *STEPS, *corpus]
    code, printed = ablate("residual", "full", *options, "--workers", "1", "--budget", "5m", "--out", tmp_path)
    assert code == 0 and "the budget is enough for 2 of 2 arms" in printed.out


@pytest.mark.slow
def test_the_table_says_the_steps_where_they_are_not_equal(ablate, tmp_path):
    options = ["--seeds", "1", "--grid", "1", "--embedding-stds", "1", "--workers", "1", *STEPS, "--steps", "40"]
    code, printed = ablate("residual", "full", *options, "--equal", "operations", "--out", tmp_path)
    assert code == 0 and "final runs: 2 runs of 38 to 40 steps" in printed.out
    (table,) = tables(read_record(tmp_path / "ablation.json", "ablation"))[:1]
    assert table.columns[5] == "steps" and table.rows[0][5] == "40" > table.rows[1][5]
    assert "spends the operations of the first one" in table.note
    code, printed = ablate("residual", "full", *options, "--out", tmp_path)
    assert code == 2 and "holds a sweep with another equal" in printed.err
    code, printed = ablate("full", "residual", "block", *options, "--equal", "operations", "--out", tmp_path)
    assert code == 2 and "holds a sweep with another spends" in printed.err


@pytest.mark.slow
def test_arms_may_spend_the_same_seconds(ablate, corpus, tmp_path, monkeypatch):
    """On a clock by which a step of full takes twice as long as one of residual, and one of block four times."""
    clock, timed = [0.0], []

    class Timed:
        def __init__(self, config, corpus):
            self.arm = config.model.connection

        def train_step(self):
            timed.append(self.arm)
            clock[0] += {"residual": 0.5, "full": 1.0, "block": 2.0}[self.arm]

    monkeypatch.setattr("attnres.lab.steptime.Trainer", Timed)
    monkeypatch.setattr("attnres.lab.steptime.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    options = ["--seeds", "1", "--grid", "1", "--embedding-stds", "1", "--workers", "1", *STEPS, *corpus]
    options += ["--steps", "8", "--equal", "seconds", "--out", tmp_path]
    assert ablate("residual", "full", *options)[0] == 0
    assert timed == ["residual", "full"] * 33
    timed.clear()
    code, _ = ablate("residual", "full", "block", *options)
    assert code == 0 and timed == ["residual", "block"] * 33, "what was measured is kept, and the first measured beside"
    record = read_record(tmp_path / "ablation.json", "ablation")
    assert record.found["costs"] == {"residual": 1.0, "full": 2.0, "block": 4.0}
    assert {run.arm: run.steps for run in record.runs} == {"residual": 8, "full": 4, "block": 2}
    assert "spends the seconds of the first one" in tables(record)[0].note
