"""A pipeline on real processes and the one-process model beside it: the case, what each rank shows, the comparison."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache as remember
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from attnres.connections import canonical_connection
from attnres.model import Transformer, TransformerConfig
from attnres.parallel.pipeline import Pipeline
from attnres.parallel.runner import ChunkRunner
from tests.depth import in_blocks

SEED, BATCH, CONTEXT, DIM = 3, 2, 6, 12


@dataclass(frozen=True)
class Case:
    ranks: int
    virtual: int = 1
    schedule: str = "1f1b"
    micro_batches: int = 4
    connection: str = "block"
    options: tuple[tuple[str, Any], ...] = ()
    layers: int = 5
    checkpointing: bool = False
    tied: bool = False
    dtype: torch.dtype = torch.float64
    precision: torch.dtype | None = None
    steps: int = 1
    """Steps whose gradients add up: the second must not see anything of the first."""

    @property
    def config(self) -> TransformerConfig:
        return TransformerConfig(
            vocab_size=11,
            dim=DIM,
            layers=self.layers,
            heads=2,
            context=CONTEXT,
            tied=self.tied,
            connection=canonical_connection(
                self.connection if self.options else in_blocks(self.connection), **dict(self.options)
            ),
        )

    def batches(self, step: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(step)
        shape = (BATCH, CONTEXT + 1 - step % 2)  # an odd step is one token shorter
        return [torch.randint(0, 11, shape, generator=generator) for _ in range(self.micro_batches)]


@dataclass
class Outcome:
    """What one rank has to show."""

    losses: list[float]
    gradients: dict[str, Tensor | None]
    sent: Counter[tuple[int, str]]
    """Bytes of the last step: transition c between chunks c - 1 and c, by (c, "forward" or "backward")."""
    cache_empty: bool


def randomise_connection(model: Transformer | Pipeline) -> None:
    """Zero starts hide terms. By name, so that it does not matter which rank has the parameter."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("connection."):
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def make_pipeline(group: dist.ProcessGroup, case: Case) -> Pipeline:
    torch.set_default_dtype(case.dtype)
    pipeline = Pipeline(
        case.config,
        SEED,
        micro_batches=case.micro_batches,
        group=group,
        virtual=case.virtual,
        schedule=case.schedule,
        precision=case.precision,
        checkpointing=case.checkpointing,
    )
    randomise_connection(pipeline)
    return pipeline


@contextmanager
def counted_sends() -> Iterator[Counter[tuple[int, str]]]:
    """Count the bytes that chunks send, by transition and direction."""
    sent, send = Counter[tuple[int, str]](), ChunkRunner._send

    def counted(self: ChunkRunner, tensors: list[Tensor], target: int, direction: str) -> list[dist.P2POp]:
        sent[max(self.stage_index, target), direction] += sum(tensor.nbytes for tensor in tensors)
        return send(self, tensors, target, direction)

    ChunkRunner._send = counted
    try:
        yield sent
    finally:
        ChunkRunner._send = send


def run_case(group: dist.ProcessGroup, case: Case) -> Outcome:
    pipeline = make_pipeline(group, case)
    losses = [pipeline.forward_backward(case.batches(step)) for step in range(case.steps - 1)]
    with counted_sends() as sent:
        losses.append(pipeline.forward_backward(case.batches(case.steps - 1)))
    gradients = {name: parameter.grad for name, parameter in pipeline.named_parameters()}
    return Outcome(losses, gradients, sent, pipeline.cache.empty)


@remember
def one_process(case: Case) -> tuple[list[float], dict[str, Tensor | None]]:
    torch.set_default_dtype(case.dtype)
    try:
        model = Transformer(case.config, SEED)
        randomise_connection(model)
        losses = []
        for step in range(case.steps):
            total = 0.0
            for tokens in case.batches(step):
                with torch.autocast("cpu", case.precision, enabled=case.precision is not None):
                    logits = model(tokens[:, :-1]).flatten(0, 1)
                    loss = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none").mean()
                    loss = loss / case.micro_batches
                loss.backward()
                total += loss.item()
            losses.append(total)
        return losses, {name: parameter.grad for name, parameter in model.named_parameters()}
    finally:
        torch.set_default_dtype(torch.float32)


def reference(case: Case) -> tuple[list[float], dict[str, Tensor | None]]:
    """Return the one result of all that cut the same model in other ways."""
    plain = replace(case, ranks=1, virtual=1, schedule="", checkpointing=False)
    return one_process(plain)


def compare(case: Case, outcomes: list[Outcome], tolerance: float) -> None:
    """Every gradient within the tolerance of its own largest element; nothing missing, nothing left in a cache.

    The floor is for gradients that cancel: h is one source at site 0, and the norm behind it does not feel its scale.
    """
    losses, gradients = reference(case)
    floor = 1e-6 * max(gradient.abs().max().item() for gradient in gradients.values() if gradient is not None)
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(losses, rel=max(tolerance, 1e-15))
        assert outcome.cache_empty
    found: dict[str, Tensor | None] = {}
    for outcome in outcomes:
        twice = found.keys() & outcome.gradients.keys()
        assert twice <= ({"embedding.weight"} if case.tied else set())
        assert all(torch.equal(found[name], outcome.gradients[name]) for name in twice)  # type: ignore[arg-type]
        found |= outcome.gradients
    assert found.keys() == gradients.keys()
    for name, expected in gradients.items():
        gradient = found[name]
        assert (gradient is None) == (expected is None), name
        if gradient is not None and expected is not None:
            difference = (gradient - expected).abs().max().item()
            assert difference <= tolerance * max(expected.abs().max().item(), floor), f"{name}: {difference}"
