"""Every way to read depth at one site that can be had: ours, PyTorch written plainly, compiled, and the other packages.

    h = read(sources, query, gain)          sources: list of [batch, time, d]; query, gain: [d]

The other packages come with `pip install -e '.[bench]'`; their fused kernels need a CUDA device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.errors import install_command
from attnres.ops import depth_attention, widen

EPS = 1e-6

Read = Callable[[Sequence[Tensor], Tensor, Tensor], Tensor]

PACKAGES = ("fla-core", "flash-attn-res", "liger-kernel")


class Missing(Exception):
    """Why a contender cannot take part, in a few words."""


def ours(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> Tensor:
    return depth_attention(sources, query, gain, EPS)


def stacked(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> Tensor:
    """Depth attention as it is usually written, over one tensor of all sources."""
    v = widen(torch.stack(list(sources)))
    keys = F.rms_norm(v, v.shape[-1:], widen(gain), EPS)
    weights = (keys * query).sum(-1).softmax(0)
    return (weights.unsqueeze(-1) * v).sum(0).to(sources[0].dtype)


def plain() -> dict[str, Read]:
    """What needs no other package. Compiled for the shapes that each call meets, and for no more than it meets."""
    torch.compiler.reset()

    def reference(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> Tensor:
        return depth_attention(sources, query, gain, EPS, backend="reference")

    return {
        "attnres": ours,
        "stacked": stacked,
        "compiled reference": torch.compile(reference, fullgraph=True, dynamic=False),
        "compiled stacked": torch.compile(stacked, fullgraph=True, dynamic=False),
    }


def packages(device: torch.device) -> tuple[dict[str, Read], dict[str, str]]:
    """The other packages' (readers by name, and why the others are missing)."""
    found: dict[str, Read] = {}
    missing: dict[str, str] = {}
    for name, load in zip(PACKAGES, (_fla, _flash_attn_res, _liger), strict=True):
        try:
            found[name] = load(device)
        except Missing as reason:
            missing[name] = str(reason)
        except ImportError:
            missing[name] = f"not installed: {install_command('bench')}"
    return found, missing


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _fla(device: torch.device) -> Read:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns on machines without a GPU
        from fla.ops.attnres import fused_attnres, naive_attnres

    operator = fused_attnres if device.type == "cuda" else naive_attnres

    def read(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> Tensor:
        h = operator(query, list(sources), gain, rms_eps=EPS)
        assert isinstance(h, Tensor)  # a pair only if asked for the weights
        return h

    return read


def _flash_attn_res(device: torch.device) -> Read:
    needs_cuda(device)
    from flash_attn_res import phase_1_batched_attention_triton_op

    def read(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> Tensor:
        folded = (query * gain).unsqueeze(0)  # it has no gain
        return phase_1_batched_attention_triton_op(torch.stack(list(sources)), folded, EPS)[0][0]

    return read


def _liger(device: torch.device) -> Read:
    needs_cuda(device)
    from liger_kernel.transformers.functional import liger_attn_res

    return lambda sources, query, gain: liger_attn_res(torch.stack(list(sources)), query, gain, EPS)


def needs_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise Missing("needs a CUDA device")
