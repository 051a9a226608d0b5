"""All implementations of one read of depth: ours, plain PyTorch, compiled, and the other packages.

    h = read(sources, query, gain)          sources: list of [batch, time, d], or one tensor of all; query, gain: [d]

The other packages come with `pip install 'attnres[bench]'`; their fused kernels need a CUDA device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.errors import install_command
from attnres.ops import depth_attention, widen

EPS = 1e-6

NOT_INSTALLED = f"not installed: {install_command('bench')}"

Sources = Sequence[Tensor] | Tensor
Read = Callable[[Sources, Tensor, Tensor], Tensor]

PACKAGES = ("fla-core", "flash-attn-res", "liger-kernel")

STACKING = ("stacked", "compiled stacked", "flash-attn-res", "liger-kernel")
"""Those that read one tensor of all sources, and make it first where they are given a list."""


class Missing(Exception):
    """Why a contender cannot be measured, in a few words."""


def ours(sources: Sources, query: Tensor, gain: Tensor) -> Tensor:
    return depth_attention(sources, query, gain, EPS)


def stacked(sources: Sources, query: Tensor, gain: Tensor) -> Tensor:
    """Depth attention as it is usually written, over one tensor of all sources."""
    v = widen(_bank(sources))
    keys = F.rms_norm(v, v.shape[-1:], widen(gain), EPS)
    weights = (keys * query).sum(-1).softmax(0)
    return (weights.unsqueeze(-1) * v).sum(0).to(sources[0].dtype)


def plain() -> dict[str, Read]:
    """What needs no other package. Compiled for the shapes that each call meets, and for no more than it meets."""
    torch.compiler.reset()

    def reference(sources: Sources, query: Tensor, gain: Tensor) -> Tensor:
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
    for name, load in _LOADERS.items():
        try:
            found[name] = load(device)
        except Missing as reason:
            missing[name] = str(reason)
        except ImportError:
            missing[name] = NOT_INSTALLED
    return found, missing


def on_cpu(name: str) -> Read:
    """One of those that take part on a CPU, without importing what another needs: that takes seconds."""
    return plain().get(name) or _LOADERS[name](torch.device("cpu"))


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _bank(sources: Sources) -> Tensor:
    return sources if isinstance(sources, Tensor) else torch.stack(list(sources))


def _fla(device: torch.device, level: int = 1) -> Read:
    """Its Triton form; plain PyTorch on a CPU. Level 0 keeps the mixture for the backward pass, 1 makes it again."""
    if device.type == "cuda":
        from fla.ops.attnres import fused_attnres

        return _fla_read(partial(fused_attnres, checkpoint_level=level))
    if level == 0:
        raise Missing("needs a CUDA device")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns on machines without a GPU
        from fla.ops.attnres import naive_attnres
    return _fla_read(naive_attnres)


def _fla_read(operator: Callable[..., object]) -> Read:
    def read(sources: Sources, query: Tensor, gain: Tensor) -> Tensor:
        h = operator(query, list(sources), gain, rms_eps=EPS)
        assert isinstance(h, Tensor)  # a pair only if asked for the weights
        return h

    return read


def _flash_attn_res(device: torch.device) -> Read:
    needs_cuda(device)
    from flash_attn_res import phase_1_batched_attention_triton_op

    def read(sources: Sources, query: Tensor, gain: Tensor) -> Tensor:
        folded = (query * gain).unsqueeze(0)  # it has no gain
        return phase_1_batched_attention_triton_op(_bank(sources), folded, EPS)[0][0]

    return read


def _liger(device: torch.device) -> Read:
    needs_cuda(device)
    from liger_kernel.transformers.functional import liger_attn_res

    return lambda sources, query, gain: liger_attn_res(_bank(sources), query, gain, EPS)


def needs_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise Missing("needs a CUDA device")


_LOADERS: dict[str, Callable[[torch.device], Read]] = {
    "fla-core": _fla,
    "fla-core, checkpoint level 0": partial(_fla, level=0),
    "flash-attn-res": _flash_attn_res,
    "liger-kernel": _liger,
}
"""By name, what makes a reader for a device. Raises Missing, or ImportError where the package is not installed."""
