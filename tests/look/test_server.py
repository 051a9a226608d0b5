"""Who is answered, what is refused, and what the page is told of runs that go on."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.nn.functional as F

from attnres import load_run
from attnres.look import answers, server
from attnres.look.prepare import Preparation
from attnres.look.subject import RunSubject, open_subjects
from attnres.train import train
from attnres.train.sweep import Job, JobState
from tests.look.runs import TOKEN, serving, small_config

VIEW = {"view": {"model": 1, "text": "the brown dog"}}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1.evil.example:{port}"}, 403),
        ({"Host": "localhost:8000"}, 200),  # through a tunnel
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"X-Attnres-Token": "wrong"}, 403),
        ({"X-Attnres-Token": ""}, 403),
    ],
)
def test_only_its_own_page_is_answered(client, headers, status):
    headers = {name: value.replace("{port}", str(client.port)) for name, value in headers.items()}
    for method, path, body in (("GET", "/api/session", None), ("POST", "/api/look", VIEW)):
        answer = client.open(method, path, body, **headers)
        told = answer.read()
        assert answer.status == status
        assert (b'"failure"' in told) == (status == 403)


@pytest.mark.parametrize(
    ("listens", "host", "status"),
    [
        ("0.0.0.0", "192.168.0.1:80", 200),
        ("0.0.0.0", "[fe80::1]:80", 200),
        ("0.0.0.0", "1.2.3.4.example", 403),
        ("MyBox", "mybox:80", 200),  # browsers send small letters
    ],
)
def test_where_it_listens_everywhere_any_address_is_its_own_and_no_name_is(listens, host, status):
    with serving([], host=listens) as everywhere:
        answer = everywhere.open("GET", "/api/session", Host=host)
        assert answer.status == status and answer.read()


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
        ("look", {"view": {"model": 1, "text": "", "changes": [{"kind": "exec"}]}}, 400),
        ("continue", b'{"view": {"model": "", "text": "a"}, "temperature": NaN}', 400),
        ("shutdown", {}, 404),
    ],
)
def test_bad_requests_are_refused_in_one_line(client, command, body, status):
    answer = client.open("POST", f"/api/{command}", body)
    told = json.loads(answer.read())
    assert answer.status == status and told["kind"] == "failure" and "\n" not in told["message"]


def test_a_form_of_another_site_is_no_request(client):
    answer = client.open("POST", "/api/look", VIEW, **{"Content-Type": "text/plain"})
    assert answer.status == 415


def test_a_failure_inside_is_told_and_the_next_question_answered(client, monkeypatch):
    monkeypatch.setattr(answers, "likeliest", lambda *_: 1 / 0)
    told = client.one("look", view={"model": 1, "text": "what fails"})
    assert told["kind"] == "failure" and "ZeroDivisionError" in told["message"]
    monkeypatch.undo()
    assert client.one("look", view={"model": 1, "text": "what fails"})["kind"] == "picture"


def test_a_run_that_trains_is_watched(run, monkeypatch):
    """Loss and checkpoints while the run goes, from its first step, when there is no checkpoint yet, to its end."""
    monkeypatch.setattr(server, "WATCH_SECONDS", 0.01)
    metrics, done = run / "metrics.jsonl", []
    records = metrics.read_text().splitlines(keepends=True)
    for path in (*(run / "checkpoints").iterdir(), run / "summary.json"):  # back to its beginning
        done.append((path.rename(path.with_name(f"aside-{path.name}")), path))
    metrics.write_text("".join(records[:3]))
    with serving([RunSubject(run, "block")]) as client:
        (model,) = client.session()["models"]
        assert model["training"] and model["steps"] == []
        assert "no checkpoint yet" in client.one("look", view={"model": 0, "text": "the"})["message"]
        answer = client.open("POST", "/api/watch", {"model": 0})
        first = json.loads(answer.readline())
        assert first["kind"] == "curve" and first["running"] and len(first["steps"]) < 6 == first["total_steps"]
        metrics.write_text("".join(records))
        for aside, path in done:  # the summary last, which ends it
            aside.rename(path)
        rest = [json.loads(line) for line in answer.read().splitlines()]
    *_, curve = (line for line in rest if line["kind"] == "curve")
    *_, session = (line for line in rest if line["kind"] == "session")
    assert len(curve["steps"]) == 6 and not curve["running"] and session["models"][0]["steps"] == [2, 4, 6]


def test_a_run_that_is_replaced_is_not_mixed_with_what_was_opened(run, other):
    question = {"view": {"model": 0, "text": "the brown dog"}}
    with serving([RunSubject(run, "block")]) as client:
        assert client.one("look", **question)["kind"] == "picture"
        for happened in ("is gone", "was replaced"):
            shutil.rmtree(run, ignore_errors=True)
            if happened != "is gone":
                shutil.copytree(other, run)
            for command, request in (("look", question), ("watch", {"model": 0})):
                told = client.one(command, **request)
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
        assert client.ask("watch", model=0)[0]["total_steps"] == 12


@pytest.fixture
def trained_here(monkeypatch):
    """Jobs of a preparation are trained in its thread, without processes of their own."""

    def run_jobs(jobs, workers, watch):
        states = [JobState(job) for job in jobs]
        for state in states:
            watch(states)
            try:
                train(state.job.config, state.job.folder)
                state.status = "done"
            except Exception as error:
                state.status, state.error = "failed", str(error)
        watch(states)
        return states

    monkeypatch.setattr("attnres.look.prepare.run_jobs", run_jobs)
    monkeypatch.setattr("attnres.look.prepare.POLL_SECONDS", 0.01)


def test_with_nothing_given_a_pair_is_trained_first(tmp_path, trained_here):
    names = ("residual", "block")
    preparation = Preparation([Job(name, small_config(tmp_path, name), tmp_path / name) for name in names])
    with serving([], preparation) as client:
        assert client.session()["models"] == []
        lines = client.ask("prepare")
        assert [model["name"] for model in lines[-1]["models"]] == ["residual", "block"]
        assert lines[0]["kind"] == "progress" and lines[0]["total"] == 12
        assert client.one("look", **VIEW)["kind"] == "picture"
        assert len(client.ask("prepare")) == 1
    preparation.stop()


def test_two_runs_of_one_name_are_told_apart(tmp_path, runs):
    folders = [tmp_path / name for name in ("1/a/seed-0", "1/b/seed-0", "2/b/seed-0", "1/c/seed-1")]
    for folder in folders:
        shutil.copytree(runs[0], folder)
    for opened, names in (
        (folders[:1], ["seed-0"]),
        (folders[:3], ["1/a/seed-0", "1/b/seed-0", "2/b/seed-0"]),
        ([folders[0], folders[3]], ["a/seed-0", "c/seed-1"]),
    ):
        assert [subject.name for subject in open_subjects(opened)] == names
