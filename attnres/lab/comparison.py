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
from attnres.errors import UsageError
from attnres.lab.engine import Planned, ProgressDisplay, Sweep
from attnres.lab.options import PairedOptions, arm_folder
from attnres.lab.runs import RunResult
from attnres.report.comparison import NATS_PER_BYTE, result_tables
from attnres.report.runs import comparison_report
from attnres.report.write import PAGE, write_report
from attnres.texttable import TextTable
from attnres.train import RunConfig, config_to_json
from attnres.train.folder import RunFolder, evaluated_bytes_per_token

UNIT = NATS_PER_BYTE

KIND = "comparison"
RECORD = f"{KIND}.json"
EARLY_SEEDS = 2
"""The fewest that have a standard error: a first page is drawn of them."""

Finished = Mapping[str, Mapping[int, Path]]
"""The folders of runs that are done, by arm and seed."""


@dataclass(frozen=True)
class Compared:
    """What a comparison ends with."""

    tables: Sequence[TextTable]
    page: Path
    failed: str
    """One line for each run that was not finished."""


def plan_comparison(options: PairedOptions, out: Path) -> list[Planned]:
    """The runs, the arms of a seed beside each other, in folders under `out`.

    Raises UsageError on bad options, and where the folder has a page of somebody else.
    """
    options = options.checked()
    if (out / PAGE).exists() and not (out / RECORD).exists():
        raise UsageError(f"--out {out} holds another {PAGE}, which would be lost; give a new folder")
    return [
        Planned(arm, seed, options.run(arm, seed), arm_folder(out, arm) / f"seed-{seed}")
        for seed in options.paired_seeds
        for arm in options.arms
    ]


def run_comparison(
    plan: Sequence[Planned], config: RunConfig, out: Path, workers: int, progress: ProgressDisplay
) -> Compared:
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
    early = plan[: EARLY_SEEDS * len(arms)]
    sweep.train(early)
    first = Thread(target=_draw_early, args=(ended(early, sweep.ran), config, out, sweep), daemon=True)
    if rest := plan[len(early) :]:
        first.start()  # beside the runs that follow: it takes some ten seconds
        sweep.train(rest)
        first.join()
    if not any(run.done for run in sweep.ran.values()):
        raise UsageError("no run ended lower than it began; take a smaller learning rate")
    finished = ended(plan, sweep.ran)
    rows = compare_runs(finished, evaluated_bytes_per_token(sweep.corpus, config))
    found = finding(rows, UNIT) or "No seed was finished by every connection, so nothing can be compared."
    compared = [dataclasses.asdict(row) | {"decided": row.decided} for row in rows]
    sweep.find(finding=found, unit=UNIT, comparison=compared)
    sweep.save()
    progress.say(f"\n{found}")
    with progress.during("reading the depth of every connection") as tell:
        page = write_report(comparison_report(finished, rows, config, sweep.corpus, tell), out)
    return Compared(result_tables(rows, UNIT), page, sweep.ended().failed)


def _draw_early(finished: Finished, config: RunConfig, out: Path, sweep: Sweep) -> None:
    """The page of the first seeds, which the last page replaces; none where a connection has no finished run yet."""
    torch.set_num_threads(1)  # of this thread: the cores belong to the workers
    if all(finished.values()):
        rows = compare_runs(finished, evaluated_bytes_per_token(sweep.corpus, config))
        page = write_report(comparison_report(finished, rows, config, sweep.corpus), out)
        sweep.progress.say(f"A first page, of what is finished so far: {page}")


def ended(plan: Sequence[Planned], ran: Mapping[Any, RunResult]) -> dict[str, dict[int, Path]]:
    """The folders of the runs that are finished or have diverged, by arm and seed."""
    folders: dict[str, dict[int, Path]] = {one.arm: {} for one in plan}
    for one in plan:
        if one.key in ran and ran[one.key].status in ("done", "diverged"):
            folders[one.arm][one.seed] = one.folder
    return folders


def compare_runs(finished: Finished, bytes_per_token: float) -> list[Comparison]:
    """Compare finished runs by arm and seed, on the seeds that all have, with losses in nats per byte: the same for
    every tokenizer. The first arm is the baseline."""
    summaries: dict[str, dict[int, dict]] = {}
    for arm, runs in finished.items():
        summaries[arm] = {seed: RunFolder(folder).summary() or {} for seed, folder in runs.items()}
        for summary in summaries[arm].values():
            summary["validation_loss"] /= bytes_per_token
    return compare_arms(on_common_seeds(summaries), baseline=next(iter(finished)))
