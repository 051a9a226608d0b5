"""Imitate the rounding of another processor: perturb matrix products and our operators by a relative 1e-7.

    ATTNRES_TEST_NOISE=1e-7 .venv/bin/pytest tests/ops tests/connections

The error depends only on the number itself and on the size of its tensor. So repeating a computation on the same
shapes gives the same bits, as on one real processor, and splitting it differently gives other bits. In float64 the
error is smaller, in proportion to the rounding of that dtype.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnres.ops import library

SIZE = float(os.environ.get("ATTNRES_TEST_NOISE") or 0)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
OPERATORS = ("attend", "attend_one", "attend_backward")

_aten = torch.library.Library("aten", "IMPL")


def make_noise() -> None:
    """Perturb results for the rest of the process, if ATTNRES_TEST_NOISE is set."""
    if not SIZE:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced, as intended
        for name in PRODUCTS:
            _aten.impl(name, _noisy_product(getattr(torch.ops.aten, name).out), "CPU")
    for name in OPERATORS:
        setattr(library, name, _noisy(getattr(library, name)))


def _noisy_product(into: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a product. `into` is its `out=` overload, whose kernel is still torch's own."""

    def product(*arguments: Any, **options: Any) -> Tensor:
        return _moved(into(*arguments, **options, out=arguments[-1].new_empty(0)))

    return product


def _noisy(operator: Callable[..., Any]) -> Callable[..., Any]:
    def noisy(*arguments: Any) -> Any:
        return torch.utils._pytree.tree_map(_moved, operator(*arguments))

    return noisy


def _moved(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    size = SIZE * 2e-9 if x.dtype == torch.float64 else SIZE  # float64 rounds that much finer
    with torch.no_grad():
        by = 1 + size * torch.sin(1e4 * x.double() + x.numel())
    return (x * by).to(x.dtype)
