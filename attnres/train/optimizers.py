"""Optimizers by role and the learning rate over the run (spec.md 10)."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from attnres.model import parameter_roles
from attnres.train.muon import StackedMuon
from attnres.train.runconfig import OptimizerConfig


def make_optimizers(model: nn.Module, config: OptimizerConfig, muon: type[Muon] = StackedMuon) -> list[Optimizer]:
    """Muon for the hidden matrices (unless `hidden="adamw"`), AdamW for the rest. They partition the parameters.

    The choice is by role and never by shape: embedding, head and many a connection's parameters are 2-D too. Only the
    matrices, stacked experts and the head have weight decay: on queries, gains and mixing weights it is a known trap
    (spec.md 13). Muon takes no stack of matrices. A connection's channel maps have a rate dim times smaller: with that
    of a query, AttnRes with an input-dependent query ends far behind the plain residual (paper/report.md).
    """
    roles = parameter_roles(model)
    matrices, head, plain, connection, maps = [], [], [], [], []
    groups_of = {"matrix": matrices, "head": head, "experts": head, "connection": connection, "channel map": maps}
    for name, parameter in model.named_parameters():
        groups_of.get(roles[name], plain).append(parameter)
    optimizers: list[Optimizer] = []
    if config.hidden == "muon":
        matrices, for_muon = [], matrices
        optimizers.append(
            muon(
                for_muon,
                lr=config.lr,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    connection_lr = config.adamw_lr * config.connection_rate
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay, "lr": config.lr},
        {"params": head, "weight_decay": config.weight_decay, "lr": config.adamw_lr},
        {"params": plain, "weight_decay": 0.0, "lr": config.adamw_lr},
        {"params": connection, "weight_decay": 0.0, "lr": connection_lr},
        {"params": maps, "weight_decay": 0.0, "lr": connection_lr / (maps[0].shape[-1] if maps else 1)},
    ]
    # Fused: one kernel per parameter. A connection has many small ones, and the foreach form is not for CPUs.
    adamw = AdamW([g for g in groups if g["params"]], betas=(config.beta1, config.beta2), fused=True)
    for optimizer in (all_of_them := [*optimizers, adamw]):
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return all_of_them


def schedule(config: OptimizerConfig, step: int, steps: int) -> float:
    """The share of the peak learning rate at update `step` = 0 .. steps - 1: warm-up, stable, decay.

    Never exactly zero: no update is wasted.
    """
    warm, stable = round(config.warmup * steps), steps - round(config.decay * steps)
    rising = (step + 1) / warm if step < warm else 1.0
    falling = (steps - step) / (steps - stable) if step >= stable else 1.0
    return min(rising, falling)


def set_learning_rate(optimizers: list[Optimizer], share: float) -> None:
    """Give every group that share of its peak learning rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak_lr"]
