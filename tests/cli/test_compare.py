from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from html import escape, unescape

import numpy as np
import pytest

from attnres import TransformerConfig, UsageError
from attnres.analysis import depth_profile
from attnres.cli import main
from attnres.data import open_corpus
from attnres.lab.arms import arm_model
from attnres.lab.comparison import compare_runs, plan_comparison
from attnres.report import write_report
from attnres.report.runs import comparison_report, validation_tokens
from attnres.train import RunConfig, load_run, read_metrics
from attnres.train.folder import RunFolder
from tests.cli.conftest import TINY


def test_a_comparison_leaves_a_table_a_record_and_a_page(comparison):
    out, done = comparison
    assert "block:block_size=2" in done.stdout and "report.html" in done.stdout
    record = json.loads((out / "comparison.json").read_text())
    assert done.stdout.index(record["finding"]) < done.stdout.index("p: two-sided paired t-test")
    residual, block = record["arms"]
    assert residual["arm"] == "residual" and residual["difference"] is None and residual["seeds"] == 2
    losses = {
        arm: [
            json.loads((out / folder / f"seed-{seed}" / "summary.json").read_text())["validation_loss"]
            for seed in (0, 1)
        ]
        for arm, folder in (("residual", "residual"), ("block", "block_block_size-2"))
    }
    pairs = [b - a for a, b in zip(losses["residual"], losses["block"], strict=True)]
    assert block["difference"] == pytest.approx(sum(pairs) / 2)
    assert block["difference_error"] == pytest.approx(abs(pairs[0] - pairs[1]) / 2)
    assert list(block["differences"].values()) == pytest.approx(pairs) and block["decided"] is (block["p_value"] < 0.05)
    page = (out / "report.html").read_text()
    configuration = unescape(page).partition("<dt>configuration")[2].partition("</dd>")[0]
    assert '"layers"' in configuration and '"seed"' not in configuration and '"connection"' not in configuration
    assert escape(record["finding"]) in page
    assert "<script>alert(1)" not in page and "block:block_size=2" in page
    assert (out / "figures").is_dir() and any((out / "figures").glob("*.png"))


def test_arms_of_a_seed_are_paired(comparison):
    """Same shared weights and same data: at step 0 the zero-query Block model is the residual model, up to eps."""
    out, _ = comparison
    first = [
        read_metrics(out / arm / "seed-0" / "metrics.jsonl")[0]["loss"] for arm in ("residual", "block_block_size-2")
    ]
    assert first[0] == pytest.approx(first[1], abs=1e-4)
    assert load_run(out / "block_block_size-2" / "seed-0").config.model.connection == "block:block_size=2"


def test_the_same_command_again_only_draws_again(comparison, attnres, corpus):
    out, _ = comparison
    weights = sorted(out.glob("*/seed-*/checkpoints/*/model.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    done = attnres("compare", "residual", "block:block_size=2", "--seeds", "2", "--out", out, *TINY, *corpus)
    assert done.returncode == 0 and [path.stat().st_mtime_ns for path in weights] == before


def test_a_folder_of_another_comparison_is_refused_before_anything_runs(comparison, attnres, corpus):
    out, _ = comparison
    options = [*TINY, *corpus, "--optimizer.lr", "0.5"]
    done = attnres("compare", "residual", "full", "--out", out, *options)
    assert done.returncode == 2 and "optimizer.lr" in done.stderr and done.stderr.count("\n") == 1
    assert not (out / "full").exists()


def test_a_folder_of_other_files_is_left_alone(tmp_path, capsys, comparison, corpus):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "figures").mkdir()
    assert main(["compare", "residual", "full", *TINY, *corpus, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "holds files and no comparison (notes.txt); give a new or empty folder" in error and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures", "notes.txt"]
    plan_comparison(["residual", "hc"], RunConfig(), comparison[0], 1)  # other arms may join the finished ones


def test_a_folder_that_other_experiments_share_is_a_comparisons_still(tmp_path):
    """As the tutorial's dynamics of its comparison, after which the comparison was refused for ever."""
    (tmp_path / ".dynamics.json.lock").touch()  # all that is left where dynamics itself was refused
    plan_comparison(["residual", "full"], RunConfig(), tmp_path, 1)
    (tmp_path / "residual" / "seed-0").mkdir(parents=True)
    (tmp_path / "results.html").touch()
    plan_comparison(["residual", "full"], RunConfig(), tmp_path, 1)


def test_the_page_is_of_the_seeds_that_the_tables_are_of(comparison, tmp_path):
    """Where a run was lost a curve of other seeds than its neighbour's showed their difference as the rules'."""
    out, _ = comparison
    runs = {arm: {seed: out / arm / f"seed-{seed}" for seed in (0, 1)} for arm in ("residual", "block_block_size-2")}
    config = load_run(runs["residual"][0]).config
    corpus = open_corpus(config.data)

    def page(finished):
        return comparison_report(finished, compare_runs(finished, 1.0), config, corpus)

    assert [arm.description for arm in page(runs).arms] == ["2 seeds; depth of seed 0"] * 2
    lost = page({"residual": runs["residual"], "block": {1: runs["block_block_size-2"][1]}})
    assert [[curve.seed for curve in arm.curves] for arm in lost.arms] == [[1], [1]]
    shown = "1 of its 2 finished seeds, those that all have; depth of seed 1"
    assert [arm.description for arm in lost.arms] == [shown, ""]
    np.testing.assert_array_equal(lost.arms[0].profile.output_rms, depth_of(runs["residual"][1], corpus))
    none = page({"residual": {0: runs["residual"][0]}, "block": {1: runs["block_block_size-2"][1]}})
    assert [arm.curves for arm in none.arms] == [[], []] and all(arm.profile for arm in none.arms)
    assert write_report(none, tmp_path).is_file()


def depth_of(folder, corpus):
    run = load_run(folder)
    return depth_profile(run.model, validation_tokens(corpus, run.config)).output_rms


def test_a_failed_arm_is_named_and_the_rest_is_shown(tmp_path, attnres, corpus):
    folder = tmp_path / "full" / "seed-0"
    folder.mkdir(parents=True)
    with RunFolder(folder).lock():
        done = attnres("compare", "residual", "full", *TINY, *corpus, "--out", tmp_path, "--seeds", "1")
    assert done.returncode == 1 and "full, seed 0: attnres: " in done.stderr and "Traceback" not in done.stderr
    assert "residual" in done.stdout and (tmp_path / "report.html").exists()


def test_when_every_run_fails_the_reason_is_one_line(tmp_path, attnres, corpus):
    options = [*TINY, *corpus, "--out", tmp_path, "--seeds", "1", "--optimizer.lr", "1e37"]
    done = attnres("compare", "residual", "full", *options)
    assert done.returncode == 2 and "no run was finished: residual, seed 0" in done.stderr
    assert done.stderr.count("\n") == 1


def start_long_comparison(folder, corpus) -> subprocess.Popen[str]:
    """A comparison whose first run has made its first steps and will not end soon."""
    steps = ["--steps", "4000", "--save-every", "4000", "--evaluate-every", "4000"]
    command = [sys.executable, "-m", "attnres", "compare", "residual", "x0", "--seeds", "1", "--workers", "1"]
    command += ["--out", str(folder), *TINY, *corpus, *steps]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in a terminal: it would inherit that of nohup pytest
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGHUP, before)
    metrics = folder / "residual" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count('"train"') > 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_workers_and_the_command_goes_on(tmp_path, corpus, number):
    process = start_long_comparison(tmp_path, corpus)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == "attnres: stopped; the runs are saved, and the same command goes on with them\n"
    saved = list((tmp_path / "residual" / "seed-0" / "checkpoints").glob("step-*"))
    assert len(saved) == 1 and int(saved[0].name.split("-")[1]) > 0


@pytest.mark.parametrize(("saved", "message"), [(False, "nothing had been saved yet"), (True, "the runs are saved")])
def test_ctrl_c_claims_no_more_than_there_is(saved, message, tmp_path, corpus, capsys, monkeypatch):
    def interrupted(*_):
        if saved:
            (tmp_path / "residual" / "seed-0" / "checkpoints" / "step-00000002").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("attnres.train.sweep.run_jobs", interrupted)
    assert main(["compare", "residual", "full", *TINY, *corpus, "--out", str(tmp_path)]) == 130
    assert message in capsys.readouterr().err


def test_arms_carry_options():
    model = arm_model("full:query=input,heads=4,key_norm=false,eps=1e-5,window=null", TransformerConfig())
    assert model.connection == "full:eps=1e-05,query=input,key_norm=false,heads=4"
    with pytest.raises(UsageError, match="NAME:OPTION=VALUE"):
        arm_model("full:heads", TransformerConfig())


def test_rules_that_would_share_a_folder_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rule = "from attnres.connections.block import Block\n\n\nclass My(Block):\n    pass\n"
    (tmp_path / "rules").mkdir()
    for place in ("rules/r.py", "rules_r.py"):
        (tmp_path / place).write_text(rule)
    assert main(["compare", "residual", "rules/r.py:My", "rules_r.py:My", "--out", "out"]) == 2
    assert "rules/r.py:My and rules_r.py:My would have one folder for their runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["residual"], "at least two arms"),
        (["residual", "residual"], "the arms residual and residual are the same connection"),
        (["residual", "block", "block:block_size=4"], "block and block:block_size=4 are the same connection"),
        (["resnet"], "unknown connection 'resnet'; choose one of"),
        (["residual", "full", "--seeds", "0"], "--seeds must be a whole number of at least 1, not 0"),
        (["residual", "full", "--model.connection", "hc"], "the arms name the connections"),
        (["residual", "full", "--seed", "99999999999999999999"], "seed must be at least 0"),
        (["residual", "full", "--model.layers", "0"], "layers must be a whole number of at least 1, not 0"),
        (["residual", "full", "--optimizer.lr", "nan"], "lr must be a finite number"),
        (["residual", "resnet"], "unknown connection 'resnet'; choose one of"),
        (["residual", "block:block_size=0"], "block_size must be a whole number"),
        (["residual", "full:heads=3"], "connection full:heads=3: heads must divide dim: 3 does not divide 64"),
        (["residual", "full:depth=3"], "has no option 'depth'"),
        (["residual", "full", "--data.paths", "/no/such/file"], "/no/such/file"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = main(["compare", *arguments, "--out", str(tmp_path / "out"), "--steps", "1"])
    error = capsys.readouterr().err
    assert code == 2 and message in error and error.count("\n") == 1


def test_workers_do_not_outlive_the_command(tmp_path, corpus):
    """kill -9 of the command: its worker saves and stops by itself, and leaves the folder free."""
    process = start_long_comparison(tmp_path, corpus)
    process.kill()
    process.communicate()
    folder = tmp_path / "residual" / "seed-0"
    deadline = time.monotonic() + 60
    while not list((folder / "checkpoints").glob("step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while True:
        with suppress(UsageError), RunFolder(folder).lock():
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
