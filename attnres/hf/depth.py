"""What depth does in an attached model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnres.connections import mixing_matrix as connection_mixing_matrix
from attnres.connections.offload import at_hand
from attnres.errors import UsageError
from attnres.hf.attach import connection_of
from attnres.hf.decoder import decoder_of, norm_of
from attnres.hf.released import unroll


@torch.no_grad()
def mixing_matrix(model: Any, input_ids: Tensor, per_channel: bool = False, **inputs: Any) -> Tensor:
    """Compute M with h_l = sum_i M[l, i] v_i for each token of a Hugging Face model.

    `attnres.mixing_matrix` also takes such a model, but no further inputs. Its documentation has the method.

    Args:
        model: as for `unroll`. Its training or evaluation mode is not changed.
        input_ids: int64 [batch, time]; pixels for a vision model.
        per_channel: as for `attnres.mixing_matrix`.
        **inputs: further inputs of the model, such as attention_mask.

    Returns:
        M [batch, time, sublayers + 1, sublayers + 1]. Rows of an AttnRes connection with `total=True` sum to the number
        of sources.

    Raises:
        UsageError: a model whose residual is not known.
    """
    connection, embedding, sublayers = unroll(model, input_ids, **inputs)
    with at_hand(connection, model):
        return connection_mixing_matrix(connection, embedding, sublayers, per_channel)


def readout_parts(model: Any) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """What an attached model does with its readout: the final norm, and all that makes logits of what it returns.

    The second runs the model's own forward with the decoder left out, so that scales, biases and caps are its own.
    """
    connection_of(model)
    decoder = decoder_of(model)
    if decoder is model:
        raise UsageError("the model has no head; give the causal language model, not its base model")

    def head(normed: Tensor) -> Tensor:
        flat = normed.reshape(1, -1, normed.shape[-1])
        ids = torch.zeros(flat.shape[:2], dtype=torch.int64, device=flat.device)
        own = vars(decoder).get("forward")  # accelerate's
        decoder.forward = lambda *_, **__: _Normed(flat)
        try:
            logits = model(input_ids=ids, use_cache=False).logits
        finally:
            del decoder.forward
            if own is not None:
                decoder.forward = own
        return logits.reshape(*normed.shape[:-1], -1)

    return norm_of(decoder), head


class _Normed:
    """What a decoder returned, as all kinds of models look at it: the last hidden state, and of all else nothing."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, key: int | str) -> Tensor | None:
        return self.last_hidden_state if key in (0, "last_hidden_state") else None

    def keys(self) -> tuple[str, ...]:  # models of text and pictures pass all of it on by name
        return ("last_hidden_state",)

    def __getattr__(self, name: str) -> None:
        return None
