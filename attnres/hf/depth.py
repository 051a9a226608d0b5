"""What depth does in an attached model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnres.connections import mixing_matrix as connection_mixing_matrix
from attnres.hf.attach import at_hand, connection_of, decoder_of, unroll


@torch.no_grad()
def mixing_matrix(model: Any, input_ids: Tensor, per_channel: bool = False, **inputs: Any) -> Tensor:
    """Compute M with h_l = sum_i M[l, i] v_i for each token of an attached model.

    `attnres.mixing_matrix` takes an attached model too, but no further inputs, and says how it is computed.

    Args:
        model: an attached model, read in the mode (training or evaluation) that it is in.
        input_ids: int64 [batch, time].
        per_channel: as for `attnres.mixing_matrix`.
        **inputs: more of the model's own, such as attention_mask.

    Returns:
        M [batch, time, sites + 1, sites + 1]. Rows of an AttnRes connection with `total=True` sum to the number of
        sources.

    Raises:
        UsageError: the model has no connection.
    """
    connection_of(model)
    connection, embedding, sublayers = unroll(
        decoder_of(model), lambda: model(input_ids=input_ids, use_cache=False, **inputs)
    )
    with at_hand(connection):
        return connection_mixing_matrix(connection, embedding, sublayers, per_channel)
