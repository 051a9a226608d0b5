"""Arms of an experiment: connections with their options."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from attnres.model import TransformerConfig


def arm_model(arm: str, model: TransformerConfig) -> TransformerConfig:
    """The model of an arm, written NAME:OPTION=VALUE,OPTION=VALUE. Raises UsageError on a bad name, option or form."""
    import torch  # not for the help of a command

    from attnres.connections import make_connection

    chosen = dataclasses.replace(model, connection=arm)
    with torch.device("meta"):  # refuses a bad value before any run starts
        make_connection(chosen.connection, chosen.dim, chosen.sublayers)
    return chosen


def arm_folder(out: Path, arm: str) -> Path:
    """Name an arm's folder. A connection's own file is told by all of its path, without a name that hides."""
    named = arm.lstrip(".")
    return out / ("_" * (len(arm) - len(named)) + named.translate(str.maketrans(":,/=", "___-")))
