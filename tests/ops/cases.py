"""What the operator tests share: calls, their inputs, and the definition in float64 as plainly as it can be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres.ops import Norm, add_normalised, attend, read

EPS = 1e-6
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
NUDGE = 1e-6
"""The relative size of the steps in which `assert_right` tries how far inputs move results."""


def make_sources(count: int, *shape: int, dtypes: Sequence[torch.dtype] = (F32,)) -> list[Tensor]:
    """Sources of unlike magnitudes, with alternating dtypes."""
    return [(torch.randn(*shape) * 3 ** (i % 4 - 1)).to(dtypes[i % len(dtypes)]) for i in range(count)]


def make_vector(dim: int, dtype: torch.dtype = F32, centre: float = 0.0) -> Tensor:
    """A query with which scores are of order one, or with centre=1 a gain."""
    return (centre + torch.randn(dim) / dim**0.5).to(dtype)


def plain(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None = None, eps: float = EPS) -> Tensor:
    """The definition, in the dtype of the input: spec.md 3."""
    v = torch.stack(list(sources))
    scores = plain_scores(v, query, gain, eps)
    weights = scores.exp() / scores.exp().sum(0)
    return (weights.unsqueeze(-1) * v).sum(0)


def plain_scores(v: Tensor, query: Tensor, gain: Tensor | None = None, eps: float = EPS) -> Tensor:
    keys = v / (v.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return ((keys if gain is None else keys * gain) * query).sum(-1)


@dataclass(frozen=True)
class Call:
    """One call of the form behind all operators of depth attention."""

    sources: int = 3
    queries: int = 1
    dim: int = 7
    tokens: tuple[int, ...] = (15,)
    dtypes: tuple[torch.dtype, ...] = (F32,)  # of the sources, alternating
    vectors: torch.dtype = F32
    gains: bool = True
    prior: torch.dtype | None = None
    added: torch.dtype | None = None
    scale: float = 1.0
    out: torch.dtype = F32
    norm: float | None = None  # the offset of one behind the read
    heads: int = 0  # 0: vectors have no axis of heads

    def inputs(self) -> list[Tensor]:
        shape, s = (*self.tokens, self.dim), self.queries
        sources = make_sources(self.sources, *shape, dtypes=self.dtypes)
        vectors = [make_vector(self.dim, self.vectors) for _ in range(s)]
        vectors += [make_vector(self.dim, self.vectors, 1.0) for _ in range(s * self.gains)]
        prior = [torch.randn(shape).to(self.prior) for _ in range(s)] if self.prior else []
        if self.heads:
            vectors = [x.view(self.heads, -1) for x in vectors]
        prior += [torch.randn((*self.tokens, *[self.heads] * bool(self.heads))) for _ in prior]
        added = [torch.randn(shape).to(self.added)] if self.added else []
        return [*sources, *vectors, *prior, *added, *([] if self.norm is None else [make_vector(self.dim, self.out)])]

    def _split(self, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
        """Sources, queries, gains, prior, what is added and a norm's weight."""
        ends = [self.sources, self.queries, self.queries * self.gains, 2 * self.queries * bool(self.prior)]
        ends.append(int(self.added is not None))
        rest, groups = list(tensors), []
        for end in ends:
            groups.append(rest[:end])
            rest = rest[end:]
        return *groups, rest

    def operator(self, backend: str) -> Callable[..., tuple[Tensor, ...]]:
        """The outs, then the log-sum-exps; the sum where there is something to add; nothing more behind a norm."""

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            sources, queries, gains, prior, added, weight = self._split(tensors)
            if added or weight:
                norm, y = Norm(weight[0], EPS, self.norm or 0.0) if weight else None, added[0] if added else None
                outs, total = read(sources, y, queries, gains, prior, EPS, self.out, backend, self.scale, norm)
                return (*outs, total) if added else tuple(outs)
            outs, lses = attend(sources, queries, gains, prior, EPS, self.out, backend, self.scale)
            return *outs, *lses

        return run

    def _heads_apart(
        self, v: Tensor, query: Tensor, gain: Tensor | None, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One attention: each head is one whose query is zero outside of its slice of the channels."""
        count, (outs, lses) = max(1, self.heads), ([], [])
        for head, own in enumerate(torch.arange(self.dim).chunk(count)):
            mask = torch.zeros(self.dim, dtype=v.dtype).index_fill(0, own, 1)
            whole = query.flatten() * mask
            scores = plain_scores(v[: self.sources], whole, None if gain is None else gain.flatten())
            if before is not None:
                scores = torch.cat([scores, (before[..., head] if self.heads else before).unsqueeze(0)])
            weights = scores.exp() / scores.exp().sum(0)
            outs.append((weights.unsqueeze(-1) * v).sum(0)[..., own])
            lses.append(scores.exp().sum(0).log())
        return torch.cat(outs, -1), torch.stack(lses, -1) if self.heads else lses[0]

    def exact(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The same by definition; a sum is what it is stored as, with a gradient as if it were not rounded."""
        sources, queries, gains, prior, added, weight = self._split(tensors)
        if added:
            total = sources[-1] + added[0]
            stored = torch.promote_types(self.dtypes[(self.sources - 1) % len(self.dtypes)], self.added)
            stored = torch.promote_types(stored, self.out)
            total = total + (total.to(stored).double() - total).detach()
            sources = [*sources[:-1], total]
        outs, lses = [], []
        for j, query in enumerate(queries):
            v = torch.stack([*sources, *prior[j : j + bool(prior)]])
            before = prior[len(queries) + j] if prior else None
            h, lse = self._heads_apart(v, query, gains[j] if gains else None, before)
            outs.append(self.scale * h)
            lses.append(lse)
        if weight:
            assert self.norm is not None
            outs = [h / (h.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * (self.norm + weight[0]) for h in outs]
            return (*outs, total) if added else tuple(outs)
        return (*outs, total) if added else (*outs, *lses)


def value_and_gradients(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> list[Tensor]:
    """function(*inputs), flattened, then the gradient of each input under fixed, uneven weights of the outputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]  # no copies, which would be contiguous
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    total = sum((out.double() * _uneven(out)).sum() for out in outputs)
    gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
    return [*(out.detach() for out in outputs), *gradients]


def in_double(*inputs: Tensor) -> list[Tensor]:
    return [x.double() for x in inputs]


def assert_right(
    operator: Callable[..., Tensor | tuple[Tensor, ...]],
    exact: Callable[..., Tensor | tuple[Tensor, ...]],
    *inputs: Tensor,
    roundings: float = 1,
    cancelling: float = 0.0,
) -> None:
    """Results and gradients are `exact` in float64 but for rounding: the inputs', and that of sums on the way.

    Each input rounded moves a result by u, the unit roundoff of the dtype computed in, times the derivatives; how far
    that is, is tried on the exact function. A sum of n terms adds about sqrt(n) roundings more, whatever its order, and
    a score is rounded a few times on its way. So what is allowed is 4 (8 + sqrt(n)) u (|result| + the move), about four
    times what was seen, and `roundings` of the result where its dtype is narrower.

    cancelling: the norm of the terms of which a result is the sum where that is zero exactly.
    """
    dtype = F64 if all(x.dtype == F64 for x in inputs) else F32
    longest = max(side for x in inputs for side in (x.shape[-1], math.prod(x.shape[:-1])))
    factor = 4 * (8 + longest**0.5) * _unit(dtype)
    found, doubles = value_and_gradients(operator, *inputs), in_double(*inputs)
    expected = value_and_gradients(exact, *doubles)
    generator = torch.Generator().manual_seed(2)
    nudged = [x * (1 + NUDGE * torch.randint(-1, 2, x.shape, generator=generator)) for x in doubles]
    moved = value_and_gradients(exact, *nudged)
    assert [x.shape for x in found] == [x.shape for x in expected]
    for number, (one, other, after) in enumerate(zip(found, expected, moved, strict=True)):
        size = other.norm()
        allowed = factor * (size + (after - other).norm() / NUDGE + cancelling)
        if _unit(one.dtype) > _unit(dtype):
            allowed += roundings * _unit(one.dtype) * size
        error = (one.double() - other).norm()
        assert error <= allowed, f"tensor {number} of {len(expected)} is off by {error:.1e} and not {allowed:.1e}"


def assert_near(
    actual: Sequence[Tensor], expected: Sequence[Tensor], roundings: float = 100, floor: float = 0.0
) -> None:
    """Two computations of the same in float32: each tensor within so many roundings of the other, in norm.

    Norms below `floor` count as it: a gradient may be exactly zero.
    """
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert one.shape == other.shape
        assert error <= roundings * _unit(F32), f"tensor {number} of {len(expected)} is off by {error:.1e}"


def _unit(dtype: torch.dtype) -> float:
    """By how much a number is moved at most when it is rounded, relative to itself."""
    return torch.finfo(dtype).eps / 2


def _uneven(x: Tensor) -> Tensor:
    """Exact in every dtype, so that a bfloat16 output's gradient is not rounded on its way in."""
    generator = torch.Generator().manual_seed(x.numel())
    return torch.randn(x.shape, generator=generator).bfloat16().double().to(x.device)


HUGE_AND_TINY = [  # float32 has no room for the squares of the first three and the last
    (9e17, 1e-6, 1024, 1),
    (1e20, 1e-6, 40, 2),
    (1e34, 1e-6, 40, 1),
    (1e-20, 0.0, 40, 1),
    (1e-25, 0.0, 40, 2),
]


def assert_right_at(size: float, eps: float, dim: int, backend: str, queries: int = 1, gradient: float = 1.0) -> None:
    """Attention over sources of a magnitude, and a normalised sum, forward and backward, are those of float64.

    gradient: the magnitude of that of the attention's results.
    """
    sources = [size * v for v in make_sources(3, 2, dim)]
    vectors = [make_vector(dim) for _ in range(queries)]

    def attention(*x: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient * h for h in attend(x[:3], x[3:], [], (), eps, F32, backend)[0])

    def exact(*x: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient * plain(x[:3], query, eps=eps) for query in x[3:])

    def normalised(y: Tensor) -> Tensor:
        return add_normalised(y, eps=eps, backend=backend)

    def exactly_normalised(y: Tensor) -> Tensor:
        return y / (y.pow(2).mean(-1, keepdim=True) + eps).sqrt()

    for ours, theirs, inputs in (
        (attention, exact, [*sources, *vectors]),
        (normalised, exactly_normalised, sources[:1]),
    ):
        found, expected = value_and_gradients(ours, *inputs), value_and_gradients(theirs, *in_double(*inputs))
        for one, other in zip(found, expected, strict=True):
            assert (one.double() - other).norm() <= 1e-5 * other.norm()
