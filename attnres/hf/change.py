"""What quantising an attached model, or any change of its weights, does to depth."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnres.errors import UsageError
from attnres.hf.attach import connection_of
from attnres.hf.depth import mixing_matrix

log = logging.getLogger("attnres")

MOVED = 0.05
"""How much of a site's weight may move, on average over tokens, before `depth_change` warns."""


@dataclass(frozen=True)
class DepthChange:
    """How far the depth weights of two models with the same connection lie apart, on some tokens."""

    moved: float
    """The share of its weight that a site moved from one source to another: the mean over sites and tokens."""
    largest: float
    """The same of the site that moved most, a mean over tokens."""
    margin: float
    """ln of a site's largest weight over its second largest: the median over sites and tokens of the first model. It is
    the difference of their scores where weights are a softmax's."""
    score_noise: float
    """How much that difference changed from the first model to the second: the median."""


def depth_change(model: Any, changed: Any, input_ids: Tensor) -> DepthChange:
    """Compare the depth weights of a model with those of, say, its quantised twin, and warn where they moved.

    Quantisation leaves the connection in float32, but noise in the sublayers' weights is noise in the sources, and so
    in the scores of depth. Weights here are |M| of `mixing_matrix`, each site's divided by their sum; sources that
    have the same weight in both models, such as the members of a block, count as one.

    Args:
        model: an attached model.
        changed: the same with other weights.
        input_ids: int64 [batch, time].

    Returns:
        The differences. More than `MOVED` at any site is a warning too.

    Raises:
        UsageError: a model without a connection, or two with different ones.
    """
    one, other = (f"{type(c).__name__}({c.extra_repr()})" for c in map(connection_of, (model, changed)))
    if one != other:
        raise UsageError(f"the models have different connections, {one} and {other}; give a model and its changed twin")
    p, q = (mixing_matrix(each, input_ids).flatten(0, 1).abs() for each in (model, changed))
    moved, margins, noise = [], [], []
    for site in range(1, p.shape[-1]):
        ours, theirs = p[:, site, : site + 1], q[:, site, : site + 1]
        moved.append((_shares(ours) - _shares(theirs)).abs().sum(-1).mean() / 2)
        distinct = _first_of_equals(ours, theirs)
        if len(distinct) > 1:
            scores, changed_scores = (weights[:, distinct].clamp_min(1e-30).log() for weights in (ours, theirs))
            two = scores.topk(2, -1).indices
            gap, other = (s.gather(-1, two)[:, 0] - s.gather(-1, two)[:, 1] for s in (scores, changed_scores))
            margins.append(gap)
            noise.append((gap - other).abs())
    by_site = torch.stack(moved)
    margin, score_noise = (torch.cat(each).median().item() if each else 0.0 for each in (margins, noise))
    change = DepthChange(by_site.mean().item(), by_site.max().item(), margin, score_noise)
    if change.largest > MOVED:
        log.warning(
            "depth weights moved: %.1f%% of them at site %d (%.1f%% is taken as harmless); compare the models' losses",
            100 * change.largest,
            1 + int(by_site.argmax()),
            100 * MOVED,
        )
    return change


def _shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _first_of_equals(ours: Tensor, theirs: Tensor) -> list[int]:
    """The columns of weights [tokens, sources] that no earlier one is equal to in both."""
    both = torch.cat([ours, theirs])
    return [i for i in range(both.shape[1]) if not any(torch.equal(both[:, i], both[:, j]) for j in range(i))]
