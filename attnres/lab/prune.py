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

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.data import Corpus, validation_batches
from attnres.errors import UsageError
from attnres.lab.dynamics import ARMS
from attnres.lab.dynamics_statements import NEGLIGIBLE, Statement, judged, paired
from attnres.lab.dynamics_tables import DECIDED, mean_text, runs_text, statement_table
from attnres.lab.record import Record, read_record, write_record
from attnres.lab.tables import TextTable
from attnres.model import Transformer
from attnres.train import RunConfig, config_to_json, load_run, read_metrics
from attnres.train.folder import FREE_FIELDS, RunFolder, flat_fields

KIND = "pruning of a run"

BATCH = 8
"""Sequences at a time."""

THRESHOLD = 0.01
"""Nats per byte: a sublayer that costs less is called removable."""

NEGLIGIBLE_LOSS = 0.001
"""Nats per byte: a difference of mean or median added loss below this is as good as none."""

MAY_DIFFER = (
    *FREE_FIELDS,
    "model.connection",
    "model.connection_options",
    "seed",
    "optimizer.lr",
    "optimizer.adamw_lr",
)
"""Between runs that are compared. Learning rates may be tuned for each connection."""


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
            silenced = model.connection.run(values, [torch.zeros_like, *sublayers[site + 1 :]], first=site)
            without[site] += _summed_loss(model, silenced, tokens)
            values = model.connection.run(values, [sublayer], first=site)
            watch(1)
        whole += _summed_loss(model, values, tokens)
        count += tokens[:, 1:].numel()
    return whole / count, (without - whole) / count


def _summed_loss(model: Transformer, values: tuple[Tensor, ...], tokens: Tensor) -> float:
    logits = model.logits(model.connection.readout(values))
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").double().sum().item()


@dataclass(frozen=True)
class Trained:
    """A run folder and what it says of itself."""

    folder: RunFolder
    config: RunConfig
    status: str
    """"done"; "diverged" if it ended no lower than it began; "unfinished" if it has no result."""

    @property
    def arm(self) -> str:
        options = self.config.model.connection_options
        listed = ",".join(f"{name}={_literal(value)}" for name, value in options.items())
        return self.config.model.connection + (f":{listed}" if listed else "")


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders among and inside the given ones, in order. Raises UsageError where there is none."""
    found: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / "config.json").is_file() else _inside(folder)
        if not inside:
            raise UsageError(f"{folder}: no run there; give run folders, or a folder that holds some")
        found += inside
    return list(dict.fromkeys(found))


def _inside(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("**/config.json") if "checkpoints" not in path.parts)


def open_runs(folders: Sequence[Path]) -> list[Trained]:
    """The runs. Raises UsageError where they differ in more than connection, learning rates and seed, naming it."""
    trained = []
    for path in folders:
        folder = RunFolder(path)
        trained.append(Trained(folder, folder.config(), _status(folder)))
    first = trained[0]
    for run in trained[1:]:
        differing = _differing(first.config, run.config)
        if differing:
            raise UsageError(
                f"{run.folder.path} and {first.folder.path} are runs of different configurations "
                f"({', '.join(differing)}); give runs that differ in connection and seed alone"
            )
    seen: dict[tuple[str, int], Path] = {}
    for run in trained:
        key = run.arm, run.config.seed
        if key in seen:
            raise UsageError(f"{run.folder.path} and {seen[key]} are both {key[0]}, seed {key[1]}; give one of them")
        seen[key] = run.folder.path
    return trained


def _status(folder: RunFolder) -> str:
    summary = folder.summary()
    if summary is None:
        return "unfinished"
    evaluations = [record["loss"] for record in read_metrics(folder.metrics) if record["kind"] == "eval"]
    return "diverged" if evaluations and summary["validation_loss"] >= evaluations[0] else "done"


def _differing(first: RunConfig, other: RunConfig) -> list[str]:
    one, two = flat_fields(config_to_json(first)), flat_fields(config_to_json(other))
    return [
        name
        for name in {**one, **two}
        if name not in MAY_DIFFER
        and not name.startswith("model.connection_options.")
        and one.get(name) != two.get(name)
    ]


def _literal(value: Any) -> str:
    """As `arm_model` reads it."""
    return value if isinstance(value, str) else json.dumps(value)


def pruned(run: Trained, corpus: Corpus, tokens: int, watch: Callable[[float], None] = lambda _: None) -> Record:
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
        record = read_record(stored, KIND)
        if (record.get("tokens"), record.get("step")) == (tokens, step):
            watch(sublayers)
            return record
    began = time.perf_counter()
    model = load_run(run.folder.path).model
    loss, added = added_losses(model, batches, lambda done: watch(done / len(batches)))
    per_byte = corpus.bytes_per_token
    record = {
        "kind": KIND,
        "tokens": tokens,
        "step": step,
        "loss": loss / per_byte,
        "added": [float(f"{value:.5g}") for value in added / per_byte],
        "seconds": time.perf_counter() - began,
    }
    write_record(stored, record)
    return read_record(stored, KIND)


def refuse_other_corpus(run: Trained, corpus: Corpus) -> None:
    record = run.folder.record() or {}
    if record["corpus"]["sha256"] != corpus.sha256:
        raise UsageError(
            f"{run.folder.path}: the corpus has changed since this run (it was {record['corpus']['description']}, now "
            f"it is {corpus.description}); restore its files or leave the run out"
        )


def gini(values: Sequence[float]) -> float:
    """How unequal they are: 0 if all are equal, near 1 if one holds everything. Negative ones count as nothing."""
    ordered = np.sort(np.maximum(values, 0.0))
    count, total = len(ordered), ordered.sum()
    if total == 0:
        return 0.0
    return float(((2 * np.arange(1, count + 1) - count - 1) * ordered).sum() / (count * total))


def removable(values: Sequence[float]) -> float:
    """The share of sublayers whose removal costs less than THRESHOLD."""
    return float(np.mean(np.asarray(values) < THRESHOLD))


MEASURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "mean": lambda run: float(np.mean(run["added"])),
    "median": lambda run: float(np.median(run["added"])),
    "removable": lambda run: removable(run["added"]),
    "Gini": lambda run: gini(run["added"]),
}


def by_arm(record: Record) -> dict[str, list[Mapping[str, Any]]]:
    """The record's runs, the baseline's first, then in the order in which `attnres dynamics` has them."""
    arms: dict[str, list[Mapping[str, Any]]] = {record["baseline"]: []}
    for run in sorted(record["runs"], key=lambda run: ARMS.index(run["arm"]) if run["arm"] in ARMS else len(ARMS)):
        arms.setdefault(run["arm"], []).append(run)
    return arms


def prune_statements(record: Record) -> list[Statement]:
    """Are layers less redundant than in the baseline?"""
    baseline = record["baseline"]
    arms = {arm: {run["seed"]: run for run in runs if run["status"] == "done"} for arm, runs in by_arm(record).items()}
    claims = (
        (f"a sublayer costs more than in {baseline}, median", "median", 1, NEGLIGIBLE_LOSS),
        (f"a sublayer costs more than in {baseline}, mean", "mean", 1, NEGLIGIBLE_LOSS),
        (f"fewer are removable than in {baseline}", "removable", -1, NEGLIGIBLE),
        (f"the cost is more even than in {baseline} (Gini)", "Gini", -1, NEGLIGIBLE),
    )
    found = []
    for claim, measure, sign, negligible in claims:
        found += judged(claim, sign, paired(arms, baseline, MEASURES[measure]), negligible=negligible)
    return found


def prune_tables(record: Record) -> list[TextTable]:
    rows = []
    for arm, runs in by_arm(record).items():
        done = [run for run in runs if run["status"] == "done"]
        cells = (mean_text([measure(run) for run in done], ".4f") for measure in MEASURES.values())
        rows.append((arm, mean_text([run["loss"] for run in done], ".4f"), *cells, runs_text(runs)))
    note = (
        f"Nats per byte on {record['tokens']} validation tokens, mean ± standard error over seeds. removable: share of "
        f"sublayers that cost less than {THRESHOLD}. Gini: 0 if all cost the same, near 1 if one costs everything."
    )
    columns = ("connection", "loss", *(f"added, {name}" if name in ("mean", "median") else name for name in MEASURES))
    tables = [TextTable("Loss added by switching one sublayer off", (*columns, "runs"), tuple(rows), note)]
    if found := prune_statements(record):
        note = (
            f"{DECIDED} and the difference is at least {NEGLIGIBLE_LOSS} nats per byte, or {NEGLIGIBLE} in share and "
            "Gini; refuted too where its 95% interval lies within that."
        )
        tables.append(statement_table("Are sublayers less redundant?", found, note))
    return tables
