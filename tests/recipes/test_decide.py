"""The recipe for a GPU: a shell script around attnres scaling."""

from __future__ import annotations

import pytest

from attnres.cli import main


def test_it_stops_in_time_and_says_whether_it_is_done(run_script):
    done, _ = run_script("decide.sh")
    assert (done.returncode, done.stdout) == (0, "done: runs/decide/decide.json\n")
    stopped, _ = run_script("decide.sh", "0.01", program="sleep 60")
    assert stopped.returncode == 124 and stopped.stdout.endswith("everything is kept: call it again\n")
    failed, _ = run_script("decide.sh", program="echo attnres: no >&2; exit 2")
    assert (failed.returncode, failed.stdout, failed.stderr) == (2, "", "attnres: no\n")


@pytest.mark.parametrize("given", [{}, {"DATA": "--data.dataset sympy", "ARMS": "residual block", "MORE": "--seed 3"}])
def test_attnres_understands_it(run_script, given, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    _, [(_, module, *arguments)] = run_script("decide.sh", **given)
    planned = []
    monkeypatch.setattr("attnres.data.open_corpus", lambda data: planned.append(data) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(arguments)
    assert module == "attnres" and planned[0].dataset == ("sympy" if given else "torch")
    assert planned[0].tokenizer == "bpe:8192"
