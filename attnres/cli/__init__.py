"""The command line: one file of this folder per command, and one command for each of the lab's experiments.

A command file defines `command`, whose parameters tyro turns into options, and a docstring: its first line is the
summary in `attnres --help`, the whole of it the head of `attnres NAME --help`. Where the defaults depend on the
arguments themselves, it defines `command_for(arguments)` instead, which returns the command.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import os
import pkgutil
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from attnres.errors import LAB, UsageError, install_command
from attnres.lab import experiment_commands, experiments_of
from attnres.signals import STOPS, Stopped, exit_code, heard, in_words
from attnres.texttable import visible

COMPLETION = "--tyro-print-completion"
READER_GONE = 141


def command_names() -> list[str]:
    files = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return sorted({*files, *experiment_commands()})


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 failed on the way, 2 bad input, 130, 143 or 129 stopped by
    Ctrl-C, SIGTERM or SIGHUP, 141 the reader of the output has gone (these as shells count them)."""
    code = _ended(*((sys.argv[1:] if argv is None else argv) or ["--help"]))
    if argv is None and code > 128:  # a second Ctrl-C would be a traceback of what Python does at its end
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
    try:
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes
        return code or (READER_GONE if isinstance(error, BrokenPipeError) else _fail(_said(error), 1))
    return code


def _write_any_text() -> None:
    """Let a character that the output's encoding lacks appear as its code: an error would end hours of work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _ended(name: str, *arguments: str) -> int:
    """Run one command. If it ends early, print the reason in one line."""
    try:
        _write_any_text()
        return _run(name, list(arguments))
    except UsageError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:  # the reader of the output, such as `head`, has seen enough
        return READER_GONE
    except OSError as error:
        return _fail(_said(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        return _fail("there is not enough memory for this; take a smaller model, context or batch", 1)
    except KeyboardInterrupt as stop:
        return _stopped(stop)


def _run(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help"):
        print(_overview())
        return 0
    if name == "--version":
        from attnres import __version__

        print(__version__)
        return 0
    if name not in (*command_names(), COMPLETION):
        return _fail(f"unknown command {name!r}; choose one of: {', '.join(command_names())}", 2)
    if missing := [module for module in LAB if importlib.util.find_spec(module) is None]:
        return _fail(f"commands need {', '.join(missing)}, not installed here; {install_command('lab')}", 2)
    return _run_command(name, arguments)


def _run_command(name: str, arguments: list[str]) -> int:
    stops = _own_stops()
    with heard(_leave, stops):  # torch's import can swallow a KeyboardInterrupt
        import tyro

        command = None if name == COMPLETION else _command(name, arguments)
    config = (tyro.conf.SuppressFixed,)  # no mention of what only Python code can set
    if command is None:  # completion, of all commands at once
        commands = {known: _command(known, []) for known in command_names()}
        return tyro.extras.subcommand_cli_from_dict(commands, prog="attnres", args=[name, *arguments], config=config)
    if name != "train" and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(f"{name} runs in one process: start it without torchrun")
    helping = not {"-h", "--help"}.isdisjoint(arguments)
    if helping:  # tyro would join its lines
        print(_description(name), end="\n\n")
    with heard(_stop, stops):
        return tyro.cli(command, prog=f"attnres {name}", description="", args=arguments, config=config) or 0


def _own_stops() -> list[int]:
    """The signals to hear: a shell's background job ignores Ctrl-C, another program's handler is its own, and torchrun
    says itself why it ends a process."""
    numbers = STOPS[:1] if "RANK" in os.environ else STOPS
    return [number for number in numbers if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)]


def _leave(number: int) -> None:
    os.write(2, f"attnres: {in_words(number)}\n".encode())
    os._exit(128 + number)


def _stop(number: int) -> None:
    raise Stopped(number=number)


def _command(name: str, arguments: list[str]) -> Callable[..., int]:
    if name in experiment_commands():
        from attnres.cli._experiment import experiment_command

        return experiment_command(name, arguments)
    module = importlib.import_module(f"{__name__}.{name}")
    return module.command_for(arguments) if hasattr(module, "command_for") else module.command


def _description(name: str) -> str:
    """The docstring of the command's or experiment's file, read without importing that."""
    folder = experiments_of.__name__ if name in experiment_commands() else __name__
    spec = importlib.util.find_spec(f"{folder}.{name}")
    assert spec and spec.origin, "a command is a file"
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def _overview() -> str:
    width = min(120, shutil.get_terminal_size().columns)
    lines = ["attnres: what should carry information through depth?", "", "commands:"]
    for name in command_names():
        summary = _description(name).partition("\n")[0]
        lines.append(textwrap.fill(summary, width, initial_indent=f"  {name:<10} ", subsequent_indent=" " * 13))
    last = "attnres COMMAND --help explains one, with examples; attnres --version prints the version."
    lines += ["", textwrap.fill(last, width)]
    return "\n".join(lines)


def _out_of_memory(error: Exception) -> bool:
    """Whether numpy, torch's allocator or a GPU had no memory to give; torch says the second in words alone."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or "can't allocate memory" in str(error)


def _stopped(stop: KeyboardInterrupt) -> int:
    code = exit_code(stop)
    return _fail(in_words(code - 128), code)


def _said(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _fail(message: str, code: int) -> int:
    """Say why the command ends; return the exit code."""
    try:
        print(f"attnres: {visible(message)}", file=sys.stderr)
    except OSError:  # the terminal has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # else Python changes the code when it flushes
    return code
