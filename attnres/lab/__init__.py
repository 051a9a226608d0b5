"""The lab: experiments of many runs each (attnres/lab/experiments/), one record of what they gave, and what it says.

To add an experiment, add one file to attnres/lab/experiments/ and commit its record as results/FILE.json; no other code
changes. Its command and its section of the results page follow. The file has the command's help as its docstring and
defines `EXPERIMENT` (attnres/lab/experiment.py). Help waits for its imports: what takes time to import, as torch, numpy
and matplotlib, is imported in the functions that use it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING

from attnres.lab import experiments as experiments_of

if TYPE_CHECKING:
    from attnres.lab.experiment import Experiment


def experiment_names() -> list[str]:
    """The names of all experiments: those of the files."""
    return sorted(module.name for module in pkgutil.iter_modules(experiments_of.__path__))


def load_experiment(name: str) -> Experiment:
    """The experiment in the file of that name."""
    return importlib.import_module(f"{experiments_of.__name__}.{name}").EXPERIMENT


def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the order in which pages and documents show them."""
    found = {name: load_experiment(name) for name in experiment_names()}
    return dict(sorted(found.items(), key=lambda item: item[1].position))


def experiment_commands() -> dict[str, str]:
    """Each experiment's command and the experiment's name.

    Read off the files: what an experiment imports, such as tyro, may not be installed.
    """
    commands = {
        name: re.search(r'^    command="([\w-]+)",$', _text_of(name), re.MULTILINE) for name in experiment_names()
    }
    return {found[1]: name for name, found in commands.items() if found}


def experiment_help(name: str) -> str:
    """The help of the experiment's command."""
    return _text_of(name).split('"""')[1]


def _text_of(name: str) -> str:
    spec = importlib.util.find_spec(f"{experiments_of.__name__}.{name}")
    assert spec and spec.origin, "an experiment is a file"
    return Path(spec.origin).read_text(encoding="utf-8")
