"""The order of training, and the fixed validation set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from attnres.data.corpus import Corpus, check_length

COUNTED = 1 << 22
"""Tokens at a time whose lengths are added up."""


class Sampler:
    """Windows of sequence + 1 tokens in a seeded random order, each once per epoch.

    An epoch starts at a random offset o < sequence and cuts windows at o, o + sequence, ..: so every token after o is a
    target exactly once (neighbours share one token: the last target of one is the first input of the next). A batch
    may run over the end of an epoch into the next one.

    The order depends on the seed, the epoch and the number of tokens alone. It is made from PCG64's raw output, which
    NumPy keeps the same across versions. Memory: 8 bytes per window of one epoch; tokens are read as they are needed.
    """

    def __init__(
        self, tokens: np.ndarray, sequence: int, batch_size: int, seed: int, rows: range | None = None
    ) -> None:
        self.tokens = tokens
        self.sequence = sequence
        self.batch_size = batch_size
        self.seed = seed
        self.rows = range(batch_size) if rows is None else rows
        self._enter(epoch=0, position=0)

    def next(self) -> np.ndarray:
        """The next batch: int64 [len(rows), sequence + 1]. What is another process's is passed over, not read."""
        batch = np.empty((len(self.rows), self.sequence + 1), dtype=np.int64)
        for number in range(self.batch_size):
            if self._position == len(self._starts):
                self._enter(self._epoch + 1, 0)
            if number in self.rows:
                start = self._starts[self._position]
                batch[number - self.rows.start] = self.tokens[start : start + self.sequence + 1]
            self._position += 1
        return batch

    def state(self) -> dict[str, int]:
        """The position, for a checkpoint: JSON of constant size."""
        return {"epoch": self._epoch, "position": self._position}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken; the batch size may differ."""
        self._enter(state["epoch"], state["position"])

    def _enter(self, epoch: int, position: int) -> None:
        self._epoch, self._position, self._starts = epoch, position, self._order(epoch)

    def _order(self, epoch: int) -> np.ndarray:
        """Where the windows of the epoch start, in their order."""
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, epoch]))
        slack = len(self.tokens) - 1 - self.sequence  # a larger offset would leave no window
        offset = bits.random_raw() % (min(self.sequence - 1, slack) + 1)
        windows = (len(self.tokens) - 1 - offset) // self.sequence
        return offset + self.sequence * np.argsort(bits.random_raw(windows), kind="stable")


def validation_batches(
    corpus: Corpus, sequence: int, batch_size: int, tokens: int, rows: range | None = None
) -> Iterator[np.ndarray]:
    """Yield the fixed validation set, always the same, in batches int64 [at most batch_size, sequence + 1].

    As many windows as fit into so many predicted tokens, at least one and at most all. They do not overlap and are
    spread evenly over the validation stream. rows: which of a batch's windows to read, as for `Sampler`; the last batch
    may have fewer of them, or none. Raises UsageError where the corpus is too short.
    """
    check_length(corpus, sequence)
    available = (len(corpus.validation) - 1) // sequence
    count = min(max(tokens // sequence, 1), available)
    starts = np.arange(count) * available // count * sequence
    own = slice(None) if rows is None else slice(rows.start, rows.stop)
    for first in range(0, count, batch_size):
        of_batch = starts[first : first + batch_size][own]
        windows = [corpus.validation[start : start + sequence + 1] for start in of_batch]
        yield np.array(windows, dtype=np.int64).reshape(len(windows), sequence + 1)


def validation_bytes_per_token(corpus: Corpus, sequence: int, tokens: int) -> float:
    """UTF-8 bytes of text per token that `validation_batches` asks for; nats per byte = nats per token / this.

    It is the whole part's, times how much longer the tokens of these windows are by themselves than all of its.
    """
    tokenizer = corpus.tokenizer
    lengths = np.array([len(tokenizer.piece(token)) for token in range(tokenizer.vocab_size)])
    if tokenizer.end is not None:
        lengths[tokenizer.end] = 1
    if (lengths == lengths[0]).all():  # bytes
        return corpus.bytes_per_token
    windows = [batch[:, 1:].ravel() for batch in validation_batches(corpus, sequence, COUNTED // sequence + 1, tokens)]
    part = [corpus.validation[first : first + COUNTED] for first in range(0, len(corpus.validation), COUNTED)]
    asked, whole = (_mean_length(lengths, chunks) for chunks in (windows, part))
    return corpus.bytes_per_token * asked / whole


def _mean_length(lengths: np.ndarray, chunks: Iterable[np.ndarray]) -> float:
    counts = np.sum([np.bincount(chunk, minlength=len(lengths)) for chunk in chunks], axis=0)
    return float(counts @ lengths / counts.sum())
