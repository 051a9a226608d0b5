"""Whether a model predicts the next token, which losses and continuations require."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from attnres.errors import UsageError
from attnres.hf.checkpoint import load, load_plain
from attnres.hf.folder import read_config
from attnres.hf.record import RECORD

ROUNDING = 1e-4
"""A share of the largest logit: expert layers add in another order where another token chose other experts."""


def load_causal(folder: Path, **kwargs: Any) -> Any:
    """The causal language model of a folder, attached or plain, in evaluation mode. Raises UsageError for others."""
    if RECORD in read_config(folder):
        model = load(folder, trust_remote_code=True, **kwargs).eval()
    else:
        model = load_plain(folder, **kwargs).eval()
    refuse_other_than_causal(model, folder)
    return model


@torch.no_grad()
def refuse_other_than_causal(model: Any, folder: Path) -> None:
    """Raise UsageError where a model's logits of one token depend on the tokens behind it, or are not a vocabulary's.

    A masked language model such as bert loads and runs like a causal one, and its loss of a next token, which it saw,
    looks like a good one. Classes and configurations do not tell: BertLMHeadModel is causal with `is_decoder` alone.
    """
    if model.config.is_encoder_decoder:
        raise UsageError(f"{folder}: {type(model).__name__} is an encoder-decoder; give a causal language model")
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = torch.tensor([[3, 4, 5, 6], [3, 4, 5, 7]], device=model.device) % vocabulary
    found = getattr(model(input_ids=tokens), "logits", None)
    if found is None or found.ndim != 3:
        raise UsageError(f"{folder}: {type(model).__name__} has no logits of a next token; give a language model")
    noise = max(ROUNDING, 2 * torch.finfo(found.dtype).eps) * found.abs().max()
    if (found[0, :-1] - found[1, :-1]).abs().max() > noise:
        raise UsageError(
            f"{folder}: {type(model).__name__} sees the tokens behind each token, so it predicts no next one; give a "
            "causal language model"
        )
