"""The lab's experiments, one per folder: many runs each, one small JSON record of what they gave, and what it says.

To add an experiment, add one folder here and commit its record as results/FOLDER.json; no other code changes. Its
command and its section of the results page follow. In the folder are

    __init__.py      a docstring: the command's help, its first line the summary
    options.py       `Options`, the options of the command; help needs neither torch nor matplotlib: do not import them
    experiment.py    `EXPERIMENT` (see lab/experiment.py)
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres.errors import UsageError

if TYPE_CHECKING:
    from attnres.lab.experiment import Experiment


def experiment_names() -> list[str]:
    """The names of all experiments: those of the folders in this one."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def load_experiment(name: str) -> Experiment[Any, Any, Any]:
    """The experiment in the folder of that name."""
    return importlib.import_module(f"{__name__}.{name}.experiment").EXPERIMENT


def experiment_options(name: str) -> type[Any]:
    """The dataclass of that experiment's options; without all that running it imports."""
    return importlib.import_module(f"{__name__}.{name}.options").Options


def experiments() -> dict[str, Experiment[Any, Any, Any]]:
    """All experiments by name, in the order in which pages and documents show them."""
    found = {name: load_experiment(name) for name in experiment_names()}
    return dict(sorted(found.items(), key=lambda item: item[1].position))


def experiment_commands() -> dict[str, str]:
    """Each experiment's command and the experiment's name.

    Read off the files: importing an experiment would import torch, for which `attnres --help` should not wait.
    """
    commands = {}
    for name in experiment_names():
        tree = ast.parse(_text_of(f"{__name__}.{name}.experiment"))
        given = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "command"]
        if len(given) != 1 or not isinstance(given[0], ast.Constant):
            raise UsageError(f"the experiment {name!r} must give its command once and as text: command='..'")
        commands[given[0].value] = name
    return commands


def experiment_help(name: str) -> str:
    """The help of the experiment's command."""
    return importlib.import_module(f"{__name__}.{name}").__doc__ or ""


def _text_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UsageError(f"an experiment is a folder with options.py and experiment.py: there is no {module}")
    return Path(spec.origin).read_text(encoding="utf-8")
