"""One chunk of depth as a module: its sublayers and its part of the connection."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnres.errors import UsageError
from attnres.model import Transformer, TransformerConfig
from attnres.parallel.build import materialise, skeleton
from attnres.parallel.plan import ChunkPlan


class ChunkModel(Transformer):
    """The sublayers at `plan.sites` of a Transformer, with the embedding or the head if they stand at its ends.

    Parameters have the names that they have in the whole model; those of other chunks are None. `autocast` is the dtype
    of matrix products, None for that of the parameters.
    """

    plan: ChunkPlan
    autocast: torch.dtype | None = None

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:  # type: ignore[override]
        """The chunk's inputs (for the first: tokens [batch, time]) -> what it makes (the last: logits)."""
        sites = self.plan.sites
        time = inputs[0].shape[1]  # of tokens and of all values: [batch, time, ...]
        with torch.autocast(inputs[0].device.type, self.autocast, enabled=self.autocast is not None):
            if sites.start == 0:
                values = self.connection.start(self.embedding(inputs[0]))
            else:
                values = tuple(inputs[position] for position in self.plan.positions)
            # Zero bubble takes a norm's gradient with its sublayer's weights; a read's has it with the inputs.
            sublayers = [getattr(f, "whole", f) for f in self.bound_sublayers(time)[sites.start : sites.stop]]
            values = self.run(values, sublayers, sites.start)
            if sites.stop == self.config.sublayers:
                return self.logits(self.connection.readout(values))
        return tuple(on_its_own_node(values[position]) for position in self.plan.outputs)


def on_its_own_node(value: Tensor) -> Tensor:
    """The same memory behind an autograd node of its own.

    torch's zero bubble detaches a stage's outputs in place, and autograd refuses that for a tensor that the graph has
    saved (a block is a source of its own chunk's later sites) and for a view.
    """
    return _Alias.apply(value)  # pyright: ignore[reportReturnType]


class _Alias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


def build_chunks(
    config: TransformerConfig,
    seed: int,
    plans: Sequence[ChunkPlan],
    users: Mapping[str, Sequence[int]],
    own: Sequence[int],
    device: torch.device,
    shard: Callable[[ChunkModel], object] = lambda chunk: None,
) -> list[ChunkModel]:
    """The chunks `own` with the weights that `Transformer(config, seed)` has, to the bit.

    users: `Trace.users`. shard: called with each chunk before its weights take memory, to cut them over processes.
    """
    whole = skeleton(ChunkModel, config)
    owners = _owners(whole, plans, users)
    chunks = []
    for index in own:
        # deepcopy's memo says what to put for an object: None for what is another chunk's.
        elsewhere = {id(p): None for name, p in whole.named_parameters() if index not in owners[name]}
        chunk = copy.deepcopy(whole, elsewhere)  # pyright: ignore[reportArgumentType]
        chunk.plan = plans[index]
        shard(chunk)
        chunks.append(chunk)
    materialise(whole, chunks, seed, device)
    return chunks


def connection_owners(plans: Sequence[ChunkPlan], users: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The chunk of each of the connection's parameters, by their names in the connection.

    Which sites use a parameter was read off its maths and not off an index: DenseFormer has one per layer.

    Raises:
        UsageError: a parameter that several chunks use.
    """
    chunk_of = _chunk_of(plans)
    owners: dict[str, int] = {}
    for name, sites in users.items():
        chunks = sorted({chunk_of[site] for site in sites})
        if len(chunks) > 1:
            raise UsageError(
                f"connection.{name} is used by {len(chunks)} chunks; "
                "a pipeline needs a connection's parameters per site"
            )
        owners[name] = chunks[0] if chunks else 0
    return owners


def _chunk_of(plans: Sequence[ChunkPlan]) -> list[int]:
    """The chunk of each site; the readout is the last one's."""
    return [index for index, plan in enumerate(plans) for _ in plan.sites] + [len(plans) - 1]


def _owners(whole: Transformer, plans: Sequence[ChunkPlan], users: Mapping[str, Sequence[int]]) -> dict[str, set[int]]:
    """The chunk of each parameter; a tied embedding stands at both ends."""
    last, chunk_of, of_connection = len(plans) - 1, _chunk_of(plans), connection_owners(plans, users)

    def of(name: str) -> set[int]:
        top, _, rest = name.partition(".")
        if top == "sublayers":
            return {chunk_of[int(rest.split(".")[0])]}
        if top == "connection":
            return {of_connection[rest]}
        if top == "embedding":
            return {0, last} if whole.config.tied else {0}
        return {last}

    return {name: of(name) for name, _ in whole.named_parameters()}
