"""Muon on many small matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Muon

from attnres.ops.newton_schulz import orthogonalise
from attnres.torch_private import adjust_lr

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
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter, grad, buffer in zip(parameters, grads, buffers, strict=True):
                buffer.lerp_(grad, 1 - group["momentum"])
                by_shape[parameter.shape].append((parameter, grad.lerp(buffer, group["momentum"])))
            for shape, pairs in by_shape.items():
                rate, most = (
                    adjust_lr(group["lr"], group["adjust_lr_fn"], shape),
                    max(1, LARGEST_STACK // shape.numel()),
                )
                for first in range(0, len(pairs), most):
                    weights, updates = zip(*pairs[first : first + most], strict=True)
                    whole = orthogonalise(updates, group["ns_coefficients"], group["ns_steps"], group["eps"])
                    for weight, update in zip(weights, whole, strict=True):
                        weight.mul_(1 - group["lr"] * group["weight_decay"])
                        weight.add_(update, alpha=-rate)
