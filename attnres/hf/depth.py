"""What depth does in an attached model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnres.connections import mixing_matrix as connection_mixing_matrix
from attnres.hf.attach import attached_layers, bound_sublayers, connection_of


@torch.no_grad()
def mixing_matrix(model: Any, input_ids: Tensor, per_channel: bool = False, **inputs: Any) -> Tensor:
    """M with h_l = sum_i M[l, i] v_i for each token: [batch, time, sites + 1, sites + 1].

    model: an attached model, which is read in the mode (training or evaluation) that it is in. input_ids: int64
    [batch, time]; inputs: more of the model's own, such as attention_mask. Axes, per_channel and how it is computed:
    `attnres.mixing_matrix`. Rows of an AttnRes connection with `total=True` sum to the number of sources.

    Raises UsageError if the model has no connection.
    """
    connection, layers = connection_of(model), attached_layers(model)
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, index=index: calls.update({index: (args, kwargs)}), with_kwargs=True
        )
        for index, layer in enumerate(layers)
    ]
    try:
        model(input_ids=input_ids, use_cache=False, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    embedding = calls[0][0][0]
    sublayers = [
        sublayer
        for index, layer in enumerate(layers)
        for sublayer in bound_sublayers(layer, calls[index][0][1:], calls[index][1])
    ]
    return connection_mixing_matrix(connection, embedding, sublayers, per_channel)
