"""Find where numbers stop being finite."""

from __future__ import annotations

import torch
from torch import Tensor

from attnres.connections import mean_read, output_of
from attnres.model import Transformer, sublayer_name


@torch.no_grad()
def first_non_finite(model: Transformer, tokens: Tensor) -> str | None:
    """The first activation that is not finite when tokens [batch, time] pass through the model, in words.

    Walks the depth site by site through the connection's own `mix`, so that the input and the output of each sublayer
    can be told apart. None if every activation is finite.
    """
    embedded = model.embedding(tokens)
    if _bad(embedded):
        return "the embedding"
    connection = model.connection
    values = connection.start(embedded)
    for site, sublayer in enumerate(model.bound_sublayers(tokens.shape[1])):
        weights, h = connection.mix(values, site)
        if _bad(mean_read(h)):
            return f"the input of {site_name(site)}"
        y = output_of(sublayer, h, values)
        if _bad(y):
            return f"the output of {site_name(site)}"
        values = connection.absorb(values, weights, site, h, y)
    readout = connection.readout(values)
    if _bad(readout):
        return f"site {connection.sublayers} (readout)"
    return "the logits" if _bad(model.logits(readout)) else None


def first_non_finite_gradient(model: Transformer) -> str | None:
    """The first parameter, in the order of the model, whose gradient is not finite."""
    gradients = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return next((name for name, gradient in gradients if gradient is not None and _bad(gradient)), None)


def site_name(site: int) -> str:
    return f"site {site} ({sublayer_name(site)})"


def _bad(tensor: Tensor) -> bool:
    return not bool(torch.isfinite(tensor).all())
