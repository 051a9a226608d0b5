"""The Triton backend: cuts a call into launches, and registers itself for CUDA (for the CPU, under the interpreter).

One query keeps its rows in registers (`triton_kernels`); several go through tensor cores, a tile of channels at a time
(`triton_tiles`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnres.errors import UsageError
from attnres.ops import library, triton_normalised
from attnres.ops import triton_kernels as kernels
from attnres.ops import triton_tiles as tiles

AT_ONCE = 16  # tensors of a list that are arguments themselves, and of a launch of the table's kernel
QUERIES = 32  # of a launch, at most: its arguments must fit 4 KB
PROGRAMS = 1024  # of a backward launch, whatever the device, so that a query's gradient does not depend on it
RUNS = 128  # the same, of the launch that makes several queries' gradients: each run has a program per tile of channels
REGISTERS = 128  # of a thread, for rows
MOST_WARPS = 16
CHANNELS = 64  # of a tile, at most
TILE = 512  # channels times queries of one, so that nothing spills
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

Tensors = Sequence[Tensor]


class Variant(NamedTuple):
    """One query's backward pass: the bench for a GPU times VARIANTS, of which one is to stay."""

    stages: int = 1
    """Of the first pass over the rows: 1 has the next row on its way, 4 have three in asynchronous copies."""
    times_warps: int = 1
    """As many warps as `warps` says, or twice as many up to 2,048 channels."""


BACKWARD = Variant()
VARIANTS = (BACKWARD, Variant(4), Variant(1, 2), Variant(4, 2))


def attend(
    sources: Tensors,
    queries: Tensors,
    gains: Tensors,
    prior: Tensors,
    added: Tensors,
    eps: float,
    scale: float,
    dtype: torch.dtype,
    norm: Tensor | None = None,
    norm_eps: float = 0.0,
    norm_offset: float = 0.0,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    library.check(sources, queries, gains, prior, added, norm)
    if queries[0].ndim > 1:
        raise UsageError("depth attention in Triton has no heads; give it a query for each, zero elsewhere")
    sources, prior, added = _contiguous(sources), _contiguous(prior), _contiguous(added)
    queries, gains = _contiguous(queries), _contiguous(gains)
    x, n, s = (*sources, *prior)[0], len(sources), len(queries)
    d = x.shape[-1]
    statistics = x.new_empty((x.numel() // d, n * (s + 1)), dtype=torch.float32)
    outs = [x.new_empty(x.shape, dtype=dtype) for _ in queries]
    lses = [x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in queries]
    if s == 1:
        sums = library.sums_of(sources, added, dtype, x.new_empty)
    else:
        sums = [sources[-1].to(torch.promote_types(dtype, sources[-1].dtype)) + y for y in added]
        sources[n - len(sums) :] = sums
    below = _Norm.of(norm, norm_eps, norm_offset)
    forward = _Forward(sources, queries, gains, outs, lses, prior[:s], prior[s:], statistics, eps, scale, below)
    if x.numel() > 0:
        forward.of_one(added, sums) if s == 1 else forward.of_several()
    return outs, lses, sums, statistics


class _Norm(NamedTuple):
    """A norm as kernels take it."""

    weight: tuple[Tensor, ...]
    eps: float
    offset: float

    @classmethod
    def of(cls, weight: Tensor | None, eps: float, offset: float) -> _Norm:
        return cls(() if weight is None else (weight.contiguous(),), float(eps), float(offset))


class _Forward(NamedTuple):
    """The tensors of a call, all contiguous, and its launches."""

    sources: Tensors
    queries: Tensors
    gains: Tensors
    outs: Tensors
    lses: Tensors
    prior_outs: Tensors
    prior_lses: Tensors
    statistics: Tensor
    eps: float
    scale: float
    norm: _Norm

    def of_one(self, added: Tensors, sums: Tensors) -> None:
        read = self.sources or self.prior_outs  # of no source none is read
        d, listed = read[0].shape[-1], _listed(read)
        kernels.forward_kernel[(len(self.statistics),)](
            listed.tensors,
            self.queries[0],
            tuple(self.gains),
            self.outs[0],
            self.lses[0],
            tuple(self.prior_outs),
            tuple(self.prior_lses),
            tuple(added),
            tuple(sums),
            self.norm.weight,
            self.statistics,
            len(self.sources),
            self.eps,
            self.scale,
            self.norm.eps,
            self.norm.offset,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            DTYPE=listed.dtype,
            ALIGNED=_aligned(read),
            num_warps=warps(4, d),  # pyright: ignore[reportCallIssue]
        )

    def of_several(self) -> None:
        s, d, listed = len(self.queries), self.sources[0].shape[-1], _listed(self.sources)
        for group in _groups(s):
            tiles.forward_kernel[(len(self.statistics),)](
                listed.tensors,
                _key_vectors(self.queries[group], self.gains[group]),
                tuple(self.outs[group]),
                tuple(self.lses[group]),
                tuple(self.prior_outs[group]),
                tuple(self.prior_lses[group]),
                self.statistics,
                group.start,
                len(self.sources),
                s,
                self.eps,
                self.scale,
                **_tile(group, d),
                **{"DTYPE": listed.dtype, "ALIGNED": _aligned((*self.sources, *self.prior_outs))},
            )


def attend_one(
    sources: Tensors,
    query: Tensor,
    gain: Tensor | None,
    added: Tensor | None,
    eps: float,
    scale: float,
    dtype: torch.dtype,
    *norm: Any,
) -> tuple[Tensor, list[Tensor]]:
    gains, given = [] if gain is None else [gain], [] if added is None else [added]
    (out,), _, sums, _ = attend(sources, [query], gains, (), given, eps, scale, dtype, *norm)
    return out, sums


def attend_backward(
    grad_outs: Tensors,
    grad_lses: Tensors,
    grad_sums: Tensors,
    sources: Tensors,
    queries: Tensors,
    gains: Tensors,
    outs: Tensors,
    lses: Tensors,
    prior: Tensors,
    statistics: Tensor,
    scale: float,
    norm: Tensor | None = None,
    norm_eps: float = 0.0,
    norm_offset: float = 0.0,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    grad_outs, grad_lses, sources = _contiguous(_alike(grad_outs)), _contiguous(grad_lses), _contiguous(sources)
    outs, lses, statistics = _contiguous(outs), _contiguous(lses), statistics.contiguous()
    prior, queries, gains = _contiguous(prior), _contiguous(queries), _contiguous(gains)
    x, s, below = grad_outs[0], len(queries), _Norm.of(norm, norm_eps, norm_offset)
    make = torch.empty_like if x.numel() else torch.zeros_like
    grad_queries, grad_gains = [make(query) for query in queries], [make(gain) for gain in gains]
    grad_weight = [make(weight) for weight in below.weight]
    grad_prior_outs = library.grad_prior_outs(x, prior[:s], prior[s:])
    grad_prior_lses = [torch.empty_like(lse) for lse in prior[:s]]
    grad_sums = _contiguous(grad_sums)
    given = grad_outs, grad_lses, grad_sums, sources, outs, lses, prior[s:], prior[:s]
    backward = _Backward(*given, grad_prior_outs, grad_prior_lses, statistics, scale, below)
    if x.numel() == 0:
        grad_sources = [torch.empty_like(v) for v in sources]
    else:
        grad_sources, partial = backward.of_one(queries[0], gains) if s == 1 else backward.of_several(queries, gains)
        _finish(partial, [*queries, *below.weight], gains, [*grad_queries, *grad_weight], grad_gains)
    return grad_sources, grad_queries, [*grad_gains, *grad_weight], [*grad_prior_outs, *grad_prior_lses]


class _Backward(NamedTuple):
    """The tensors of a backward pass, all contiguous, and its launches."""

    grad_outs: Tensors
    grad_lses: Tensors
    grad_sums: Tensors
    sources: Tensors
    outs: Tensors
    lses: Tensors
    prior_outs: Tensors
    prior_lses: Tensors
    grad_prior_outs: Tensors
    grad_prior_lses: Tensors
    statistics: Tensor
    scale: float
    norm: _Norm

    def of_one(self, query: Tensor, gains: Tensors) -> tuple[list[Tensor], Tensor]:
        """The gradients of the sources, and in parts [programs, 1 or 2, d] the key vector's and the norm's weight's."""
        n, d = len(self.sources), len(query)
        tokens = len(self.statistics)
        programs, tokens_each = _runs(tokens, PROGRAMS)
        partial = self.statistics.new_empty((programs, 1 + len(self.norm.weight), d))
        along = () if self.outs or self.norm.weight else (self.statistics.new_empty((tokens, n)),)
        grad_sources = [torch.empty_like(v) for v in self.sources]
        rows = (*self.sources, *grad_sources) or (*self.prior_outs, *self.grad_prior_outs)  # of no source none is read
        listed, written = _listed(rows[: len(rows) // 2]), _listed(rows[len(rows) // 2 :])
        kernels.backward_kernel[(programs,)](
            listed.tensors,
            written.tensors,
            query,
            tuple(gains),
            self.grad_outs[0],
            self.lses[0],
            tuple(self.grad_lses),
            tuple(self.grad_sums),
            tuple(self.outs),
            along,
            tuple(self.prior_outs),
            tuple(self.prior_lses),
            tuple(self.grad_prior_outs),
            tuple(self.grad_prior_lses),
            self.norm.weight,
            partial,
            self.statistics,
            tokens,
            tokens_each,
            n,
            self.scale,
            self.norm.eps,
            self.norm.offset,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            DTYPE=listed.dtype,
            ALIGNED=_aligned(rows),
            STAGES=BACKWARD.stages,
            num_warps=warps(6, d) * (BACKWARD.times_warps if d <= 2048 else 1),  # pyright: ignore[reportCallIssue]
        )
        return grad_sources, partial

    def of_several(self, queries: Tensors, gains: Tensors) -> tuple[list[Tensor], Tensor]:
        """The same of more queries, [runs, s, d]. Those of several launches are added up in float32."""
        s, d = len(queries), self.sources[0].shape[-1]
        programs, tokens_each = _runs(len(self.statistics), RUNS)
        partial = self.statistics.new_empty((programs, s, d))
        groups = list(_groups(s))
        dtypes = [v.dtype if len(groups) == 1 else torch.float32 for v in self.sources]
        totals: list[Tensor] = []
        for group in groups:
            grads = [torch.empty_like(v, dtype=dtype) for v, dtype in zip(self.sources, dtypes, strict=True)]
            self._launch(group, s, _key_vectors(queries[group], gains[group]), grads, partial, tokens_each)
            totals = [a.add_(b) for a, b in zip(totals, grads, strict=True)] if totals else grads
        for more in self.grad_sums:
            totals[-1].add_(more)
        return [total.to(v.dtype) for total, v in zip(totals, self.sources, strict=True)], partial

    def _launch(
        self, group: slice, s: int, keys: Tensor, grad_sources: Tensors, partial: Tensor, tokens_each: int
    ) -> None:
        n, tokens, d = len(self.sources), len(self.statistics), keys.shape[-1]
        listed, written = _listed(self.sources), _listed(grad_sources)
        slopes = self.statistics.new_empty((tokens, n * (len(keys) + 1)))
        rows = (*self.sources, *grad_sources, *self.grad_outs, *self.outs, *self.prior_outs)
        tile = _tile(group, d) | {"DTYPE": listed.dtype, "ALIGNED": _aligned(rows)}
        tiles.backward_kernel[(tokens,)](
            listed.tensors,
            written.tensors,
            keys,
            tuple(self.grad_outs[group]),
            tuple(self.lses[group]),
            tuple(self.grad_lses[group]),
            tuple(self.outs[group]),
            tuple(self.prior_outs[group]),
            tuple(self.prior_lses[group]),
            tuple(self.grad_prior_outs[group]),
            tuple(self.grad_prior_lses[group]),
            self.statistics,
            slopes,
            group.start,
            n,
            s,
            self.scale,
            GRAD_DTYPE=written.dtype,
            **tile,
        )
        tiles.key_gradients_kernel[(len(partial), triton.cdiv(d, tile["CHANNELS"]))](
            listed.tensors, slopes, partial, tokens, tokens_each, group.start, n, s, len(keys), **tile
        )


def register(device: str) -> None:
    """Let `torch.ops.attnres` run on tensors of the device: "cuda", or "cpu" under the interpreter."""
    sums = triton_normalised.add_normalised, triton_normalised.add_normalised_backward
    for operator in (attend, attend_one, attend_backward, *sums):
        torch.library.impl(f"attnres::{operator.__name__}", device, _on_its_device(operator))


def _on_its_device(function: Callable) -> Callable:
    """Make the tensors' device the current one, on which Triton launches."""

    def guarded(*arguments: Any) -> Any:
        first = next(x for x in arguments if not isinstance(x, list) or x)  # of a prior alone there are no sources
        with torch.cuda.device_of(first[0] if isinstance(first, list) else first):
            return function(*arguments)

    return guarded


class _Listed(NamedTuple):
    """A list of tensors as a kernel's argument, and their dtype; None: several."""

    tensors: tuple[Tensor, ...]
    dtype: Any


def _listed(tensors: Tensors) -> _Listed:
    """The tensors themselves, one or padded to AT_ONCE, or a table of addresses, which does not keep them alive."""
    tensors = tuple(tensors)
    dtypes = {x.dtype for x in tensors}
    dtype = DTYPES[dtypes.pop()] if len(dtypes) == 1 else None
    if dtype is not None and len(tensors) <= AT_ONCE:
        missing = AT_ONCE - len(tensors) if len(tensors) > 1 else 0
        return _Listed((*tensors, *tensors[-1:] * missing), dtype)
    rows = tiles.ROWS.value  # which a kernel looks up at once; one more than there are tensors where it reads ahead
    table = torch.empty((len(tensors) // rows + 1) * rows, 2, dtype=torch.int64, device=tensors[0].device)
    for start in range(0, len(table), AT_ONCE):
        part = tuple(tensors[start : start + AT_ONCE])
        kernels.table_kernel[(1,)](table[start:], (*part, *tensors[-1:] * (AT_ONCE - len(part))))
    return _Listed((table,), dtype)


def _aligned(tensors: Tensors) -> bool:
    """Whether all rows begin at multiples of 16 bytes, which are read and written at once."""
    row_bytes = tensors[0].shape[-1] * min(x.element_size() for x in tensors)
    return row_bytes % 16 == 0 and all(x.data_ptr() % 16 == 0 for x in tensors)


def _groups(s: int) -> Iterator[slice]:
    for start in range(0, s, QUERIES):
        yield slice(start, min(s, start + QUERIES))


def _tile(group: slice, d: int) -> dict[str, Any]:
    queries = max(8, triton.next_power_of_2(group.stop - group.start))
    channels = max(16, min(CHANNELS, TILE // queries, triton.next_power_of_2(d)))
    # One warp: the products are too small to share, and it has no other to wait for.
    return {"D": d, "CHANNELS": channels, "QUERIES": queries, "num_warps": 1}


def warps(rows: int, channels: int) -> int:
    """The fewest warps of a program whose registers hold so many rows: fewer have less to say to one another.

    Decided by shapes alone and not by measuring, so that all ranks run the same kernel and a choice made while decoding
    does not stay for training; and not by the number of tokens or the GPU, so that a token's result depends on neither.
    """
    taken = 1
    while taken < MOST_WARPS and rows * triton.next_power_of_2(channels) > 32 * taken * REGISTERS:
        taken *= 2
    return taken


def _runs(tokens: int, most: int) -> tuple[int, int]:
    """Cut tokens into at most so many runs: how many, and the tokens of each."""
    tokens_each = -(-tokens // most)
    return -(-tokens // tokens_each), tokens_each


def _key_vectors(queries: Tensors, gains: Tensors) -> Tensor:
    d = len(queries[0])
    keys = torch.empty((len(queries), d), dtype=torch.float32, device=queries[0].device)
    sizes: dict[str, Any] = {"D": d, "CHANNELS": min(1024, triton.next_power_of_2(d))}
    tiles.keys_kernel[(triton.cdiv(d, sizes["CHANNELS"]),)](tuple(queries), tuple(gains), keys, **sizes)
    return keys


def _finish(partial: Tensor, queries: Tensors, gains: Tensors, grad_queries: Tensors, grad_gains: Tensors) -> None:
    """Make the gradients of the parameters of their parts: of queries with a gain, then of vectors without."""
    runs, s, d = partial.shape
    sizes: dict[str, Any] = {"D": d, "RUNS": 64, "CHANNELS": 32}
    vectors = tuple(queries), tuple(gains), tuple(grad_queries), tuple(grad_gains)
    kernels.parameters_kernel[(triton.cdiv(d, sizes["CHANNELS"]), s)](partial, *vectors, runs, **sizes)


def _alike(tensors: Tensors) -> Tensors:
    """In one dtype: zeros for outputs that were not used come in the sources'."""
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    return [x.to(dtype) for x in tensors]


def _contiguous(tensors: Tensors) -> list[Tensor]:
    return [x.contiguous() for x in tensors]
