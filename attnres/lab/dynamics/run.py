"""Train every connection with its checkpoints kept, measure each run at several moments, and record it all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.connections import make_connection
from attnres.data import check_length, open_corpus
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.dynamics.measure import EVERY, profiled_tokens, profiles, rank_bound
from attnres.lab.dynamics.options import Options
from attnres.lab.dynamics.record import Arm, DynamicsRecord, ProfiledRun, Profiles
from attnres.lab.experiment import Ended, Progress
from attnres.lab.options import check_seeds, checked_arms
from attnres.lab.outcome import outcome_of, run_record_of
from attnres.lab.record import header
from attnres.train import RunConfig
from attnres.train.sweep import Job, JobState, failures, refuse_other_texts, require_done


@dataclass(frozen=True)
class Planned:
    """One arm and seed."""

    arm: str
    seed: int
    job: Job


@dataclass(frozen=True)
class Plan:
    options: Options
    runs: Sequence[Planned]
    out: Path


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError on bad options, arms among them."""
    options = dataclasses.replace(options, arms=checked_arms(options.arms, options.config))
    check_seeds(options.seeds, options.workers)
    config = options.config
    return Plan(options, runs(options.arms, range(config.seed, config.seed + options.seeds), config, out), out)


def runs(arms: Sequence[str], seeds: Iterable[int], config: RunConfig, out: Path) -> list[Planned]:
    """Seed by seed, so that a sweep that is stopped early has pairs for every arm. Raises UsageError on a bad arm."""
    planned = []
    for seed in seeds:
        for arm in arms:
            chosen = dataclasses.replace(config, model=arm_model(arm, config.model), seed=seed, keep=EVERY)
            planned.append(
                Planned(arm, seed, Job(f"{arm}, seed {seed}", chosen, arm_folder(out, arm) / f"seed-{seed}"))
            )
    return planned


def moments(config: RunConfig) -> list[int]:
    """The steps that are profiled: before the first one, every `save_every`, and the last."""
    return [*range(0, config.steps, config.save_every), config.steps]


def run(plan: Plan, file: Path, progress: Progress) -> Ended:
    options, config = plan.options, plan.options.config
    with progress.during("opening the corpus"):
        corpus = open_corpus(config.data)
        check_length(corpus, config.model.context)
    jobs = [one.job for one in plan.runs]
    refuse_other_texts(jobs, corpus)
    progress.say(f"{len(plan.runs)} runs of {config.steps} steps, {options.workers} at a time: {plan.out}")
    states = progress.train(jobs, [one.arm for one in plan.runs], options.workers)
    require_done(states)
    refuse_other_texts(jobs, corpus)
    ended = list(zip(plan.runs, states, strict=True))
    done = [one for one, state in ended if state.status == "done"]
    tokens, steps = profiled_tokens(corpus, config), moments(config)
    progress.say(f"profiling {len(done)} runs at {len(steps)} moments each")
    measured: dict[str, dict[int, Profiles]] = {arm: {} for arm in options.arms}
    with progress.bar(len(done)) as advance:
        for one in done:
            measured[one.arm][one.seed] = profiles(one.job.folder, tokens, steps, config.keep)
            advance(1, "profiling")
    arms = tuple(arm_record(arm, [pair for pair in ended if pair[0].arm == arm], measured[arm]) for arm in options.arms)
    finished = [run for arm in arms for run in arm.runs if run.step_seconds is not None]
    seconds = sum(run.step_seconds or 0.0 for run in finished) * config.steps
    commits = [run.commit for run in finished]
    record = DynamicsRecord(**header(run_record_of(done[0].job.folder), seconds, commits), arms=arms)
    return Ended(record, failures([state for state in states if not state.diverged]))


def arm_record(arm: str, ended: Sequence[tuple[Planned, JobState]], measured: Mapping[int, Profiles]) -> Arm:
    """Everything that is recorded of one arm. measured: the profiles of its finished runs, by seed."""
    recorded = tuple(_recorded(one, state, measured.get(one.seed)) for one, state in ended)
    model = ended[0][0].job.config.model
    connection = make_connection(model.connection, model.dim, model.sites)
    first = next((run.seed for run in recorded if run.done), None)
    return Arm(
        arm=arm,
        block_size=getattr(connection, "block_size", None),
        rank_bound=rank_bound(connection),
        runs=recorded,
        mean_matrix=None if first is None else measured[first].mean_matrix,
    )


def _recorded(planned: Planned, state: JobState, profiles: Profiles | None) -> ProfiledRun:
    ended = vars(outcome_of(planned.job.folder, state))
    if profiles is None:
        return ProfiledRun(seed=planned.seed, **ended)
    return ProfiledRun(
        seed=planned.seed,
        **ended,
        moments=profiles.moments,
        source_share=profiles.source_share,
        embedding_share=profiles.embedding_share,
        ranks=profiles.ranks,
    )
