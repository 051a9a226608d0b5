"""A comparison of connections: which runs it has, what their summaries say, and what it leaves in its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import torch

from attnres.analysis.comparison import Comparison, compare_arms, finding, on_common_seeds
from attnres.data import Corpus, check_length, open_corpus
from attnres.errors import UsageError
from attnres.files import LOCK, is_partial, write_json
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.experiment import Progress
from attnres.lab.options import checked_arms
from attnres.report import write_report
from attnres.report.comparison import NATS_PER_BYTE, result_tables
from attnres.report.runs import comparison_report
from attnres.report.write import PAGE
from attnres.texttable import TextTable
from attnres.train import RunConfig
from attnres.train.folder import RunFolder, evaluated_bytes_per_token
from attnres.train.sweep import Job, JobState, failures, refuse_other_texts, require_done

UNIT = NATS_PER_BYTE

RECORD = "comparison.json"
OWN = (RECORD, PAGE, "figures")
"""What a comparison's folder holds beside a folder of runs for each arm."""


@dataclass(frozen=True)
class Compared:
    """What a comparison ends with."""

    tables: Sequence[TextTable]
    page: Path
    failed: str
    """One line for each run that was not finished."""


def plan_comparison(arms: Sequence[str], config: RunConfig, out: Path, seeds: int) -> dict[str, list[Job]]:
    """The runs of each arm, seed by seed, in folders under `out`.

    Raises UsageError on a bad arm, and where `out` holds something else than comparisons.
    """
    _refuse_foreign_files(out)
    models = {arm: arm_model(arm, config.model) for arm in checked_arms(arms, config)}
    return {
        arm: [
            Job(
                f"{arm}, seed {seed}",
                dataclasses.replace(config, model=model, seed=seed),
                arm_folder(out, arm) / f"seed-{seed}",
            )
            for seed in range(config.seed, config.seed + seeds)
        ]
        for arm, model in models.items()
    }


def _refuse_foreign_files(out: Path) -> None:
    """A comparison's folder is new, empty or one of runs, among which other experiments may have left their records."""
    paths = sorted(out.iterdir()) if out.is_dir() else []
    if any(any(path.glob("seed-*")) for path in paths):
        return
    foreign = [
        path.name for path in paths if not (path.name in OWN or is_partial(path.name) or path.name.endswith(LOCK))
    ]
    if foreign:
        more = ", .." if len(foreign) > 3 else ""
        raise UsageError(
            f"--out {out} holds files and no comparison ({', '.join(foreign[:3])}{more}); give a new or empty folder"
        )


def run_comparison(
    plan: Mapping[str, Sequence[Job]], config: RunConfig, out: Path, workers: int, progress: Progress
) -> Compared:
    """Train what is not trained yet, say what was found, and write comparison.json and the page.

    Raises UsageError where the text is bad or no run was finished.
    """
    with progress.during("opening the corpus"):  # before any worker, so that bad text is one error and not many
        corpus = open_corpus(config.data)
        check_length(corpus, config.model.context)
    jobs = [job for of_seed in zip(*plan.values(), strict=True) for job in of_seed]  # arms of a seed side by side
    refuse_other_texts(jobs, corpus)
    seeds = len(next(iter(plan.values())))
    progress.say(
        f"{len(plan)} connections, {config.steps} steps of {config.tokens_per_step:,} tokens, "
        f"seeds per connection: {seeds}, {workers} at a time: {out}"
    )
    arm_of = {job.name: arm for arm, of_arm in plan.items() for job in of_arm}
    early = _EarlyPage(plan, config, corpus, out, progress)
    states = progress.train(jobs, [arm_of[job.name] for job in jobs], workers, watch=early.watch)
    early.finish()
    require_done(states)
    refuse_other_texts(jobs, corpus)
    finished = finished_runs(plan, states)
    rows = compare_runs(finished, evaluated_bytes_per_token(corpus, config))
    write_comparison(out / RECORD, rows, states)
    found = finding(rows, UNIT) or "No seed was finished by every connection, so nothing can be compared."
    progress.say(f"\n{found}")
    with progress.during("reading the depth of every connection"):
        page = write_report(comparison_report(finished, rows, config, corpus), out)
    return Compared(result_tables(rows, UNIT), page, failures(states))


class _EarlyPage:
    """The page of the first arms that have enough seeds, drawn once while the rest is trained.

    In a thread: drawing takes some ten seconds, in which no worker may stand still. The last page replaces it.
    """

    SEEDS = 2
    """The fewest that have a standard error."""

    def __init__(
        self, plan: Mapping[str, Sequence[Job]], config: RunConfig, corpus: Corpus, out: Path, progress: Progress
    ) -> None:
        self.plan, self.config, self.corpus, self.out, self.progress = plan, config, corpus, out, progress
        self.thread: Thread | None = None

    def watch(self, states: Sequence[JobState]) -> None:
        if self.thread is not None or not any(state.status == "running" for state in states):
            return
        finished = finished_runs(self.plan, states)
        ready = {arm: runs for arm, runs in finished.items() if len(runs) >= self.SEEDS}
        if len(ready) > 1:
            self.thread = Thread(target=self._draw, args=(ready,), daemon=True)
            self.thread.start()

    def _draw(self, finished: Mapping[str, Mapping[int, Path]]) -> None:
        torch.set_num_threads(1)  # of this thread: the cores belong to the workers
        rows = compare_runs(finished, evaluated_bytes_per_token(self.corpus, self.config))
        page = write_report(comparison_report(finished, rows, self.config, self.corpus), self.out)
        self.progress.say(f"A first page, of what is finished so far: {page}")

    def finish(self) -> None:
        if self.thread is not None:
            self.thread.join()


def finished_runs(plan: Mapping[str, Sequence[Job]], states: Sequence[JobState]) -> dict[str, dict[int, Path]]:
    """The folders of the runs that are done, by arm and seed."""
    done = {state.job.name for state in states if state.status == "done"}
    return {arm: {job.config.seed: job.folder for job in jobs if job.name in done} for arm, jobs in plan.items()}


def compare_runs(finished: Mapping[str, Mapping[int, Path]], bytes_per_token: float) -> list[Comparison]:
    """Compare finished runs by arm and seed, on the seeds that all have, with losses in nats per byte: the same for
    every tokenizer. The first arm is the baseline."""
    summaries: dict[str, dict[int, dict]] = {}
    for arm, runs in finished.items():
        summaries[arm] = {seed: RunFolder(folder).summary() or {} for seed, folder in runs.items()}
        for summary in summaries[arm].values():
            summary["validation_loss"] /= bytes_per_token
    return compare_arms(on_common_seeds(summaries), baseline=next(iter(finished)))


def write_comparison(path: Path, rows: Sequence[Comparison], states: Sequence[JobState]) -> None:
    """Write what was found and everything that it rests on, as JSON."""
    record = {
        "finding": finding(rows, UNIT),
        "unit": UNIT,
        "arms": [dataclasses.asdict(row) | {"decided": row.decided} for row in rows],
        "failed": failures(states).splitlines(),
    }
    write_json(path, record)
