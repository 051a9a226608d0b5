"""What commands read from and write to: wrong places are one line that says what to do, and nothing is lost."""

import pytest

from attnres.cli import main
from attnres.cli._checks import alone_in, check_own_page
from attnres.files import PARTIAL, locked
from tests.cli.conftest import TINY


def said(capsys, *arguments: object) -> str:
    """What a command that refuses its arguments says."""
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("attnres: ")
    return error


def test_a_file_that_the_command_did_not_write_stays(tmp_path, capsys):
    content = '{"plan": "of another"}'
    file, picture = tmp_path / "cost.json", tmp_path / "cost.png"
    for path in (file, picture):
        path.write_text(content)
    assert "there is another file, which would be lost" in said(capsys, "cost", "--out", file)
    assert "there is another file, which would be lost" in said(capsys, "cost", "--figure", picture)
    assert "there is another file, which would be lost" in said(capsys, "bench", "--out", file)
    assert file.read_text() == picture.read_text() == content
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR of a photograph")
    assert "there is another file, which would be lost" in said(capsys, "cost", "--figure", picture)
    for path in (file, picture):
        path.unlink()
    assert "--figure and --out name the same file" in said(capsys, "cost", "--figure", picture, "--out", picture)
    command = ["cost", "--out", str(file), "--figure", str(picture)]
    assert main(command) == 0 and main(command) == 0, "its own it writes anew"


PAGES = {  # how the title of each command's own page begins
    ("compare", "residual", "full", *TINY): ("report.html", "Residual connections side by side", "loss_curves"),
    ("ablate", "residual", "full", *TINY): ("results.html", "attnres: results", "tuning"),
    ("report", "results"): ("results.html", "attnres: results", "scaling"),
}


@pytest.mark.parametrize(("command", "own"), PAGES.items(), ids=lambda names: names[0])
def test_a_page_that_the_command_did_not_write_stays(tmp_path, capsys, corpus, command, own):
    """A comparison's page was lost to that of one run, and a page of the user's own to either."""
    name, title, figure = own
    out = tmp_path / "out"
    begin = [*command, *(corpus if "residual" in command else ())]
    page, picture = out / name, out / "figures" / f"{figure}.png"
    picture.parent.mkdir(parents=True)
    for others in ("my thesis", *{title for of, title, _ in PAGES.values() if title != own[1]}):
        page.write_text(f"<!doctype html><title>{others}</title>")
        error = said(capsys, *begin, "--out", out)
        assert f"--out {out}: there is another {name}, which would be lost; give another folder" in error
        assert others in page.read_text()
    page.unlink()
    picture.write_text("mine")
    assert f"there is another figures/{figure}.png, which would be lost" in said(capsys, *begin, "--out", out)
    assert picture.read_text() == "mine"
    page.write_text(f"<!doctype html><title>{title}</title>")
    check_own_page(out, name, title, [figure])  # its own it writes anew, and the figures beside that


@pytest.mark.parametrize("command", ["compare", "ablate"])
def test_a_second_command_in_a_folder_is_refused(tmp_path, capsys, corpus, command):
    """It would train runs that the first has planned, and the first would find them taken."""
    with locked(tmp_path / ".lock", taken=lambda: None):
        error = said(capsys, command, "residual", "full", *TINY, *corpus, "--seeds", "1", "--out", tmp_path)
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
    assert "is the folder of a run" in said(capsys, "probe", run, "--out", run)
    given = ("--out", tmp_path / "o", "--record", run / "probes.json")
    assert "is the folder of a run" in said(capsys, "probe", run, *given)
    assert sorted(run.iterdir()) == before
