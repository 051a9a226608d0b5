"""The changes of what depth reads, for `intervene`.

Every connection is linear once a token's weights are fixed, so what site l reads is a sum over sources (spec.md 2)

    h_l = sum_i M[l, i] v_i,        v_0 the embedding, v_{i+1} the output of sublayer i

and a change replaces terms of that sum: weights M[l, i], vectors v_i or both, at some sites and some tokens. The rule
itself is unchanged: what it carries to later sites, and the weights that it computes there, follow from the outputs
that sublayers really return. So a change needs only the linear maps of a connection, and works for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from torch import Tensor

from attnres.errors import UsageError

Indices = int | Iterable[int] | None
"""One, several, or None: all."""


@dataclass
class SiteRead:
    """What one site reads in one mixture: sum_i weights[i] vectors[i]. Changes write into it.

    weights [tokens.., 1], or [tokens.., dim] where the rule differs by channel. vectors [tokens.., dim].
    """

    weights: list[Tensor]
    vectors: list[Tensor]

    @property
    def total(self) -> Tensor:
        first, *others = (weight * vector for weight, vector in zip(self.weights, self.vectors, strict=True))
        return sum(others, first)


class Made(NamedTuple):
    """What changes may need in addition to the row."""

    positions: Tensor
    """int64 [time]: where the tokens at hand stand in the text."""
    others: Mapping[tuple[int, ...], Sequence[Tensor]]
    """By prompt: its sources [time, dim] each."""
    drawn: dict[Noise, Tensor]
    """What each has drawn so far, for tokens from the start of the text on: [tokens, dim]."""


@dataclass(frozen=True)
class Change:
    """One change. As text it is the Python that makes it."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("sites", "tokens", "prompt"):
                object.__setattr__(self, field.name, listed(field.name, value))
            elif _is_index(value):
                object.__setattr__(self, field.name, int(value))  # a numpy number

    def check(self, connection_sites: int) -> None:
        """Raise UsageError unless it fits a connection of so many sites."""
        source = getattr(self, "source", 0)
        if not _is_index(source) or source not in range(connection_sites + 1):
            raise UsageError(f"{self}: sources are 0, the embedding, to {connection_sites}")
        for site in getattr(self, "sites", None) or ():
            if site not in range(source, connection_sites + 1):
                raise UsageError(f"{self}: sites that can read it are {source} to {connection_sites}, the readout")

    def rewrites(self, site: int) -> bool:
        """Whether it changes what the site reads."""
        sites = getattr(self, "sites", None)
        return site >= getattr(self, "source", 0) and (sites is None or site in sites)

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        """Write the change into what a site reads. where: at which tokens [time, 1]; None is all."""
        raise NotImplementedError

    def enter(self, source: int, vector: Tensor, where: Tensor | None, made: Made) -> Tensor:
        """Change a source [.., time, dim] where it enters, for all that follows."""
        return vector

    def where(self, positions: Tensor) -> Tensor | None:
        """At which of the tokens it holds, [time, 1]; None is at all."""
        tokens = getattr(self, "tokens", None)
        if tokens is None:
            return None
        return torch.isin(positions, torch.tensor(tokens, dtype=positions.dtype, device=positions.device))[:, None]

    def __str__(self) -> str:
        told = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING and field.name == "source":
                told.append(repr(value))
            elif value != field.default:
                told.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(told)})"


@dataclass(frozen=True)
class Scale(Change):
    """M[l, i] <- by * M[l, i]: the sites read the source so many times as much."""

    source: int
    by: float
    sites: Indices = None
    tokens: Indices = None

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        row.weights[self.source] = _put(row.weights[self.source], self.by * row.weights[self.source], where)


@dataclass(frozen=True)
class Mute(Change):
    """M[l, i] <- 0: the sites do not read the source. Their other weights stay as they are."""

    source: int
    sites: Indices = None
    tokens: Indices = None

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        row.weights[self.source] = _put(row.weights[self.source], torch.zeros_like(row.weights[self.source]), where)


@dataclass(frozen=True)
class Pin(Change):
    """M[l, i] <- weight: one weight for the source, at all tokens and in all channels."""

    source: int
    weight: float
    sites: Indices = None
    tokens: Indices = None

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        before = row.weights[self.source]
        row.weights[self.source] = _put(before, torch.full_like(before, self.weight), where)


@dataclass(frozen=True)
class Uniform(Change):
    """M[l, i] <- mean_j M[l, j]: the site's whole weight in equal parts for all sources that it can see."""

    sites: Indices = None
    tokens: Indices = None

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        mean = sum(row.weights[1:], row.weights[0]) / len(row.weights)
        row.weights[:] = [_put(weight, mean, where) for weight in row.weights]


@dataclass(frozen=True)
class Plain(Change):
    """M[l, i] <- 1: what the plain residual reads, the sum of all sources."""

    sites: Indices = None
    tokens: Indices = None

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        row.weights[:] = [_put(weight, torch.ones_like(weight), where) for weight in row.weights]


@dataclass(frozen=True)
class Off(Change):
    """v_i <- 0 where it enters: sublayer i - 1 is switched off. Weights that look at the source follow."""

    source: int
    tokens: Indices = None

    def check(self, connection_sites: int) -> None:
        super().check(connection_sites)
        if self.source == 0:
            raise UsageError("Off(0): source 0 is the embedding, and no sublayer makes it; Mute(0) hides it")

    def rewrites(self, site: int) -> bool:
        return False

    def enter(self, source: int, vector: Tensor, where: Tensor | None, made: Made) -> Tensor:
        return _put(vector, torch.zeros_like(vector), where) if source == self.source else vector


@dataclass(frozen=True)
class Patch(Change):
    """v_i <- the same source of another prompt, position by position; beyond its end nothing changes.

    prompt: its token ids. Without `sites` the source is swapped where it enters, and weights that look at it follow
    (activation patching); with them these sites alone read the other one, under the weights that they have (path
    patching).
    """

    source: int
    prompt: Iterable[int] = ()
    sites: Indices = None
    tokens: Indices = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.prompt:
            raise UsageError("Patch needs the ids of another prompt: Patch(3, prompt=(12, 7))")

    @property
    def ids(self) -> tuple[int, ...]:
        return cast("tuple[int, ...]", self.prompt)

    def rewrites(self, site: int) -> bool:
        return self.sites is not None and super().rewrites(site)

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        row.vectors[self.source] = self._swapped(row.vectors[self.source], where, made)

    def enter(self, source: int, vector: Tensor, where: Tensor | None, made: Made) -> Tensor:
        return self._swapped(vector, where, made) if self.sites is None and source == self.source else vector

    def _swapped(self, vector: Tensor, where: Tensor | None, made: Made) -> Tensor:
        other = made.others[self.ids][self.source].to(vector)
        known = (made.positions < len(other))[:, None]
        where = known if where is None else where & known
        return _put(vector, other[made.positions.clamp_max(len(other) - 1)], where)


@dataclass(frozen=True)
class Noise(Change):
    """v_i <- v_i - r, with r a random direction as long as v_i: the control of a Mute, which takes out v_i itself.

    r is drawn per token, from the seed and the source.
    """

    source: int
    seed: int = 0
    sites: Indices = None
    tokens: Indices = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_index(self.seed) or not abs(self.seed) < 2**31:
            raise UsageError(f"seed must be a whole number below 2**31, not {self.seed!r}")

    def rewrite(self, row: SiteRead, where: Tensor | None, made: Made) -> None:
        vector = row.vectors[self.source]
        direction = self._directions(made, vector.shape[-1]).to(vector)
        length = vector.norm(dim=-1, keepdim=True) / direction.norm(dim=-1, keepdim=True)
        row.vectors[self.source] = _put(vector, vector - length * direction, where)

    def _directions(self, made: Made, dim: int) -> Tensor:
        """Those of the tokens at hand, [time, dim], however many there are before and behind them."""
        positions = made.positions.cpu()
        count = int(positions.max()) + 1 if len(positions) else 0
        if self not in made.drawn or len(made.drawn[self]) < count:
            generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.source)
            # torch draws sixteen numbers at a time, and the last sixteen once more where they do not come out even.
            # Twice the tokens, because decoding asks for one more at every step.
            width = -(-dim // 16) * 16
            made.drawn[self] = torch.randn(2 * count, width, generator=generator)[:, :dim]
        return made.drawn[self][positions]


def _put(before: Tensor, after: Tensor, where: Tensor | None) -> Tensor:
    return after if where is None else torch.where(where, after, before)


def listed(name: str, indices: Any) -> tuple[int, ...] | None:
    """List what `Indices` are; None stays None. Raises UsageError for what is no index."""
    if indices is None:
        return None
    given = indices.tolist() if hasattr(indices, "tolist") else indices  # a tensor's or array's
    several = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(_is_index(index) and 0 <= index < 2**31 for index in several):
        raise UsageError(f"{name} must be whole numbers from 0 on, not {indices!r}")
    return tuple(map(int, several))


def _is_index(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)
