"""Profiles of trained runs over depth and training, and the command that makes a record of them."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from attnres import UsageError, connection_names, make_connection, mixing_matrix
from attnres.analysis import depth_profile
from attnres.analysis.rank import semiseparable_rank
from attnres.cli import main
from attnres.data import open_corpus
from attnres.files import PARTIAL
from attnres.lab.dynamics.measure import (
    PROFILES,
    depth_ranks,
    profiled_tokens,
    profiles,
    rank_bound,
    update_sizes,
)
from attnres.lab.dynamics.record import DynamicsRecord, Ranks
from attnres.lab.dynamics.run import arm_record, moments
from attnres.lab.dynamics.tables import dynamics_tables
from attnres.lab.record import read_record
from attnres.model import Transformer, TransformerConfig
from attnres.train import OptimizerConfig, RunConfig, load_run, read_metrics, train
from attnres.train.folder import RunFolder
from attnres.train.sweep import JobState
from tests.depth import make_sublayers, randomise
from tests.lab.conftest import ARMS, SITES, several_fast
from tests.lab.sample import HEADER

MOMENTS = [0, 2, 4, 6]


@pytest.fixture
def run(sweep, tmp_path):
    """One run of the sweep with a folder of its own."""
    planned = next(run for run in sweep.planned if run.arm == ARMS[1])
    folder = tmp_path / "run"
    shutil.copytree(planned.job.folder, folder)
    return dataclasses.replace(planned, job=dataclasses.replace(planned.job, folder=folder))


def test_moments_begin_before_the_first_step_and_end_with_the_last():
    assert moments(RunConfig(steps=7, save_every=3)) == [0, 3, 6, 7]
    assert moments(RunConfig(steps=6, save_every=3)) == [0, 3, 6]
    assert moments(RunConfig(steps=2, save_every=100)) == [0, 2]


def test_profiles_are_of_the_run_at_every_moment(run):
    tokens = profiled_tokens(open_corpus(run.job.config.data), run.job.config)
    assert tokens.shape[1] == 17
    measured = profiles(run.job.folder, tokens, MOMENTS, keep=1)
    assert [moment.step for moment in measured.moments] == [0, 2, 4, 6]
    first, last = measured.moments[0], measured.moments[-1]

    trained = depth_profile(load_run(run.job.folder).model, tokens)
    assert last.gradient_rms == pytest.approx(trained.gradient_rms, rel=1e-3)
    assert measured.source_share == pytest.approx(trained.source_share, rel=1e-3)
    assert measured.mean_matrix[3] == pytest.approx(trained.mean_matrix[3, :4], rel=1e-3)
    # Before any step AttnRes shares equally, and the loss is the one that the run itself measured.
    assert first.entropy[1:] == pytest.approx(np.log(np.arange(2, SITES + 2)), rel=1e-3)
    assert first.output_rms != last.output_rms and not first.update
    assert len(last.update) == SITES and min(last.update) > 0


def test_the_untrained_moment_is_the_model_that_training_began_with(run):
    """The evaluation at step 0 in the run's own metrics is of this model."""
    from attnres.data import validation_batches
    from attnres.train.trainer import token_losses

    config = RunFolder(run.job.folder).config()
    model = Transformer(config.model, config.seed)
    corpus = open_corpus(config.data)
    batches = list(validation_batches(corpus, config.model.context, 64, config.validation_tokens))
    with torch.no_grad():
        loss = torch.cat([token_losses(model, torch.from_numpy(batch)) for batch in batches]).mean().item()
    assert loss == pytest.approx(read_metrics(run.job.folder / "metrics.jsonl")[0]["loss"], rel=1e-5)


@pytest.mark.slow
def test_the_untrained_moment_of_a_run_that_begins_with_another_s_weights(run, tmp_path):
    """It is that other model, and so is what the first updates changed."""
    first = RunFolder(run.job.folder).config()
    config = dataclasses.replace(first, start_from=str(run.job.folder), seed=5)
    train(config, tmp_path / "more")
    tokens = profiled_tokens(open_corpus(config.data), config)
    begun, after = load_run(run.job.folder).model, load_run(tmp_path / "more", step=2).model
    measured = profiles(tmp_path / "more", tokens, MOMENTS, keep=1)
    digits = pytest.approx(depth_profile(begun, tokens).output_rms, rel=1e-3)  # a record has four
    assert measured.moments[0].output_rms == digits
    change = update_sizes(after, dict(begun.state_dict()), config.optimizer, 0, 2, 6)
    assert measured.moments[1].update == pytest.approx(change, rel=1e-3)
    train(dataclasses.replace(first, steps=7), run.job.folder)
    (tmp_path / "more" / PROFILES).unlink()
    with pytest.raises(UsageError, match=r"other weights than when .*more began"):
        profiles(tmp_path / "more", tokens, MOMENTS, keep=1)


def test_profiles_are_kept_and_checkpoints_are_not(run):
    tokens = profiled_tokens(open_corpus(run.job.config.data), run.job.config)
    (rubbish := run.job.folder / f".dynamics.json.1a2b3c4d{PARTIAL}").touch()
    once = profiles(run.job.folder, tokens, MOMENTS, keep=1)
    assert not rubbish.exists(), "of a command that was killed"
    left = [checkpoint.step for checkpoint in RunFolder(run.job.folder).checkpoints.all()]
    assert left == [4, 6], "the newest, which is the best, and the one from which a longer run goes on"
    again = profiles(run.job.folder, tokens, MOMENTS, keep=1)
    assert again.moments == once.moments
    with pytest.raises(UsageError, match="no checkpoint of step"):  # of other tokens: they cannot be made again
        profiles(run.job.folder, tokens[:1], MOMENTS, keep=1)
    with pytest.raises(UsageError, match=r"no checkpoint of step 3.* repeat the --save-every"):
        profiles(run.job.folder, tokens, [0, 3, 6], keep=1)


def test_checkpoints_of_a_run_that_was_there_stay(run):
    """They are somebody else's, and a longer run may go on from one of them."""
    record = json.loads((run.job.folder / "config.json").read_text())
    record["config"]["keep"] = 30
    (run.job.folder / "config.json").write_text(json.dumps(record))
    tokens = profiled_tokens(open_corpus(run.job.config.data), run.job.config)
    for _ in range(2):
        profiles(run.job.folder, tokens, MOMENTS, keep=1)
        assert [checkpoint.step for checkpoint in RunFolder(run.job.folder).checkpoints.all()] == [2, 4, 6]


def test_a_damaged_checkpoint_is_named(run):
    file = run.job.folder / "checkpoints" / "step-00000004" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    tokens = profiled_tokens(open_corpus(run.job.config.data), run.job.config)
    with pytest.raises(UsageError, match=r"step-00000004: model.safetensors"):
        profiles(run.job.folder, tokens, MOMENTS, keep=1)
    assert not (run.job.folder / PROFILES).exists()


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


def test_the_bound_on_the_rank_is_what_theory_says():
    expected = {"residual": 1, "highway": 1, "x0": 2, "hc:streams=3": 3, "mhc:streams=4": 4, "full": 5}
    found = {name: rank_bound(make_connection(name, 8, 8)) for name in (*expected, "block:block_size=4")}
    assert found == expected | {"block:block_size=4": 3}


@pytest.mark.parametrize("name", several_fast(connection_names(), "highway", "mhc", "block"))
def test_no_connection_exceeds_its_bound(name):
    """In every channel of M, from random parameters: theory against the matrices themselves."""
    connection = make_connection(name, 12, 7)
    randomise(connection)
    with torch.no_grad():
        matrix = mixing_matrix(connection.double(), torch.randn(2, 12).double(), make_sublayers(), per_channel=True)
    ranks = semiseparable_rank(matrix.movedim(-1, 1).numpy())
    assert ranks.max() <= rank_bound(make_connection(name, 12, 7))


def test_ranks_of_a_model():
    def ranks(name: str) -> Ranks:
        model = Transformer(TransformerConfig(dim=16, layers=4, heads=2, context=32, connection=name))
        with torch.no_grad():
            for parameter in model.connection.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
        return depth_ranks(model, torch.randint(0, 256, (32,)))

    assert ranks("residual").semiseparable == 1
    # Its channels have different gates: the mean M over channels is not 1-semiseparable, each of them is.
    assert ranks("highway").semiseparable == 1
    assert ranks("full").semiseparable > 3


def test_a_diverged_run_is_kept_and_marked(sweep):
    run = sweep.planned[0]
    ended = [(run, JobState(run.job, status="failed", diverged=True, error="step 3: the loss is nan"))]
    record = arm_record("residual", ended, {})
    assert record.runs[0].status == "diverged" and "nan" in record.runs[0].error
    assert record.mean_matrix is None and record.rank_bound == 1
    table = dynamics_tables(DynamicsRecord(**HEADER, arms=(record,)))[0]
    assert "1 diverged" in table.rows[0][-1]


def test_from_runs_to_record_tables_and_page(sweep, tmp_path, capsys, monkeypatch, quick_figures):
    """And again from what each folder keeps, when the checkpoints are gone."""
    monkeypatch.setenv("COLUMNS", "160")
    shutil.copytree(sweep.folder, tmp_path / "runs")
    arguments = ["dynamics", *ARMS, *sweep.options, "--out", str(tmp_path / "runs"), "--record"]
    assert main([*arguments, str(tmp_path / "first.json")]) == 0
    assert "h grows with depth" in capsys.readouterr().out
    record = read_record(tmp_path / "first.json", DynamicsRecord)
    assert [arm.arm for arm in record.arms] == list(ARMS)
    assert [arm.rank_bound for arm in record.arms] == [1, 3]
    assert [run.status for arm in record.arms for run in arm.runs] == ["done"] * 4
    assert record.hours > 0 and record.config["steps"] == 6
    for arm in record.arms:
        assert len(arm.mean_matrix or ()) == SITES + 1 and len(arm.runs[0].moments) == 4
    assert len(list((tmp_path / "runs" / "figures").glob("dynamics-*.png"))) == 5
    monkeypatch.setattr("attnres.cli._experiment.write_results", lambda records, out: out)  # drawn once is enough
    assert main([*arguments, str(tmp_path / "second.json")]) == 0
    arms = json.loads((tmp_path / "first.json").read_text())["arms"]
    assert json.loads((tmp_path / "second.json").read_text())["arms"] == arms
    # A record that is kept by name is not replaced by one of less.
    capsys.readouterr()
    others = ["dynamics", *ARMS, *sweep.options, "--seeds", "1", "--record", str(tmp_path / "first.json")]
    for more, told in (
        (["--out", str(tmp_path / "runs")], "leaves out (block:block_size=2 seed 1, residual seed 1)"),
        (["--out", str(tmp_path / "o"), "--steps", "4"], "another configuration (steps)"),
    ):
        assert main([*others, *more]) == 2 and told in capsys.readouterr().err
    assert json.loads((tmp_path / "first.json").read_text())["arms"] == arms
    for others, told in (
        (["--save-every", "3"], "repeat the --save-every"),
        (["--steps", "8"], "steps is 6 there and 8 here"),
    ):
        assert main([*arguments, str(tmp_path / "third.json"), *others]) == 2
        assert told in capsys.readouterr().err and not (tmp_path / "third.json").exists()
