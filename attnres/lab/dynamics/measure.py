"""What depth does in one run over its training: magnitudes, gradients, updates, depth weights, ranks of M."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attnres.analysis import depth_profile
from attnres.analysis.rank import effective_rank, semiseparable_rank
from attnres.connections import Connection, Sublayer, mixing_matrix
from attnres.data import Corpus, validation_batches
from attnres.errors import UsageError
from attnres.lab.dynamics.record import DIGITS, Moment, Profiles, Ranks
from attnres.lab.record import read_record, write_record
from attnres.model import Transformer, parameter_roles
from attnres.train import RunConfig
from attnres.train.config import OptimizerConfig
from attnres.train.folder import RunFolder
from attnres.train.optimizers import last_stable_step, schedule
from attnres.train.start import first_model

SEQUENCES = 4
"""Validation sequences that every checkpoint is profiled on."""

RANK_TOKENS, RANK_CHANNELS = 8, 4
"""Ranks are of the matrices of so many tokens and channels, evenly spread: singular values are slow."""

PROFILES = "dynamics.json"
"""The file in a run's folder that outlives its checkpoints."""

EVERY = 10**9
"""The `keep` of the runs that the command trains: every checkpoint stays until it is profiled. By it they are told from
runs that were there already, whose checkpoints are somebody else's."""


def profiled_tokens(corpus: Corpus, config: RunConfig) -> Tensor:
    """The fixed validation sequences, [SEQUENCES, context + 1]."""
    context = config.model.context
    return torch.from_numpy(next(iter(validation_batches(corpus, context, SEQUENCES, SEQUENCES * context))))


def profiles(folder: Path, tokens: Tensor, steps: Sequence[int], keep: int) -> Profiles:
    """The profiles of a finished run at these steps, measured once and then read from its folder.

    When they are written, a run of this command is left with the checkpoints that `train` would have kept of it.

    Args:
        folder: the run.
        tokens: what `profiled_tokens` chose.
        steps: checkpoints, the first one 0.
        keep: how many of the newest checkpoints to keep.

    Raises:
        UsageError: a checkpoint that is needed is gone or damaged, or the run is being trained on.
    """
    run = RunFolder(folder)
    config = run.config()
    stored = folder / PROFILES
    steps, shape = tuple(steps), tuple(tokens.shape)
    if stored.is_file():
        kept = read_record(stored, Profiles)
        if (kept.steps, kept.tokens) == (steps, shape):
            _prune(run, config, keep)
            return kept
    with run.lock():
        run.refuse_other_start(config.start_from)
        write_record(stored, _measure(run, config, tokens, steps))
        _prune(run, config, keep)
    return read_record(stored, Profiles)


def _prune(run: RunFolder, config: RunConfig, keep: int) -> None:
    if config.keep == EVERY:
        run.checkpoints.prune(keep, last_stable_step(config.optimizer, config.steps))


def _measure(run: RunFolder, config: RunConfig, tokens: Tensor, steps: tuple[int, ...]) -> Profiles:
    model = first_model(config, run.tokenizer()).eval()
    found = {checkpoint.step: checkpoint for checkpoint in run.checkpoints.all()}
    if missing := [step for step in steps[1:] if step not in found]:
        raise UsageError(
            f"{run.checkpoints.folder}: no checkpoint of step {missing[0]}, which the dynamics need; repeat the "
            "--save-every that the run was trained with, or delete its folder to train it again: of a run that another "
            "command trained the last --keep checkpoints alone are there"
        )
    measured = []
    for before, step in zip((None, *steps), steps, strict=False):
        earlier = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if before is not None:
            if damage := found[step].damage():
                raise UsageError(f"{found[step].path}: {damage}; delete the run's folder to train it again")
            model.load_state_dict(found[step].model())
        profile = depth_profile(model, tokens)
        update = ()
        if before is not None:
            update = _rounded(update_sizes(model, earlier, config.optimizer, before, step, config.steps))
        measured.append(
            Moment(
                step=step,
                output_rms=_rounded(profile.output_rms),
                input_rms=_rounded(profile.input_rms),
                gradient_rms=_rounded(profile.gradient_rms),
                entropy=_rounded(profile.entropy),
                embedding_share=float(profile.source_share[0]),
                update=update,
            )
        )
    return Profiles(
        steps=steps,
        tokens=tuple(tokens.shape),
        moments=tuple(measured),
        source_share=_rounded(profile.source_share),
        embedding_share=_rounded(profile.embedding_share),
        mean_matrix=tuple(_rounded(row[: site + 1]) for site, row in enumerate(profile.mean_matrix)),
        ranks=depth_ranks(model, tokens[0, :-1]),
    )


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
def depth_ranks(model: Transformer, sequence: Tensor) -> Ranks:
    """Ranks of M on evenly spread tokens of the sequence [time] and channels, each channel with its own M.

    The mean over channels would not do: Highway's M is 1-semiseparable in each channel, the mean of them is not.
    """
    outputs: list[Tensor] = []

    def recorded(sublayer: Sublayer) -> Sublayer:
        def call(*reads: Tensor) -> Tensor:
            outputs.append(sublayer(*reads))
            return outputs[-1]

        return call

    embedded = model.embedding(sequence[None])
    sublayers = [recorded(sublayer) for sublayer in model.bound_sublayers(len(sequence))]
    model.connection.run(model.connection.start(embedded), sublayers)
    tokens = np.unique(np.linspace(0, len(sequence) - 1, RANK_TOKENS).astype(int))
    channels = np.unique(np.linspace(0, model.connection.dim - 1, RANK_CHANNELS).astype(int))
    replayed: list[Sublayer] = [lambda *_, y=output[0, tokens]: y for output in outputs]
    matrix = mixing_matrix(model.connection, embedded[0, tokens], replayed, per_channel=True)
    chosen = matrix[..., channels].movedim(-1, 1).double().cpu().numpy()
    ranks = semiseparable_rank(chosen)
    return Ranks(float(effective_rank(chosen).mean()), int(ranks.max()), float(ranks.mean()))


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
                values = connection.run(values, [lambda h, *_: torch.ones_like(h)], first=site)
    return bound


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
