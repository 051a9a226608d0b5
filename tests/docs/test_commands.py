"""The commands that the documents show are understood, and the pictures and files that they link exist."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from pathlib import Path

import pytest
import tyro

from attnres.cli import main, train
from attnres.parallel.schedule import check_schedule

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/dev").glob("*.md")),
    ROOT / "paper/report.md",
]


def commands(text: str, program: str = "attnres") -> list[str]:
    """The lines of code blocks, fenced or indented, that run it; a line that ends in a backslash goes on."""
    joined = re.sub(r"\\\n\s*", "", text)
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", joined, re.DOTALL | re.MULTILINE))
    lines = [*fenced.splitlines(), *re.findall(r"^    (.*)$", joined, re.MULTILINE)]
    return [line for line in lines if line.startswith(f"{program} ")]


SHOWN = {line: document.name for document in DOCUMENTS for line in commands(document.read_text(encoding="utf-8"))}
"""Each command once, and a document that shows it."""


def test_commands_are_understood(monkeypatch, capsys):
    """Every command of every document is parsed; none runs."""
    parse = tyro.cli

    def only_parse(command, **options):
        return parse(functools.wraps(command)(lambda *_, **__: 0), **options)

    monkeypatch.setattr(tyro, "cli", only_parse)
    monkeypatch.chdir(ROOT)
    assert {"commands.md", "tutorial.md", "look.md"} <= {document for _, document in SHOWN.items()}
    refused = {}
    for line, document in SHOWN.items():
        try:
            code = main(shlex.split(line, comments=True)[1:])
        except SystemExit as stop:
            code = stop.code
        if code != 0:
            refused[document, line] = capsys.readouterr().err
    assert refused == {}


TRAIN = " -m attnres train "
SOURCES = [(document.name, document.read_text(encoding="utf-8")) for document in DOCUMENTS]
LAUNCHED = [
    (name, line)
    for name, text in [*SOURCES, ("train --help", inspect.getdoc(train) or "")]
    for line in commands(text, "torchrun")
    if TRAIN in line and f"{TRAIN}... " not in line
]


@pytest.mark.parametrize(("document", "line"), LAUNCHED)
def test_layouts_fit_as_many_processes_as_torchrun_starts(document, line, monkeypatch):
    launch, _, arguments = line.partition(TRAIN)
    started = {}
    monkeypatch.setattr(train, "run", lambda config, folder, layout: started.update(config=config, layout=layout) or 0)
    monkeypatch.chdir(ROOT)
    assert main(["train", *shlex.split(arguments)]) == 0
    config, layout = started["config"], started["layout"]
    machines = re.search(r"--nnodes (?:(\d+):)?(\d+)", launch)
    fewest, most = (int(machines[1] or machines[2]), int(machines[2])) if machines else (1, 1)
    for count in range(fewest, most + 1):
        fitted = layout.fit(count * int(re.search(r"--nproc-per-node (\d+)", launch)[1]))
        fitted.check(config.model.sublayers, config.batch_size)
        if fitted.pipeline > 1:
            check_schedule(fitted.order, fitted.pipeline, fitted.virtual, config.accumulate)


def test_links_into_the_repository_lead_somewhere():
    links = {
        (document, link)
        for document in DOCUMENTS
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    }
    assert [(document.name, link) for document, link in links if not (document.parent / link).exists()] == []
