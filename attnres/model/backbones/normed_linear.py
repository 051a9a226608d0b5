"""A norm and the projection behind it, for sublayers that read several mixtures."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnres.ops import normalise, normalise_backward
from attnres.torch_private import calls_forward_alone, interpreter_stack


def normed_linear(norm: nn.Module, linear: nn.Module, h: Tensor) -> Tensor:
    """linear(norm(h)), of which h and 1/rms(h) alone are kept for the backward pass.

    h is kept anyway, by the attention over depth that made it; h / rms(h) would be a second tensor of its size.
    torch keeps three tensors of h's size for each mixture that is normalised and projected; a sublayer with a mixture
    for each of q, k and v would need half as much memory again as one with a single one. Modules that others stand in
    for (an adapter), or that have hooks, are called.
    """
    if torch.compiler.is_compiling() or interpreter_stack():
        return linear(norm(h))  # a compiler chooses itself what to keep
    if not (_is_plain_norm(norm) and _is_plain_linear(linear)):
        return linear(norm(h))
    return _NormedLinear.apply(h, norm.weight, linear.weight, norm.eps)  # pyright: ignore[reportReturnType]


def _is_plain_norm(norm: nn.Module) -> TypeGuard[nn.RMSNorm]:
    whole = type(norm) is nn.RMSNorm and norm.eps is not None and norm.weight is not None
    return whole and calls_forward_alone(norm)


def _is_plain_linear(linear: nn.Module) -> TypeGuard[nn.Linear]:
    return type(linear) is nn.Linear and linear.bias is None and calls_forward_alone(linear)


class _NormedLinear(torch.autograd.Function):
    """W (g n) with n = h / rms(h), made again in the backward pass; the gain goes into W."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, gain: Tensor, weight: Tensor, eps: float) -> Tensor:
        n, inverse_rms = normalise(h, eps)
        ctx.save_for_backward(h, inverse_rms, gain, weight)
        ctx.eps = eps
        return F.linear(n, weight * gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        h, inverse_rms, gain, weight = ctx.saved_tensors
        n, _ = normalise(h, ctx.eps)
        # In the gradient's dtype: under autocast that of the product.
        grad_n = torch.matmul(grad, (weight * gain).to(grad.dtype)).to(n.dtype)
        both = grad.flatten(0, -2).mT @ n.flatten(0, -2).to(grad.dtype)
        grad_h = normalise_backward(grad_n, h, inverse_rms)
        return grad_h, (both * weight).sum(0).to(gain.dtype), (both * gain).to(weight.dtype), None
