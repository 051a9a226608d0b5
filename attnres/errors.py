"""The error of invalid input, and checks that several places share."""

import dataclasses
import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any


class UsageError(ValueError):
    """Invalid input. The message is one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


LAB = ("filelock", "jinja2", "matplotlib", "rich", "safetensors", "scipy", "tyro")
"""Modules of the extra `lab`, which every command needs. Connections and operators need torch and numpy alone."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra: of the attnres that is installed, wherever it came from."""
    return f"pip install 'attnres[{extra}]'"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, for a message of one line, or its kind where it says nothing."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    quoted = line[0] in "'\"" and line[0] == line[-1] and line.count(line[0]) == 2  # a KeyError's is the key alone
    return line[1:-1] if quoted else line


LARGEST_COUNT = 2**31 - 1


def check_count(name: str, value: object) -> None:
    """Raise UsageError unless the value is a whole number of at least 1: torch's own words are no line."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")
    if value > LARGEST_COUNT:
        raise UsageError(f"{name} must be at most {LARGEST_COUNT}, not {value}")


def list_of_ids(name: str, tokens: Any) -> list[int]:
    """List one text's token ids.

    Args:
        name: what the message calls them.
        tokens: a sequence of whole numbers, or a tensor or array of one axis.

    Raises:
        UsageError: anything else, a batch of texts among it, or none.
    """
    ids = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(isinstance(each, Integral) for each in ids):
        raise UsageError(f"{name} must be a list of ids of one text, such as [5, 0, 12], as a tokenizer gives them")
    if not ids:
        raise UsageError(f"{name} is empty; give at least one token")
    return [int(each) for each in ids]


def refuse_non_finite(record: Any) -> None:
    """Raise UsageError if a float field of the dataclass is infinite or not a number: `nan < 0` is false."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{field.name} must be a finite number, not {value}")
