"""Arms of an experiment: connections with their options, written NAME or NAME:OPTION=VALUE,OPTION=VALUE."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from attnres.connections import make_connection
from attnres.errors import UsageError
from attnres.model import TransformerConfig


def arm_model(arm: str, model: TransformerConfig) -> TransformerConfig:
    """The model of an arm. Raises UsageError on a bad name, option or form."""
    name, _, listed = arm.partition(":")
    options = {}
    for item in filter(None, listed.split(",")):
        option, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"arm {arm!r}: write options as NAME:OPTION=VALUE,OPTION=VALUE")
        options[option.strip()] = _literal(value.strip())
    chosen = dataclasses.replace(model, connection=name, connection_options=options)
    with torch.device("meta"):  # refuses a bad name or option before any run starts
        make_connection(name, chosen.dim, chosen.sites, **options)
    return chosen


def arm_folder(out: Path, arm: str) -> Path:
    return out / arm.replace(":", "_").replace(",", "_").replace("=", "-")


def _literal(text: str) -> Any:
    """A JSON number, true, false or null; any other text is itself."""
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
    return text if isinstance(value, list | dict) else value
