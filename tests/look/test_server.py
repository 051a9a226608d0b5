"""Who is answered, what is refused, and what the page is told of runs that go on."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.nn.functional as F

from attnres import load_run
from attnres.look import answers
from attnres.look.subject import RunSubject, open_subjects
from tests.look.runs import TOKEN, serving

VIEW = {"view": {"model": 1, "text": "the brown dog"}}


@pytest.mark.parametrize(("token", "status"), [(TOKEN, 200), ("wrong", 403), ("", 403)])
def test_only_who_has_the_token_is_answered(client, token, status):
    for method, path, body in (("GET", "/api/session", None), ("POST", "/api/look", VIEW)):
        answer = client.open(method, path, body, **{"X-Attnres-Token": token})
        told = answer.read()
        assert answer.status == status
        assert (b'"failure"' in told) == (status == 403)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/?token={TOKEN}", 200),
        ("/", 403),
        ("/?token=wrong", 403),
        ("/page/look.js", 200),
        ("/page/look.css", 200),
        ("/page/..%2fserver.py", 404),
        ("/server.py", 403),
        ("/api/look", 405),
    ],
)
def test_the_page_and_nothing_else_is_served(client, path, status):
    token = "" if path.startswith("/?") or "/page/" in path or path in ("/", "/server.py") else TOKEN
    answer = client.open("GET", path, **{"X-Attnres-Token": token})
    told = answer.read()
    assert answer.status == status
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.headers["Referrer-Policy"] == "no-referrer" and b"root:" not in told


@pytest.mark.parametrize(
    ("command", "body", "status"),
    [
        ("look", {"view": {"model": 1}}, 400),
        ("look", {"view": {"model": "block", "text": ""}}, 400),
        ("look", {"view": {"model": 1, "text": "", "path": "/etc"}}, 400),
        ("continue", b'{"view": {"model": "", "text": "a"}, "temperature": NaN}', 400),
        ("shutdown", {}, 400),
    ],
)
def test_bad_requests_are_refused_in_one_line(client, command, body, status):
    answer = client.open("POST", f"/api/{command}", body)
    told = json.loads(answer.read())
    assert answer.status == status and told["kind"] == "failure" and "\n" not in told["message"]


def test_a_failure_inside_is_told_and_the_next_question_answered(client, monkeypatch):
    monkeypatch.setattr(answers, "likeliest", lambda *_: 1 / 0)
    told = client.one("look", view={"model": 1, "text": "what fails"})
    assert told["kind"] == "failure" and "ZeroDivisionError" in told["message"]
    monkeypatch.undo()
    assert client.one("look", view={"model": 1, "text": "what fails"})["kind"] == "picture"


def test_a_run_that_trains_has_what_is_there_by_now(run):
    """From its first step, when there is no checkpoint yet, to its end."""
    done = [(path.rename(path.with_name(f"aside-{path.name}")), path) for path in (run / "checkpoints").iterdir()]
    summary = (run / "summary.json").rename(run / "aside.json")
    with serving([RunSubject(run, "block")]) as client:
        (model,) = client.session()["models"]
        assert model["training"] and model["steps"] == []
        assert "no checkpoint yet" in client.one("look", view={"model": 0, "text": "the"})["message"]
        for aside, path in done:
            aside.rename(path)
        summary.rename(run / "summary.json")
        (model,) = client.session()["models"]
        assert not model["training"] and model["steps"] == [2, 4, 6]


def test_a_run_that_is_replaced_is_not_mixed_with_what_was_opened(run, other):
    question = {"view": {"model": 0, "text": "the brown dog"}}
    with serving([RunSubject(run, "block")]) as client:
        assert client.one("look", **question)["kind"] == "picture"
        for happened in ("is gone", "was replaced"):
            shutil.rmtree(run, ignore_errors=True)
            if happened != "is gone":
                shutil.copytree(other, run)
            told = client.one("look", **question)
            assert told["kind"] == "failure" and happened in told["message"]
            (model,) = client.session()["models"]
            assert happened in model["description"] and (model["steps"], model["training"]) == ([], False)


def test_other_weights_of_the_same_step_are_read(run, other):
    """As when a run goes on to more steps, whose last ones before have other learning rates then."""
    question = {"view": {"model": 0, "text": "the brown dog"}}
    with serving([RunSubject(run, "block")]) as client:
        before = client.one("look", **question)["loss"]
        record = json.loads((run / "config.json").read_text())
        record["config"]["steps"] = 12
        (run / "config.json").write_text(json.dumps(record))
        shutil.rmtree(run / "checkpoints")
        shutil.copytree(other / "checkpoints", run / "checkpoints")
        trained, now = load_run(other, step=6), client.one("look", view={**question["view"], "step": 6})["loss"]
        with torch.no_grad():
            tokens = torch.tensor([trained.tokenizer.encode(question["view"]["text"])])
            losses = F.cross_entropy(trained.model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
        assert now[1:] == pytest.approx(losses.tolist(), rel=1e-5) and now != before
        assert "of 12 steps" in client.session()["models"][0]["description"]


def test_two_runs_of_one_name_are_told_apart(tmp_path, runs):
    folders = [tmp_path / name for name in ("1/a/seed-0", "1/b/seed-0", "2/b/seed-0", "1/c/seed-1")]
    for folder in folders:
        shutil.copytree(runs[0], folder)
    for opened, names in (
        (folders[:1], ["seed-0"]),
        (folders[:3], ["1/a/seed-0", "1/b/seed-0", "2/b/seed-0"]),
        ([folders[0], folders[3]], ["a/seed-0", "c/seed-1"]),
    ):
        assert [subject.entry.name for subject in open_subjects(opened)] == names
