"""The commands that the documents show are understood, and the pictures and files that they link exist."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import pytest
import tyro

from attnres.cli import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NOT_COMMANDS = "attnres ablate | scaling | dynamics | prune"  # README's row of four


def commands(text: str) -> list[str]:
    """The lines of code blocks, fenced or indented, that run attnres; a line that ends in a backslash goes on."""
    joined = re.sub(r"\\\n\s*", "", text)
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", joined, re.DOTALL | re.MULTILINE))
    lines = [*fenced.splitlines(), *re.findall(r"^    (.*)$", joined, re.MULTILINE)]
    return [line for line in lines if line.startswith("attnres ") and not line.startswith(NOT_COMMANDS)]


SHOWN = [(document.name, line) for document in DOCUMENTS for line in commands(document.read_text(encoding="utf-8"))]


def test_commands_are_found():
    assert {"README.md", "TUTORIAL.md", "EVIDENCE.md"} <= {name for name, _ in SHOWN}


@pytest.mark.parametrize(("document", "line"), SHOWN)
def test_commands_are_understood(document, line, monkeypatch, capsys):
    parse = tyro.cli

    def only_parse(command, **options):
        return parse(functools.wraps(command)(lambda *_, **__: 0), **options)

    monkeypatch.setattr(tyro, "cli", only_parse)
    monkeypatch.chdir(ROOT)
    try:
        code = main(shlex.split(line, comments=True)[1:])
    except SystemExit as stop:
        code = stop.code
    assert code == 0, capsys.readouterr()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_the_repository_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing
