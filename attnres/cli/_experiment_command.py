"""The command of an experiment of the lab, made from the experiment's options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnres.lab import load_experiment


def experiment_command(command_name: str, name: str) -> Callable[..., int]:
    """The command of the experiment of that name, for tyro: its own options and where it writes."""

    def command(options: Any, out: Path = Path("runs") / command_name, record: Path | None = None) -> int:
        """Run the experiment.

        Args:
            options: The experiment's own.
            out: The folder of the page, its figures and all runs that are trained.
            record: The JSON file for everything that was measured; OUT/EXPERIMENT.json if not given.
        """
        from attnres.cli._experiment import run_experiment

        return run_experiment(name, options, out, record)

    own = Annotated[load_experiment(name).options, tyro.conf.arg(name="")]
    command.__annotations__ = {"options": own, "out": Path, "record": Path | None, "return": int}
    return command
