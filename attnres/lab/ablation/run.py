"""Tune the learning rate of every cell, train it on all seeds, and record how every run ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attnres.data import Corpus, check_length, open_corpus
from attnres.errors import UsageError
from attnres.lab.ablation.cost import operations_of_steps, seconds_of_steps
from attnres.lab.ablation.plan import (
    Plan,
    Trial,
    affordable,
    final_trials,
    phases,
    playoff_trials,
    tuning_trials,
    wider_trials,
)
from attnres.lab.ablation.record import AblationRecord, Cell, CellRecord, Sweep, TrialRun
from attnres.lab.ahead import Ahead
from attnres.lab.experiment import Ended, Progress, steps_of
from attnres.lab.outcome import outcome_of, run_record_of
from attnres.lab.record import config_pairs, files_of, header, read_record, refuse_other_sweep
from attnres.lab.tuning import choose
from attnres.texttable import duration
from attnres.train import config_from_json, config_to_json
from attnres.train.sweep import JobState, failures, require_done


def run(plan: Plan, file: Path, progress: Progress) -> Ended[AblationRecord]:
    """Run the cells that the record does not hold with as many seeds. Raises UsageError if it is another sweep's."""
    options, cells = plan.options, plan.cells
    with progress.during("opening the corpus"):
        corpus = open_corpus(options.config.data)
        check_length(corpus, options.config.model.context)
    config = config_to_json(options.config)
    sweep = Sweep(config, options.grid, options.tuning_seeds, options.wider, options.equal)
    record = earlier(file, sweep, options.arms, corpus.sha256)
    before = {cell.cell: cell for cell in record.cells} if record else {}
    missing = [cell for cell in cells if not has_seeds(before.get(cell), options.seeds)]
    if len(missing) < len(cells):
        progress.say(f"{len(cells) - len(missing)} of {len(cells)} arms are in {file} already")
    if record and not missing:
        return Ended(dataclasses.replace(record, cells=_in_order(cells, before)))
    plan = dataclasses.replace(plan, costs=_costs(plan, corpus, progress))
    left_out: list[Cell] = []
    if plan.seconds is not None:
        missing, left_out = _within(plan, missing, plan.seconds, corpus, progress)
    new, states = _train(plan, missing, progress)
    everything = {**before, **new}
    ordered = _in_order(cells, everything)
    runs = [run for cell in ordered for run in (*cell.tuning, *cell.runs)]
    done = next(state.job.folder for state in states if state.status == "done")
    written = AblationRecord(
        **header(run_record_of(done), _seconds(runs), [run.commit for run in runs]),
        sweep=dataclasses.replace(sweep, costs={**((record and record.sweep.costs) or {}), **plan.costs} or None),
        files={**((record and record.files) or {}), **files_of(options.arms)} or None,
        embedding_stds=tuple(dict.fromkeys(cell.embedding_std for cell in ordered)),
        left_out=tuple(left_out),
        cells=ordered,
    )
    return Ended(written, failures([state for state in states if not state.diverged]))


def _in_order(cells: Sequence[Cell], records: Mapping[Cell, CellRecord]) -> tuple[CellRecord, ...]:
    """As they were asked for, the baseline first; then what else there is."""
    return tuple(records[cell] for cell in dict.fromkeys([*cells, *records]) if cell in records)


def _costs(plan: Plan, corpus: Corpus, progress: Progress) -> Mapping[str, float]:
    options = plan.options
    if options.equal == "operations":
        return operations_of_steps(options.arms, options.config, corpus)
    if options.equal == "seconds":
        return seconds_of_steps(options.arms, options.config, corpus, plan.out / "step-costs.json", progress)
    return {}


def earlier(file: Path, sweep: Sweep, arms: Sequence[str], text: str) -> AblationRecord | None:
    """The record that is there already. Raises UsageError if it is another sweep's."""
    if not file.exists():
        return None
    record = read_record(file, AblationRecord)
    refuse_other_sweep(
        file,
        record,
        arms,
        text,
        {
            **config_pairs(config_from_json(dict(record.sweep.config)), config_from_json(dict(sweep.config))),
            "grid": (record.sweep.grid, sweep.grid),
            "tuning_seeds": (record.sweep.tuning_seeds, sweep.tuning_seeds),
            "wider": (record.sweep.wider, sweep.wider),
            "equal": (record.sweep.equal, sweep.equal),
        },
    )
    if record.sweep.costs and (first := next(iter(record.sweep.costs))) != arms[0]:
        raise UsageError(
            f"{file} holds arms that spend what {first} spends; name {first} first to go on with them, or choose "
            "another --record and --out"
        )
    return record


def has_seeds(cell: CellRecord | None, seeds: int) -> bool:
    """Whether the cell is there with as many seeds or more. Where no learning rate trains, no run is missing.

    A run that failed is missing, one of the tuning too: without it another rate may have been chosen.
    """
    if cell is None or any(run.status == "failed" for run in (*cell.tuning, *cell.runs)):
        return False
    return len(cell.runs) >= seeds or cell.factor is None


def _within(
    plan: Plan, cells: Sequence[Cell], seconds: float, corpus: Corpus, progress: Progress
) -> tuple[list[Cell], list[Cell]]:
    """The cells that the budget buys, and those that it leaves out. Says what it leaves out."""
    with progress.during("measuring how long each arm takes"):
        chosen, minutes = affordable(plan, cells, seconds, corpus)
    left_out = [cell for cell in cells if cell not in chosen]
    total = sum(minutes[cell] for cell in chosen)
    progress.say(f"the budget buys {len(chosen)} of {len(cells)} arms, about {duration(60 * total)}")
    for cell in left_out:
        progress.say(f"left out: {cell.name}, about {duration(60 * minutes[cell])}")
    if not chosen:
        raise UsageError(
            f"the budget is too small for any arm; the first needs about {duration(60 * minutes[cells[0]])}"
        )
    return chosen, left_out


def _train(plan: Plan, cells: Sequence[Cell], progress: Progress) -> tuple[dict[Cell, CellRecord], list[JobState]]:
    """Tune, then train: the cells of the record, and how every run ended."""
    grid, workers = plan.options.grid, plan.options.workers
    ahead = Ahead(phases(plan, cells))
    progress.say(ahead.announced())

    def train(what: str, trials: Sequence[Trial]) -> list[tuple[Trial, JobState]]:
        later = ahead.begin()
        if not trials:
            return []
        jobs = [trial.job for trial in trials]
        progress.say(f"{what}: {len(jobs)} runs of {steps_of(jobs)} steps, {workers} at a time")
        states = progress.train(jobs, [trial.cell.name for trial in trials], workers, later=later)
        return list(zip(trials, states, strict=True))

    tuning = train("tuning", tuning_trials(plan, cells))
    tuned = _by_cell(cells, tuning)
    for _ in range(plan.options.wider):
        tuning += train("tuning beyond the edge", wider_trials(plan, tuned))
        tuned = _by_cell(cells, tuning)
    tuning += train("tuning, the best two again", playoff_trials(plan, tuned))
    tuned = _by_cell(cells, tuning)
    chosen = {cell: grid[0] if len(grid) == 1 else choose(tuned[cell]) for cell in cells}
    trainable = {cell: factor for cell, factor in chosen.items() if factor is not None}
    final = train("final runs", final_trials(plan, trainable))
    states = [state for _, state in (*tuning, *final)]
    require_done([state for _, state in final] or states)
    runs = _by_cell(cells, final)
    return {
        cell: CellRecord(cell.arm, cell.embedding_std, factor, tuned[cell], runs[cell])
        for cell, factor in chosen.items()
    }, states


def _by_cell(cells: Sequence[Cell], ended: Sequence[tuple[Trial, JobState]]) -> Mapping[Cell, tuple[TrialRun, ...]]:
    return {cell: tuple(_recorded(*one) for one in ended if one[0].cell == cell) for cell in cells}


def _recorded(trial: Trial, state: JobState) -> TrialRun:
    return TrialRun(factor=trial.factor, seed=trial.seed, **vars(outcome_of(trial.job.folder, state)))


def _seconds(runs: Iterable[TrialRun]) -> float:
    """Add up the seconds of computing in all runs that were timed."""
    return sum(run.step_seconds * run.curve[-1][0] for run in runs if run.step_seconds is not None and run.curve)
