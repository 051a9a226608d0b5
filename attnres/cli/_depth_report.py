"""From run folders to the data of a report."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from attnres.analysis import DepthProfile
from attnres.analysis.comparison import Comparison
from attnres.data import Corpus, Tokenizer, validation_batches
from attnres.errors import UsageError
from attnres.report import ArmReport, Curve, Summary, TokenText
from attnres.train import Run, RunConfig, read_metrics

PROFILE_SEQUENCES = 4
CHOSEN_TOKENS = 8
TEXT_AROUND = 40
"""Characters shown before and after a chosen token."""


def validation_tokens(corpus: Corpus, config: RunConfig) -> Tensor:
    """A few sequences of the run's own validation text, [sequences, context + 1]."""
    sequence = config.model.context
    batches = validation_batches(corpus, sequence, PROFILE_SEQUENCES, PROFILE_SEQUENCES * sequence)
    return torch.from_numpy(next(iter(batches)))


def prompt_tokens(run: Run, prompt: str) -> Tensor:
    """The prompt as one sequence [1, time]. Raises UsageError if it does not fit the model."""
    ids, limit = run.tokenizer.encode(prompt), run.config.model.context + 1
    if not 2 <= len(ids) <= limit:
        raise UsageError(f"the prompt has {len(ids)} tokens; give between 2 and {limit} for this model")
    return torch.tensor([ids])


def chosen_positions(tokens: Tensor) -> tuple[int, ...]:
    """A few tokens of the first sequence, evenly spread, never the last one, which the model is only asked for."""
    return tuple(np.unique(np.linspace(0, tokens.shape[1] - 2, CHOSEN_TOKENS).astype(int)).tolist())


def token_texts(tokens: Tensor, positions: Sequence[int], tokenizer: Tokenizer) -> list[TokenText]:
    ids = tokens[0].tolist()
    return [
        TokenText(
            before=tokenizer.decode(ids[:position])[-TEXT_AROUND:],
            token=tokenizer.decode([ids[position]]),
            after=tokenizer.decode(ids[position + 1 :])[:TEXT_AROUND],
        )
        for position in positions
    ]


def curves_of(runs: Mapping[int, Path], bytes_per_token: float) -> list[Curve]:
    """The validation losses of an arm's runs by seed, in nats per byte."""
    curves = []
    for seed, folder in runs.items():
        records = [record for record in read_metrics(folder / "metrics.jsonl") if record["kind"] == "eval"]
        losses = [record["loss"] / bytes_per_token for record in records]
        curves.append(Curve(seed, [record["step"] for record in records], losses))
    return curves


def arm_report(
    name: str,
    runs: Mapping[int, Path],
    profile: DepthProfile | None,
    row: Comparison | None,
    bytes_per_token: float,
) -> ArmReport:
    """One arm of the report, from its runs by seed and the profile of the first of them."""
    summary = Summary()
    if row is not None:
        summary = Summary(
            row.validation_loss, row.difference, row.difference_error, row.step_time_ratio, row.peak_memory_ratio
        )
    description = f"{len(runs)} seeds; depth of seed {min(runs)}" if len(runs) > 1 else ""
    return ArmReport(name, description, curves_of(runs, bytes_per_token), summary, profile)


def provenance(record: Mapping[str, Any]) -> dict[str, str]:
    """Where the numbers come from, from a run's config.json."""
    corpus, versions, machine = (record.get(key, {}) for key in ("corpus", "versions", "machine"))
    return {
        "command": " ".join(["attnres", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "corpus": f"{corpus.get('description')}, sha256 {corpus.get('sha256')}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "machine": ", ".join(f"{name} {value}" for name, value in machine.items()) or platform.platform(),
        "configuration": json.dumps(record.get("config", {})),
    }


def print_line(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
