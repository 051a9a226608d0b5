"""One call of the operators of attention over depth, and how far it and anything else is from float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres.ops import add_and_attend, attend
from attnres.ops.backends import Backend

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

TOLERANCE = {F32: 1e-4, BF16: 1e-2, F16: 2e-3}
"""Relative, in norm, by the dtype of what is compared: it is rounded once, or twice."""


@dataclass(frozen=True)
class Call:
    """One call of the form behind all operators of attention over depth."""

    dim: int
    queries: int = 1
    sources: int = 9
    dtypes: tuple[torch.dtype, ...] = (BF16,)
    merges: bool = False
    gains: bool = True
    lses: bool = True  # whether they have a gradient
    scale: float = 1.0
    strided: bool = False
    adds: bool = False  # one more tensor to the last source first
    tokens: int = 111

    def __str__(self) -> str:
        dtypes = " and ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        parts = [f"d {self.dim}", f"{self.queries} queries", f"{self.sources} sources", f"{self.tokens} tokens", dtypes]
        notes = {
            "strided": self.strided,
            "no gains": not self.gains,
            f"scale {self.scale}": self.scale != 1,
            "no gradient of lse": not self.lses,
            "a prior": self.merges,
            "one more added": self.adds,
        }
        return ", ".join([*parts, *(note for note, holds in notes.items() if holds)])

    def error(self, device: torch.device) -> float:
        inputs = self.inputs(device)
        return error_of(self.function("triton"), self.function("reference"), inputs, TOLERANCE)

    def repeats(self, device: torch.device) -> float:
        """0 if a second time gives the same bits, and else infinity."""
        inputs, function = self.inputs(device), self.function("triton")
        first, second = (outputs_and_gradients(function, inputs) for _ in range(2))
        return 0.0 if all(map(torch.equal, first, second)) else float("inf")

    def inputs(self, device: torch.device) -> list[Tensor]:
        """Sources, queries, gains, and where it merges the prior's outs and log-sum-exps."""

        def normal(*size: int) -> Tensor:
            return torch.randn(size, device=device)

        s, t, d = self.queries, self.tokens, self.dim
        sources = [
            (3.0 ** (i % 4 - 1) * normal(t, d)).to(self.dtypes[i % len(self.dtypes)]) for i in range(self.sources)
        ]
        if self.strided:  # the second of each pair begins at an odd address
            sources = [_odd(v) if i % 2 else v.mT.contiguous().mT for i, v in enumerate(sources)]
        added: list[Tensor] = []
        if self.adds:  # numbers whose sum every dtype holds
            sources[-1], y = ((4 * normal(t, d)).round().clamp(-60, 60).to(sources[-1].dtype) / 4 for _ in range(2))
            added = [y]
        vectors = [normal(d) / d**0.5 for _ in range(s)] + [1 + normal(d) / d**0.5 for _ in range(s * self.gains)]
        prior = [normal(t, d) for _ in range(s * self.merges)] + [normal(t) for _ in range(s * self.merges)]
        return [*sources, *vectors, *prior, *added]

    def function(self, backend: Backend) -> Callable[..., list[Tensor]]:
        n, s = self.sources, self.queries
        first_of_prior = n + s + s * self.gains
        rounds = s == 1 or self.merges  # phase 1 alone does not

        def function(*x: Tensor) -> list[Tensor]:
            dtype = torch.promote_types(x[0].dtype, F32) if not rounds else x[0].dtype
            sources, vectors = x[:n], (x[n : n + s], x[n + s : first_of_prior])
            if self.adds:
                prior, y = x[first_of_prior:-1], x[-1]
                outs, total = add_and_attend(sources, y, *vectors, prior, 1e-6, dtype, backend, self.scale)
                return [*outs, total]
            outs, lses = attend(sources, *vectors, x[first_of_prior:], 1e-6, dtype, backend, self.scale)
            return [*outs, *lses] if self.lses else outs

        return function


def _odd(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def error_of(
    function: Callable[..., Sequence[Tensor]],
    exact: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    allowed: dict[torch.dtype, float],
) -> float:
    """The worst error of outputs and gradients over what is allowed to their dtype."""
    doubles = [x.double() for x in inputs]
    return worst(outputs_and_gradients(function, inputs), outputs_and_gradients(exact, doubles), allowed)


def worst(ours: Sequence[Tensor], exact: Sequence[Tensor], allowed: dict[torch.dtype, float]) -> float:
    """Gradients that are exactly zero count against a thousandth of the largest."""
    floor = 1e-3 * torch.stack([b.double().norm() for b in exact]).max()
    errors = [
        (a.double() - b.double()).norm() / torch.maximum(b.double().norm(), floor) / allowed[a.dtype]
        for a, b in zip(ours, exact, strict=True)
    ]
    return float(torch.stack(errors).max())


def outputs_and_gradients(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor] = ()
) -> list[Tensor]:
    """The outputs, and the inputs' gradients under those of the outputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    found = torch.autograd.grad(outputs, leaves, grads or output_gradients(outputs), materialize_grads=True)
    return [*(out.detach() for out in outputs), *found]


def output_gradients(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of the outputs, the same each time, of numbers that every dtype holds exactly."""
    generator = torch.Generator().manual_seed(1)  # not the inputs' own numbers
    return [torch.randn(out.shape, generator=generator).bfloat16().half().to(out) for out in outputs]
