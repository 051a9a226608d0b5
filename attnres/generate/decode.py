"""Autoregressive generation as a few free functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnres.errors import UsageError
from attnres.model import Transformer

PREFILL_CHUNK = 256
"""Prompt tokens per forward pass: bounds the memory that a long prompt takes."""


@torch.inference_mode()
def generate(
    model: Transformer,
    prompt: Sequence[int],
    max_new: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Yield up to `max_new` token ids after the prompt, each as soon as it is drawn; fewer where the context ends.

    Args:
        model: the lab's transformer.
        prompt: token ids, at least one and at most the model's context.
        max_new: how many tokens at most.
        temperature: of the softmax; 0 takes the likeliest token.
        top_k: only the k likeliest tokens; all if None.
        top_p: of those only the smallest set whose probability reaches p; all if None.
        seed: of the draws.

    Raises:
        UsageError: an empty prompt, one longer than the context, or sampling options out of range.
    """
    context = model.config.context
    if not 0 < len(prompt) <= context:
        raise UsageError(f"the prompt has {len(prompt)} tokens; the model takes 1 to {context}")
    if not (temperature >= 0 and (top_k is None or top_k > 0) and (top_p is None or 0 < top_p <= 1)):
        raise UsageError("temperature must be at least 0, top_k at least 1, and top_p above 0 and at most 1")
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    caches = model.new_caches(batch=1)
    tokens = torch.tensor([list(prompt)], device=device)

    for chunk in tokens.split(PREFILL_CHUNK, 1):
        hidden = model.hidden(chunk, caches)
    for position in range(len(prompt), min(len(prompt) + max_new, context + 1)):
        token = sample(model.logits(hidden[:, -1]), temperature, top_k, top_p, generator)
        yield int(token)
        if position < context:
            hidden = model.hidden(token[:, None], caches)


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> Tensor:
    """Draw one token id per row of logits [batch, vocab].

    top_k keeps the k likeliest tokens; top_p then keeps the smallest set of them whose probability reaches p.
    """
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float()
    # Relative to the likeliest, the division overflows to -inf only, which is the limit of a low temperature.
    logits = (logits - logits.max(-1, keepdim=True).values) / max(temperature, torch.finfo(torch.float32).tiny)
    if top_k is not None and top_k < logits.shape[-1]:
        kept, ids = logits.topk(top_k)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, ids, kept)
    probabilities = logits.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        dropped = ordered.cumsum(-1) - ordered >= top_p  # by the mass of the likelier tokens
        dropped[:, 0] = False  # float32 may round top_p to 0
        probabilities = probabilities.masked_fill(dropped.gather(-1, order.argsort(-1)), 0.0)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
