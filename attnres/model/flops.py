"""Floating-point operations of training: the compute axis of a scaling law."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from attnres.connections import Connection
from attnres.model.counts import active_sizes
from attnres.model.init import parameter_roles
from attnres.model.modelconfig import TransformerConfig
from attnres.model.transformer import Transformer
from attnres.torch_private import TorchDispatchMode

_counted: dict[str, float] = {}
"""By the text of a configuration, which may hold a dict and so cannot be hashed: a sweep asks for each one often."""


def training_flops(config: TransformerConfig) -> float:
    """Count the operations per token of one training step: three forward passes, the backward pass counting as two.

    forward = 2 x (weights of all matrices, routers, convolutions and the head, of routed experts those that a token is
    sent to) + what the backbone does between tokens (`Backbone.mixing_flops`) + what the connection does. Norms,
    SwiGLU's and softmax's elementwise work, the embedding's look-up and the optimizer are left out, as usual. The
    connection's elementwise work is counted, because that is all there is of it, and in a narrow model it is not small:
    each output element of an elementwise operation and each input element of a sum is one operation.
    """
    if (key := repr(config)) not in _counted:
        with torch.device("meta"):
            model = Transformer(config, seed=None)
        _counted[key] = matrix_flops(model) + 3 * connection_flops(model.connection)
    return _counted[key]


def matrix_flops(model: Transformer) -> float:
    """Count what `training_flops` does, without the connection."""
    roles = parameter_roles(model)
    weights = sum(size for name, size in active_sizes(model).items() if _multiplies(name, roles[name]))
    if model.config.tied:
        weights += model.embedding.weight.numel()
    return 3 * (2 * weights + model.backbone.mixing_flops())


def _multiplies(name: str, role: str) -> bool:
    return role in ("matrix", "experts", "head") or (role == "other" and name.endswith(".weight"))


def connection_flops(connection: Connection) -> float:
    """Operations per token of one forward pass through the connection's definition, its sublayers left out.

    A fused operator does the same work in another order.
    """
    connection = copy.deepcopy(connection).to("meta")
    x = torch.empty(1, connection.dim, device="meta")
    with torch.no_grad(), _Count() as count:
        values = connection.start(x)
        for site in range(connection.sublayers + 1):
            weights = connection.weigh(values, site)
            h = connection.gather(values, weights, site)
            if site < connection.sublayers:
                values = connection.scatter(values, connection.weigh_output(values, weights, site, x), site, h, x)
    return count.operations


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += _operations(func, args, result)
        return result


def _operations(func: Any, args: tuple, result: Any) -> float:
    if not isinstance(result, Tensor):
        return 0.0
    if func.overloadpacket in _PRODUCTS:
        return 2.0 * result.numel() * args[_PRODUCTS[func.overloadpacket]].shape[-1]
    if torch.Tag.pointwise in func.tags and func.overloadpacket not in _MOVES:
        return float(result.numel())
    if torch.Tag.reduction in func.tags or func.overloadpacket is torch.ops.aten._softmax:
        return float(args[0].numel())
    return 0.0


_PRODUCTS = {torch.ops.aten.mm: 0, torch.ops.aten.bmm: 0, torch.ops.aten.addmm: 1, torch.ops.aten.mv: 0}
_MOVES = {torch.ops.aten._to_copy, torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten.fill_}
