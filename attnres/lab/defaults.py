"""The defaults of `attnres compare`. Its `--help` shows them, so this module must not import torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from attnres.train import RunConfig

ARMS = ("residual", "x0", "block", "full")


@dataclass(frozen=True)
class Defaults:
    """What a comparison trains, with how many seeds, and where it writes, unless options say otherwise."""

    config: RunConfig
    seeds: int
    folder: Path


DEFAULTS = Defaults(
    RunConfig(steps=160, batch_size=4, evaluate_every=40, save_every=80, validation_tokens=32_768),
    seeds=5,
    folder=Path("runs") / "compare",
)
QUICK = Defaults(
    dataclasses.replace(DEFAULTS.config, steps=48, evaluate_every=16, validation_tokens=16_384),
    seeds=2,
    folder=Path("runs") / "quick",
)


def recipe_defaults(file: str) -> Defaults:
    """The defaults from a recipe, without its connection: the command line names the connections."""
    from attnres.train import load_recipe

    config = load_recipe(file)
    model = dataclasses.replace(config.model, connection=DEFAULTS.config.model.connection)
    folder = Path("runs") / f"compare-{Path(file).stem}"
    return Defaults(dataclasses.replace(config, model=model), DEFAULTS.seeds, folder)
