"""The Triton backend: cuts a call into launches, and registers itself for CUDA (for the CPU, under the interpreter).

A launch takes all sources and as many queries as fit the registers. More queries add their parts of a source's gradient
one launch after another, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from attnres.ops import library, triton_normalised
from attnres.ops import triton_kernels as kernels

ROW_BUDGET = 8192  # queries of a launch times channels: a query keeps four such rows in registers
PROGRAMS = 1024  # of a backward launch, whatever the device, so that a query's gradient does not depend on it
TABLE_STEP = 16  # tensors per launch of the table's kernel
REGISTERS = 128  # of a thread, for rows
MOST_WARPS = 16
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Tensors = Sequence[Tensor]


def attend(
    sources: Tensors, queries: Tensors, gains: Tensors, prior: Tensors, eps: float, scale: float, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    library.check(sources, queries, gains, prior)
    sources, prior = _contiguous(sources), _contiguous(prior)
    x, n, s, d = sources[0], len(sources), len(queries), sources[0].shape[-1]
    tokens = x.numel() // d
    keys = _key_vectors(queries, gains)  # [s, d]
    statistics = x.new_empty((tokens, n * (s + 1)), dtype=torch.float32)
    outs = [x.new_empty(x.shape, dtype=dtype) for _ in queries]
    lses = [x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in queries]
    if tokens == 0:
        return outs, lses, statistics
    table = _Table(sources)
    for group in _query_groups(s, d):
        kernels.forward_kernel[(tokens,)](
            table.addresses,
            table.kinds,
            keys[group],
            tuple(outs[group]),
            tuple(lses[group]),
            tuple(prior[:s][group]),
            tuple(prior[s:][group]),
            statistics,
            group.start,
            n,
            s,
            eps,
            scale,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            KIND=table.kind,
            ALIGNED=table.aligned,
            num_warps=warps(2 * len(outs[group]) + 1, d),  # pyright: ignore[reportCallIssue]
        )
    return outs, lses, statistics


def attend_backward(
    grad_outs: Tensors,
    grad_lses: Tensors,
    sources: Tensors,
    queries: Tensors,
    gains: Tensors,
    outs: Tensors,
    lses: Tensors,
    prior: Tensors,
    statistics: Tensor,
    scale: float,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    grad_outs, grad_lses, sources = _contiguous(grad_outs), _contiguous(grad_lses), _contiguous(sources)
    outs, lses, statistics = _contiguous(outs), _contiguous(lses), statistics.contiguous()
    prior = _contiguous(prior)
    x, n, s, d = sources[0], len(sources), len(queries), sources[0].shape[-1]
    prior_lses, prior_outs = prior[:s], prior[s:]
    tokens = x.numel() // d
    keys = _key_vectors(queries, gains)
    grad_keys = torch.zeros_like(keys)
    grad_sources = [torch.empty_like(v) for v in sources]
    grad_prior_outs = [x.new_empty(x.shape, dtype=torch.float32) for _ in prior_lses]
    grad_prior_lses = [torch.empty_like(lse) for lse in prior_lses]
    tokens_each = max(1, -(-tokens // PROGRAMS))
    programs = -(-tokens // tokens_each)
    table, previous = _Table(sources), None
    for group in _query_groups(s, d) if tokens else ():
        final = group.stop == s
        written = _Table(grad_sources if final else [torch.empty_like(v, dtype=torch.float32) for v in sources])
        partial = x.new_empty((programs, len(keys[group]), d), dtype=torch.float32)
        kernels.backward_kernel[(programs,)](
            table.addresses,
            written.addresses,
            (previous or table).addresses,
            table.kinds,
            tuple(grad_outs[group]),
            tuple(lses[group]),
            tuple(grad_lses[group]),
            tuple(outs[group]),
            tuple(prior_outs[group]),
            tuple(prior_lses[group]),
            tuple(grad_prior_outs[group]),
            tuple(grad_prior_lses[group]),
            keys[group],
            partial,
            statistics,
            tokens,
            tokens_each,
            group.start,
            n,
            s,
            scale,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            KIND=table.kind,
            GRAD_KIND=written.kind,
            ALIGNED=table.aligned and written.aligned and (previous is None or previous.aligned),
            ADDS=previous is not None,
            num_warps=warps(3 * len(keys[group]) + 2, d),  # pyright: ignore[reportCallIssue]
        )
        grad_keys[group] = partial.sum(0)
        previous = written
    grad_queries = [g * gains[j].float() if gains else g.clone() for j, g in enumerate(grad_keys)]
    grad_gains = [g * queries[j].float() for j, g in enumerate(grad_keys)] if gains else []
    return (
        grad_sources,
        [g.to(query.dtype) for g, query in zip(grad_queries, queries, strict=True)],
        [g.to(gain.dtype) for g, gain in zip(grad_gains, gains, strict=True)],
        [*grad_prior_outs, *grad_prior_lses],
    )


def register(device: str) -> None:
    """Let `torch.ops.attnres` run on tensors of the device: "cuda", or "cpu" under the interpreter."""
    torch.library.impl("attnres::attend", device, _on_its_device(attend, 0))
    torch.library.impl("attnres::attend_backward", device, _on_its_device(attend_backward, 2))
    for operator in (triton_normalised.add_normalised, triton_normalised.add_normalised_backward):
        torch.library.impl(f"attnres::{operator.__name__}", device, _on_its_device(operator, None))


def _on_its_device(function: Callable, sources_at: int | None) -> Callable:
    """Make the tensors' device the current one, on which Triton launches.

    sources_at: the place of a list of them among the arguments; None where the first argument is one.
    """

    def guarded(*arguments: Any) -> Any:
        tensor = arguments[0] if sources_at is None else arguments[sources_at][0]
        with torch.cuda.device_of(tensor):
            return function(*arguments)

    return guarded


class _Table:
    """The addresses of tensors, in the device's memory. It keeps the tensors alive."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        x, n = tensors[0], len(tensors)
        length = -(-n // TABLE_STEP) * TABLE_STEP
        self.addresses = torch.empty(length, dtype=torch.int64, device=x.device)
        self.kinds = torch.empty(length, dtype=torch.int32, device=x.device)
        for start in range(0, n, TABLE_STEP):
            part = tuple(tensors[start : start + TABLE_STEP])
            part += part[-1:] * (TABLE_STEP - len(part))
            kernels.table_kernel[(1,)](self.addresses[start:], self.kinds[start:], part)
        kinds = {KINDS[v.dtype] for v in tensors}
        self.kind = kinds.pop() if len(kinds) == 1 else kernels.MIXED.value
        row_bytes = x.shape[-1] * min(v.element_size() for v in tensors)
        self.aligned = row_bytes % 16 == 0 and all(v.data_ptr() % 16 == 0 for v in tensors)


def _query_groups(s: int, d: int) -> Iterator[slice]:
    size = max(1, ROW_BUDGET // triton.next_power_of_2(d))
    for start in range(0, s, size):
        yield slice(start, min(s, start + size))


def _key_vectors(queries: Tensors, gains: Tensors) -> Tensor:
    keys = torch.stack([query.float() for query in queries])
    return keys * torch.stack([gain.float() for gain in gains]) if gains else keys


def _contiguous(tensors: Tensors) -> list[Tensor]:
    return [x.contiguous() for x in tensors]


def warps(rows: int, channels: int) -> int:
    """The fewest warps of a program whose registers hold so many rows: fewer have less to say to one another.

    Decided by shapes alone and not by measuring, so that all ranks run the same kernel and a choice made while decoding
    does not stay for training; and not by the number of tokens or the GPU, so that a token's result depends on neither.
    """
    taken = 1
    while taken < MOST_WARPS and rows * triton.next_power_of_2(channels) > 32 * taken * REGISTERS:
        taken *= 2
    return taken
