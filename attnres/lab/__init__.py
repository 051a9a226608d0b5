"""The lab: experiments of many runs each (attnres/lab/experiments/), one record of what they gave, and what it says.

To add an experiment, add one file to attnres/lab/experiments/, named as its command, and commit its record as
results/KIND.json; no other code changes. Its command and its section of the results page follow. The file has the
command's help as its docstring and defines `EXPERIMENT` (attnres/lab/experiment.py). Help waits for its imports: what
takes time to import, as torch, numpy and matplotlib, is imported in the functions that use it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from attnres.lab import experiments as experiments_of

if TYPE_CHECKING:
    from attnres.lab.experiment import Experiment


def experiment_commands() -> list[str]:
    """The commands of all experiments: the names of their files."""
    return sorted(module.name for module in pkgutil.iter_modules(experiments_of.__path__))


def load_experiment(command: str) -> Experiment:
    """The experiment of that command."""
    return importlib.import_module(f"{experiments_of.__name__}.{command}").EXPERIMENT


def experiments() -> dict[str, Experiment]:
    """All experiments by their kind, in the order in which pages and documents show them."""
    found = sorted(map(load_experiment, experiment_commands()), key=lambda experiment: experiment.position)
    return {experiment.kind: experiment for experiment in found}
