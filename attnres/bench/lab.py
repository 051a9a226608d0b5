"""A whole step of the lab's trainer on one core, as it is and compiled: tokens per second and the share of what plain
products reach; and Muon.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import nn
from torch.optim import Muon

from attnres.bench.measure import Row, Run, Setting, milliseconds, take_turns
from attnres.data import Corpus, load_tokenizer
from attnres.model import Transformer, TransformerConfig, parameter_roles
from attnres.model.flops import training_flops
from attnres.train import RunConfig
from attnres.train.muon import StackedMuon
from attnres.train.trainer import Trainer

ARMS = ("residual", "block", "full")
FULL = RunConfig(batch_size=4, steps=10**6, model=TransformerConfig(heads=4))
QUICK = dataclasses.replace(FULL, batch_size=1, model=TransformerConfig(layers=1, context=32))
BEFORE = "31%"
"""With torch's own Muon: 27.6 of 89 GFLOP/s."""


def measure(setting: Setting) -> list[Row]:
    """Operations counted (`training_flops`) over time, against plain products of the sublayers' sizes; Muon's time."""
    config, threads = QUICK if setting.quick else FULL, torch.get_num_threads()
    torch.set_num_threads(1)  # as every run of the lab has
    try:
        configs = {
            f"{arm}{how}": dataclasses.replace(with_arm(config, arm), compile=bool(how))
            for arm in ARMS
            for how in ("", ", compiled")
        }
        steps: dict[str, Run] = {name: Trainer(one, random_text(one)).train_step for name, one in configs.items()}
        product, operations = products(config)
        runs = {**steps, "products": product, **muons(config)}
        medians = take_turns(runs, setting.rounds, setting.progress, "lab step")
        peak = operations / medians["products"]
        where, tokens, model = setting.where, config.tokens_per_step, config.model
    finally:
        torch.set_num_threads(threads)
    rows = []
    for name, one in configs.items():
        speed = tokens / medians[name]
        what = f"lab step, {name}, d {model.dim}, {model.layers} layers, {tokens} tokens: share of the core's peak"
        details: dict[str, float | str] = {f"{name}, tokens per second": speed, "products, GFLOP/s": peak / 1e9}
        rows.append(Row(what, where, BEFORE, "62%", training_flops(one.model) * speed / peak, details))
    rows[0].details |= milliseconds(medians)
    what = f"lab step, Muon, d {model.dim}, {model.layers} layers: torch.optim.Muon's time over ours"
    return [*rows, Row(what, where, "1x", "3x", medians["torch's Muon"] / medians["Muon"])]


def with_arm(config: RunConfig, arm: str) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, connection=arm))


def random_text(config: RunConfig) -> Corpus:
    """Bytes that nothing can be learned from: a step takes as long on them."""
    tokens = np.random.default_rng(0).integers(0, 256, 64 * config.tokens_per_step, dtype=np.uint8)
    return Corpus(tokens, tokens, load_tokenizer("bytes"), "", "random bytes", 1.0)  # type: ignore[arg-type]


def muons(config: RunConfig) -> dict[str, Run]:
    """A step of our Muon and one of torch's, on the hidden matrices of the plain residual."""
    model = Transformer(config.model, 0)
    roles = parameter_roles(model)
    matrices = [p.detach() for name, p in model.named_parameters() if roles[name] == "matrix"]
    runs: dict[str, Run] = {}
    for name, kind in (("Muon", StackedMuon), ("torch's Muon", Muon)):
        copies = [nn.Parameter(matrix.clone()) for matrix in matrices]
        for parameter in copies:
            parameter.grad = torch.randn_like(parameter)
        runs[name] = kind(copies, lr=1e-3, adjust_lr_fn="match_rms_adamw").step
    return runs


def products(config: RunConfig) -> tuple[Run, float]:
    """Forward and backward of one layer's linear maps as plain products, and how many operations they are."""
    tokens, dim, hidden = config.tokens_per_step, config.model.dim, config.model.n_hidden
    shapes = [(dim, dim)] * 4 + [(dim, hidden)] * 2 + [(hidden, dim)]
    operands = [(torch.randn(tokens, i), torch.randn(tokens, o), torch.randn(o, i)) for i, o in shapes]

    def run() -> None:
        for x, gradient, weight in operands:
            torch.mm(x, weight.T)
            torch.mm(gradient, weight)
            torch.mm(gradient.T, x)

    return run, 6.0 * tokens * sum(i * o for i, o in shapes)
