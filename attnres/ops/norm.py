"""RMSNorm as a read of depth takes it in, and which modules compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling

from attnres.torch_private import calls_forward_alone, parameters_of, with_parameters


class Norm(NamedTuple):
    """RMSNorm with a weight: h / sqrt(mean(h^2) + eps) * (offset + weight). In Gemma's form offset is 1."""

    weight: Tensor
    eps: float
    offset: float = 0.0
    module: nn.Module | None = None
    """Called where a read does not take the norm in."""

    def __call__(self, h: Tensor) -> Tensor:
        if self.module is not None:
            return self.module(h)
        return F.rms_norm(h, h.shape[-1:], self.weight + self.offset if self.offset else self.weight, self.eps)


_FORMS: dict[int, tuple[ref[nn.Module], Callable[..., Any], str, float | None]] = {}
"""Of each module that was tried, by its id: the forward, where it keeps eps, and the offset, None for another norm."""


def plain_norm(module: nn.Module) -> Norm | None:
    """The norm that a module computes, if a call is its forward alone and that is RMSNorm with a weight.

    None where others have a part in it: a hook, a parametrization, an adapter, a weight cut over processes, a compiler.
    """
    if is_compiling() or not calls_forward_alone(module):
        return None
    weight = parameters_of(module).get("weight")
    if type(weight) is not nn.Parameter or weight.ndim != 1:
        return None
    forward = type(module).forward
    found = _FORMS.get(key := id(module))
    if found is None or found[0]() is not module or found[1] is not forward:
        forgotten = ref(module, lambda _: _FORMS.pop(key, None))
        found = _FORMS[key] = forgotten, forward, *_form(module, len(weight))
    _, _, eps, offset = found
    return None if offset is None else Norm(weight, getattr(module, eps), offset, module)


def _form(module: nn.Module, dim: int) -> tuple[str, float | None]:
    """Try it: what its class is called says nothing, and models write the same norm in many ways."""
    numbers = [name for name, value in vars(module).items() if type(value) is float]
    bare = not [*module.children(), *module.buffers()] and len(parameters_of(module)) == 1
    if len(numbers) == 1 and bare:
        line = torch.arange(3.0 * dim, device="cpu", dtype=torch.float32).view(3, dim)
        weight = nn.Parameter(line[0].cos(), requires_grad=False)
        tried = with_parameters(module, {"weight": weight})
        setattr(tried, numbers[0], 0.5)
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                n = tried(line.sin())
                for offset in (0.0, 1.0):
                    if torch.allclose(n, Norm(weight, 0.5, offset)(line.sin()), rtol=1e-4, atol=1e-5):
                        return numbers[0], offset
        except Exception:  # whatever a forward of somebody's raises
            pass
    return "", None
