"""How a connection is written: NAME, or NAME:OPTION=VALUE,OPTION=VALUE. The one parser, the one printer.

A value is a JSON number, true, false, null or, if none of these, text (Python's True, False and None are read too).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from attnres.errors import UsageError

Option = int | float | bool | str | None

FORM = "write NAME or NAME:OPTION=VALUE,OPTION=VALUE"
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_WRITTEN = re.compile(r"(?P<name>(?:.*?\.py:)?[^:]*)(?P<colon>:?)(?P<options>.*)", re.DOTALL)


def parse_connection(text: str) -> tuple[str, dict[str, Option]]:
    """Read a connection's name and options. A name may be FILE.py:CLASS.

    Raises:
        UsageError: any other form, an empty option or one that is given twice.
    """
    match = _WRITTEN.fullmatch(text)
    assert match is not None
    options: dict[str, Option] = {}
    for item in match["options"].split(",") if match["colon"] else ():
        option, equals, value = (part.strip() for part in item.partition("="))
        if not (option and equals and value):
            raise UsageError(f"connection {text!r}: {item.strip()!r} is no option; {FORM}")
        if option in options:
            raise UsageError(f"connection {text!r}: {option} is given twice; give it once")
        options[option] = _read(value)
    return match["name"].strip(), options


def print_connection(name: str, options: Mapping[str, Option]) -> str:
    """Write a connection as `parse_connection` reads it. Raises UsageError on a value that has no written form."""
    listed = ",".join(f"{option}={_write(option, value)}" for option, value in options.items())
    return f"{name}:{listed}" if listed else name


def _read(text: str) -> Option:
    try:
        value = json.loads(_PYTHON.get(text, text))
    except ValueError:
        return text
    return text if isinstance(value, list | dict | str) else value


def _write(option: str, value: Option) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, str) and (_read(text) != value or text != text.strip() or not text or set(text) & set(",")):
        raise UsageError(f"{option}={value!r} cannot be written in a connection's name; choose other text")
    return text
