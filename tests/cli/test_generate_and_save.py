from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from attnres.cli import command_names, main


def test_generate_reads_standard_input_and_says_where_the_context_ended(comparison, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"def \xff\n")))
    assert (
        main(["generate", str(comparison[0] / "residual" / "seed-0"), "--tokens", "500", "--stop", "no such text"]) == 0
    )
    printed = capsys.readouterr()
    assert printed.out.startswith("def \N{REPLACEMENT CHARACTER}")
    assert "context of 32 tokens is full" in printed.err


def test_a_comparison_is_no_run_but_holds_some(comparison, tmp_path, capsys):
    assert main(["generate", str(comparison[0]), "--prompt", "x"]) == 2
    assert "give one of its runs, such as " in capsys.readouterr().err
    (tmp_path / "deeper").symlink_to(comparison[0])
    assert main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert f"such as {tmp_path / 'deeper'}/" in capsys.readouterr().err  # as deep as scaling's


def test_look_saves_a_picture_without_a_server(comparison, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("attnres.look.start.start", lambda *_: pytest.fail("a server was started"))
    look = ["look", str(comparison[0] / "block_block_size-2" / "seed-0"), "--save"]
    for name, begins in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        file = tmp_path / name
        for prompt in ([], ["--prompt", "def f(x)"]):  # its own it writes anew
            assert main([*look, str(file), *prompt]) == 0
        assert file.read_bytes().startswith(begins)
        assert "Strongest depth sinks" in capsys.readouterr().out


def test_depth_is_not_read_on_another_text_than_the_runs(comparison, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("attnres.report.runs.open_corpus", lambda _: SimpleNamespace(sha256="0", description="other"))
    look = ["look", str(comparison[0] / "residual" / "seed-0"), "--save", str(tmp_path / "depth.png")]
    assert main(look) == 2 and "the corpus has changed since this run began" in capsys.readouterr().err
    assert main([*look, "--prompt", "x1 = y"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--save", "x.gif"], "name a picture .png or .svg"),
        (["other", "--save", "x.png"], "give one folder, not 2"),
        (["--prompt", "x"], "--prompt needs --save"),
        (["--save", "x.png", "--prompt", "x"], "the prompt has 1 token; give between 2 and 33"),
    ],
)
def test_look_refuses_in_one_line(options, message, comparison, capsys):
    assert main(["look", str(comparison[0] / "residual" / "seed-0"), *options]) == 2
    assert message in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_help_teaches_with_examples(capsys):
    for name in command_names():
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0 and f"    attnres {name} " in capsys.readouterr().out.partition("usage:")[0]
