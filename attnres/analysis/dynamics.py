"""What depth does in a model on real tokens: mixing, magnitudes, gradients, entropy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.analysis.interventions import ids_for
from attnres.analysis.profile import DepthProfile, names_of
from attnres.analysis.tracing import readout_parts
from attnres.connections import Connection, Sublayer, mean_read, mixing_matrix
from attnres.connections.matrix import unrolled
from attnres.connections.offload import at_hand
from attnres.errors import UsageError

TAG_BYTES = 8 * 2**20
"""About how much memory the tagged values of one chunk of tokens may take. More is not faster."""


def depth_profile(model: Any, tokens: Tensor, positions: Iterable[int] = ()) -> DepthProfile:
    """Measure magnitudes, gradients and weights along depth, per token.

    Gradients are those of the summed cross-entropy in nats (not the mean, which would shrink with the number of
    tokens); a sequence's token t reaches the losses of t and of all later tokens. Parameters' .grad is left alone.
    Sequences pass one by one and their tokens in chunks, so memory depends on neither batch nor time squared.

    Args:
        model: the lab's Transformer, or a causal Hugging Face model that `attnres.hf.unroll` takes.
        tokens: int64 [batch, time]. The model reads tokens[:, :-1] and predicts tokens[:, 1:], so the profile is over
            batch * (time - 1) tokens.
        positions: tokens of the first sequence, counting from 0, whose own depth matrices are kept.

    Returns:
        Magnitudes, gradients, shares and the mean depth matrix, over sites and sources.

    Raises:
        UsageError: tokens or positions out of range, or a model under `intervene`.
    """
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise UsageError(
            f"a depth profile needs tokens [batch, time] with time of at least 2, not {list(tokens.shape)}"
        )
    positions = tuple(positions)
    for position in positions:
        if not 0 <= position < tokens.shape[1] - 1:
            raise UsageError(f"position {position} is not among the {tokens.shape[1] - 1} tokens that the model reads")
    sums: dict[str, Tensor] = {}

    def add(name: str, values: Tensor) -> None:
        """Sum of values [tokens, ...] over tokens, in float64."""
        total = values.double().sum(0)
        sums[name] = sums[name] + total if name in sums else total

    chosen: dict[int, Tensor] = {}
    for index, sequence in enumerate(tokens):
        connection, sources, inputs, gradients = _trace(model, sequence)
        add("output_rms", _rms(sources))
        add("input_rms", _rms(inputs))
        add("gradient_rms", _rms(gradients))
        for first, matrices in _matrices(connection, sources):
            size = matrices.abs()
            share = size / size.sum(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
            add("mean_matrix", matrices)
            add("mean_share", share)
            add("entropy", torch.special.entr(share).sum(-1))
            if index == 0:
                chosen |= {p: matrices[p - first] for p in positions if first <= p < first + len(matrices)}

    count = tokens.shape[0] * (tokens.shape[1] - 1)
    n = connection.sublayers + 1  # pyright: ignore[reportPossiblyUnboundVariable]
    token_matrices = torch.stack([chosen[p] for p in positions]) if positions else torch.zeros(0, n, n)
    return DepthProfile(
        names=names_of(connection),
        positions=positions,
        token_matrices=token_matrices.double().cpu().numpy(),
        **{name: (total / count).cpu().numpy() for name, total in sums.items()},
    )


def _trace(model: Any, sequence: Tensor) -> tuple[Connection, Tensor, Tensor, Tensor]:
    """Run one sequence [time] forward and back: its sources, the inputs of its sites, the gradients of its sources.

    Each is [time - 1, L + 1, dim], detached.
    """
    ids_for(model, "tokens", sequence)
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def recorded(sublayer: Sublayer) -> Sublayer:
        def call(*reads: Tensor) -> Tensor:
            y = sublayer(*reads)
            inputs.append(mean_read(reads))
            # A constant is a source like any other, and the loss has a gradient in it.
            outputs.append(y if y.requires_grad else y.detach().requires_grad_())
            return outputs[-1]

        return call

    connection, embedded, sublayers = unrolled(model, sequence[None, :-1])
    norm, head = readout_parts(model)
    with torch.enable_grad(), at_hand(connection, model):
        embedded = embedded.detach().requires_grad_()  # a leaf: there is a graph even where all parameters are frozen
        hidden = connection(embedded, [recorded(sublayer) for sublayer in sublayers])
        loss = F.cross_entropy(head(norm(hidden))[0].float(), sequence[1:].long(), reduction="sum")
        sources = [embedded, *outputs]
        gradients = torch.autograd.grad(loss, sources, allow_unused=True, materialize_grads=True)
    return connection, _by_token(sources), _by_token([*inputs, hidden]), _by_token(gradients)


def _by_token(rows: Sequence[Tensor]) -> Tensor:
    """Turn rows of [1, time, dim] into [time, rows, dim]."""
    return torch.cat([row.detach() for row in rows]).transpose(0, 1)


def _matrices(connection: Connection, sources: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(first token, M [tokens, L + 1, L + 1]) for consecutive chunks of the tokens of sources [time, L + 1, dim].

    Tokens meet only inside sublayers, so once the sublayers' outputs are recorded a connection can be replayed on any
    part of the tokens.
    """
    _, n, dim = sources.shape
    # Up to n values of n tags each: Full holds every source.
    chunk = max(1, TAG_BYTES // (n * n * dim * 4))
    for first in range(0, len(sources), chunk):
        embedded, *outputs = sources[first : first + chunk].unbind(1)
        replayed: list[Sublayer] = [lambda *_, y=y: y for y in outputs]
        yield first, mixing_matrix(connection, embedded, replayed)


def _rms(vectors: Tensor) -> Tensor:
    """Return the root of the mean square over the channels, [..., dim] -> [...]."""
    return vectors.double().square().mean(-1).sqrt()
