"""Recipes on the command line."""

from __future__ import annotations

from collections.abc import Sequence


def named_recipe(arguments: Sequence[str]) -> str | None:
    """The value of the last --recipe, which must be known before the other options can have their defaults."""
    named = None
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--recipe":
            named = value if equals else next(iter(arguments[position + 1 :]), None)
    return named
