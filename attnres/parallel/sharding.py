"""FSDP2 for the lab's transformer: weights, gradients and optimizer state sharded over processes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from attnres.model import Transformer, TransformerConfig
from attnres.parallel.build import materialise, skeleton


def sharded_transformer(
    config: TransformerConfig, seed: int, mesh: DeviceMesh, device: torch.device, precision: torch.dtype
) -> Transformer:
    """The model that `Transformer(config, seed)` is, with each process of the mesh holding its part of every weight.

    mesh: "shard", or "replicate" and "shard". precision: what the sublayers' matrices are gathered in, stacked experts,
    convolutions and router gates among them; gradients are summed in float32, and all else, such as gains and the
    connection, stays in float32.

    No process ever holds the whole of it.
    """
    whole = skeleton(Transformer, config)
    model = copy.deepcopy(whole)
    shard(model, mesh, precision)
    materialise(whole, [model], seed, device)
    return model


def shard(model: Transformer, mesh: DeviceMesh, precision: torch.dtype, keep: bool = False) -> None:
    """Cut the weights over the mesh, in place. A sublayer gathers its matrices when it runs, the model the rest.

    keep: once gathered they stay so until the step's gradients are summed: for a chunk of a pipeline, which holds few
    and runs every micro-batch on them.
    """
    # FSDP2 searches nothing below a module that it has cut, so the model takes its vectors before the sublayers are.
    fully_shard(model, mesh=mesh, ignored_params=set(_matrices(model.sublayers)))
    # Inputs are not cast: the rotary angles and the stream keep their dtype, and autocast does what it always does.
    mixed = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for sublayer in model.sublayers:
        matrices = _matrices(sublayer)
        if not matrices:  # a chunk of a pipeline has those of its own sublayers alone
            continue
        # Not the modules that own them: KDA reads the weight of its convolution without running that module.
        vectors = set(sublayer.parameters()) - set(matrices)
        fully_shard(sublayer, mesh=mesh, mp_policy=mixed, reshard_after_forward=not keep, ignored_params=vectors)


def compile_sublayers(model: Transformer) -> None:
    """Compile what each sublayer computes, in place. FSDP2's hooks stay outside, and so does the connection."""
    for sublayer in model.sublayers:
        sublayer.forward = torch.compile(sublayer.forward, dynamic=False)


def _matrices(module: nn.Module) -> list[nn.Parameter]:
    """Its parameters with more than one axis to speak of: matrices, stacks of them, convolutions."""
    return [parameter for parameter in module.parameters() if parameter.numel() > max(parameter.shape)]


def reshard(model: nn.Module) -> None:
    """Give back what was gathered, after a forward pass that no backward pass follows."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def first_row(tensor: DTensor) -> int:
    """The number of the first row that this process holds."""
    mesh, rows = tensor.device_mesh, tensor.shape[0]
    cut = [dim for dim, placement in enumerate(tensor.placements) if placement.is_shard()]
    # As torch.chunk cuts them; the last processes may have none.
    return min([rows, *(-(-rows // mesh.size(dim)) * mesh.get_local_rank(dim) for dim in cut)]) if cut else 0


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds; all of it if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
