"""What each sublayer is worth: the loss that is added when it is switched off, under every connection.

A sublayer that is off returns zero, and nothing is trained again. What else its site does to the stream (Highway's
gate, the mixing of streams) stays. For AttnRes a zero is a source with the score 0, which takes its share of the
softmax (docs/spec.md 13, trap 2). It takes it from all others in
proportion, so h is only scaled, and sublayers and the final norm begin with a norm: up to that norm's eps the model is
the one whose softmax lacks the source. `delta` is the exception: there a zero source weakens what attention adds.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.model import Transformer


@torch.no_grad()
def added_losses(model: Transformer, batches: Iterable[np.ndarray]) -> tuple[float, np.ndarray]:
    """The loss in nats per token, and what is added to it when sublayer l is off: [L].

    What comes before a sublayer does not change, so it is computed once: a run over depth can be split at any site.

    Args:
        model: A trained model of the lab, as `load_run(folder).model`.
        batches: int64 [sequences, time + 1], as of `attnres.data.validation_batches`.
    """
    count, whole, without = 0, 0.0, np.zeros(len(model.sublayers))
    for batch in batches:
        tokens = torch.from_numpy(batch)
        sublayers = model.bound_sublayers(tokens.shape[1] - 1)
        values = model.connection.start(model.embedding(tokens[:, :-1]))
        for site, sublayer in enumerate(sublayers):
            silenced = model.connection.run(values, [_off, *sublayers[site + 1 :]], first=site)
            without[site] += _summed_loss(model, silenced, tokens)
            values = model.connection.run(values, [sublayer], first=site)
        whole += _summed_loss(model, values, tokens)
        count += tokens[:, 1:].numel()
    return whole / count, (without - whole) / count


def _off(h: Tensor, *_: Tensor) -> Tensor:
    return torch.zeros_like(h)


def _summed_loss(model: Transformer, values: tuple[Tensor, ...], tokens: Tensor) -> float:
    logits = model.logits(model.connection.readout(values))
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").double().sum().item()
