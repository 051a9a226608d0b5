"""What depth does over training, for every connection: magnitudes, gradients, updates, depth weights, ranks of M."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnres.analysis import depth_profile
from attnres.analysis.rank import effective_rank, semiseparable_rank
from attnres.connections import Connection, Sublayer, make_connection, mixing_matrix
from attnres.data import Corpus, validation_batches
from attnres.errors import UsageError
from attnres.lab.ablation import outcome_of
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.record import Record, read_record, write_record
from attnres.model import Transformer, parameter_roles
from attnres.train import RunConfig
from attnres.train.checkpoint import Checkpoints
from attnres.train.config import OptimizerConfig
from attnres.train.folder import RunFolder
from attnres.train.optimizers import schedule
from attnres.train.sweep import Job, JobState

ARMS = ("residual", "x0", "block", "full", "hc", "mhc")

SEQUENCES = 4
"""Validation sequences that every checkpoint is profiled on."""

RANK_TOKENS, RANK_CHANNELS = 8, 4
"""Ranks are of the matrices of so many tokens and channels, evenly spread: singular values are slow."""

PROFILES = "dynamics.json"
"""The file in a run's folder that outlives its checkpoints."""
PROFILES_KIND = "dynamics of a run"

DIGITS = 4


@dataclass(frozen=True)
class Run:
    """One arm and seed."""

    arm: str
    seed: int
    job: Job


def runs(arms: Sequence[str], seeds: Iterable[int], config: RunConfig, out: Path) -> list[Run]:
    """Seed by seed, so that a sweep that is stopped early has pairs for every arm. Raises UsageError on a bad arm."""
    planned = []
    for seed in seeds:
        for arm in arms:
            # Every checkpoint is kept until it has been profiled.
            chosen = dataclasses.replace(
                config, model=arm_model(arm, config.model), seed=seed, keep=max(config.keep, config.steps)
            )
            planned.append(Run(arm, seed, Job(f"{arm}, seed {seed}", chosen, arm_folder(out, arm) / f"seed-{seed}")))
    return planned


def profiled_tokens(corpus: Corpus, config: RunConfig) -> Tensor:
    """The fixed validation sequences, [SEQUENCES, context + 1]."""
    context = config.model.context
    return torch.from_numpy(next(iter(validation_batches(corpus, context, SEQUENCES, SEQUENCES * context))))


def moments(config: RunConfig) -> list[int]:
    """The steps that are profiled: before the first one, every `save_every`, and the last."""
    return [*range(0, config.steps, config.save_every), config.steps]


def profiles(folder: Path, tokens: Tensor, moments: Sequence[int]) -> Record:
    """The profiles of a finished run at these steps, measured once and then read from its folder.

    When they are written, all checkpoints but the newest and the best are deleted. Raises UsageError if a checkpoint
    that is needed is gone or damaged.
    """
    run = RunFolder(folder)
    config = run.config()
    stored = folder / PROFILES
    wanted = {"steps": list(moments), "tokens": list(tokens.shape)}
    if stored.is_file():
        record = read_record(stored, PROFILES_KIND)
        if {name: record.get(name) for name in wanted} == wanted:
            run.checkpoints.prune(keep=1)
            return record
    write_record(stored, {"kind": PROFILES_KIND, **wanted, **_measure(config, run.checkpoints, tokens, moments)})
    run.checkpoints.prune(keep=1)
    return read_record(stored, PROFILES_KIND)


def _measure(config: RunConfig, checkpoints: Checkpoints, tokens: Tensor, moments: Sequence[int]) -> Record:
    model = Transformer(config.model, config.seed).eval()
    found = {checkpoint.step: checkpoint for checkpoint in checkpoints.all()}
    if missing := [step for step in moments[1:] if step not in found]:
        raise UsageError(
            f"{checkpoints.folder}: no checkpoint of step {missing[0]}, and it is needed for the dynamics; repeat the "
            "--save-every that the run was trained with, or delete its folder to train it again"
        )
    measured = []
    for before, step in zip([None, *moments], moments, strict=False):
        earlier = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if before is not None:
            if damage := found[step].damage():
                raise UsageError(f"{found[step].path}: {damage}; delete the run's folder to train it again")
            model.load_state_dict(found[step].model())
        profile = depth_profile(model, tokens)
        moment = {
            "step": step,
            "output_rms": _rounded(profile.output_rms),
            "input_rms": _rounded(profile.input_rms),
            "gradient_rms": _rounded(profile.gradient_rms),
            "entropy": _rounded(profile.entropy),
            "embedding_share": float(profile.source_share[0]),
        }
        if before is not None:
            moment["update"] = _rounded(update_sizes(model, earlier, config.optimizer, before, step, config.steps))
        measured.append(moment)
    return {
        "moments": measured,
        "source_share": _rounded(profile.source_share),
        "embedding_share": _rounded(profile.embedding_share),
        "mean_matrix": [_rounded(row[: site + 1]) for site, row in enumerate(profile.mean_matrix)],
        "ranks": depth_ranks(model, tokens[0, :-1]),
    }


def update_sizes(
    model: Transformer, earlier: Mapping[str, Tensor], optimizer: OptimizerConfig, before: int, after: int, steps: int
) -> np.ndarray:
    """How far the matrices of each sublayer went from step `before` to `after`: [L].

    |W_after - W_before| / |W_before|, Frobenius norms over all matrices of the sublayer, divided by the steps between,
    each counted as its share of the peak learning rate. So it is the relative change per step at the peak rate, net:
    steps that undo each other do not count, and warm-up and decay do not show.
    """
    sublayers = len(model.sublayers)
    change, size = np.zeros(sublayers), np.zeros(sublayers)
    roles = parameter_roles(model)
    for name, parameter in model.named_parameters():
        if roles[name] in ("matrix", "experts"):  # sublayers.7.out.weight
            index = int(name.split(".")[1])
            change[index] += (parameter.detach() - earlier[name]).double().square().sum().item()
            size[index] += earlier[name].double().square().sum().item()
    rate = sum(schedule(optimizer, step, steps) for step in range(before, after))
    return np.sqrt(change / size) / rate


@torch.no_grad()
def depth_ranks(model: Transformer, sequence: Tensor) -> dict[str, float]:
    """Ranks of M on evenly spread tokens of the sequence [time] and channels, each channel with its own M.

    The mean over channels would not do: Highway's M is 1-semiseparable in each channel, the mean of them is not.
    """
    outputs: list[Tensor] = []

    def recorded(sublayer: Sublayer) -> Sublayer:
        def call(h: Tensor) -> Tensor:
            outputs.append(sublayer(h))
            return outputs[-1]

        return call

    embedded = model.embedding(sequence[None])
    sublayers = [recorded(sublayer) for sublayer in model.bound_sublayers(len(sequence))]
    model.connection.run(model.connection.start(embedded), sublayers)
    tokens = np.unique(np.linspace(0, len(sequence) - 1, RANK_TOKENS).astype(int))
    channels = np.unique(np.linspace(0, model.connection.dim - 1, RANK_CHANNELS).astype(int))
    replayed: list[Sublayer] = [lambda h, y=output[0, tokens]: y for output in outputs]
    matrix = mixing_matrix(model.connection, embedded[0, tokens], replayed, per_channel=True)
    chosen = matrix[..., channels].movedim(-1, 1).double().cpu().numpy()
    ranks = semiseparable_rank(chosen)
    return {
        "effective": float(effective_rank(chosen).mean()),
        "semiseparable": int(ranks.max()),
        "semiseparable_mean": float(ranks.mean()),
    }


def rank_bound(connection: Connection) -> int:
    """The largest semiseparable rank that a connection's values leave room for.

    What sites l .. L read of the sources 0 .. l has passed through the values at site l, so with k vectors there
    M[l:, :l+1] has rank k at most, and no more than it has rows and columns: 1 for the plain residual, n for n
    streams, and as much as fits for Full.
    """
    x = torch.ones(1, connection.dim)
    values, bound = connection.start(x), 0
    with torch.no_grad():
        for site in range(connection.sites + 1):
            vectors = sum(value.numel() for value in values) // connection.dim
            bound = max(bound, min(vectors, site + 1, connection.sites + 1 - site))
            if site < connection.sites:
                values = connection.run(values, [torch.ones_like], first=site)
    return bound


def arm_record(arm: str, runs_of_arm: Sequence[tuple[Run, JobState]], measured: Mapping[int, Record]) -> dict[str, Any]:
    """Everything that is recorded of one arm. measured: the profiles of its finished runs, by seed.

    mean_matrix is that of the first seed; it keeps the lower triangle only.
    """
    recorded = []
    for run, state in runs_of_arm:
        profile = {name: measured[run.seed][name] for name in KEPT} if run.seed in measured else {}
        recorded.append({"seed": run.seed, **outcome_of(run.job.folder, state), **profile})
    model = runs_of_arm[0][0].job.config.model
    connection = make_connection(model.connection, model.dim, model.sites, **model.connection_options)
    first = next((run["seed"] for run in recorded if run["status"] == "done"), None)
    return {
        "arm": arm,
        "block_size": getattr(connection, "block_size", None),
        "rank_bound": rank_bound(connection),
        "runs": recorded,
        "mean_matrix": None if first is None else measured[first]["mean_matrix"],
    }


KEPT = ("moments", "source_share", "embedding_share", "ranks")


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
