"""A comparison of connections: which runs it has, what their summaries say, and what it leaves in its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from attnres.analysis.comparison import Comparison, compare_arms, finding, on_common_seeds
from attnres.data import Corpus
from attnres.errors import UsageError
from attnres.files import LOCK, PARTIAL
from attnres.lab.engine import Planned, Progress, Sweep
from attnres.lab.options import arm_folder, arm_model, checked_arms
from attnres.lab.runs import Run
from attnres.report import write_report
from attnres.report.comparison import NATS_PER_BYTE, result_tables
from attnres.report.runs import comparison_report
from attnres.report.write import PAGE
from attnres.texttable import TextTable
from attnres.train import RunConfig, config_to_json
from attnres.train.folder import RunFolder, evaluated_bytes_per_token

UNIT = NATS_PER_BYTE

KIND = "comparison"
RECORD = f"{KIND}.json"
OWN = (RECORD, f"{KIND}.runs.jsonl", PAGE, "figures")
"""What a comparison's folder holds beside a folder of runs for each arm."""

Finished = Mapping[str, Mapping[int, Path]]
"""The folders of runs that are done, by arm and seed."""


@dataclass(frozen=True)
class Compared:
    """What a comparison ends with."""

    tables: Sequence[TextTable]
    page: Path
    failed: str
    """One line for each run that was not finished."""


def plan_comparison(arms: Sequence[str], config: RunConfig, out: Path, seeds: int) -> list[Planned]:
    """The runs, the arms of a seed beside each other, in folders under `out`.

    Raises UsageError on a bad arm, and where `out` holds something else than comparisons.
    """
    _refuse_foreign_files(out)
    models = {arm: arm_model(arm, config.model) for arm in checked_arms(arms, config)}
    return [
        Planned(arm, seed, dataclasses.replace(config, model=model, seed=seed), arm_folder(out, arm) / f"seed-{seed}")
        for seed in range(config.seed, config.seed + seeds)
        for arm, model in models.items()
    ]


def _refuse_foreign_files(out: Path) -> None:
    """A comparison's folder is new, empty or one of runs, among which other experiments may have left their records."""
    paths = sorted(out.iterdir()) if out.is_dir() else []
    if any(any(path.glob("seed-*")) for path in paths):
        return
    foreign = [path.name for path in paths if not (path.name in OWN or path.name.endswith((LOCK, PARTIAL)))]
    if foreign:
        more = ", .." if len(foreign) > 3 else ""
        raise UsageError(
            f"--out {out} holds files and no comparison ({', '.join(foreign[:3])}{more}); give a new or empty folder"
        )


def run_comparison(plan: Sequence[Planned], config: RunConfig, out: Path, workers: int, progress: Progress) -> Compared:
    """Train what is not trained yet, say what was found, and write comparison.json and the page.

    Raises UsageError where the text is bad or no run was finished.
    """
    settings = {"config": config_to_json(dataclasses.replace(config, seed=0))}
    arms = list(dict.fromkeys(one.arm for one in plan))
    sweep = Sweep(KIND, arms, settings, config, workers, out / RECORD, out, progress)
    for one in plan:  # the page reads the folders: a run whose folder is gone is trained again
        if RunFolder(one.folder).summary() is None:
            sweep.ran.pop(one.key, None)
    progress.say(f"{len(arms)} connections, {config.steps} steps of {config.tokens_per_step:,} tokens")
    sweep.announce(plan)
    early = _EarlyPage(plan, sweep, config, out)
    sweep.train(plan, watch=early.watch)
    early.finish()
    if not any(run.done for run in sweep.ran.values()):
        raise UsageError("no run ended lower than it began; take a smaller learning rate")
    finished = finished_runs(plan, sweep.ran)
    rows = compare_runs(finished, evaluated_bytes_per_token(sweep.corpus, config))
    found = finding(rows, UNIT) or "No seed was finished by every connection, so nothing can be compared."
    compared = [dataclasses.asdict(row) | {"decided": row.decided} for row in rows]
    sweep.find(finding=found, unit=UNIT, comparison=compared)
    sweep.save()
    progress.say(f"\n{found}")
    with progress.during("reading the depth of every connection") as tell:
        page = write_report(comparison_report(finished, rows, config, sweep.corpus, tell), out)
    return Compared(result_tables(rows, UNIT), page, sweep.ended().failed)


class _EarlyPage:
    """The page of the first arms that have enough seeds, drawn once while the rest is trained.

    In a thread: drawing takes some ten seconds, in which no worker may stand still. The last page replaces it.
    """

    SEEDS = 2
    """The fewest that have a standard error."""

    def __init__(self, plan: Sequence[Planned], sweep: Any, config: RunConfig, out: Path) -> None:
        self.plan, self.sweep, self.config, self.out = plan, sweep, config, out
        self.thread: Thread | None = None

    def watch(self, states: Sequence[Any]) -> None:
        if self.thread is not None or not any(state.status == "running" for state in states):
            return
        finished = finished_runs(self.plan, self.sweep.ran)
        ready = {arm: runs for arm, runs in finished.items() if len(runs) >= self.SEEDS}
        if len(ready) > 1:
            self.thread = Thread(target=self._draw, args=(ready, self.sweep.corpus), daemon=True)
            self.thread.start()

    def _draw(self, finished: Finished, corpus: Corpus) -> None:
        torch.set_num_threads(1)  # of this thread: the cores belong to the workers
        rows = compare_runs(finished, evaluated_bytes_per_token(corpus, self.config))
        page = write_report(comparison_report(finished, rows, self.config, corpus), self.out)
        self.sweep.progress.say(f"A first page, of what is finished so far: {page}")

    def finish(self) -> None:
        if self.thread is not None:
            self.thread.join()


def finished_runs(plan: Sequence[Planned], ran: Mapping[Any, Run]) -> dict[str, dict[int, Path]]:
    finished: dict[str, dict[int, Path]] = {one.arm: {} for one in plan}
    for one in plan:
        if one.key in ran and ran[one.key].status in ("done", "diverged"):
            finished[one.arm][one.seed] = one.folder
    return finished


def compare_runs(finished: Finished, bytes_per_token: float) -> list[Comparison]:
    """Compare finished runs by arm and seed, on the seeds that all have, with losses in nats per byte: the same for
    every tokenizer. The first arm is the baseline."""
    summaries: dict[str, dict[int, dict]] = {}
    for arm, runs in finished.items():
        summaries[arm] = {seed: RunFolder(folder).summary() or {} for seed, folder in runs.items()}
        for summary in summaries[arm].values():
            summary["validation_loss"] /= bytes_per_token
    return compare_arms(on_common_seeds(summaries), baseline=next(iter(finished)))
