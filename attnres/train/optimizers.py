"""Optimizers by role and the learning rate over the run (SPEC.md 10)."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from attnres.model import parameter_roles
from attnres.train.config import OptimizerConfig

DECAYED = ("matrix", "head")
"""The roles with weight decay. On queries, gains and mixing weights it is a known trap (SPEC.md 13)."""


def make_optimizers(model: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """Muon for the hidden matrices (unless `hidden="adamw"`), AdamW for the rest. They partition the parameters.

    The choice is by role and never by shape: embedding, head and many a connection's parameters are 2-D too.
    """
    roles = parameter_roles(model)
    muon, decayed, plain = [], [], []
    for name, parameter in model.named_parameters():
        if config.hidden == "muon" and roles[name] == "matrix":
            muon.append(parameter)
        else:
            (decayed if roles[name] in DECAYED else plain).append(parameter)
    optimizers: list[Optimizer] = []
    if muon:
        optimizers.append(
            Muon(
                muon,
                lr=config.lr,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    # Fused: one kernel per parameter. A connection has many small ones, and the foreach form is not for CPUs.
    adamw = AdamW([g for g in groups if g["params"]], lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
    return [*optimizers, adamw]


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Of update `step` = 0 .. steps - 1: warm-up, stable, decay. No update is wasted on a rate of exactly zero."""
    warmup, decay = round(config.warmup * steps), round(config.decay * steps)
    rising = (step + 1) / warmup if step < warmup else 1.0
    falling = (steps - step) / decay if step >= steps - decay else 1.0
    return config.lr * min(rising, falling)


def set_learning_rate(optimizers: list[Optimizer], lr: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
