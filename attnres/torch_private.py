"""Every private name of torch that this project uses, and why. No other file has one, and a test holds them to it.

Private names go or change with any version. So tests/test_torch_private.py says of each what is relied on,
pyproject.toml admits the versions of torch on which those tests have passed, and a name that is gone is said in one
line. (Operators such as aten._softmax are no private names: they are in torch's documented Core ATen IR.)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from attnres.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


class Private(NamedTuple):
    """Where torch has it, and what it is needed for."""

    module: str
    name: str
    why: str


NAMES = {
    "SingleLevelFunction": Private(
        "torch.autograd.function",
        "_SingleLevelFunction",
        "the fused operators' gradients at one level of torch.func, with a fifth of register_autograd's cost per call",
    ),
    "enable_single_level_autograd_function": Private(
        "torch._functorch.utils", "enable_single_level_autograd_function", "calling such a function"
    ),
    "AutoDispatchBelowAutograd": Private(
        "torch._C", "_AutoDispatchBelowAutograd", "calling a kernel without the way through autograd"
    ),
    "tree_map": Private("torch.utils._pytree", "tree_map", "the results of an operator under vmap"),
    "interpreter_stack": Private("torch._C._functorch", "get_interpreter_stack", "seeing second derivatives"),
    "TransformType": Private("torch._C._functorch", "TransformType", "seeing second derivatives"),
    "TorchDispatchMode": Private("torch.utils._python_dispatch", "TorchDispatchMode", "counting operations"),
    "compiler_config": Private("torch._dynamo", "config", "a recompile limit that suits a benchmark"),
    "adjust_lr": Private("torch.optim._muon", "_adjust_lr", "Muon on stacked and on cut matrices"),
    "PipelineStageBase": Private(
        "torch.distributed.pipelining.stage",
        "_PipelineStageBase",
        "pipelines that send what the next rank lacks: torch's own stage sends everything",
    ),
    "grad_fn_or_grad_acc": Private(
        "torch.distributed.pipelining._backward",
        "_get_grad_fn_or_grad_acc",
        "keeping the connection's gradients out of zero bubble's weight pass",
    ),
}

PIPELINE_METHODS = (
    "_retrieve_recv_activations",
    "_retrieve_recv_grads",
    "_prepare_forward_infra",
    "_prepare_backward_infra",
    "_create_grad_recv_info",
    "_get_init_p2p_neighbors_ops",
    "_resolve_peer_global_rank",
)
"""The names of PipelineStageBase that `parallel.runner.ChunkRunner` overrides or calls beside its public methods."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: some take a second. Raises UsageError if torch has it no longer."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, private, why = NAMES[name]
    try:
        found = getattr(importlib.import_module(module), private)
        missing = [m for m in PIPELINE_METHODS if not hasattr(found, m)] if name == "PipelineStageBase" else []
    except (ImportError, AttributeError):
        missing = [private]
    if missing:
        raise UsageError(
            f"torch {torch.__version__} has no {module}.{missing[0]}, which this needs ({why}); install torch 2.13"
        )
    return found


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
