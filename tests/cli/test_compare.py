from __future__ import annotations

import json
import shutil
from html import escape, unescape

import numpy as np
import pytest

from attnres.analysis import depth_profile
from attnres.cli import main
from attnres.data import open_corpus
from attnres.lab.comparison import compare_runs
from attnres.report.runs import comparison_report, validation_tokens
from attnres.report.write import write_report
from attnres.train import load_run, read_metrics
from tests.cli.conftest import COMPARED, TINY, run_jobs_but

pytestmark = pytest.mark.usefixtures("no_page")


def test_a_comparison_leaves_a_table_a_record_and_a_page(comparison):
    out, said = comparison
    assert "block:block_size=2" in said and "report.html" in said
    record = json.loads((out / "comparison.json").read_text())
    assert record["found"]["finding"] in said and len(record["runs"]) == 4
    residual, block = record["found"]["comparison"]
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
    assert escape(record["found"]["finding"]) in page
    assert "<script>alert(1)" not in page and "block:block_size=2" in page
    assert (out / "figures").is_dir() and any((out / "figures").glob("*.png"))


def test_a_page_of_somebody_else_is_left_alone(tmp_path, capsys, corpus):
    (tmp_path / "report.html").write_text("mine")
    assert main(["compare", "residual", "full", *TINY, *corpus, "--out", str(tmp_path)]) == 2
    assert "another report.html, which would be lost" in capsys.readouterr().err
    assert (tmp_path / "report.html").read_text() == "mine"


def test_a_first_page_is_drawn_when_all_have_two_seeds(tmp_path, capsys, corpus, trained_here, monkeypatch):
    pages = []
    monkeypatch.setattr("attnres.lab.comparison.comparison_report", lambda finished, *_: pages.append(finished))
    monkeypatch.setattr("attnres.lab.comparison.write_report", lambda data, out: out / "report.html")
    assert main(["compare", *COMPARED, "--seeds", "3", "--out", str(tmp_path), *TINY, *corpus]) == 0
    assert [[sorted(runs) for runs in finished.values()] for finished in pages] == [[[0, 1]] * 2, [[0, 1, 2]] * 2]
    assert "A first page" in capsys.readouterr().out


def test_arms_of_a_seed_are_paired(comparison):
    """Same shared weights and same data: at step 0 the zero-query Block model is the residual model, up to eps."""
    out, _ = comparison
    first = [
        read_metrics(out / arm / "seed-0" / "metrics.jsonl")[0]["loss"] for arm in ("residual", "block_block_size-2")
    ]
    assert first[0] == pytest.approx(first[1], abs=1e-4)
    assert load_run(out / "block_block_size-2" / "seed-0").config.model.connection == "block:block_size=2"


def test_the_same_command_again_trains_nothing_and_another_one_is_refused(comparison, corpus, tmp_path, capsys):
    """The real `run_jobs`: it starts no process for runs that are done."""
    out = tmp_path / "out"
    shutil.copytree(comparison[0], out)
    weights = sorted(out.glob("*/seed-*/checkpoints/*/model.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    assert main(["compare", *COMPARED, "--seeds", "2", "--out", str(out), *TINY, *corpus]) == 0
    assert [path.stat().st_mtime_ns for path in weights] == before
    capsys.readouterr()
    other = ["compare", "residual", "full", "--out", str(out), *TINY, *corpus, "--optimizer.lr", "0.5"]
    assert main(other) == 2 and "optimizer.lr" in capsys.readouterr().err
    assert not (out / "full").exists()


@pytest.mark.parametrize("lost", ["one", "all"])
def test_runs_that_failed_are_named_and_the_rest_is_shown(lost, tmp_path, corpus, capsys, monkeypatch):
    monkeypatch.setattr("attnres.train.sweep.run_jobs", run_jobs_but(lambda name: lost == "all" or "full" in name))
    code = main(["compare", "residual", "full", *TINY, *corpus, "--out", str(tmp_path), "--seeds", "1"])
    told = capsys.readouterr()
    if lost == "all":
        assert code == 2 and "no run was finished: residual, seed 0" in told.err
    else:
        assert code == 1 and "full, seed 0: killed" in told.err and (tmp_path / "report.html").exists()


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
