"""Profiles of trained runs over depth and training, and the command that makes a record of them."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch

from attnres import UsageError
from attnres.analysis import depth_profile
from attnres.cli import main
from attnres.data import open_corpus
from attnres.lab.profiles import profile, prune, update_sizes
from attnres.lab.runs import read_record
from attnres.model import Transformer, TransformerConfig
from attnres.report.runs import validation_tokens
from attnres.train import OptimizerConfig, load_run
from attnres.train.folder import RunFolder
from tests.lab.conftest import ARMS, SITES

MOMENTS = [0, 2, 4, 6]


@pytest.fixture
def run(sweep, tmp_path):
    """One run of the sweep with a folder of its own."""
    planned = next(run for run in sweep.planned if run.arm == ARMS[1])
    folder = tmp_path / "run"
    shutil.copytree(planned.folder, folder)
    return dataclasses.replace(planned, folder=folder)


def test_profiles_are_of_the_run_at_every_moment(run):
    tokens = validation_tokens(open_corpus(run.config.data), run.config)
    assert tokens.shape[1] == 17
    measured = profile(run.folder, tokens, MOMENTS)
    assert [moment["step"] for moment in measured["moments"]] == [0, 2, 4, 6]
    first, last = measured["moments"][0], measured["moments"][-1]

    trained = depth_profile(load_run(run.folder).model, tokens)
    assert last["gradient_rms"] == pytest.approx(trained.gradient_rms, rel=1e-3)
    assert measured["source_share"] == pytest.approx(trained.source_share, rel=1e-3)
    # Before any step AttnRes shares equally, and the loss is the one that the run itself measured.
    assert first["entropy"][1:] == pytest.approx(np.log(np.arange(2, SITES + 2)), rel=1e-3)
    assert first["output_rms"] != last["output_rms"] and not first["update"]
    assert len(last["update"]) == SITES and min(last["update"]) > 0


def test_checkpoints_that_are_gone_are_named(run):
    tokens = validation_tokens(open_corpus(run.config.data), run.config)
    prune(run.folder, keep=1)
    left = [checkpoint.step for checkpoint in RunFolder(run.folder).checkpoints.all()]
    assert left == [6], "the newest, which is the best"
    with pytest.raises(UsageError, match=r"no checkpoint of step 2.* repeat the --save-every"):
        profile(run.folder, tokens, MOMENTS)


def test_update_size_is_relative_and_per_step_at_the_peak_rate():
    model = Transformer(TransformerConfig(dim=8, layers=1, heads=1, context=8))
    earlier = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.sublayers[1].parameters():
            parameter.mul_(1.5)
        model.embedding.weight.mul_(7)
    optimizer = OptimizerConfig(warmup=0.5, decay=0.5)  # rates 1/2, 1, 1, 1/2 of the peak
    assert update_sizes(model, earlier, optimizer, 0, 4, 4) == pytest.approx([0, 0.5 / 3])
    assert update_sizes(model, earlier, optimizer, 1, 3, 4) == pytest.approx([0, 0.5 / 2])


def test_from_runs_to_record_tables_and_page(sweep, tmp_path, capsys, monkeypatch, quick_figures):
    """And again from the record alone, when the checkpoints are gone."""
    monkeypatch.setenv("COLUMNS", "160")
    shutil.copytree(sweep.folder, tmp_path / "runs")
    file = tmp_path / "first.json"
    arguments = ["dynamics", *ARMS, *sweep.options, "--out", str(tmp_path / "runs"), "--record", str(file)]
    assert main(arguments) == 0
    assert "h grows with depth" in capsys.readouterr().out
    record = read_record(file, "dynamics")
    assert record.arms == ARMS
    assert [run.status for run in record.runs] == ["done"] * 4
    assert record.hours > 0 and record.config["steps"] == 6
    assert all(len(run.measured["moments"]) == 4 for run in record.runs)
    assert [path.name for path in (tmp_path / "runs" / "figures").iterdir()] == ["dynamics-depth.png"]
    monkeypatch.setattr("attnres.lab.page.write_results", lambda records, out: out)  # drawn once is enough
    monkeypatch.setattr("attnres.lab.profiles.profile", lambda *_: pytest.fail("it was profiled again"))
    shutil.rmtree(tmp_path / "runs")
    for fewer in ([], ["--seeds", "1"]):
        assert main([*arguments, *fewer]) == 0 and set(read_record(file, "dynamics").runs) == set(record.runs)
    assert main([*arguments, "--save-every", "3"]) == 2 and "another profiled_steps" in capsys.readouterr().err
