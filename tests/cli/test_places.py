"""What commands read from and write to: wrong places are one line that says what to do, and nothing is lost."""

import pytest

from attnres.cli import main
from attnres.cli._checks import alone_in
from attnres.files import PARTIAL, locked
from tests.cli.conftest import TINY


def said(capsys, *arguments: object) -> str:
    """What a command that refuses its arguments says."""
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("attnres: ")
    return error


@pytest.mark.parametrize("command", [["bench", "--out"], ["eval", ".", "--tasks", "piqa", "--out"]])
def test_a_file_of_hours_is_not_written_over(tmp_path, capsys, command):
    (tmp_path / "record.json").write_text("mine")
    assert "no new file can be written there" in said(capsys, *command, tmp_path / "record.json")
    assert (tmp_path / "record.json").read_text() == "mine"


def test_a_second_command_in_a_folder_is_refused(tmp_path, capsys, corpus):
    """It would train runs that the first has planned, and the first would find them taken."""
    with locked(tmp_path / ".lock", taken=lambda: None):
        error = said(capsys, "compare", "residual", "full", *TINY, *corpus, "--seeds", "1", "--out", tmp_path)
    assert f"--out {tmp_path}: another command is at work there" in error
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_what_a_killed_command_left_half_written_is_removed(tmp_path):
    for place in (tmp_path, tmp_path / "figures", tmp_path / "run"):
        place.mkdir(exist_ok=True)
        (place / f".x.png.1a2b3c4d{PARTIAL}").touch()
        (place / f"film.mkv{PARTIAL}").touch()  # the user's own
    with alone_in(tmp_path):
        left = sorted(path.parent.name for path in tmp_path.rglob(f".*{PARTIAL}"))
    assert left == ["run"], "its own lock is another's"
    assert len(list(tmp_path.rglob(f"film.mkv{PARTIAL}"))) == 3


def test_the_record_of_an_experiment_does_not_go_into_a_run(comparison, tmp_path, capsys):
    run = comparison[0] / "residual" / "seed-0"
    assert f"{run} is a run of attnres train" in said(capsys, "convert", run, tmp_path / "converted")
    before = sorted(run.iterdir())
    assert "is the folder of a run" in said(capsys, "dynamics", "residual", "block", "--out", run)
    assert sorted(run.iterdir()) == before
