"""What commands read from and write to: wrong places are one line that says what to do, and nothing is lost."""

import json
from pathlib import Path

import pytest

from attnres.cli import main
from attnres.cli._checks import alone_at, alone_in, check_own_page
from attnres.files import PARTIAL, locked
from tests.cli.conftest import TINY


def said(capsys, *arguments: object) -> str:
    """What a command that refuses its arguments says."""
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("attnres: ")
    return error


def test_places_that_are_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert "file is a file; give a folder" in said(capsys, "train", "file", *TINY)
    assert "no folder can be made there" in said(capsys, "train", "file/below", *TINY)
    assert "no folder can be made there" in said(capsys, "train", "/proc/x", *TINY)
    assert "stands without a flag: attnres train FOLDER" in said(capsys, "train", "--out", "x")
    assert "stands without a flag: attnres train FOLDER" in said(capsys, "train", "--out=x")
    assert "--out file: " in (error := said(capsys, "dynamics", "--out", "file")) and "give a folder" in error
    (tmp_path / "link").symlink_to("nowhere")
    assert "--out link: it is a link to nothing" in said(capsys, "eval", "run", "--tasks", "piqa", "--out", "link")
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "nowhere").exists()
    assert "give a CSV file of points" in said(capsys, "fit", "nosuch.csv")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="/proc is a folder of Linux")
@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "run", "--out"),
        ("fit", "points.csv", "--out"),
        ("report", "records", "--out"),
        ("compare", "--out"),
        ("ablate", "--out"),
        ("cost", "--out"),
        ("cost", "--figure"),
        ("eval", "run", "--tasks", "piqa", "--out"),
    ],
    ids=" ".join,
)
def test_a_place_that_only_seems_to_be_one(capsys, command):
    """To root /proc looks as if it could be written; it is tried before anything else, and work is not lost."""
    assert "can be made there" in (error := said(capsys, *command, "/proc/x.png")) and "choose another place" in error


@pytest.mark.parametrize(
    "command",
    [
        ("train",),
        *((name, "--out") for name in ("compare", "ablate", "scaling", "retrofit", "dynamics", "prune", "probe")),
        ("ablate", "--record"),
        ("inspect", "run", "--out"),
        ("fit", "points.csv", "--out"),
        ("report", "records", "--out"),
        ("cost", "--out"),
        ("bench", "curves", "--figures"),
        ("eval", "run", "--tasks", "piqa", "--out"),
        ("export", "run", "--checkpoint"),
        ("convert", "model"),
        ("train", "run", "--data.cache"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m/b"], ids=["newline", "escape"])
def test_a_name_with_a_control_character_is_not_made(tmp_path, capsys, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    assert "a name with a newline or control character; give another" in said(capsys, *command, name)
    assert not list(tmp_path.iterdir())


def test_a_run_in_a_folder_of_such_a_name_goes_on(tmp_path, corpus):
    assert main(["train", str(tmp_path / "run"), *TINY, *corpus]) == 0
    (tmp_path / "run").rename(tmp_path / "a\nb")
    assert main(["train", str(tmp_path / "a\nb"), *TINY, *corpus]) == 0


def test_a_run_whose_name_is_no_text(tmp_path, capsys, monkeypatch):
    """Its checkpoints could not be read again, and the advice was to delete them."""
    monkeypatch.chdir(tmp_path)
    assert "r[U+DCFF]: its bytes are no UTF-8 text; give a folder" in said(capsys, "train", "r\udcff", *TINY)
    assert not list(tmp_path.iterdir())


def test_asking_for_a_place_leaves_nothing_there(tmp_path, capsys):
    assert "nowhere: there is no such folder or file" in said(
        capsys, "report", tmp_path / "nowhere", "--out", tmp_path / "a"
    )
    assert "no ablation.json" in said(capsys, "report", tmp_path, "--out", tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_json_nested_deeper_than_python_reads_is_a_file_of_someone_else(tmp_path, capsys):
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000 + '"kind"')
    assert "there is another file, which would be lost" in said(capsys, "models", "--out", deep)
    assert "deep.json: not valid JSON (nested too deeply)" in said(capsys, "report", tmp_path, "--out", tmp_path / "a")
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert "config.json: not valid JSON (nested too deeply)" in said(capsys, "generate", tmp_path)
    assert "config.json: not valid JSON (nested too deeply)" in said(
        capsys, "export", tmp_path, "--gguf", tmp_path / "g"
    )


def test_a_refused_command_leaves_no_folder(tmp_path, capsys, corpus):
    (tmp_path / "file").write_text("{")
    out = ("--out", tmp_path / "a" / "b")
    assert "not valid JSON" in said(capsys, "ablate", *out, "--record", tmp_path / "file")
    text = ("--data.paths", tmp_path / "none", "--data.cache", corpus[-1])
    for command in ("compare", "ablate"):
        assert "there is no file or folder" in said(capsys, command, "residual", "full", *TINY, *text, *out)
    for record in ("r/s/x.json", "a/x.json", "a/b/c/x.json"):
        given = ("--record", tmp_path / record)
        assert "there is no file or folder" in said(capsys, "ablate", "residual", "full", *TINY, *text, *out, *given)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (tmp_path / "a").mkdir()
    said(capsys, "compare", "residual", "full", *TINY, *text, "--out", tmp_path / "a")
    assert (tmp_path / "a").is_dir(), "it was there before"


@pytest.mark.parametrize("content", ["notes", "[1, 2]", '{"plan": "of another"}'])
def test_a_file_that_the_command_did_not_write_stays(tmp_path, capsys, content):
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
    ("inspect", "run"): ("report.html", "Depth in a: block", "depth_matrices.png"),
    ("compare", "residual", "full", *TINY): ("report.html", "Residual connections side by side", "loss_curves.png"),
    ("ablate", "residual", "full", *TINY): ("results.html", "attnres: results", "tuning.png"),
    ("report", "results"): ("results.html", "attnres: results", "scaling.png"),
}


@pytest.mark.parametrize(("command", "own"), PAGES.items(), ids=lambda names: names[0])
def test_a_page_that_the_command_did_not_write_stays(tmp_path, capsys, monkeypatch, corpus, command, own):
    """A comparison's page was lost to that of one run, and a page of the user's own to either."""
    name, title, figure = own
    out = tmp_path / "out"
    begin = [*command, *(corpus if "residual" in command else ())]
    page, picture = out / name, out / "figures" / figure
    picture.parent.mkdir(parents=True)
    monkeypatch.setattr("attnres.train.load_run", lambda *_: pytest.fail("it was loaded"))
    for others in ("my thesis", *{title for of, title, _ in PAGES.values() if title != own[1]}):
        page.write_text(f"<!doctype html><title>{others}</title>")
        error = said(capsys, *begin, "--out", out)
        assert f"--out {out}: there is another {name}, which would be lost; give another folder" in error
        assert others in page.read_text()
    page.unlink()
    picture.write_text("mine")
    assert f"there is another figures/{figure}, which would be lost" in said(capsys, *begin, "--out", out)
    assert picture.read_text() == "mine"
    page.write_text(f"<!doctype html><title>{title}</title>")
    check_own_page(out, name, title, [figure])  # its own it writes anew, and the figures beside that


def test_single_files_that_the_command_did_not_write_stay(tmp_path, capsys, corpus):
    record, picture = tmp_path / "comparison.json", tmp_path / "figures" / "scaling-fit.png"
    picture.parent.mkdir()
    for path in (record, picture):
        path.write_text('{"mine": 1}')
    assert "comparison.json: there is another file" in said(capsys, "compare", *TINY, *corpus, "--out", tmp_path)
    assert "scaling-fit.png: there is another file" in said(capsys, "fit", "points.csv", "--out", tmp_path)
    (tmp_path / "figures" / "performance-curves.png").write_text("mine")
    error = said(capsys, "bench", "curves", "--figures", picture.parent)
    assert "performance-curves.png: there is another file" in error


@pytest.mark.parametrize("command", ["compare", "ablate"])
def test_a_second_command_in_a_folder_is_refused(tmp_path, capsys, corpus, command):
    """It would train runs that the first has planned, and the first would find them taken."""
    with locked(tmp_path / ".lock", taken=lambda: None):
        error = said(capsys, command, "residual", "full", *TINY, *corpus, "--seeds", "1", "--out", tmp_path)
    assert f"--out {tmp_path}: another command is at work there" in error
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_second_command_on_a_record_is_refused(tmp_path, capsys, corpus):
    """Both had read it before they began, so the second to end would write over what the first had added."""
    record = tmp_path / "record.json"
    arguments = ("residual", "full", *TINY, *corpus, "--seeds", "1", "--out", tmp_path / "out", "--record", record)
    with alone_at(record):
        error = said(capsys, "ablate", *arguments)
    assert f"--record {record}: another command is at work on it" in error and not record.exists()


def test_what_a_killed_command_left_half_written_is_removed(tmp_path):
    for place in (tmp_path, tmp_path / "figures", tmp_path / "run"):
        place.mkdir(exist_ok=True)
        (place / f".x.png.1a2b3c4d{PARTIAL}").touch()
        (place / f"film.mkv{PARTIAL}").touch()  # the user's own
    with alone_in(tmp_path):
        left = sorted(path.parent.name for path in tmp_path.rglob(f".*{PARTIAL}"))
    assert left == ["run"], "its own lock is another's"
    assert len(list(tmp_path.rglob(f"film.mkv{PARTIAL}"))) == 3


def test_two_reports_into_one_folder(tmp_path, capsys):
    with locked(tmp_path / ".lock", taken=lambda: None):
        error = said(capsys, "report", "results", "--out", tmp_path)
    assert f"--out {tmp_path}: another command is at work there" in error


def test_the_record_of_an_experiment_does_not_go_into_a_run(tmp_path, capsys, corpus):
    run = tmp_path / "run"
    assert main(["train", str(run), *TINY, *corpus]) == 0
    capsys.readouterr()
    assert f"{run} is a run of attnres train" in said(capsys, "convert", run, tmp_path / "converted")
    before = sorted(run.iterdir())
    assert "is the folder of a run" in said(capsys, "prune", run, "--out", run)
    assert "is the folder of a run" in said(
        capsys, "prune", run, "--out", tmp_path / "o", "--record", run / "prune.json"
    )
    assert sorted(run.iterdir()) == before
    assert main(["prune", str(run), "--out", str(tmp_path / "out"), "--tokens", "64"]) == 0
    assert "0 minutes" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", [{"text": "fox"}], "is a JSON array, which would be trained on as it stands"),
        (
            "a.jsonl",
            {"text": 5, "id": "a"},
            "holds int, not text, in the field 'text' of line 1; name another; there are: text, id",
        ),
        (
            "a.jsonl",
            {"body": "fox"},
            "has no field 'text' in line 1; name the one of the text with --data.dataset-column",
        ),
        ("a.jsonl", [1], "holds no JSON object in line 1"),
    ],
)
def test_json_that_is_no_text(tmp_path, capsys, name, content, message):
    (tmp_path / name).write_text(json.dumps(content))
    cache = ("--data.cache", tmp_path / "cache")
    assert message in said(capsys, "train", tmp_path / "run", *TINY, "--data.paths", tmp_path / name, *cache)


def test_a_cache_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("fox " * 100)
    text = ("--data.paths", tmp_path / "file", "--data.cache", tmp_path / "file")
    assert "give another --data.cache" in said(capsys, "train", tmp_path / "run", *TINY, *text)


@pytest.mark.parametrize("command", ["train", "compare", "ablate"])
def test_paths_that_name_none(command, capsys):
    """`--data.paths $FILES` with an empty FILES trained on the default text."""
    assert "--data.paths names none" in said(capsys, command, "--data.paths")
    assert "--data.paths names none" in said(capsys, command, "--data.paths", "--steps", "1")
    assert "--data.paths must name files or folders" in said(capsys, command, "--data.paths=")
    assert "--data.paths must name files or folders" in said(capsys, command, "--data.paths", "a.txt", "")


def test_a_dataset_takes_back_the_paths_of_a_recipe(tmp_path, capsys, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    recipe = "from attnres import TransformerConfig\nfrom attnres.data import DataConfig\n"
    recipe += "from attnres.train import RunConfig\nconfig = RunConfig(data=DataConfig(paths=('none.txt',)))\n"
    (tmp_path / "mine.py").write_text(recipe)
    for dataset in (("--data.dataset", "none.csv"), ("--data.dataset=none.csv",)):
        error = said(capsys, "train", "run", "--recipe", "mine.py", *dataset, "--data.paths", *corpus[2:])
        assert "none.csv" in error and "names none" not in error
