"""Matrices made near-orthogonal, for Muon."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnres.torch_private import cpu_multiplies_bfloat16


def orthogonalise(
    matrices: Sequence[Tensor], coefficients: tuple[float, float, float], steps: int, eps: float
) -> Sequence[Tensor]:
    """Newton-Schulz on matrices of one shape (arXiv 2502.16982), each of whose results is bfloat16, as in torch.

    X <- a X + (b X X^T + c (X X^T)^2) X from X / max(|X|_F, eps), `steps` times.

    Bit for bit what torch.optim.Muon computes where the device multiplies bfloat16. A CPU that does not is many times
    as slow at it as at float32; products are float32's there, rounded to bfloat16 where bfloat16's would be, and
    differ from torch's as sums in another order do.

    Returns: matrices of that shape in bfloat16.
    """
    a, b, c = coefficients
    tall = matrices[0].shape[0] > matrices[0].shape[1]
    x = torch.stack([(matrix.T if tall else matrix).bfloat16() for matrix in matrices])
    x.div_(torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=eps))
    widened = x.device.type == "cpu" and not cpu_multiplies_bfloat16()

    def rounded(product: Tensor) -> Tensor:
        return product.bfloat16().float() if widened else product

    x = x.float() if widened else x
    for _ in range(steps):
        gram = rounded(x @ x.mT)
        x = rounded(torch.baddbmm(x, rounded(torch.baddbmm(gram, gram, gram, beta=b, alpha=c)), x, beta=a))
    return (x.mT if tall else x).bfloat16().unbind()
