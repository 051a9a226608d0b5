"""FSDP2 for the lab's transformer: weights, gradients and optimizer state cut over processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from attnres.connections import make_connection
from attnres.model import Transformer, TransformerConfig
from attnres.model.init import initialise
from attnres.parallel.stage import at_registration


def sharded_transformer(
    config: TransformerConfig, seed: int, mesh: DeviceMesh, device: torch.device, precision: torch.dtype
) -> Transformer:
    """The model that `Transformer(config, seed)` is, with each process of the mesh holding its part of every weight.

    mesh: dimensions "replicate" and "shard". precision: what the sublayers' matrices are gathered in; gradients
    are summed in float32, and all else, such as gains and the connection, stays in float32.

    Its parameters go to the meta device as they are made and are filled one by one, so no process ever holds the whole
    of it. Buffers are small, and only the module that makes one knows its value.
    """
    with at_registration(lambda module, name, parameter: nn.Parameter(parameter.to("meta"))):
        model = Transformer(config, seed=None)
    buffers = dict(model.named_buffers())
    shard(model, mesh, precision)
    model.to_empty(device=device)
    _fill(model, config, seed, buffers)
    return model


@torch.no_grad()
def _fill(model: Transformer, config: TransformerConfig, seed: int, buffers: Mapping[str, Tensor]) -> None:
    """Give empty weights and buffers the values that they have in `Transformer(config, seed)`."""
    initialise(model, config, seed, put)
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.reset_parameters()
    # A connection's own file says how it starts, and it is small.
    connection = make_connection(config.connection, config.dim, config.sites, **config.connection_options)
    started = dict(connection.named_parameters())
    for name, tensor in model.connection.named_parameters():
        put(tensor, started[name])
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def shard(model: Transformer, mesh: DeviceMesh, precision: torch.dtype) -> None:
    """Cut the weights over the mesh, in place. A sublayer gathers its matrices when it runs, the model the rest."""
    # Inputs are not cast: the rotary angles and the stream keep their dtype, and autocast does what it always does.
    mixed = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for sublayer in model.sublayers:
        matrices: list[nn.Module] = [m for m in sublayer.modules() if isinstance(m, nn.Linear) and m.weight is not None]
        if matrices:  # a pipeline stage has those of its own sublayers alone
            fully_shard(matrices, mesh=mesh, mp_policy=mixed)
    fully_shard(model, mesh=mesh)


@torch.no_grad()
def put(weight: Tensor, full: Tensor) -> None:
    """Set a weight, of which this process may hold a part, from the whole of it."""
    if isinstance(weight, DTensor):
        # Every process has the whole, so nothing is sent.
        full = distribute_tensor(full.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)
    weight.copy_(full)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds; all of it if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
