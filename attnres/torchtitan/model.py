"""A torchtitan decoder whose sublayers are joined by a connection."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement
from torch.func import functional_call
from torchtitan.models.common.decoder import Decoder
from torchtitan.protocols.module import Module, ModuleDict

from attnres.connections import Connection, Sublayer, Values, connection_class, make_connection
from attnres.parallel.build import put
from attnres.parallel.chunk import on_its_own_node
from attnres.parallel.plan import ChunkPlan


class Half(Module):
    """One half of a torchtitan block without its residual: f(norm(h)), a site of depth.

    It is what torchtitan shards, compiles and recomputes as a unit.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        norm: Any
        attention: Any = None
        feed_forward: Any = None
        moe: Any = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = None if config.norm is None else config.norm.build()
        self.attention = None if config.attention is None else config.attention.build()
        self.feed_forward: Any = None if config.feed_forward is None else config.feed_forward.build()
        self.moe: Any = None if config.moe is None else config.moe.build()

    @property
    def moe_enabled(self) -> bool:
        """Whether `moe.routed_experts` is there: what torchtitan asks a block before it shards and balances experts."""
        return self.moe is not None

    def forward(self, h: Tensor, attention_masks: Any = None, positions: Tensor | None = None) -> Tensor:
        x = h if self.norm is None else self.norm(h)
        if self.attention is not None:
            return self.attention(x, attention_masks, positions)
        return self.feed_forward(x) if self.moe is None else self.moe(x)


class Depth(Module):
    """The connection as torchtitan shards and initialises it.

    Its parameters are float32. Under tensor parallelism they are whole on every rank, as DTensors; where a rank has a
    share of each sequence its gradient is a summand, and else the same on all ranks.
    """

    def __init__(self, connection: str, dim: int, sublayers: int, sequence_parallel: bool) -> None:
        super().__init__()
        self.connection = make_connection(connection, dim, sublayers).float()
        self._make = partial(make_connection, connection, dim, sublayers)
        self._sequence_parallel = sequence_parallel

    def forward(self, values: Values, sublayers: list[Sublayer], first: int, readout: bool) -> Values:
        """Run the sublayers from site `first` on: the values behind them, or with `readout` h at site L alone."""
        shares = {f"of.{name}": self._share(p) for name, p in self.named_parameters() if isinstance(p, DTensor)}
        return functional_call(_Running(self), shares, (values, sublayers, first, readout))

    def run(self, values: Values, sublayers: list[Sublayer], first: int, readout: bool) -> Values:
        values = self.connection.run(values, sublayers, first)
        return (self.connection.readout(values),) if readout else values

    def _share(self, parameter: DTensor) -> Tensor:
        placements = [Partial()] * parameter.device_mesh.ndim if self._sequence_parallel else parameter.placements
        return parameter.to_local(grad_placements=placements)

    def init_states(self, *, buffer_device: torch.device | None = None) -> None:
        with torch.device("cpu"):
            made = self._make()
        started = {**dict(made.named_parameters()), **dict(made.named_buffers())}
        for name, tensor in (*self.connection.named_parameters(), *self.connection.named_buffers()):
            put(tensor, started[name])


class _Running(torch.nn.Module):
    """`Depth.run` as the forward that `functional_call` wants, without the hooks that FSDP2 has put on Depth."""

    def __init__(self, of: Depth) -> None:
        super().__init__()
        self.of = of

    def forward(self, *args: Any) -> Values:
        return self.of.run(*args)


class DepthDecoder(Decoder):
    """The family's embedding, sublayers, norm and head with a connection in place of the residual.

    `layers.i` is site i: attention at even ones, the MLP at odd ones. A pipeline's part has those of `plan.sites`.
    """

    plan: ChunkPlan | None = None
    tensor_parallel: tuple[DeviceMesh, Placement] | None = None
    """The mesh, and how depth's state is laid over it: each rank a share of the sequence, or all of it."""

    def __init__(self, config: Any) -> None:
        super().__init__(dataclasses.replace(config, layers=[]))
        self.config = config
        pre_norm = connection_class(config.connection).pre_norm
        halves = [half for block in config.layers for half in _halves(block, pre_norm)]
        self.layers = ModuleDict({str(site): half.build() for site, half in enumerate(halves)})
        self.depth = Depth(config.connection, config.dim, len(halves), config.sequence_parallel)

    @property
    def connection(self) -> Connection:
        return self.depth.connection

    def verify_module_protocol(self) -> None:
        depth, self._modules["depth"] = self.depth, None  # a connection is a plain module, which Depth initialises
        try:
            super().verify_module_protocol()
        finally:
            self.depth = depth

    def forward(self, *inputs: Tensor, positions: Tensor | None = None, attention_masks: Any = None) -> Any:
        """Tokens [batch, time] to logits; a pipeline's part takes and returns what its plan says."""
        if self.tok_embeddings is not None:
            values = self.connection.start(_local(self.tok_embeddings(inputs[0])))
        else:
            assert self.plan is not None
            values = tuple(inputs[position] for position in self.plan.positions)
        context = {"attention_masks": attention_masks, "positions": positions}
        sublayers = [partial(self._sublayer, half, context) for half in self.layers.values()]
        first = 0 if self.plan is None else self.plan.sites.start
        values = self.depth(values, sublayers, first, self.norm is not None)
        if self.norm is None:
            assert self.plan is not None
            return tuple(on_its_own_node(values[position]) for position in self.plan.outputs)
        h = self.norm(self._spread(values[0]))
        return h if self._skip_lm_head else self.lm_head(h)

    def _sublayer(self, half: Half, context: dict[str, Any], h: Tensor) -> Tensor:
        return _local(half(self._spread(h), **context))

    def _spread(self, h: Tensor) -> Tensor:
        """Give this rank's share of h to sublayers that tensor parallelism has spread."""
        if self.tensor_parallel is None:
            return h
        mesh, placement = self.tensor_parallel
        return DTensor.from_local(h, mesh, [placement], run_check=False)


def _halves(block: Any, pre_norm: bool) -> list[Half.Config]:
    return [
        Half.Config(norm=block.attention_norm if pre_norm else None, attention=block.attention),
        Half.Config(norm=block.ffn_norm if pre_norm else None, feed_forward=block.feed_forward, moe=block.moe),
    ]


def _local(tensor: Tensor) -> Tensor:
    """This rank's share, for the connection."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
