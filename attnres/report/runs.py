"""What makes the data of a report from run folders."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnres.analysis import depth_profile
from attnres.analysis.comparison import Comparison, on_common_seeds
from attnres.data import Corpus, Tokenizer, open_corpus, validation_batches
from attnres.errors import UsageError
from attnres.report.comparison import NATS_PER_BYTE
from attnres.report.data import ArmReport, LossCurve, ReportData, TokenText
from attnres.train import Run, RunConfig, load_run
from attnres.train.folder import RunFolder, evaluated_bytes_per_token

COMPARISON_TITLE = "Residual connections side by side"
"""How the title of its page begins, by which the command knows its own."""

PROFILE_SEQUENCES = 4
CHOSEN_TOKENS = 8
MOST_BYTES = 4
"""The longest character of UTF-8."""
TEXT_AROUND = 40
"""Characters shown before and after a chosen token."""


def comparison_report(
    finished: Mapping[str, Mapping[int, Path]],
    rows: Sequence[Comparison],
    config: RunConfig,
    corpus: Corpus,
    tell: Callable[[str], object] = lambda _: None,
) -> ReportData:
    """The page of a comparison: its result, and the curves and depth of what that rests on, the seeds of all arms.

    finished: the run folders by arm and seed. Where no seed is common there are no curves. tell: hears of each arm
    before its depth is read, which takes seconds.
    """
    tokens = validation_tokens(corpus, config)
    positions = chosen_positions(tokens)
    arms, record = [], None
    for name, compared in on_common_seeds(finished).items():
        tell(f"reading the depth of {name}, {len(arms) + 1} of {len(finished)}")
        profile, description, runs = None, "", compared or finished[name]
        if runs:
            run = load_run(runs[min(runs)])
            profile = depth_profile(run.model, tokens, positions)
            record = RunFolder(run.folder).record()
            description = _seeds_shown(len(compared), len(finished[name]), min(runs))
        curves = curves_of(compared, evaluated_bytes_per_token(corpus, config))
        arms.append(ArmReport(name, description, curves, profile))
    return ReportData(
        title=COMPARISON_TITLE,
        subtitle=f"{config.model.layers} transformer layers of width {config.model.dim}, {config.steps} steps of "
        f"{config.tokens_per_step:,} tokens, seeds per connection: {max(row.seeds for row in rows)}, "
        f"embedding std {config.model.embedding_std:g}",
        arms=arms,
        results=rows,
        provenance=provenance(_common(record or {})),
        tokens=token_texts(tokens, positions, corpus.tokenizer),
        unit=NATS_PER_BYTE,
        curve_label="validation loss",
    )


def _seeds_shown(compared: int, finished: int, first: int) -> str:
    """Which of an arm's runs a page shows; nothing where there is one alone."""
    if compared == finished:
        return f"{compared} seeds; depth of seed {first}" if compared > 1 else ""
    return f"{compared} of its {finished} finished seeds, those that all have; depth of seed {first}"


def _common(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of one run of a comparison without what its configuration alone has: the connection and the seed."""
    config = {name: value for name, value in record.get("config", {}).items() if name != "seed"}
    model = {name: value for name, value in config.get("model", {}).items() if name != "connection"}
    return {**record, "config": {**config, "model": model}}


def run_report(run: Run, prompt: str | None = None) -> ReportData:
    """The page of one run, over the prompt or, without one, a few sequences of its own validation text.

    Raises UsageError if that text has changed since.
    """
    record = RunFolder(run.folder).record() or {}
    if prompt is None:
        corpus = open_corpus(run.config.data)
        RunFolder(run.folder).refuse_other_text(corpus, "give a --prompt")
        tokens = validation_tokens(corpus, run.config)
    else:
        tokens = torch.tensor([prompt_ids(prompt, run.tokenizer, run.config)])
    positions = chosen_positions(tokens)
    name = run.config.model.connection
    curves = curves_of({run.config.seed: run.folder}, record["corpus"]["bytes_per_token"])
    return ReportData(
        title=f"Depth in {run.folder.name}: {name}",
        subtitle=f"{run.config.model.layers} transformer layers of width {run.config.model.dim} after "
        f"{run.step} steps, on {'its validation text' if prompt is None else 'a prompt'}",
        arms=[ArmReport(name, curves=curves, profile=depth_profile(run.model, tokens, positions))],
        provenance=provenance(record),
        tokens=token_texts(tokens, positions, run.tokenizer),
        unit=NATS_PER_BYTE,
        curve_label="validation loss",
    )


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


def token_texts(tokens: Tensor, positions: Sequence[int], tokenizer: Tokenizer) -> list[TokenText]:
    ids = tokens[0].tolist()
    return [_token_text(ids, position, tokenizer) for position in positions]


def _token_text(ids: Sequence[int], position: int, tokenizer: Tokenizer) -> TokenText:
    """A token in its text; one that is no whole character, as a byte of most scripts, as "ж [2 of 2]"."""
    windows = (
        (start, start + length)
        for length in range(1, MOST_BYTES + 1)
        for start in range(max(0, position - length + 1), position + 1)
    )
    whole = (window for window in windows if "\ufffd" not in tokenizer.decode(ids[slice(*window)]))
    start, end = next(whole, (position, position + 1))
    part = f" [{position - start + 1} of {end - start}]" if end - start > 1 else ""
    return TokenText(
        before=tokenizer.decode(ids[:start])[-TEXT_AROUND:],
        token=tokenizer.decode(ids[start:end]) + part,
        after=tokenizer.decode(ids[end:])[:TEXT_AROUND],
    )


def curves_of(runs: Mapping[int, Path], bytes_per_token: float) -> list[LossCurve]:
    """The validation losses of an arm's runs by seed, in nats per byte."""
    curves = []
    for seed, folder in runs.items():
        records = RunFolder(folder).evaluations()
        losses = [record["loss"] / bytes_per_token for record in records]
        curves.append(LossCurve(seed, [record["step"] for record in records], losses))
    return curves


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
