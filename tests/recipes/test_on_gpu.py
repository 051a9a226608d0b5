"""recipes/ladder/on_gpu.py: the trainer's own steps, as one graph each where there is a GPU."""

from __future__ import annotations

import dataclasses
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from attnres.data import open_corpus
from attnres.lab.record import read_record
from attnres.lab.scaling.record import ScalingRecord
from attnres.train import RunConfig, loop, train
from attnres.train.folder import fit_vocabulary
from attnres.train.trainer import NonFinite, Trainer
from tests.recipes.test_twice import config as config
from tests.train.conftest import weights

ROOT = Path(__file__).parents[2]
ON_GPU = ROOT / "recipes" / "ladder" / "on_gpu.py"
RECORD = ROOT / "results" / "ladder-16.json"
ARMS = read_record(RECORD, ScalingRecord).arms
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


@pytest.fixture
def recipe() -> dict:
    return runpy.run_path(str(ON_GPU))


def of_rule(config: RunConfig, rule: str, device: str) -> RunConfig:
    model = dataclasses.replace(config.model, connection=rule)
    return dataclasses.replace(config, model=model, batch_size=2, device=device)


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """As the recipe has it: nothing can be captured on the default one. What was launched on it is done in the end."""
    if device == "cpu":
        yield
        return
    with torch.cuda.stream(stream := torch.cuda.Stream()):
        yield
        stream.synchronize()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rule", "clip"), [*((rule, 1.0) for rule in (*ARMS[:-2], "delta:block_size=2", "interlayer")), ("residual", 0.0)]
)
def test_steps_are_the_trainers(recipe, config, rule, clip, device):
    config = of_rule(config, rule, device)
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, clip=clip))
    corpus = open_corpus(config.data)
    config = fit_vocabulary(config, corpus.vocab_size)
    with own_stream(device):
        ours, theirs = recipe["GraphTrainer"](config, corpus), Trainer(config, corpus)
        start = {name: parameter.clone() for name, parameter in theirs.model.named_parameters()}
        steps = [(ours.train_step(), theirs.train_step()) for _ in range(config.steps)]
    for step, (made, expected) in enumerate(steps):
        assert made["lr"] == expected["lr"]
        for name in ("loss", "grad_norm"):
            assert made[name] == pytest.approx(expected[name], rel=1e-4), f"{name} at step {step}"
    state, expected_state = (
        {(name, key): tensor for name, key, tensor in trainer._optimizer_state()} for trainer in (ours, theirs)
    )
    assert state.keys() == expected_state.keys()
    for key, other in expected_state.items():
        assert (state[key] - other).norm() <= 1e-2 * other.norm() + 1e-6, key  # Muon rounds to bfloat16
    for (name, one), other in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        # A query that reads one source has no gradient; on a GPU it has rounding, and Adam makes steps of that.
        moment = expected_state.get((name, "exp_avg"))
        rounding = 2e-3 if moment is not None and moment.norm() < 1e-6 else 1e-6
        assert (one - other).norm() <= 0.05 * (other - start[name]).norm() + rounding, name


@pytest.mark.parametrize("device", DEVICES)
def test_a_stopped_run_goes_on(recipe, config, device, monkeypatch, tmp_path):
    config = of_rule(config, "block", device)
    monkeypatch.setattr(loop, "_trainer", lambda config, corpus, world, resumes: recipe["GraphTrainer"](config, corpus))
    with own_stream(device):
        whole = train(config, tmp_path / "whole")["validation_loss"]

    def stop(event: dict) -> None:
        if event["kind"] == "saved" and event["step"] == 6:
            raise KeyboardInterrupt

    with own_stream(device):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", stop)
        again = train(config, tmp_path / "stopped")["validation_loss"]
    assert again == pytest.approx(whole, rel=1e-5)
    if device == "cpu":
        assert weights(tmp_path / "stopped", 10) == weights(tmp_path / "whole", 10)


def test_what_is_not_finite_stops_the_run(recipe, config):
    config = of_rule(config, "residual", "cpu")
    corpus = open_corpus(config.data)
    trainer = recipe["GraphTrainer"](fit_vocabulary(config, corpus.vocab_size), corpus)
    trainer.train_step()
    with torch.no_grad():
        trainer.model.norm.weight.fill_(float("nan"))
    with pytest.raises(NonFinite, match="step 2"):
        trainer.train_step()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning")  # what torch.compile looks at and would advise
@NO_GPU
def test_compiled_steps_are_the_trainers(recipe, config, monkeypatch):
    monkeypatch.setenv("COMPILE", "1")
    test_steps_are_the_trainers(recipe, config, "block", 1.0, "cuda")


def test_each_arm_has_the_rate_and_the_steps_of_the_ladder(recipe, tmp_path):
    known = {(run.arm, run.size, run.seed): run for run in read_record(RECORD, ScalingRecord).runs}
    for run in recipe["runs_of"](tmp_path, RECORD, ["16x24", "16x32", "16x64@10"]):
        there = known.pop((run.arm, run.size.name, run.seed))
        assert (run.factor, run.job.config.steps) == (there.factor, there.steps)
    assert {size for _, size, _ in known} == {"16x16", "16x48", "16x80", "16x96"}
    longer = recipe["runs_of"](tmp_path, RECORD, ["16x80"])
    assert {run.job.config.steps for run in longer} == {12_000}, "the ladder's 20 tokens per parameter"


def test_the_runs_are_the_ladders_at_its_rates(recipe, tmp_path):
    runs = recipe["runs_of"](tmp_path, RECORD, ["16x80@10", "16x96@10"])
    assert len(runs) == 42 and {run.seed for run in runs} == {0, 1, 2}
    made = {
        (run.size.name, run.job.config.steps, run.job.config.batch_size, run.job.config.optimizer.lr) for run in runs
    }
    assert made == {("16x80", 6000, 8, 0.01), ("16x96", 8640, 8, 0.01)}
    assert runs[0].job.folder == tmp_path / "residual" / "16x80" / "lr-0.5" / "seed-0"


def test_half_of_the_rates_is_the_ladders_check(recipe, tmp_path):
    known = {(run.arm, run.factor): run for run in read_record(RECORD, ScalingRecord).check if run.size == "16x96"}
    runs = recipe["runs_of"](tmp_path, RECORD, ["16x96@10"], 0.5)
    assert [(run.arm, run.factor) for run in runs] == [(arm, 0.25) for arm in ARMS]
    assert all((run.seed, run.job.config.steps) == (0, known[run.arm, run.factor].steps) for run in runs)
    assert runs[0].job.folder == tmp_path / "residual" / "16x96" / "lr-0.25" / "seed-0"


def test_a_stopped_sweep_stops_its_runs(recipe, tmp_path):
    """SIGTERM reaches the processes, each of which saves; the sweep ends when they have."""
    command = [sys.executable, "-c", STAND_IN, str(tmp_path)]
    sweep = f"import runpy; all_done = runpy.run_path({str(ON_GPU)!r})['train_all']; "
    sweep += f"print(all_done(dict.fromkeys(['a', 'b'], {command!r})))"
    process = subprocess.Popen([sys.executable, "-c", sweep], stdout=subprocess.PIPE, text=True)
    while len(list(tmp_path.glob("*.begun"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.communicate(timeout=60)[0] == "False\n"
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["a.saved", "b.saved"]


STAND_IN = """
import os, pathlib, signal, sys
place = pathlib.Path(sys.argv[1])
def save(*_):
    (place / f"{os.environ['ONLY']}.saved").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
(place / f"{os.environ['ONLY']}.begun").touch()
signal.pause()
"""


def test_bad_arguments_are_refused_in_one_line(tmp_path):
    def ran(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ON_GPU, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)

    assert "python recipes/ladder/on_gpu.py" in ran().stderr
    refused = ran(tmp_path, RECORD, "16x81")
    assert refused.returncode == 1 and refused.stderr.startswith("attnres: size '16x81'")
    assert refused.stderr.count("\n") == 1
    smaller = ran(tmp_path, RECORD, "16x12@10").stderr
    assert smaller.startswith("attnres: a size smaller than 16x24") and smaller.count("\n") == 1
    for by in ("half", "0", "inf"):
        assert ran(tmp_path, RECORD, "16x80@10", BY=by).stderr.startswith(f"attnres: BY={by}: give a multiple")
    if not torch.cuda.is_available():
        refused = ran(tmp_path, RECORD, "16x80@10")
        assert refused.returncode == 1 and refused.stderr.startswith("attnres: torch finds no GPU here")
        assert refused.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
