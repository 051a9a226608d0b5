"""Parameters of a model with a connection, grouped for an optimizer."""

from __future__ import annotations

from typing import Any

from torch import nn

from attnres.connections.base import Connection
from attnres.errors import UsageError
from attnres.ops import DepthAttention

ORDER = ("decayed", "not decayed", "connection", "channel maps")
"""The order of the groups, which a saved optimizer depends on. The weights come first: transformers' Trainer logs the
rate of the first group."""


def param_groups(
    model: nn.Module, lr: float, query_lr: float | None = None, weight_decay: float | None = None
) -> list[dict[str, Any]]:
    """Group the parameters of a module with a connection or a `DepthAttention`, for any torch optimizer.

    >>> torch.optim.AdamW(param_groups(model, lr=1e-3), weight_decay=0.1)

    For Hugging Face's Trainer pass `optimizers=(AdamW(param_groups(model, ...)), None)`. Parameters that require no
    gradient and empty groups are left out.

    Args:
        model: any module that is or contains one.
        lr: learning rate of everything outside the connection.
        query_lr: learning rate of the connection. If None, 10 lr; in a Hugging Face model after `attach`, lr. Matrices
            that make a query from a token's channels get query_lr / dim.
        weight_decay: of matrices outside the connection; the optimizer's own if None. Nothing else decays: decay would
            pull the connection to the plain residual.

    Returns:
        The groups "decayed", which are matrices, "not decayed", vectors such as norms and biases, "connection" and
        "channel maps".

    Raises:
        UsageError: the model has no connection.
    """
    connections = [module for module in model.modules() if isinstance(module, Connection | DepthAttention)]
    if not connections:
        raise UsageError(f"the {type(model).__name__} has no connection; make it with one, or attach one first")
    kinds: dict[int, tuple[str, float]] = {}
    for connection in connections:
        rate = connection.rate * lr if query_lr is None else query_lr
        for name, parameter in connection.named_parameters():
            kinds[id(parameter)] = ("connection", rate)
            if isinstance(connection, Connection) and name.split(".")[0] in connection.channel_maps:
                kinds[id(parameter)] = ("channel maps", rate / connection.dim)
    groups: dict[tuple[str, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kind = kinds.get(id(parameter), ("decayed" if parameter.ndim > 1 else "not decayed", lr))
            groups.setdefault(kind, []).append(parameter)
    decay = {name: {"weight_decay": 0.0} for name in ORDER}
    decay["decayed"] = {} if weight_decay is None else {"weight_decay": weight_decay}
    return [
        {"name": name, "params": groups[name, rate], "lr": rate, **decay[name]}
        for name, rate in sorted(groups, key=lambda kind: ORDER.index(kind[0]))
    ]
