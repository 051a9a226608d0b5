"""torchtitan's own trainer with a connection: one process is the oracle of every layout, transformers of the model."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan", reason="needs torch 2.14: make torchtitan has an environment for it")

from attnres.analysis.cost import counted_transfers
from attnres.connections import connection_names
from attnres.errors import UsageError
from attnres.torchtitan import config_registry

pytestmark = pytest.mark.timeout(900)  # several trainers of several processes on a machine of two cores

ROOT = Path(__file__).parents[2]
CONNECTION = "llama3_block:block_size=5"
TIME, DIM, BATCH = 32, 256, 4


def train(folder: Path, processes: int, *options: str, config: str = CONNECTION, **environment: str) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    trainer = ["-m", "tests.torchtitan.on_cpu", "--", "--module", "tests.torchtitan", "--config", config]
    command = [*launcher, *trainer, "--dump_folder", str(folder), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def steps(log: str) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step; ranks without the last stage log a loss below zero."""
    found = re.findall(r"step:\s+(\d+)\s+loss:\s+(\d\S*)\s+grad_norm:\s+(\S+)", log)
    return list({int(step): (float(loss), float(norm)) for step, loss, norm in found}.values())


@pytest.fixture(scope="module")
def seed(tmp_path_factory) -> Path:
    """Weights to begin with: torchtitan draws others on every layout."""
    folder = tmp_path_factory.mktemp("seed")
    train(folder, 1, "--checkpoint.enable", "--checkpoint.create_seed_checkpoint")
    return folder


@pytest.fixture(scope="module")
def run(seed, tmp_path_factory):
    def run(processes: int, *options: str, count: int = 20, **environment: str) -> tuple[Path, list]:
        folder = tmp_path_factory.mktemp("run") / "run"
        shutil.copytree(seed, folder)
        checkpoint = ("--checkpoint.enable", "--checkpoint.interval", "10", "--checkpoint.no-last-save-model-only")
        log = train(folder, processes, "--training.steps", str(count), *checkpoint, *options, **environment)
        return folder, steps(log)

    return run


@pytest.fixture(scope="module")
def alone(run) -> tuple[Path, list]:
    folder, losses = run(1)
    assert len(losses) == 20 and losses[-1][0] < losses[0][0] - 0.3
    return folder, losses


def assert_same(losses: list, expected: list) -> None:
    assert len(losses) == len(expected)
    for (loss, norm), (expected_loss, expected_norm) in zip(losses, expected, strict=True):
        assert loss == pytest.approx(expected_loss, abs=1e-3)
        assert norm == pytest.approx(expected_norm, rel=2e-3)


PP = ("--parallelism.pipeline_parallel_degree", "2")
LAYOUTS = {
    "shards": (2, "--training.local_batch_size", "2"),
    "1f1b": (2, *PP),
    "zero bubble in a V": (2, *PP, "--parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"),
    "tensor parallel": (2, "--parallelism.tensor_parallel_degree", "2"),
    "pipeline and shards": (4, *PP, "--training.local_batch_size", "2"),
}


@pytest.mark.parametrize(("family", "size"), config_registry.SIZES)
def test_every_connection_has_a_configuration_that_can_be_built(family, size):
    for name in connection_names():
        model = getattr(config_registry, f"{family}_{name}_{size}")().model_spec.model
        with torch.device("meta"):
            made = model.build()
        made.verify_module_protocol()
        assert len(made.layers) == made.connection.sites == 2 * len(model.layers)


def test_several_reads_are_refused():
    with pytest.raises(UsageError, match="torchtitan's sublayers read one mixture"):
        config_registry.configuration("llama3", "block:reads=qkv", "debug")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_as_one_process(run, alone, layout):
    assert_same(run(*LAYOUTS[layout])[1], alone[1])


def test_a_pipeline_sends_what_cost_says(run, alone, tmp_path):
    options = (*PP, "--parallelism.pipeline_parallel_schedule", "Interleaved1F1B")
    _, losses = run(2, *options, count=2, TRAFFIC=str(tmp_path))
    assert_same(losses, alone[1][:2])
    sent = {(c, way): n for rank in range(2) for c, way, n in json.loads((tmp_path / f"{rank}.json").read_text())}
    cuts = [0, 2, 6, 10, 12]  # six blocks in four stages; torchtitan counts the embedding and the head as one each
    sites = [range(a, b) for a, b in itertools.pairwise(cuts)]
    entries = counted_transfers(sites, 5, 2).cached
    unit = TIME * DIM * 4 * BATCH * 2  # float32, all micro-batches of two steps
    for transition, count in enumerate(entries, 1):
        assert sent[transition, "forward"] == sent[transition, "backward"] == count * unit
    assert math.prod(entries) > 0


def test_a_pipeline_goes_on_as_one_process(run, alone):
    folder, first = run(2, *PP, count=10)
    again = steps(train(folder, 1, "--training.steps", "20", "--checkpoint.enable", "--checkpoint.interval", "10"))
    assert len(first) == 10 and len(again) == 10  # ten of twenty, not twenty


def test_recomputation_changes_nothing(run, alone):
    assert run(1, "activation-checkpoint:full", count=3)[1] == alone[1][:3]


def test_the_checkpoint_is_an_attached_model_and_back(alone, seed, tmp_path):
    """transformers' Llama with attnres.hf's connection computes torchtitan's losses, from its weights at the start."""
    from attnres.hf import load
    from attnres.torchtitan.export import main as export
    from tests.torchtitan.config_registry import Tokens, configuration

    target = tmp_path / "attached"
    checkpoint = str(seed / "checkpoint/step-0")
    assert export([checkpoint, str(target), "--module", "tests.torchtitan", "--config", CONNECTION]) == 0
    model = load(target)
    drawn = iter(Tokens(0, 1))
    batch = [next(drawn) for _ in range(BATCH)]
    tokens, labels = torch.stack([x["input"] for x, _ in batch]), torch.stack([y for _, y in batch])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())
    assert loss.item() == pytest.approx(alone[1][0][0], abs=2e-5)

    spec = configuration("llama3", CONNECTION.partition("_")[2]).model_spec
    adapter = spec.state_dict_adapter(spec.model, None)
    there = {name: tensor for name, tensor in model.state_dict().items()}
    back = adapter.to_hf(adapter.from_hf(dict(there)))
    assert there.keys() == back.keys() and all(torch.equal(there[name], back[name]) for name in there)


def validation(log: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"validate step:\s+\d+\s+loss:\s+(\d\S*)", log)]


def test_validation_goes_through_the_schedule(seed, tmp_path):
    """Forward only, between training steps, which go on as without it."""
    logs = []
    interleaved = (*PP, "--parallelism.pipeline_parallel_schedule", "Interleaved1F1B")
    for processes, layout in ((1, ()), (2, interleaved)):
        folder = tmp_path / str(processes)
        shutil.copytree(seed, folder)
        checkpoint = ("--checkpoint.enable", "--checkpoint.interval", "10")
        logs.append(train(folder, processes, "--training.steps", "2", "--validator.enable", *checkpoint, *layout))
    one, many = map(validation, logs)
    assert len(one) == 2 and many == pytest.approx(one, abs=1e-3)
    assert_same(steps(logs[1]), steps(logs[0]))
