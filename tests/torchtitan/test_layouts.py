"""torchtitan's own trainer with a connection: one process is the oracle of every layout."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("torchtitan", reason="needs torch 2.14: make torchtitan has an environment for it")

from attnres.analysis.cost import counted_transfers
from attnres.errors import UsageError
from attnres.torchtitan import config_registry
from tests.torchtitan.conftest import CONNECTION, SAVING, assert_same, steps
from tests.torchtitan.processes import ROOT, train

pytestmark = pytest.mark.timeout(900)  # several trainers of several processes on a machine of two cores

TIME, DIM, BATCH = 32, 256, 4

PP = ("--parallelism.pipeline_parallel_degree", "2")
HALF = ("--training.local_batch_size", "2")
TP = ("--parallelism.tensor_parallel_degree", "2")
EP = ("--parallelism.expert_parallel_degree", "2")
SCHEDULE = "--parallelism.pipeline_parallel_schedule"
LAYOUTS = {
    "shards": (2, *HALF),
    "tensor parallel": (2, *TP),
    "zero bubble in a V": (2, *PP, SCHEDULE, "ZBVZeroBubble"),
    "pipeline and shards": (4, *PP, *HALF),
}
COMPILED = ("--compile.enable", "--compile.components", "model", "--compile.backend", "aot_eager")
"""Traced and differentiated as always, without making machine code of it."""


@pytest.mark.parametrize(("family", "size"), config_registry.SIZES)
def test_every_configuration_can_be_built(family, size):
    for name in ("block", "delta", "mhc", "altup") if (family, size) == ("llama3", "debug") else ["block"]:
        model = getattr(config_registry, f"{family}_{name}_{size}")().model_spec.model
        with torch.device("meta"):
            made = model.build()
        made.verify_module_protocol()
        assert len(made.layers) == made.connection.sublayers == 2 * len(model.layers)


def test_the_guides_configuration_has_the_connection_that_it_names():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/torchtitan.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(block, "docs/torchtitan.md", "exec"), names)
    model = names["my_8b"]().model_spec.model
    assert model.connection == "block:block_size=8" and len(model.layers) == 32


def test_a_configuration_has_what_a_connection_needs():
    config = config_registry.configuration("llama3", "block", "debug")
    *groups, rest = config.optimizer.param_groups
    assert [group.pattern for group in groups] == [rf"^depth\.connection\.{kind}\b" for kind in ("gain", "query")]
    for group in groups:
        assert group.optimizer_kwargs["lr"] == 10 * rest.optimizer_kwargs["lr"]
        assert group.optimizer_kwargs["weight_decay"] == 0 < rest.optimizer_kwargs["weight_decay"]
    assert config.training.disable_cuda_graphs
    refusals = (({"spmd_backend": "full_dtensor"}, "partial_dtensor"), ({"context_parallel_degree": 2}, "no context"))
    for change, message in refusals:
        other = SimpleNamespace(parallelism=dataclasses.replace(config.parallelism, **change))
        with pytest.raises(UsageError, match=message):
            config.model_spec.model.update_from_config(config=other)


@pytest.mark.parametrize(
    "layout",
    # The tests of experts and of a checkpoint from transformers have shards.
    [pytest.param(name, marks=[] if name == "tensor parallel" else pytest.mark.slow) for name in LAYOUTS],
)
def test_every_layout_trains_as_one_process(run, alone, layout):
    assert_same(steps(run(*LAYOUTS[layout])[1]), alone[1][:3])


@pytest.mark.slow
def test_torchrun_starts_it(start, alone, tmp_path):
    """As a user does, and not by tests/torchtitan/processes.py."""
    folder = tmp_path / "run"
    shutil.copytree(start(CONNECTION), folder)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    trainer = ["-m", "tests.torchtitan.on_cpu", "--module", "tests.torchtitan", "--config", CONNECTION]
    command = [*launcher, *trainer, "--dump_folder", str(folder), "--checkpoint.enable", *HALF]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert_same(steps(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)), alone[1][:3])


def test_a_pipeline_sends_what_cost_says(run, alone, tmp_path):
    _, log = run(2, *PP, SCHEDULE, "Interleaved1F1B", count=2, TRAFFIC=str(tmp_path))
    assert_same(steps(log), alone[1][:2])
    sent = {(c, way): n for rank in range(2) for c, way, n in json.loads((tmp_path / f"{rank}.json").read_text())}
    cuts = [0, 2, 6, 10, 12]  # six blocks in four stages; torchtitan counts the embedding and the head as one each
    sites = [range(a, b) for a, b in itertools.pairwise(cuts)]
    entries = counted_transfers(sites, 5, 2).cached
    unit = TIME * DIM * 4 * BATCH  # float32, all micro-batches of a step
    for transition, count in enumerate(entries, 1):
        assert sent[transition, "forward"] == sent[transition, "backward"] == count * unit
    assert math.prod(entries) > 0


@pytest.mark.slow
def test_what_a_pipeline_saved_while_it_trained_goes_on_as_one_process(run, alone):
    """A thread writes step 3 while the next ones change the weights; then another layout reads it."""
    folder, log = run(2, *PP, "--checkpoint.async_mode", "async", count=6)
    assert_same(steps(log), alone[1])
    shutil.rmtree(folder / "checkpoint/step-6")
    again = steps(train(folder, 1, "--training.steps", "6", *SAVING, config=CONNECTION))
    assert_same(again, alone[1][3:])


@pytest.mark.slow
def test_recomputed_and_compiled_sublayers_in_a_pipeline_compute_the_same(run, alone):
    assert_same(steps(run(2, *PP, *COMPILED, "activation-checkpoint:full")[1]), alone[1][:3])


def validation(log: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"validate step:\s+\d+\s+loss:\s+(\d\S*)", log)]


@pytest.mark.slow
def test_validation_goes_through_the_schedule(run, alone):
    """Forward only, between training steps, which go on as without it."""
    one = validation(run(1, "--validator.enable")[1])
    log = run(2, "--validator.enable", *PP, SCHEDULE, "Interleaved1F1B")[1]
    assert len(one) == 3 and validation(log) == pytest.approx(one, abs=1e-3)
    assert_same(steps(log), alone[1][:3])


FAMILIES = {
    "experts": ("qwen3-moe_block:block_size=5", (2, *HALF, *EP)),
    # Its embedding is tied, for which torchtitan has no pipeline.
    "tied, shards of tensor parallelism": ("qwen3_block:block_size=5", (4, *TP, *HALF)),
    "experts over shares of the sequence": ("qwen3-moe_block:block_size=5", (2, *TP, *EP)),
}


@pytest.mark.parametrize(
    "case", ["experts", *(pytest.param(name, marks=pytest.mark.slow) for name in list(FAMILIES)[1:])]
)
def test_other_families_train_as_one_process(run, case):
    config, (processes, *options) = FAMILIES[case]
    expected = steps(run(1, config=config)[1])
    assert len(expected) == 3 and expected[-1][0] < expected[0][0]
    assert_same(steps(run(processes, *options, config=config)[1]), expected)
