"""The command of the retrofit: what it trains, what it records, and how it goes on."""

from __future__ import annotations

import json
import shutil

import pytest

from attnres.cli import main
from attnres.lab.record import read_record
from attnres.lab.retrofit.claims import lost_at_start
from attnres.lab.retrofit.record import RetrofitRecord
from attnres.model.flops import training_flops
from attnres.train import config_from_json
from tests.cli.conftest import TINY, run_jobs_but, run_jobs_here

ARMS = ("residual", "block", "block@1")
SMALL = [*TINY, "--model.heads", "2", "--model.backbone", "lab", "--steps", "32", "--optimizer.warmup", "0"]


pytestmark = [pytest.mark.usefixtures("trained_here", "no_page"), pytest.mark.slow]


@pytest.fixture(scope="module")
def sweep(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("retrofit")
    options = [*SMALL, *corpus, "--seeds", "2", "--fractions", "0.5", "0.25", "--grid", "0.5", "1", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)
        patch.setattr("attnres.cli._experiment.write_results", lambda records, out: out)
        assert main(["retrofit", *ARMS, *options]) == 0
    return out, options


def test_every_arm_goes_on_from_the_plain_model_of_its_seed(sweep):
    out, _ = sweep
    record = read_record(out / "retrofit.json", RetrofitRecord)
    assert [arm.name for arm in record.arms] == list(ARMS) and record.fractions == (0.25, 0.5)
    assert [arm.connection for arm in record.arms[1:]] == ["block:total=true"] * 2
    assert [run.seed for run in record.plain] == [0, 1, 1000]
    plain = {run.seed: run.loss for run in record.plain}
    for run in (*record.runs, *record.tuning):
        assert run.curve[0][1] == pytest.approx(plain[run.seed], abs=1e-4)
        assert run.curve[-1] == (run.steps, run.loss)
    assert {(run.arm, run.fraction, run.seed) for run in record.runs} == {
        (arm, fraction, seed) for arm in ARMS for fraction in (0.25, 0.5) for seed in (0, 1)
    }
    assert max(abs(lost_at_start(record, arm) or 0) for arm in ARMS) < 1e-4


def test_all_arms_spend_the_same_operations(sweep):
    """To within half a step, as counted here from what was trained."""
    out, _ = sweep
    spent = {}
    for run in read_record(out / "retrofit.json", RetrofitRecord).runs:
        (folder,) = out.glob(f"more-{run.fraction:g}/{run.arm.replace(':', '_').replace('=', '-')}/*/seed-{run.seed}")
        model = config_from_json(json.loads((folder / "config.json").read_text())["config"]).model
        spent[run.arm, run.fraction] = run.steps, training_flops(model)
    steps, each = {name: n for name, (n, _) in spent.items()}, {name: n for name, (_, n) in spent.items()}
    for arm, fraction in spent:
        plain = ("residual", fraction)
        assert steps[plain] == {0.25: 8, 0.5: 16}[fraction]
        assert abs(steps[arm, fraction] * each[arm, fraction] - steps[plain] * each[plain]) <= each[arm, fraction] / 2
    assert steps["block", 0.5] == 15, "or the test shows nothing"


def test_each_run_has_its_rates_and_its_text(sweep):
    out, _ = sweep
    for run in read_record(out / "retrofit.json", RetrofitRecord).runs:
        arm = run.arm.replace(":", "_").replace("=", "-")
        folder = out / f"more-{run.fraction:g}" / arm / f"lr-{run.factor:g}" / f"seed-{run.seed}"
        config = json.loads((folder / "config.json").read_text())["config"]
        assert config["optimizer"]["lr"] == config["optimizer"]["adamw_lr"] == pytest.approx(2e-3 * run.factor)
        assert config["optimizer"]["connection_rate"] == (1 if run.arm == "block@1" else 10)
        assert config["seed"] == 500 + run.seed and config["start_from"] == str(out / "plain" / f"seed-{run.seed}")


def test_rates_are_the_best_of_those_tried_and_have_neighbours(sweep):
    """Or the grid was made wider three times."""
    record = read_record(sweep[0] / "retrofit.json", RetrofitRecord)
    for run in record.runs:
        tried = {t.factor: t.loss for t in record.tuning if (t.arm, t.fraction) == (run.arm, run.fraction)}
        assert run.factor == min(tried, key=tried.__getitem__)
        assert min(tried) < run.factor < max(tried) or len(tried) == 2 + 3


def test_the_same_command_trains_nothing_again_and_a_longer_share_joins(sweep, monkeypatch, capsys):
    out, options = sweep
    before = read_record(out / "retrofit.json", RetrofitRecord)
    trained = []
    monkeypatch.setattr("tests.cli.conftest.train", lambda config, folder: trained.append(folder))
    assert main(["retrofit", *ARMS, *options]) == 0
    assert all((folder / "summary.json").exists() for folder in trained)
    assert read_record(out / "retrofit.json", RetrofitRecord).runs == before.runs


def test_it_goes_on_where_its_folder_was_moved_and_keeps_what_its_record_has(sweep, tmp_path, monkeypatch, capsys):
    out, options = sweep
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    before = read_record(out / "retrofit.json", RetrofitRecord)
    monkeypatch.chdir(tmp_path)
    fewer = [*options[:-1], "moved", "--fractions", "0.25", "--seeds", "1"]
    assert main(["retrofit", *ARMS[:2], *fewer]) == 0
    after = read_record(moved / "retrofit.json", RetrofitRecord)
    assert (after.runs, after.tuning, after.plain) == (before.runs, before.tuning, before.plain)
    assert (after.arms, after.fractions) == (before.arms, before.fractions)
    capsys.readouterr()
    for option, value, what in (
        ("--steps", "36", "steps and another --evaluate-every"),
        ("--grid", "1", "grid"),
        ("--seed", "3", "seed"),
    ):
        assert main(["retrofit", *ARMS[:2], *fewer, option, value]) == 2
        assert f"holds a sweep with another {what}; repeat its options" in capsys.readouterr().err
    assert read_record(moved / "retrofit.json", RetrofitRecord) == after


@pytest.mark.parametrize("when", ["before", "after"])
def test_no_rate_is_chosen_without_a_run_that_failed(sweep, when, tmp_path, monkeypatch, capsys):
    """Which would be another one's, and train a set of runs that the whole grid's rate has no use for."""
    out, options = sweep
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    if when == "before":
        (moved / "retrofit.json").unlink()
    record = (moved / "retrofit.json").read_bytes() if when == "after" else None
    monkeypatch.chdir(tmp_path)

    failing = run_jobs_but(lambda name: "block, 25% more, lr x0.5" in name)
    monkeypatch.setattr("attnres.train.sweep.run_jobs", failing)
    assert main(["retrofit", *ARMS, *options[:-1], "moved"]) == 2
    told = capsys.readouterr().err
    assert "block, lr x0.5, seed 1000: killed; a rate is chosen when the whole grid is done" in told
    there = (moved / "retrofit.json").read_bytes() if (moved / "retrofit.json").exists() else None
    assert there == record


def test_seeds_that_are_not_run_again_stay_at_the_rate_of_the_others(sweep, tmp_path, monkeypatch, capsys):
    """Where the grid was run anew elsewhere and its best is another; and a run that fails takes nothing's place."""
    out, options = sweep
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    file = moved / "retrofit.json"
    before = read_record(file, RetrofitRecord)
    parts = json.loads(file.read_text())
    for run in parts["runs"]:
        if (run["arm"], run["fraction"]) == ("block", 0.25):
            run["factor"] *= 8
    file.write_text(json.dumps(parts))
    monkeypatch.chdir(tmp_path)

    failing = run_jobs_but(lambda name: name.startswith("residual, 25% more") and name.endswith("seed 0"))
    monkeypatch.setattr("attnres.train.sweep.run_jobs", failing)
    assert main(["retrofit", *ARMS[:2], *options[:-1], "moved", "--fractions", "0.25", "--seeds", "1"]) == 1
    assert "block, 25%, seed 1: left out, it ran at x" in capsys.readouterr().out
    after = read_record(file, RetrofitRecord)
    moved_on = ("block", 0.25, 1)
    assert set(after.runs) == {run for run in before.runs if (run.arm, run.fraction, run.seed) != moved_on}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["block", "residual"], "the first arm is the plain twin"),
        (["residual", "block", "block@10"], "the arms block and block@10 are the same connection; give each once"),
        (["residual", "block", "--model.connection", "block"], "leave out --model.connection"),
    ],
)
def test_bad_options_are_named(arguments, message, tmp_path, capsys):
    assert main(["retrofit", *arguments, "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert message in told and not list(tmp_path.iterdir())
