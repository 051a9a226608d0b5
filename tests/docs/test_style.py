"""What ruff does not see: long lines in the code of other languages, and docstrings that are no sentences."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnres.version import __version__

PACKAGE = Path(__file__).parents[2] / "attnres"
CODE = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".cpp", ".h", ".js", ".css"))
NO_SENTENCE = ("Of ", "Be ", "From ")
"""How a docstring begins that says a name's continuation and not what the thing is or does."""


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.name)
def test_lines_of_code_are_at_most_120_long(path):
    long = [number for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 120]
    assert not long


def test_the_version_is_the_changelogs_newest():
    heading = (PACKAGE.parent / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()[2]
    version, _, unreleased = __version__.partition(".dev")
    assert heading == f"## {version} (unreleased)" if unreleased else heading.startswith(f"## {version} ")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings of all kinds, those of fields included."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.lineno, str(statement.value.value)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_begin_with_a_verb_or_a_noun_phrase(path):
    found = docstrings(ast.parse(path.read_text(encoding="utf-8")))
    assert [line for line, text in found if text.startswith(NO_SENTENCE)] == []
