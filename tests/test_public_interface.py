"""What is public does not change unnoticed: docs/dev/interface.txt holds the names and parameters that 1.x keeps.

A change that is meant goes into CHANGELOG.md, and then into the file:

    python -m tests.test_public_interface > docs/dev/interface.txt
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

from attnres.cli import command_names
from attnres.connections import connection_names

PACKAGES = ("attnres", "attnres.hf", "attnres.analysis", "attnres.train")
INTERFACE = Path(__file__).parent.parent / "docs" / "dev" / "interface.txt"


def interface() -> str:
    """A line for each command, each connection and each public name with its parameters."""
    lines = [f"$ attnres {command}" for command in command_names()]
    lines += [f"connection {name}" for name in connection_names()]
    for package in PACKAGES:
        module = importlib.import_module(package)
        lines += [described(f"{package}.{name}", getattr(module, name)) for name in module.__all__]
    return "\n".join([*lines, ""])


def described(name: str, thing: object) -> str:
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return name
    return re.sub(r"<function .*? at \w+>|<factory>", "..", f"{name}{inspect.signature(thing)}")


def test_the_public_interface_changes_with_the_changelog():
    assert interface() == INTERFACE.read_text(encoding="utf-8"), __doc__


if __name__ == "__main__":
    print(interface(), end="")
