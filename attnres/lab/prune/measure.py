"""What each sublayer is worth: the loss that is added when it is switched off, for every connection.

Switched off means that the sublayer returns zero at its site, and all else stays, with no code for any connection.
Where y is added to a stream, nothing is added; what the site does to the stream besides (Highway's gate, the mixing of
streams) stays. A zero is a source for AttnRes, with score w . 0 = 0, and takes softmax mass (SPEC.md 13, trap 2); but
what it takes it takes from all others in proportion, so h is only scaled, and sublayers and final norm begin with a
norm: up to that norm's eps, the model is the one whose softmax does not have the source (a member of a larger block
leaves the block's sum). So it is fair to compare the two. The exception is `delta`, where a zero source weakens what
attention adds to the stream.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.data import Corpus, validation_batches, validation_bytes_per_token
from attnres.errors import UsageError
from attnres.lab.prune.record import Pruned
from attnres.lab.record import read_record, write_record
from attnres.lab.trained import Trained
from attnres.model import Transformer
from attnres.train import load_run

BATCH = 8
"""Sequences at a time."""


@torch.no_grad()
def added_losses(
    model: Transformer, batches: Iterable[np.ndarray], watch: Callable[[float], None] = lambda _: None
) -> tuple[float, np.ndarray]:
    """The model's loss in nats per token, and what is added to it when sublayer l returns zero: [L].

    batches: int64 [sequences, time + 1]. watch: told of every sublayer that is done in a batch. What comes before a
    sublayer does not change, so it is computed once: values can be split at any site.
    """
    count, whole, without = 0, 0.0, np.zeros(len(model.sublayers))
    for batch in batches:
        tokens = torch.from_numpy(batch)
        sublayers = model.bound_sublayers(tokens.shape[1] - 1)
        values = model.connection.start(model.embedding(tokens[:, :-1]))
        for site, sublayer in enumerate(sublayers):
            silenced = model.connection.run(values, [_silent, *sublayers[site + 1 :]], first=site)
            without[site] += _summed_loss(model, silenced, tokens)
            values = model.connection.run(values, [sublayer], first=site)
            watch(1)
        whole += _summed_loss(model, values, tokens)
        count += tokens[:, 1:].numel()
    return whole / count, (without - whole) / count


def _silent(h: Tensor, *_: Tensor) -> Tensor:
    return torch.zeros_like(h)


def _summed_loss(model: Transformer, values: tuple[Tensor, ...], tokens: Tensor) -> float:
    logits = model.logits(model.connection.readout(values))
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").double().sum().item()


def pruned(run: Trained, corpus: Corpus, tokens: int, watch: Callable[[float], None] = lambda _: None) -> Pruned:
    """What every sublayer of the run is worth, on so many validation tokens, in nats per byte.

    Measured once and then read from its folder. The tokens recorded are those measured: whole sequences, as far as the
    validation split goes.
    """
    stored = run.folder.path / "prune.json"
    step = run.folder.checkpoints.all()[-1].step
    sublayers = run.config.model.sites
    batches = list(validation_batches(corpus, run.config.model.context, BATCH, tokens))
    tokens = sum(batch[:, 1:].size for batch in batches)
    if stored.is_file():
        kept = _kept(stored, sublayers)
        if (kept.tokens, kept.step) == (tokens, step):
            watch(sublayers)
            return kept
    if not os.access(run.folder.path, os.W_OK):
        raise UsageError(
            f"{run.folder.path} cannot be written, where what is measured of a run stays; give a copy of it"
        )
    began = time.perf_counter()
    model = load_run(run.folder.path).model
    loss, added = added_losses(model, batches, lambda done: watch(done / len(batches)))
    per_byte = validation_bytes_per_token(corpus, run.config.model.context, tokens)
    measured = Pruned(
        tokens=tokens,
        step=step,
        loss=loss / per_byte,
        added=tuple(float(f"{value:.5g}") for value in added / per_byte),
        seconds=time.perf_counter() - began,
    )
    with run.folder.lock():
        write_record(stored, measured)
    return read_record(stored, Pruned)


def _kept(stored: Path, sublayers: int) -> Pruned:
    """What was measured before. Raises UsageError where it is damaged, or not of so many sublayers."""
    kept = read_record(stored, Pruned)
    if len(kept.added) != sublayers:
        measured = f"with {len(kept.added)} of {sublayers} sublayers under 'added'"
        raise UsageError(f"{stored}: a damaged record of {kept.kind}, {measured}; {kept.remedy}")
    return kept
