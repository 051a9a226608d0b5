"""What depth does in the run of a folder."""

from __future__ import annotations

import torch
from torch import Tensor

from attnres.analysis import DepthProfile, depth_profile
from attnres.data import Corpus, Tokenizer, open_corpus, validation_batches
from attnres.errors import UsageError
from attnres.train import Run, RunConfig
from attnres.train.folder import RunFolder

PROFILE_SEQUENCES = 4


def run_profile(run: Run, prompt: str | None = None) -> DepthProfile:
    """What depth does over the prompt or, without one, a few sequences of the run's own validation text.

    Raises UsageError if that text has changed since.
    """
    if prompt is None:
        corpus = open_corpus(run.config.data)
        RunFolder(run.folder).refuse_other_text(corpus, "give a --prompt")
        tokens = validation_tokens(corpus, run.config)
    else:
        tokens = torch.tensor([prompt_ids(prompt, run.tokenizer, run.config)])
    return depth_profile(run.model, tokens)


def validation_tokens(corpus: Corpus, config: RunConfig) -> Tensor:
    """A few sequences of the run's own validation text, [sequences, context + 1]."""
    sequence = config.model.context
    batches = validation_batches(corpus, sequence, PROFILE_SEQUENCES, PROFILE_SEQUENCES * sequence)
    return torch.from_numpy(next(iter(batches)))


def prompt_ids(prompt: str, tokenizer: Tokenizer, config: RunConfig) -> list[int]:
    """Raises UsageError if the prompt does not fit the model."""
    ids, limit = tokenizer.encode(prompt), config.model.context + 1
    if not 2 <= len(ids) <= limit:
        tokens = "1 token" if len(ids) == 1 else f"{len(ids)} tokens"
        raise UsageError(f"the prompt has {tokens}; give between 2 and {limit} for this model")
    return ids
