"""What a table looks like on a narrow terminal and in a file, and what is said of work that takes seconds."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from attnres.cli import _terminal
from attnres.cli._tables import print_line, print_table
from attnres.cli._terminal import Terminal
from attnres.texttable import TextTable

NAMES = ("block:block_size=8", "block:block_size=16", "full:query=input,heads=4,key_norm=false")
NUMBERS = ("2.6919", "-0.0058 ± 0.0028", "1.10x [1.04, 1.15]", "1.01x", "5", "-0.0057", "+0.0006")
TABLE = TextTable(
    "Title [not markup]",
    ("connection", "validation loss", "difference", "step time", "peak memory", "seeds", "seed 0", "seed 1"),
    tuple((name, *NUMBERS) for name in NAMES),
    "a note [1, 2]",
)


def printed(width: int, terminal: bool) -> list[str]:
    file = io.StringIO()
    print_table(Console(file=file, width=width, force_terminal=terminal, color_system=None), TABLE)
    return file.getvalue().splitlines()


def test_names_and_numbers_are_whole_on_a_terminal():
    lines = printed(width := 130, terminal=True)
    names = "".join(line.split("  ")[0].strip() for line in lines if not line.startswith("  "))
    assert all(name in names for name in NAMES)
    for number in ("2.6919", "-0.0058", "±0.0028", "1.10x", "[1.04,", "1.15]", "-0.0057", "+0.0006"):
        assert sum(number in line for line in lines) == len(NAMES)
    assert max(map(len, lines)) <= width
    assert "[not markup]" in "\n".join(lines) and "[1, 2]" in "\n".join(lines)


def test_a_file_has_one_line_per_row():
    lines = printed(80, terminal=False)
    assert all(sum(name in line and "+0.0006" in line for line in lines) == 1 for name in NAMES)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [30, 160])
def test_names_from_files_cannot_command_a_terminal(width, terminal):
    hostile, shown = "a\x1b]0;gone\x07\x9b2J\r\u202e", "a␛]0;gone␇[U+009B]2J␍[U+202E]"
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    table = TextTable(hostile, (hostile, hostile), ((hostile, hostile),), hostile)
    print_table(console, table)
    print_line(console, hostile)
    with _terminal.Terminal(console) as terminal_of:
        terminal_of(0, 1, f"{hostile} [/not markup]")
        with terminal_of.during(hostile):
            pass
    written = file.getvalue()
    assert not any(mark in written for mark in ("\x1b]", "\x07", "\x9b", "\u202e"))
    assert shown in written.replace("\n", "")


def test_progress_in_a_file_says_how_far_it_is_and_how_long_it_takes(monkeypatch):
    """A part takes 30 s; what was done before the first part that was seen is no measure."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(_terminal, "time", SimpleNamespace(monotonic=lambda: clock.now))
    file = io.StringIO()
    with Terminal(Console(file=file)) as terminal:
        for clock.now, done in ((0.0, 0), (50.0, 1), (80.0, 2), (110.0, 3)):
            terminal(done, 6, "3 of 9 runs")
    assert file.getvalue().splitlines() == [
        "3 of 9 runs, 17%, starting",
        "3 of 9 runs, 33%, about 2 min left",
        "3 of 9 runs, 50%, about 90 s left",
    ]
