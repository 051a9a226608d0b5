"""What depth does in one run over its training: magnitudes, gradients, updates, depth weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from attnres.analysis import depth_profile
from attnres.errors import UsageError
from attnres.model import Transformer, parameter_roles
from attnres.train.folder import RunFolder
from attnres.train.optimizers import schedule
from attnres.train.runconfig import OptimizerConfig
from attnres.train.start import first_model

EVERY = 10**9
"""The `keep` of the runs that `attnres dynamics` trains: every checkpoint stays until it is profiled. By it they are
told from runs that were there already, whose checkpoints are somebody else's."""


def profile(folder: Path, tokens: Tensor, steps: Sequence[int]) -> dict[str, Any]:
    """What depth does in a finished run at these checkpoints, the first one 0.

    Of the moments: the RMS of the embedding and every sublayer's output [source], of what every site reads [site], of
    the gradient at every source; the entropy of each site's depth weights; how far each sublayer's matrices went since
    the moment before.

    Raises:
        UsageError: a checkpoint that is needed is gone or damaged, or the run is being trained on.
    """
    run = RunFolder(folder)
    config = run.config()
    with run.lock():
        run.refuse_other(config)
        model = first_model(config, run.tokenizer()).eval()
        found = {checkpoint.step: checkpoint for checkpoint in run.checkpoints.all()}
        if missing := [step for step in steps[1:] if step not in found]:
            raise UsageError(
                f"{run.checkpoints.folder}: no checkpoint of step {missing[0]}, which the dynamics need; repeat the "
                "--save-every that the run was trained with, or delete its folder to train it again: of a run that "
                "another command trained the last --keep checkpoints alone are there"
            )
        measured = []
        for before, step in zip((None, *steps), steps, strict=False):
            earlier = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            if before is not None:
                if damage := found[step].damage():
                    raise UsageError(f"{found[step].path}: {damage}; delete the run's folder to train it again")
                model.load_state_dict(found[step].model())
            now = depth_profile(model, tokens)
            update: list[float] = []
            if before is not None:
                update = update_sizes(model, earlier, config.optimizer, before, step, config.steps).tolist()
            measured.append(
                {
                    "step": step,
                    "output_rms": now.output_rms.tolist(),
                    "input_rms": now.input_rms.tolist(),
                    "gradient_rms": now.gradient_rms.tolist(),
                    "entropy": now.entropy.tolist(),
                    "embedding_share": float(now.source_share[0]),
                    "update": update,
                }
            )
        return {
            "moments": measured,
            "source_share": now.source_share.tolist(),
            "embedding_share": now.embedding_share.tolist(),
        }


def prune(folder: Path, keep: int) -> None:
    """Leave a run of `attnres dynamics` with the checkpoints that `train` would have kept of it."""
    run = RunFolder(folder)
    if run.record() and run.config().keep == EVERY:
        run.checkpoints.prune(keep)


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
