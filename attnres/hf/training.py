"""Parameters of an attached model, grouped for an optimizer."""

from __future__ import annotations

from typing import Any

from attnres.errors import UsageError
from attnres.hf.attach import connection_of


def param_groups(
    model: Any, lr: float, query_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, and so for Trainer: `optimizers=(AdamW(param_groups(model, ...)), None)`.

    The connection's parameters, with query_lr (10 lr if not given) and no decay, which would pull them to the plain
    residual; the matrices of query="input", with query_lr / dim and no decay; matrices,
    with lr and weight_decay; vectors (norms, biases), with lr and no decay. Only what requires a gradient is listed; a
    group that would be empty is left out.
    """
    connection = connection_of(model)
    query_lr = 10 * lr if query_lr is None else query_lr
    names = {
        id(p): "channel maps" if name.split(".")[0] in connection.channel_maps else "connection"
        for name, p in connection.named_parameters()
    }
    groups: dict[str, dict[str, Any]] = {
        "connection": {"lr": query_lr, "weight_decay": 0.0},
        "channel maps": {"lr": query_lr / connection.dim, "weight_decay": 0.0},
        "decayed": {"lr": lr, "weight_decay": weight_decay},
        "not decayed": {"lr": lr, "weight_decay": 0.0},
    }
    for group in groups.values():
        if not group["lr"] >= 0 or not group["weight_decay"] >= 0:
            raise UsageError(f"lr, query_lr and weight_decay must not be negative: {group}")
        group["params"] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        name = names.get(id(parameter), "decayed" if parameter.ndim > 1 else "not decayed")
        groups[name]["params"].append(parameter)
    return [{"name": name, **group} for name, group in groups.items() if group["params"]]
