"""The cross-stage cache: what one rank holds of depth's state, and the gradients on their way back."""

from __future__ import annotations

import torch
from torch import Tensor

from attnres.parallel.plan import Held


class CrossStageCache:
    """Entries of `values` by micro-batch, shared by all chunks of one rank, and the sums of their gradients.

    Nothing here decides: the plan says when an entry comes, who reads it and when it may go. Between steps it is empty.
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, Held], Tensor] = {}
        self._gradients: dict[tuple[int, Held], Tensor] = {}

    @property
    def empty(self) -> bool:
        return not (self._tensors or self._gradients)

    def keep(self, micro_batch: int, held: Held, tensor: Tensor) -> Tensor:
        """Hold the tensor until `forget`; returns it."""
        self._tensors[micro_batch, held] = tensor
        return tensor

    def tensor(self, micro_batch: int, held: Held) -> Tensor:
        return self._tensors[micro_batch, held]

    def forget(self, micro_batch: int, held: Held) -> None:
        """Let go of the tensor. A chunk whose backward pass still needs it has it in its autograd graph."""
        del self._tensors[micro_batch, held]

    def add_gradient(self, micro_batch: int, held: Held, gradient: Tensor) -> None:
        """Add one reader's share."""
        so_far = self._gradients.get((micro_batch, held))
        # Not in place: autograd may have returned one tensor as the gradient of two inputs.
        self._gradients[micro_batch, held] = gradient if so_far is None else so_far + gradient

    def take_gradient(self, micro_batch: int, held: Held, device: torch.device) -> Tensor:
        """The sum of all shares, which is held no longer. Zero if nobody read the entry."""
        gradient = self._gradients.pop((micro_batch, held), None)
        if gradient is None:
            return torch.zeros(held.entry.shape, dtype=held.entry.dtype, device=device)
        return gradient
