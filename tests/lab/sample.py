"""Records made up for tests: JSON as the files hold it, and what it is read as."""

from __future__ import annotations

import copy
import random
from typing import Any

from attnres.lab.runs import Record, run_from_json

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


def record(kind: str, runs: list[dict[str, Any]], settings: dict[str, Any] | None = None, **found: Any) -> Record:
    """A record of these runs, its arms in the order of the runs."""
    made = tuple(run_from_json({"status": "done", **run}) for run in copy.deepcopy(runs))
    arms = tuple(dict.fromkeys(run.arm for run in made))
    return Record(**HEADER, kind=kind, settings=settings or {}, found=found, arms=arms, runs=made)


def ablation_runs() -> list[dict[str, Any]]:
    draw = random.Random(0)
    runs = []
    for std in (1.0, 0.02):
        for arm, base in (("residual", 2.2), ("full", 2.1), ("block:heads=2", 2.15), ("highway", 2.3)):
            cell = {"arm": arm, "at": f"std {std:g}"}
            runs += [
                cell
                | {"seed": seed, "loss": base + 0.1 * seed + draw.gauss(0, 0.01), "steps": 4}
                | {"step_seconds": 1.0, "peak_memory_bytes": 1, "curve": [[0, 5.5], [4, base]]}
                for seed in range(3)
            ]
            runs.append(cell | {"part": "tuning", "rate": 0.5, "seed": 9, "loss": base})
            runs.append(cell | {"part": "tuning", "rate": 1.0, "seed": 9, "status": "diverged", "error": "not finite"})
    lost = {"status": "diverged", "loss": None, "error": "not finite"}  # every rate of highway at the smaller scale
    runs = [run | lost if (run["arm"], run["at"]) == ("highway", "std 0.02") else run for run in runs]
    runs = [run | lost if (run["arm"], run.get("part")) == ("highway", None) else run for run in runs]
    gone = {("highway", "std 1", 1), ("highway", "std 1", 2), *(("highway", "std 0.02", seed) for seed in range(3))}
    return [run for run in runs if (run["arm"], run["at"], run["seed"]) not in gone]


def ablation(runs: list[dict[str, Any]] | None = None) -> Record:
    return record("ablation", ablation_runs() if runs is None else runs)


def scaling_runs() -> list[dict[str, Any]]:
    runs = []
    for arm, scale in (("residual", 9.0), ("full", 8.8)):
        for size, parameters in enumerate([100_000, 200_000, 400_000]):
            for seed in range(2):
                flops = 6 * parameters  # of a token; as many tokens as parameters, in ten steps
                curve = [[k, scale * (flops * parameters * max(k, 0.1) / 10) ** -0.05] for k in range(11)]
                own = {"parameters": parameters, "tokens": parameters, "flops_per_token": flops}
                run = {"arm": arm, "at": str(size), "seed": seed, "curve": curve, "steps": 10, "measured": own}
                runs.append(run | {"loss": curve[-1][1] * (1 + 0.001 * seed)})
    return runs


def scaling(runs: list[dict[str, Any]] | None = None) -> Record:
    return record("scaling", scaling_runs() if runs is None else runs)
