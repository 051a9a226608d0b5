"""Names of options in messages: the libraries below name a field, a reader of the terminal knows its flag."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints


def with_flags(message: str, command: Callable[..., Any]) -> str:
    """Write `dataset_column` as `--data.dataset-column`, where the command has one such option.

    A name that is a word of English too, such as `steps`, is one where it begins a clause and " must", " is" or ":"
    follows. What is said of a connection is of its own options, whose names may be the same.
    """
    if message.startswith("connection "):
        return message
    flags: dict[str, set[str]] = {}
    for path in _paths(command):
        for name in {path, path.rpartition(".")[2]}:
            flags.setdefault(name, set()).add("--" + path.replace("_", "-"))
    for name, (flag, *others) in flags.items():
        if others:
            continue
        if "_" in name or "." in name:
            message = re.sub(rf"(?<![\w.:/=-]){re.escape(name)}(?![\w/=-])", flag, message)
        else:
            message = re.sub(rf"(?:^|(?<=[:;] )){name}(?= must | is |: )", flag, message)
    return message


def _paths(command: Callable[..., Any]) -> Iterator[str]:
    """The options of the command, with the records that they are in: "steps", "data.dataset_column"."""
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        yield from _options(name, parameter.annotation)


def _options(name: str, annotation: Any, prefix: str = "") -> Iterator[str]:
    """The options of one parameter or field; a record's are below its name, unless tyro is told to leave that out."""
    hint, *notes = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
    if dataclasses.is_dataclass(hint):
        unnamed = any(getattr(note, "name", None) == "" for note in notes)
        for field, inner in get_type_hints(hint, include_extras=True).items():
            yield from _options(field, inner, prefix if unnamed else f"{prefix}{name}.")
    elif "Positional" not in map(str, notes) and not isinstance(hint, dataclasses.InitVar):  # that is for Python alone
        yield prefix + name
