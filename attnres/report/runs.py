"""What depth does in the run of a folder, and the page of it."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnres.analysis import DepthProfile, depth_profile
from attnres.data import Corpus, Tokenizer, open_corpus, validation_batches
from attnres.errors import UsageError
from attnres.report.charts import Plot
from attnres.report.comparison import sink_table
from attnres.report.page import Section, page
from attnres.report.write import loss_curves
from attnres.train import Run, RunConfig
from attnres.train.folder import RunFolder

PROFILE_SEQUENCES = 4
CHOSEN_TOKENS = 8
MOST_BYTES = 4
"""The longest character of UTF-8."""
TEXT_AROUND = 40
"""Characters shown before and after a chosen token."""


def run_profile(run: Run, prompt: str | None = None) -> tuple[DepthProfile, list[dict[str, Any]]]:
    """What depth does over the prompt or, without one, a few sequences of the run's own validation text.

    And its `token_views`. Raises UsageError if that text has changed since.
    """
    if prompt is None:
        corpus = open_corpus(run.config.data)
        RunFolder(run.folder).refuse_other_text(corpus, "give a --prompt")
        tokens = validation_tokens(corpus, run.config)
    else:
        tokens = torch.tensor([prompt_ids(prompt, run.tokenizer, run.config)])
    positions = chosen_positions(tokens)
    return depth_profile(run.model, tokens, positions), token_views(tokens, positions, run.tokenizer)


def run_page(run: Run, profiles: Mapping[str, DepthProfile], depth: Sequence[Plot], prompt: str | None) -> str:
    """The page of a run. depth: its `depth_pictures`."""
    folder, model = RunFolder(run.folder), run.config.model
    record = folder.record() or {}
    curve = [(each["step"], each["loss"] / record["corpus"]["bytes_per_token"]) for each in folder.evaluations()]
    curves = loss_curves({model.connection: {run.config.seed: curve}})
    matrices, along = depth
    sections = [
        *(Section(name="losses", title="Loss curves", pictures=[of]) for of in curves),
        Section(name="matrices", title="What each site reads", pictures=[matrices]),
        Section(name="depth", title="Along the depth", pictures=[along], tables=[sink_table(profiles)]),
        Section(name="provenance", title="Where this comes from", facts=provenance(record)),
    ]
    subtitle = f"{model.layers} transformer layers of width {model.dim} after {run.step} steps, on "
    subtitle += "its validation text" if prompt is None else "a prompt"
    return page(f"Depth in {run.folder.name}: {model.connection}", sections, subtitle)


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


def chosen_positions(tokens: Tensor) -> tuple[int, ...]:
    """A few tokens of the first sequence, evenly spread, never the last one, which the model is only asked for."""
    return tuple(np.unique(np.linspace(0, tokens.shape[1] - 2, CHOSEN_TOKENS).astype(int)).tolist())


def token_views(tokens: Tensor, positions: Sequence[int], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The chosen tokens of the first sequence, each with the text around it."""
    ids = tokens[0].tolist()
    return [{"position": position, **_token_text(ids, position, tokenizer)} for position in positions]


def _token_text(ids: Sequence[int], position: int, tokenizer: Tokenizer) -> dict[str, str]:
    """A token in its text; one that is no whole character, as a byte of most scripts, as "ж [2 of 2]"."""
    windows = (
        (start, start + length)
        for length in range(1, MOST_BYTES + 1)
        for start in range(max(0, position - length + 1), position + 1)
    )
    whole = (window for window in windows if "\ufffd" not in tokenizer.decode(ids[slice(*window)]))
    start, end = next(whole, (position, position + 1))
    part = f" [{position - start + 1} of {end - start}]" if end - start > 1 else ""
    return {
        "before": tokenizer.decode(ids[:start])[-TEXT_AROUND:],
        "token": tokenizer.decode(ids[start:end])[:TEXT_AROUND] + part,
        "after": tokenizer.decode(ids[end:])[:TEXT_AROUND],
    }


def provenance(record: Mapping[str, Any]) -> dict[str, str]:
    """Where the numbers come from, from a run's config.json."""
    corpus, versions, machine = (record.get(key, {}) for key in ("corpus", "versions", "machine"))
    return {
        "command": shlex.join(["attnres", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "corpus": f"{corpus.get('description')}, sha256 {corpus.get('sha256')}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "machine": ", ".join(f"{name} {value}" for name, value in machine.items()) or platform.platform(),
        "configuration": json.dumps(record.get("config", {})),
    }
