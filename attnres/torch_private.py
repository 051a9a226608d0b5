"""Every private name of torch that this project uses, and why. No other file has one, which a test checks.

Private names may change with any version. So tests/test_torch_private.py tests what is relied on, and pyproject.toml
allows the versions of torch on which those tests have passed.
(Operators such as aten._softmax are no private names: they are in torch's documented Core ATen IR.)
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

F = TypeVar("F", bound=Callable[..., Any])

NAMES = {
    # the fused operators' gradients at one level of torch.func, with a fifth of register_autograd's cost per call
    "SingleLevelFunction": ("torch.autograd.function", "_SingleLevelFunction"),
    "enable_single_level_autograd_function": ("torch._functorch.utils", "enable_single_level_autograd_function"),
    # calling a kernel without the way through autograd
    "AutoDispatchBelowAutograd": ("torch._C", "_AutoDispatchBelowAutograd"),
    # the results of an operator under vmap
    "tree_map": ("torch.utils._pytree", "tree_map"),
    # seeing second derivatives
    "interpreter_stack": ("torch._C._functorch", "get_interpreter_stack"),
    "TransformType": ("torch._C._functorch", "TransformType"),
    # counting operations
    "TorchDispatchMode": ("torch.utils._python_dispatch", "TorchDispatchMode"),
    # a recompile limit that suits a benchmark
    # Muon on stacked and on cut matrices
    "adjust_lr": ("torch.optim._muon", "_adjust_lr"),
    # pipelines that send what the next rank lacks: torch's own stage sends everything
    "PipelineStageBase": ("torch.distributed.pipelining.stage", "_PipelineStageBase"),
    # keeping the connection's gradients out of zero bubble's weight pass
    "grad_fn_or_grad_acc": ("torch.distributed.pipelining._backward", "_get_grad_fn_or_grad_acc"),
}
"""The names that this file gives them, where torch has them, and above them what they are needed for."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: some take a second."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, private = NAMES[name]
    return getattr(importlib.import_module(module), private)


def in_forward_mode(*tensors: Tensor) -> bool:
    """Say whether forward-mode differentiation is going on; if tensors are given, of one of them."""
    if forward_ad._current_level < 0:
        return False
    return not tensors or any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def constant_to_compiler(function: F) -> F:
    """Do what torch.compiler.assume_constant_result does, without importing the compiler, a second at every start."""
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def own_parameters(module: nn.Module, part: str) -> dict[str, Any]:
    """Return the parameters of a module's part by their names in that, without the 2 us that each look-up takes."""
    return module._modules[part]._parameters  # type: ignore[union-attr]


def parameters_of(module: nn.Module) -> dict[str, Any]:
    """Return the module's own parameters by name: what a parametrization makes is none of them."""
    return module._parameters


def with_parameters(module: nn.Module, parameters: dict[str, Any]) -> nn.Module:
    """Return a shallow copy that has these parameters in place of its own."""
    copied = copy.copy(module)
    copied._parameters = parameters
    return copied


def calls_forward_alone(module: nn.Module) -> bool:
    """Say whether a call of the module is the forward of its class and nothing else: no hook, no forward of its own."""
    own = module.__dict__
    return not (
        "forward" in own
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or nn.modules.module._has_any_global_hook()
    )


@cache
def cpu_multiplies_bfloat16() -> bool:
    """Say whether oneDNN has products of bfloat16 for this CPU; without them torch has plain loops."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


_version = attrgetter("_version")


def times_changed(tensors: Sequence[Tensor]) -> int:
    """Count how often they were changed in place, all of them together, as far as torch counts it.

    It does not while torch.compile traces, nor for tensors made in inference mode.
    """
    if is_compiling():
        return 0
    try:
        if not torch.is_inference_mode_enabled():
            return tensors[0]._version if len(tensors) == 1 else sum(map(_version, tensors))
    except RuntimeError:  # of tensors made in inference mode, used outside of it
        pass
    return sum([tensor._version for tensor in tensors if not tensor.is_inference()])
