"""Muon on many small matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Muon

from attnres.ops.newton_schulz import orthogonalise
from attnres.torch_private import adjust_lr, foreach_add_, foreach_lerp, foreach_lerp_, foreach_mul_

LARGEST_STACK = 1 << 24
"""Numbers that are orthogonalised at a time: large matrices keep a core busy alone, and their copies cost memory."""


class StackedMuon(Muon):
    """torch.optim.Muon that orthogonalises matrices of one shape together: see `orthogonalise` for where bits differ.

    In a narrow model the products of Newton-Schulz are so small that calling them takes longer than computing them.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            parameters, grads, buffers = [], [], []
            self._init_group(group, parameters, grads, buffers)
            if not parameters:
                continue
            foreach_lerp_(buffers, grads, 1 - group["momentum"])
            updates = foreach_lerp(grads, buffers, group["momentum"])
            foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter, update in zip(parameters, updates, strict=True):
                by_shape[parameter.shape].append((parameter, update))
            for shape, pairs in by_shape.items():
                rate, most = (
                    adjust_lr(group["lr"], group["adjust_lr_fn"], shape),
                    max(1, LARGEST_STACK // shape.numel()),
                )
                for first in range(0, len(pairs), most):
                    weights, stack = zip(*pairs[first : first + most], strict=True)
                    whole = orthogonalise(stack, group["ns_coefficients"], group["ns_steps"], group["eps"])
                    foreach_add_(weights, whole.to(weights[0].dtype).unbind(), alpha=-rate)
