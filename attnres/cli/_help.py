"""Text for `--help`, as wide as the terminal."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def help_fitted(description: str) -> Iterator[None]:
    """Print the help that tyro prints inside as wide as the terminal, with the description.

    tyro would join the description's lines, and wraps neither it nor the line of the usage.
    """
    terminal = sys.stdout
    printed = io.TextIOWrapper(io.BytesIO(), encoding=terminal.encoding, write_through=True)
    printed.isatty = terminal.isatty  # tyro looks at both for colours and frames
    try:
        with redirect_stdout(printed):
            yield
    finally:
        usage, _, options = printed.buffer.getvalue().decode(terminal.encoding).partition("\n")
        print(textwrap.fill(usage, width(), subsequent_indent="    ", break_on_hyphens=False), end="\n\n")
        print(wrapped(description), options, sep="\n", end="")


def wrapped(text: str) -> str:
    """Fit paragraphs to the terminal; of indented ones, which are commands, only long lines are continued."""
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith(" "):
            paragraphs.append("\n".join(map(_continued, paragraph.splitlines())))
        else:
            paragraphs.append(textwrap.fill(paragraph, width()))
    return "\n\n".join(paragraphs)


def _continued(line: str) -> str:
    """The command on as many lines as it needs, broken before options as a shell reads it."""
    first, *options = line.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(f" --{option} \\") > width():
            lines[-1] += " \\"
            lines.append(f"        --{option}")
        else:
            lines[-1] += f" --{option}"
    return "\n".join(lines)


def width() -> int:
    return min(120, shutil.get_terminal_size().columns)
