"""The depth mixing matrix of any connection."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Mixture, Sublayer, output_of, outside_autocast, reads_in
from attnres.connections.offload import at_hand
from attnres.connections.reads import mean_read
from attnres.errors import UsageError

Unrolled = tuple[Connection, Tensor, list[Sublayer]]
"""A model unrolled over depth for some tokens: its connection, the embedding [..., dim], the sublayers of h alone."""


UNDER_CHANGES = "the model is under changes; attnres.analysis.trace(model, tokens, changes) has the weights it then has"


def is_of_transformers(model: Any) -> bool:
    """Whether it is a model of transformers, for `attnres.hf`, or a wrapper that passes on what it is asked for."""
    return callable(getattr(model, "get_decoder", None))


def unrolled(model: nn.Module, tokens: Tensor, **inputs: Any) -> Unrolled:
    """Unroll a model over depth by the method `unrolled` of it or, where it is wrapped, of a part."""
    for part in model.modules():
        if hasattr(part, "unrolled"):
            return cast(Any, part).unrolled(tokens, **inputs)
        if is_of_transformers(part):
            return importlib.import_module("attnres.hf").unroll(part, tokens, **inputs)
    raise UsageError(
        f"{type(model).__name__} has no method unrolled(tokens); give its connection, an embedding and sublayers"
    )


@torch.no_grad()
def mixing_matrix(
    model: nn.Module,
    x: Tensor,
    sublayers: Iterable[Sublayer] | None = None,
    per_channel: bool = False,
    per_read: bool = False,
    **inputs: Any,
) -> Tensor:
    """Compute M with h_l = sum_i M[l, i] v_i, per token.

    >>> mixing_matrix(connection, embedding, sublayers)
    >>> mixing_matrix(model, tokens)

    M[l, i] is the weight of source i (0 is the embedding, i + 1 the output of sublayer i) in what site l reads; the
    last row is the readout.

    How (spec.md 2): once a token's weights are fixed, the rule is linear in the sources. So each source is replaced by
    a tag, the constant vector 1 where source i enters and 0 elsewhere. The tags are carried through the same linear
    maps under the weights of the real activations.

    Args:
        model: a connection; or the lab's Transformer, a Hugging Face model that `attnres.hf.unroll` takes, or any
            module that is or contains one with the method `unrolled(tokens)`, which returns (connection, embedding,
            sublayers). Its training or evaluation mode is not changed.
        x: the embedding [..., dim] for a connection, tokens int64 [batch, time] for a model; pixels for one of vision.
        sublayers: as many callables as the connection has; none for a model.
        per_channel: a rule that differs by channel (Highway, PostNorm, several heads) has one M per channel. Return all
            of them on a last axis of size dim, not their mean.
        per_read: a rule whose sites read several mixtures (`reads`) has one M per read. Return all of them, not their
            mean, on an axis before the sites, where a site with fewer reads repeats its last one.
        **inputs: further inputs of a Hugging Face model, such as attention_mask.

    Returns:
        M [..., L + 1, L + 1], lower triangular, with the axes that `per_channel` and `per_read` add.

    Raises:
        UsageError: the number of sublayers is not the connection's, or the model has no `unrolled`.
    """
    holder = model if sublayers is None else None
    connection, x, sublayers = (
        unrolled(model, x, **inputs) if sublayers is None else (cast(Connection, model), x, list(sublayers))
    )
    if len(sublayers) != connection.sublayers:
        raise UsageError(f"the connection has {connection.sublayers} sublayers, but {len(sublayers)} were given")
    connection._fitting((x,), sublayers, first=0)
    reads = max(connection.reads(site) for site in range(connection.sublayers + 1))
    rows = []
    with at_hand(connection, holder):
        for h in _tags_read(connection, x, sublayers):
            row = _all_reads(h, reads) if per_read else mean_read(h)[None]
            rows.append(row if per_channel else row.mean(-1))
    matrix = torch.stack(rows, 1)  # [read, site, source, ...tokens(, dim)]
    tokens = x.ndim - 1
    matrix = matrix.permute(*range(3, 3 + tokens), 0, 1, 2, *range(3 + tokens, matrix.ndim))
    return matrix if per_read else matrix.squeeze(tokens)


def _tags_read(connection: Connection, x: Tensor, sublayers: Iterable[Sublayer]) -> Iterator[Mixture]:
    """What each site, and the readout, reads of the tags [source, ..., dim]."""
    dtype = torch.promote_types(x.dtype, torch.float32)

    def tag(index: int) -> Tensor:
        y = torch.zeros(connection.sublayers + 1, *x.shape, dtype=dtype, device=x.device)
        y[index] = 1.0
        return y

    values, tagged = connection.start(x), connection.start(tag(0))
    for site, sublayer in enumerate(sublayers):
        with outside_autocast(values):
            weights = connection.weigh(values, site)
            h, h_tagged = connection.gather(values, weights, site), connection.gather(tagged, weights, site)
        yield h_tagged
        y = output_of(sublayer, h, values)
        with outside_autocast(values):
            weights = connection.weigh_output(values, weights, site, y)
            values = connection.scatter(values, weights, site, h, y)
            tagged = connection.scatter(tagged, weights, site, h_tagged, tag(site + 1))
    with outside_autocast(values):
        h_tagged = connection.gather(tagged, connection.weigh(values, connection.sublayers), connection.sublayers)
    yield h_tagged


def _all_reads(h: Mixture, count: int) -> Tensor:
    reads = reads_in(h)
    return torch.stack([*reads, *[reads[-1]] * (count - len(reads))])
