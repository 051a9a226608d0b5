"""Switch every sublayer of trained runs off in turn, and record the losses that this adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from attnres.data import Corpus, open_corpus
from attnres.errors import UsageError
from attnres.lab.experiment import Ended, Progress
from attnres.lab.outcome import run_record_of
from attnres.lab.prune.claims import BASELINE
from attnres.lab.prune.measure import pruned
from attnres.lab.prune.record import Pruned, PrunedRun, PruneRecord
from attnres.lab.record import header
from attnres.lab.trained import Trained, find_runs, open_runs, refuse_other_corpus


@dataclass(frozen=True)
class Options:
    """What `attnres prune` asks for."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders."""
    runs: Path | None = None
    """A folder of which every run inside is taken."""
    tokens: int = 16_384
    """Validation tokens to measure on, the same ones for every run: whole sequences, at least one."""


@dataclass(frozen=True)
class Plan:
    options: Options
    runs: Sequence[Trained]

    @property
    def done(self) -> list[Trained]:
        return [run for run in self.runs if run.status == "done"]


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError where there is no run that is finished."""
    given = [*options.folders, *([] if options.runs is None else [options.runs])]
    if not given:
        raise UsageError("give run folders, or a folder that holds some with --runs")
    if options.tokens < 1:
        raise UsageError(f"tokens must be at least 1, not {options.tokens}")
    planned = Plan(options, open_runs(find_runs(given)))
    if not planned.done:
        first = planned.runs[0]
        raise UsageError(f"no run is finished: {first.folder.path} is {first.status}")
    return planned


def run(plan: Plan, file: Path, progress: Progress) -> Ended[PruneRecord]:
    with progress.during("opening the corpus"):
        corpus = open_corpus(plan.done[0].config.data)
    for one in plan.done:
        refuse_other_corpus(one, corpus)
    measured = _measured(plan, corpus, progress)
    first = next(iter(measured.values()))
    arms = [one.arm for one in plan.done]
    run_records = [run_record_of(one.folder.path) for one in plan.done]
    record = PruneRecord(
        **header(
            run_records[0],
            sum(result.seconds for result in measured.values()),
            [run_record["versions"]["commit"] for run_record in run_records],
        ),
        tokens=first.tokens,
        baseline=BASELINE if BASELINE in arms else arms[0],
        runs=tuple(_recorded(one, measured.get(one.folder.path)) for one in plan.runs),
    )
    left_out = [f"left out: {one.folder.path} ({one.status})" for one in plan.runs if one.status != "done"]
    return Ended(record, notes=left_out)


def _measured(plan: Plan, corpus: Corpus, progress: Progress) -> dict[Path, Pruned]:
    """Measure every run that is done; the results by run folder."""
    measured = {}
    with progress.bar(sum(one.config.model.sites for one in plan.done)) as advance:
        for one in plan.done:
            name = f"{one.arm}, seed {one.config.seed}"
            advance(0, name)
            path, tokens = one.folder.path, plan.options.tokens
            measured[path] = pruned(one, corpus, tokens, lambda part, name=name: advance(part, name))
            progress.log(f"{name}: {len(measured)} of {len(plan.done)} runs")
    return measured


def _recorded(run: Trained, measured: Pruned | None) -> PrunedRun:
    if measured is None:
        return PrunedRun(arm=run.arm, seed=run.config.seed, status=run.status)
    return PrunedRun(arm=run.arm, seed=run.config.seed, status=run.status, loss=measured.loss, added=measured.added)
