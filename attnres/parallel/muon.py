"""Muon on matrices that FSDP2 has sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Muon

from attnres.ops.newton_schulz import orthogonalise
from attnres.torch_private import adjust_lr


class ShardedMuon(Muon):
    """StackedMuon, bit for bit, where every gradient is a DTensor with its rows cut over the mesh's "shard".

    Momentum stays cut. Newton-Schulz needs whole matrices: as many at a time as there are processes are brought
    together, each on one process, orthogonalised there, and cut again; so no work is done twice within "shard".
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            parameters, grads, buffers = [], [], []
            self._init_group(group, parameters, grads, buffers)
            updates: list[DTensor] = []
            for grad, buffer in zip(grads, buffers, strict=True):
                buffer.lerp_(grad, 1 - group["momentum"])
                updates.append(grad.lerp(buffer, group["momentum"]))
            whole = partial(
                orthogonalise, coefficients=group["ns_coefficients"], steps=group["ns_steps"], eps=group["eps"]
            )
            for parameter, update in zip(parameters, on_whole(updates, lambda x, f=whole: f([x])[0]), strict=True):
                weight = parameter.to_local()
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-adjust_lr(group["lr"], group["adjust_lr_fn"], parameter.shape))


def on_whole(matrices: list[DTensor], function: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
    """This process's rows of function(matrix), for each of the matrices, which are the same on all processes.

    The function keeps the shape. Each matrix is whole on one process at a time, in turns.
    """
    if not matrices:
        return
    group = matrices[0].device_mesh.get_group("shard")
    size = dist.get_world_size(group)
    for first in range(0, len(matrices), size):
        yield from _exchange(matrices[first : first + size], function, group)


def _exchange(matrices: list[DTensor], function: Callable[[Tensor], Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """`on_whole` for at most as many matrices as there are processes: process i has matrix i."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    parts = [matrix.to_local() for matrix in matrices]
    part_sizes = [part.numel() for part in parts] + [0] * (size - len(parts))
    packed = torch.cat([part.flatten() for part in parts])
    if rank < len(matrices):
        rows, columns = matrices[rank].shape
        whole_sizes = [count * columns for count in _cut(rows, size)]
    else:
        rows, columns, whole_sizes = 0, 0, [0] * size
    whole = packed.new_empty(rows * columns)
    dist.all_to_all_single(whole, packed, whole_sizes, part_sizes, group=group)
    if rank < len(matrices):
        whole = function(whole.view(rows, columns)).to(whole.dtype).flatten()
    dist.all_to_all_single(packed, whole, part_sizes, whole_sizes, group=group)
    split = packed.split(part_sizes[: len(parts)])
    return [flat.view(part.shape) for flat, part in zip(split, parts, strict=True)]


def _cut(rows: int, size: int) -> list[int]:
    """How many rows each process has: as torch.chunk cuts them, the last ones may have none."""
    most = -(-rows // size)
    return [max(0, min(most, rows - most * rank)) for rank in range(size)]
