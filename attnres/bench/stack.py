"""A whole stack of sublayers under Block Attention Residuals, forward and backward, by everything that can run one.

The sublayers are identities, which leaves nothing but the connection, or pre-norm SwiGLU MLPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.bench import readers
from attnres.bench.graphs import captured, new_pool, peak_bytes
from attnres.bench.measure import (
    CPU,
    Run,
    Setting,
    medians,
    milliseconds,
    outputs_and_gradients,
    take_turns,
    why,
    worst_error,
)
from attnres.bench.operator import ContenderTimes
from attnres.bench.readers import EPS, Missing, Read
from attnres.connections.rules.block import Block

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Relative, in norm: rounding to bfloat16 at every sublayer adds up."""

CHECKED_TOKENS = 64  # of each sequence, and two blocks: a whole stack in float64 would not fit

Kind = Literal["identity", "SwiGLU"]
Stack = Callable[[Tensor, "StackModel"], Tensor]


@dataclass(frozen=True)
class StackShape:
    """The sizes of the stack and its batch."""

    kind: Kind
    sublayers: int
    dim: int
    batch: int
    time: int
    block_size: int = 8
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = CPU

    def __str__(self) -> str:
        return f"{self.sublayers} {self.kind} sublayers, S {self.block_size}, {self.batch}x{self.time}, d {self.dim}"


class SwiGLU(nn.Module):
    """An MLP of the usual width, 8/3 d."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = -(-8 * dim // 3 // 64) * 64
        self.norm = nn.RMSNorm(dim, EPS)
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        gate, up = self.gate_up(self.norm(h)).chunk(2, -1)
        return self.out(F.silu(gate) * up)


class StackModel(nn.Module):
    """What the contenders share: a connection, whose queries and gains all use, and sublayers."""

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.shape = shape
        self.connection = Block(shape.dim, shape.sublayers, shape.block_size, eps=EPS)
        make = nn.Identity if shape.kind == "identity" else SwiGLU
        self.sublayers = nn.ModuleList(make(shape.dim) for _ in range(shape.sublayers))
        self.connection.gain.requires_grad_(False)  # one of the packages has none
        self.connection.query[0].requires_grad_(False)  # reads one source, so its gradient is zero
        for query in self.connection.query:
            nn.init.normal_(query, std=shape.dim**-0.5)


def compare(shape: StackShape, setting: Setting) -> ContenderTimes:
    """Forward and backward of those whose output and gradients are right.

    On a GPU each is one CUDA graph, so that none is measured on how fast Python launches; what they take without one
    is noted, and so is the most memory that each held.
    """
    stacks, missing = contenders(shape.device)
    setting.progress(f"{shape}: checking against float64")
    result = check(checked(shape), stacks)
    result.missing |= missing
    model, x, grad = make_inputs(shape)
    graphs, launched = {}, {}
    pool = new_pool(shape.device)
    for name, error in result.errors.items():
        if not error <= TOLERANCE[shape.dtype]:
            continue
        setting.progress(f"{shape}: capturing {name}")
        run = _forward_backward(stacks[name], model, x, grad)
        try:
            result.peaks[name] = peak_bytes(run, shape.device)
        except Exception as reason:  # whatever another package raises at this size is its result
            result.missing[name] = why(reason)
            continue
        try:
            graphs[name] = captured(run, shape.device, pool)
            launched[name] = run
        except torch.OutOfMemoryError as reason:
            result.missing[name] = why(reason)
        except Exception as reason:  # whatever another package does that no graph can hold
            result.notes[f"{name}, not captured"] = why(reason)
            graphs[name] = run
    result.seconds = medians(take_turns(graphs, setting.rounds, setting.progress, str(shape), shape.device))
    if shape.device.type == "cuda":
        turns = take_turns(launched, setting.rounds, setting.progress, f"{shape}, launched", shape.device)
        result.notes |= milliseconds({f"{name}, launched one by one": taken for name, taken in medians(turns).items()})
    return result


def residual_peak_bytes(shape: StackShape) -> int | None:
    """The most memory that the same sublayers take under the plain residual."""
    model, x, grad = make_inputs(shape)
    return peak_bytes(_forward_backward(_residual, model, x, grad), shape.device)


def _residual(x: Tensor, model: StackModel) -> Tensor:
    for sublayer in model.sublayers:
        x = x + sublayer(x)
    return x


def checked(shape: StackShape) -> StackShape:
    """What of it is checked. Identities make every source a multiple of the embedding, which leaves no query a
    gradient: both kinds are checked on the other one.
    """
    sublayers, time = min(shape.sublayers, 2 * shape.block_size), min(shape.time, CHECKED_TOKENS)
    return replace(shape, kind="SwiGLU", sublayers=sublayers, time=time)


def check(shape: StackShape, stacks: dict[str, Stack]) -> ContenderTimes:
    """The errors of each, over the output and the gradients of x, queries and sublayers' parameters."""
    model, x, grad = make_inputs(shape)
    double = StackModel(shape).to(shape.device, torch.float64)
    double.load_state_dict(model.state_dict())
    exact = _outputs(reading(readers.stacked), double, x.double(), grad.double())
    result = ContenderTimes()
    for name, stack in stacks.items():
        try:
            result.errors[name] = worst_error(_outputs(stack, model, x, grad), exact)
        except Exception as error:  # whatever another package raises is its result
            result.missing[name] = why(error)
    return result


def make_inputs(shape: StackShape) -> tuple[StackModel, Tensor, Tensor]:
    """The model, its input and the gradient of its output."""
    with torch.device(shape.device):
        x, grad = (torch.randn(shape.batch, shape.time, shape.dim, dtype=shape.dtype) for _ in range(2))
        return StackModel(shape).to(shape.dtype), x.requires_grad_(), grad


def contenders(device: torch.device) -> tuple[dict[str, Stack], dict[str, str]]:
    """Return contenders by name, and why the others are missing."""
    others, missing = readers.packages(device)
    plain = readers.plain()
    reads = {name: plain[name] for name in ("stacked", "compiled reference", "compiled stacked")} | others
    stacks: dict[str, Stack] = {"attnres": ours, **{name: reading(read) for name, read in reads.items()}}
    with suppress(Missing, ImportError):  # `missing` says so already
        stacks["flash-attn-res"] = _flash_attn_res(device)
    return stacks, missing


def ours(x: Tensor, model: StackModel) -> Tensor:
    connection = model.connection
    return connection.readout(connection.run(connection.start(x), model.sublayers))


def reading(read: Read) -> Stack:
    """The stack as one writes it with an operator for one site. spec.md 4."""

    def stack(x: Tensor, model: StackModel) -> Tensor:
        connection, values = model.connection, (x,)
        vectors: Sequence[tuple[Tensor, Tensor]] = list(zip(connection.query, connection.gain, strict=True))
        for site, sublayer in enumerate(model.sublayers):
            y = sublayer(read(values, *vectors[site]))
            opens_block = site % model.shape.block_size == 0
            values = (*values, y) if opens_block else (*values[:-1], values[-1] + y)
        return read(values, *vectors[-1])

    return stack


def _flash_attn_res(device: torch.device) -> Stack:
    """Run its form for the whole stack, which recomputes the sublayers in the backward pass."""
    readers.needs_cuda(device)
    from flash_attn_res.experimental.autograd import BlockAttentionResiduals

    def stack(x: Tensor, model: StackModel) -> Tensor:
        queries = torch.stack(list(model.connection.query))
        layers = list(model.sublayers)
        parameters = [p for layer in layers for p in layer.parameters()]
        out = BlockAttentionResiduals.apply(x, queries, layers, model.shape.block_size, EPS, *parameters)
        assert isinstance(out, Tensor)
        return out

    return stack


def _outputs(stack: Stack, model: StackModel, x: Tensor, grad: Tensor) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return outputs_and_gradients(lambda x: stack(x, model), [x], grad, parameters)


def _forward_backward(stack: Stack, model: StackModel, x: Tensor, grad: Tensor) -> Run:
    def run() -> None:
        stack(x, model).backward(grad)
        x.grad = None  # here: what a step adds to the memory is with its gradients
        model.zero_grad(set_to_none=True)

    return run
