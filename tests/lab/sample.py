"""Records made up for tests: JSON as the files hold it, and what it is read as."""

from __future__ import annotations

import copy
import random
from typing import Any, TypeVar

from attnres.lab.record import Record, from_json

ATTACK = "<script>alert(1)</script>"
HEADER: dict[str, Any] = {
    "command": f"attnres {ATTACK}",
    "date": "2026-01-01",
    "hours": 1.5,
    "versions": {"commit": "abc"},
    "machine": {"cores": 2},
    "corpus": {"description": "text", "sha256": "0"},
    "config": {"optimizer": {"decay": 0.0}},
}

R = TypeVar("R", bound=Record)


def parsed(cls: type[R], data: dict[str, Any]) -> R:
    """The record of these entries, with a header where they have none; a `kind` is left out."""
    entries = {**HEADER, **copy.deepcopy(data)}
    entries.pop("kind", None)
    return from_json(cls, entries)


def ablation() -> dict[str, Any]:
    draw = random.Random(0)
    cells = []
    for std in (1.0, 0.02):
        for arm, base in (("residual", 2.2), ("full", 2.1), ("block:heads=2", 2.15), ("highway", 2.3)):
            runs = [
                {"factor": 1.0, "seed": seed, "status": "done", "loss": base + 0.1 * seed + draw.gauss(0, 0.01)}
                | {"step_seconds": 1.0, "peak_memory_bytes": 1, "curve": [[0, 5.5], [4, base]]}
                for seed in range(3)
            ]
            tuning = [{"factor": 0.5, "seed": 9, "status": "done", "loss": base}]
            tuning += [{"factor": 1.0, "seed": 9, "status": "diverged", "curve": [], "error": "not finite"}]
            cells.append({"arm": arm, "embedding_std": std, "factor": 1.0, "tuning": tuning, "runs": runs})
    cells[3]["runs"] = [{"factor": 1.0, "seed": 0, "status": "diverged", "curve": [], "error": "x"}]
    cells[7] |= {"factor": None, "runs": []}
    sweep = {"config": {}, "grid": [0.5, 1.0], "tuning_seeds": 1}
    return HEADER | {"kind": "ablation", "sweep": sweep, "embedding_stds": [1.0, 0.02], "left_out": [], "cells": cells}


def scaling() -> dict[str, Any]:
    runs = []
    for arm, scale in (("residual", 9.0), ("full", 8.8)):
        for size, parameters in enumerate([100_000, 200_000, 400_000]):
            for seed in range(2):
                tokens, flops = parameters, 6 * parameters
                curve = [[tokens * k / 10, scale * (flops * tokens * max(k, 0.1) / 10) ** -0.05] for k in range(11)]
                run = {"arm": arm, "size": str(size), "seed": seed, "parameters": parameters, "tokens": tokens}
                run |= {"flops_per_token": flops, "status": "done", "curve": curve, "steps": 10}
                runs.append(run | {"loss": curve[-1][1] * (1 + 0.001 * seed)})
    return HEADER | {"kind": "scaling", "arms": ["residual", "full"], "tokens_per_parameter": 1.0, "runs": runs}
