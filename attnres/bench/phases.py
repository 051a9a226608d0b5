"""The two phases of a block apart: all its queries over the finished blocks at once, and one site's merge.

Those that read depth at one site take part in phase 1 as often as there are queries. What a contender returns may be
rounded as it rounds it: ours keeps phase 1 in float32, as a model does, and flash-attn-res in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres.bench import readers
from attnres.bench.measure import CPU, Run, Setting, take_turns, why, worst_error
from attnres.bench.operator import TOLERANCE, Comparison
from attnres.bench.readers import EPS, Missing, Read
from attnres.ops import attend, merge_partial, widen

Function = Callable[..., Sequence[Tensor]]
"""Takes the inputs one by one and returns what is differentiated."""

NARROW = ("flash-attn-res",)
"""Those that take what phase 1 gave in the stream's dtype, as their own phase 1 gives it."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a block's reading."""

    batch: int
    time: int
    dim: int
    queries: int
    sources: int
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = CPU

    def __str__(self) -> str:
        return f"{self.queries} queries, {self.sources} sources, {self.batch}x{self.time} tokens, d {self.dim}"

    def normal(self, *size: int) -> Tensor:
        return torch.randn(size, device=self.device)

    def stream(self) -> Tensor:
        return self.normal(self.batch, self.time, self.dim).to(self.dtype)

    def query(self) -> Tensor:
        return self.normal(self.dim) / self.dim**0.5


def compare_phase_1(shape: Shape, setting: Setting) -> Comparison:
    """All queries over all sources, forward and backward."""
    n = shape.sources

    def attention(dtype: torch.dtype) -> Function:
        return lambda *x: attend(x[:n], x[n:], [], (), EPS, dtype)[0]

    def one_by_one(read: Read, stacks: bool) -> Function:
        gain = torch.ones(shape.dim, device=shape.device, dtype=shape.dtype)

        def function(*x: Tensor) -> list[Tensor]:
            sources = torch.stack(x[:n]) if stacks else x[:n]  # once for all queries
            return [read(sources, query.to(shape.dtype), gain.to(query.dtype)) for query in x[n:]]

        return function

    others, missing = readers.packages(shape.device)
    reads = {name: read for name, read in (readers.plain() | others).items() if name != "attnres"}
    functions = {"attnres": attention(torch.float32), "attnres, bfloat16 results": attention(shape.dtype)}
    functions |= {f"{name}, query by query": one_by_one(r, name in readers.STACKING) for name, r in reads.items()}
    missing = {f"{name}, query by query": reason for name, reason in missing.items()}
    _add(functions, missing, "flash-attn-res", lambda: _flash_phase_1(shape))
    inputs = [*(shape.stream() for _ in range(n)), *(shape.query() for _ in range(shape.queries))]
    return _compare(functions, missing, inputs, lambda *x: _exact(x[:n], x[n:]), f"phase 1, {shape}", shape, setting)


def compare_merge(shape: Shape, setting: Setting) -> Comparison:
    """One site's open block joining what phase 1 gave it."""

    def formula(partial: Tensor, query: Tensor, out: Tensor, lse: Tensor) -> list[Tensor]:
        v, before = widen(partial), widen(out)
        score = (v * query).sum(-1) / (v.square().mean(-1) + EPS).sqrt()
        share = torch.sigmoid(score - lse).unsqueeze(-1)
        return [((1 - share) * before + share * v).to(partial.dtype)]

    functions: dict[str, Function] = {
        "attnres": lambda partial, query, out, lse: [merge_partial(partial, query, out, lse, EPS)],
        "eager": formula,
        "compiled": torch.compile(formula, fullgraph=True, dynamic=False),
    }
    missing: dict[str, str] = {}
    _add(functions, missing, "flash-attn-res", lambda: _flash_phase_2(shape))
    partial, out = shape.stream(), shape.normal(shape.batch, shape.time, shape.dim)
    inputs = [partial, shape.query(), out, shape.normal(shape.batch, shape.time)]
    return _compare(functions, missing, inputs, formula, f"merge, {shape}", shape, setting)


def _add(functions: dict[str, Function], missing: dict[str, str], name: str, make: Callable[[], Function]) -> None:
    try:
        functions[name] = make()
    except Missing as reason:
        missing[name] = str(reason)
    except ImportError:
        missing[name] = readers.NOT_INSTALLED


def _flash_phase_1(shape: Shape) -> Function:
    readers.needs_cuda(shape.device)
    from flash_attn_res import phase_1_batched_attention_triton_op

    n = shape.sources
    return lambda *x: [phase_1_batched_attention_triton_op(torch.stack(x[:n]), torch.stack(x[n:]), EPS)[0]]


def _flash_phase_2(shape: Shape) -> Function:
    readers.needs_cuda(shape.device)
    from flash_attn_res import phase_2_online_softmax_merge_triton_op

    return lambda *x: [phase_2_online_softmax_merge_triton_op(*x, EPS)]


def _exact(sources: Sequence[Tensor], queries: Sequence[Tensor]) -> list[Tensor]:
    gain = torch.ones_like(queries[0])
    return [readers.stacked(sources, query, gain) for query in queries]


def _compare(
    functions: dict[str, Function],
    missing: dict[str, str],
    inputs: Sequence[Tensor],
    exact: Function,
    what: str,
    shape: Shape,
    setting: Setting,
) -> Comparison:
    """Check each against float64, then let those that are right take turns."""
    wanted = _outputs_and_gradients(exact, [x.double() for x in inputs])
    result = Comparison(missing=dict(missing))
    runs: dict[str, Run] = {}
    for name, function in functions.items():
        given = [x.to(shape.dtype) if name in NARROW and x.ndim == 3 else x for x in inputs]
        leaves = [x.detach().requires_grad_() for x in given]
        setting.progress(f"{what}: checking {name} against float64")
        try:
            result.errors[name] = worst_error(_outputs_and_gradients(function, leaves), wanted)
        except Exception as error:  # whatever another package raises is its result
            result.missing[name] = why(error)
            continue
        if result.errors[name] <= TOLERANCE[shape.dtype]:
            runs[name] = _forward_backward(function, leaves)
    result.seconds = take_turns(runs, setting.rounds, setting.progress, what, shape.device)
    return result


def _outputs_and_gradients(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """[the outputs in one, and each input's gradient] under gradients of the outputs that are the same for all."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    grads = torch.autograd.grad(outputs, leaves, _gradients(outputs))
    return [torch.cat([out.detach().flatten() for out in outputs]), *grads]


def _gradients(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Make gradients of numbers that bfloat16 holds, the same for any dtype and however many tensors they come in."""
    number = sum(out.numel() for out in outputs)
    generator = torch.Generator(outputs[0].device).manual_seed(1)
    numbers = torch.randn(number, generator=generator, device=outputs[0].device).bfloat16()
    parts = numbers.split([out.numel() for out in outputs])
    return [part.view(out.shape).to(out.dtype) for part, out in zip(parts, outputs, strict=True)]


def _forward_backward(function: Function, leaves: list[Tensor]) -> Run:
    grads = _gradients(function(*leaves))

    def run() -> None:
        torch.autograd.backward(function(*leaves), grads)
        for leaf in leaves:
            leaf.grad = None

    return run
