"""What is measured on a run's text is refused where that text has changed: the numbers would be of another."""

from __future__ import annotations

import pytest

from attnres.cli import main
from tests.cli.conftest import TINY


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(" ".join(f"x{number} = y{number * word}" for word in range(60)))
    return folder


def change(text):
    """As many files and bytes as before."""
    for file in list(text.iterdir())[:8]:
        file.write_text(file.read_text().upper())


def test_a_run_is_not_inspected_on_another_text(text, tmp_path, capsys):
    run = tmp_path / "run"
    asked = [*TINY, "--data.paths", str(text), "--data.cache", str(tmp_path / "cache")]
    assert main(["train", str(run), *asked]) == 0
    change(text)
    assert main(["look", str(run), "--save", str(run / "depth.png")]) == 2
    assert "the corpus has changed since this run began" in capsys.readouterr().err
    assert not (run / "report").exists()
    assert main(["look", str(run), "--save", str(run / "depth.png"), "--prompt", "x1 = y"]) == 0
