from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from attnres.cli import main
from attnres.connections import files
from attnres.train import train
from attnres.train.loop import Diverged
from attnres.train.sweep import JobState

TINY = [
    *("--model.dim", "16", "--model.layers", "2", "--model.context", "32"),
    *("--steps", "4", "--batch-size", "2", "--evaluate-every", "2", "--save-every", "2", "--validation-tokens", "64"),
]


COMPARED = ("residual", "block:block_size=2")


def run_jobs_here(jobs, workers, watch):
    """`run_jobs` in this process: a worker takes seconds to start; test_processes.py has real ones."""
    states = [JobState(job) for job in jobs]
    for state in states:
        try:
            state.step = train(state.job.config, state.job.folder)["steps"]
            state.status = "done"
        except Diverged as error:
            state.status, state.error, state.diverged = "failed", str(error), True
        watch(states)
    return states


def run_jobs_but(fails: Callable[[str], bool]) -> Callable[..., list[JobState]]:
    """`run_jobs_here`, after which those of such names are said to have failed."""

    def run(jobs, workers, watch):
        states = run_jobs_here(jobs, workers, watch)
        for state in states:
            if fails(state.job.name):
                state.status, state.error = "failed", "killed"
        return states

    return run


def forget_rules() -> None:
    """Be as a new process, which runs the files of connections as they are by then."""
    files._loaded.clear()
    for name in [name for name in sys.modules if name.startswith("attnres_connection_")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> list[str]:
    """Options that name a small corpus, with a hostile line that a page must show as text."""
    folder = tmp_path_factory.mktemp("corpus")
    words = random.Random(0)
    for index in range(30):
        lines = ["</script><script>alert(1)</script> é ✓"]
        lines += [" ".join(words.choices(["def", "return", "x", "y", "+", "("], k=12)) for _ in range(40)]
        (folder / f"{index}.txt").write_text("\n".join(lines), encoding="utf-8")
    return ["--data.paths", str(folder), "--data.cache", str(tmp_path_factory.mktemp("cache"))]


@pytest.fixture(scope="session")
def comparison(corpus, tmp_path_factory) -> tuple[Path, str]:
    """A finished comparison of two tiny arms with two seeds, which no test may change, and what the command said."""
    out = tmp_path_factory.mktemp("comparison")
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setenv("COLUMNS", "160")
        patch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)
        patch.setattr("attnres.lab.page.write_results", lambda records, out: out / "results.html")
        assert main(["compare", *COMPARED, "--seeds", "2", "--out", str(out), *TINY, *corpus]) == 0
    return out, said.getvalue()


@pytest.fixture
def trained_here(monkeypatch) -> None:
    monkeypatch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)


@pytest.fixture
def no_page(monkeypatch) -> None:
    """The page of an experiment is not made; tests/lab makes some."""
    monkeypatch.setattr("attnres.lab.page.write_results", lambda records, out: out / "results.html")
