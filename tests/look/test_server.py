"""Who is answered, what is too large, and that work ends when nobody waits for it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from attnres import load_run
from attnres.look import answers
from attnres.look.prepare import Preparation
from attnres.look.server import MAX_BODY
from attnres.look.subject import RunSubject, open_subjects
from attnres.look.work import Worker
from attnres.train.sweep import Job
from tests.look.runs import TOKEN, serving, small_config, train_small

VIEW = {"view": {"model": 1, "text": "the brown dog"}}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1.evil.example:{port}"}, 403),
        ({"Host": "192.168.0.1:{port}"}, 403),
        ({"Host": "localhost:8000"}, 200),  # through a tunnel
        ({"Host": "localhost:{port}"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"X-Attnres-Token": "wrong"}, 403),
        ({"X-Attnres-Token": ""}, 403),
        ({"X-Attnres-Token": "é"}, 403),
    ],
)
def test_only_its_own_page_is_answered(client, headers, status):
    headers = {name: value.replace("{port}", str(client.port)) for name, value in headers.items()}
    for method, path, body in (("GET", "/api/session", None), ("POST", "/api/look", VIEW)):
        answer = client.open(method, path, body, **headers)
        told = answer.read()
        assert answer.status == status
        assert (b'"failure"' in told) == (status == 403)


def test_a_refusal_reaches_whoever_sends_the_body_late(client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as stream:
        length = b"Connection: close\r\nContent-Length: 200000\r\n\r\n"
        stream.sendall(b"POST /api/look HTTP/1.1\r\nHost: evil.example\r\n" + length)
        time.sleep(0.3)
        for _ in range(20):
            stream.sendall(b"x" * 10000)
            time.sleep(0.01)
        assert stream.recv(1000).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.168.0.1:80", 200),
        ("[fe80::1]:80", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("1.2.3.4.example", 403),
    ],
)
def test_where_it_listens_everywhere_any_address_is_its_own_and_no_name_is(host, status):
    with serving([], host="0.0.0.0") as everywhere:
        answer = everywhere.open("GET", "/api/session", Host=host)
        assert answer.status == status and answer.read()


def test_a_name_is_its_own_in_small_letters_as_browsers_send_it():
    with serving([], host="MyBox") as named:
        assert named.open("GET", "/api/session", Host="mybox:80").status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/?token={TOKEN}", 200),
        ("/", 403),
        ("/?token=", 403),
        ("/?token=wrong", 403),
        ("/page/look.js", 200),
        ("/page/look.css", 200),
        ("/page/", 404),
        ("/page/app.js", 404),
        ("/page/..%2fserver.py", 404),
        ("/page/../server.py", 404),
        ("/page/%2e%2e/%2e%2e/pyproject.toml", 404),
        ("/page//etc/passwd", 404),
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
    ("command", "body", "status", "says"),
    [
        ("look", b"{", 400, "not JSON"),
        ("look", b"[" * 100_000, 400, "not JSON"),
        ("look", b"[]", 400, "must be an object"),
        ("look", {}, 400, "needs view"),
        ("look", {"view": {"model": 1}}, 400, "needs text"),
        ("look", {"view": {"model": True, "text": ""}}, 400, "model must be a text"),
        ("look", {"view": {"model": "block", "text": ""}}, 400, "the model 'block' is not open here"),
        ("look", {"view": {"model": -1, "text": ""}}, 400, "model must be a text"),
        ("look", {"view": {"model": 1, "text": "", "path": "/etc"}}, 400, "no field 'path'"),
        ("look", {"view": {"model": 1, "text": "", "changes": [{"kind": "exec"}]}}, 400, "kind must be one of"),
        ("look", {"view": {"model": 1, "text": "", "changes": {}}}, 400, "changes must be a list"),
        ("continue", {**VIEW, "temperature": "hot"}, 400, "temperature must be a finite number"),
        ("continue", b'{"view": {"model": "", "text": "a"}, "temperature": NaN}', 400, "must be a finite number"),
        ("shutdown", {}, 404, "no command 'shutdown'"),
        ("look", b'"' + b"x" * MAX_BODY + b'"', 413, "larger than"),
    ],
)
def test_bad_requests_are_refused_in_one_line(client, command, body, status, says):
    answer = client.open("POST", f"/api/{command}", body)
    told = json.loads(answer.read())
    assert answer.status == status and told["kind"] == "failure"
    assert says in told["message"] and "\n" not in told["message"]


FAR = (-1, 2**31, 2**63, 10**400)


@pytest.mark.parametrize("number", FAR)
def test_numbers_out_of_range_are_refused_in_one_line(client, number):
    view = {"model": 1, "text": "a few"}
    changes = [
        {"kind": "mute", "source": number},
        {"kind": "mute", "source": 0, "sites": [number]},
        {"kind": "mute", "source": 0, "tokens": [number]},
    ]
    for command, request in [
        ("look", {"view": {**view, "step": number}}),
        ("look", {"view": {**view, "read": number}}),
        *[("look", {"view": {**view, "changes": [change]}}) for change in changes],
        ("explain", {"view": view, "position": number}),
        ("explain", {"view": view, "position": 0, "target": number}),
        ("remove", {"view": view, "position": number}),
        ("remove", {"view": view, "sites": [number]}),
        ("continue", {"view": view, "count": number}),
        ("watch", {"model": number}),
    ]:
        told = client.one(command, **request)
        assert told["kind"] == "failure" and "terminal" not in told["message"], (command, request, told)
        assert len(told["message"]) < 1000


def test_a_form_of_another_site_is_no_request(client):
    answer = client.open("POST", "/api/look", VIEW, **{"Content-Type": "text/plain"})
    assert answer.status == 415


@pytest.mark.parametrize(
    ("text", "says"),
    [("x" * 97, "97 tokens and block takes 96"), ("x" * 30_000, "30,000 characters; at most 20,000")],
)
def test_a_huge_text_is_refused_in_one_line(client, text, says):
    told = client.one("look", view={"model": 1, "text": text})
    assert told["kind"] == "failure" and says in told["message"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"count": 0}, "1 to 512 new tokens"),
        ({"count": 10_000}, "1 to 512 new tokens"),
        ({"temperature": -1.0}, "temperature is 0 to 100"),
        ({"top_k": 0}, "top_k at least 1"),
        ({"top_k": -1}, "top_k at least 1"),
    ],
)
def test_continuations_out_of_range_are_refused(client, asked, says):
    told = client.one("continue", **VIEW, **asked)
    assert told["kind"] == "failure" and says in told["message"]


def test_a_text_with_half_a_surrogate_pair_is_read(client):
    assert len(client.one("look", view={"model": 1, "text": "a\ud83d b"})["tokens"]) == 4


def slow(monkeypatch) -> list[float]:
    """Let each site take a while; the times at which sites were reached."""
    times: list[float] = []
    inner = answers.trace

    def trace(model, ids, changes, read, on_site):
        def on_slow_site(site: int) -> None:
            time.sleep(0.2)
            times.append(time.monotonic())
            on_site(site)

        return inner(model, ids, changes, read, on_slow_site)

    monkeypatch.setattr(answers, "trace", trace)
    return times


def test_a_closed_tab_stops_its_work(client, monkeypatch):
    times = slow(monkeypatch)
    answer = client.open("POST", "/api/look", {"view": {"model": 1, "text": "a text that nobody read yet"}})
    assert b'"progress"' in answer.readline()
    answer.close()
    closed = time.monotonic()
    time.sleep(1.2)
    assert len([at for at in times if at > closed + 0.5]) == 0, "it went on"
    assert client.one("look", **VIEW)["kind"] == "picture"


def test_a_busy_model_does_not_block_another_and_a_long_answer_lets_a_short_one_in(client, monkeypatch):
    answer = client.open("POST", "/api/remove", {"view": {"model": 1, "text": "a long and busy text"}})
    lines = [answer.readline()]
    short = client.one("look", view={"model": 1, "text": "short"})
    assert short["kind"] == "picture" and len(lines) == 1
    assert len(answer.read().splitlines()) == 4
    slow(monkeypatch)
    began = time.monotonic()
    busy = client.open("POST", "/api/look", {"view": {"model": 0, "text": "this one takes a second"}})
    monkeypatch.undo()
    assert client.one("look", view={"model": 1, "text": "on the other model"})["kind"] == "picture"
    other = time.monotonic() - began
    busy.read()
    assert other < time.monotonic() - began


def test_a_failure_inside_is_told_and_the_next_question_answered(client, monkeypatch):
    monkeypatch.setattr(answers, "likeliest", lambda *_: 1 / 0)
    told = client.one("look", view={"model": 1, "text": "what fails"})
    assert told == {"kind": "failure", "message": "it failed (ZeroDivisionError); the terminal says more"}
    monkeypatch.undo()
    assert client.one("look", view={"model": 1, "text": "what fails"})["kind"] == "picture"


def test_pieces_of_work_take_turns():
    import asyncio

    order: list[str] = []

    def work(name: str):
        for number in range(3):
            order.append(name)
            time.sleep(0.05)
            yield number

    async def both() -> list[list[int]]:
        worker = Worker("of a test")

        async def all_of(name: str) -> list[int]:
            return [message async for message in worker.run(lambda _: work(name))]

        return list(await asyncio.gather(all_of("a"), all_of("b")))

    assert asyncio.run(both()) == [[0, 1, 2]] * 2
    assert order == ["a", "b"] * 3


def test_a_run_that_trains_is_watched(tmp_path):
    """Loss and checkpoints while the run goes, from its first step, when there is no checkpoint yet, to its end."""
    run = train_small(tmp_path, "block", steps=8)
    metrics, done = run / "metrics.jsonl", {}
    records = metrics.read_text().splitlines(keepends=True)
    for path in (run / "summary.json", *(run / "checkpoints").iterdir()):  # back to its beginning
        done[path] = path.with_name(f"aside-{path.name}").name
        path.rename(run / done[path])
    metrics.write_text("".join(records[:3]))
    subject = RunSubject(run, "block")
    with serving([subject]) as client:
        (model,) = client.session()["models"]
        assert model["training"] and model["steps"] == []
        assert "no checkpoint yet" in client.one("look", view={"model": 0, "text": "the"})["message"]
        answer = client.open("POST", "/api/watch", {"model": 0})
        first = json.loads(answer.readline())
        assert first["kind"] == "curve" and first["running"] and len(first["steps"]) < 8 == first["total_steps"]
        for path, aside in done.items():
            (run / aside).rename(path)
        metrics.write_text("".join(records))
        rest = [json.loads(line) for line in answer.read().splitlines()]
    assert rest[0]["kind"] == "curve" and len(rest[0]["steps"]) == 8 and not rest[-1].get("running", False)
    assert next(line for line in rest if line["kind"] == "session")["models"][0]["steps"] == [6, 8]


def test_the_newest_checkpoint_is_asked_for_again_where_the_run_has_deleted_it(tmp_path, monkeypatch):
    run, question = train_small(tmp_path, "block", steps=8), {"text": "the brown dog"}
    older, newer = sorted((run / "checkpoints").iterdir())
    newer = newer.rename(tmp_path / newer.name)

    def load(*arguments, **options):
        if newer.exists():  # the run goes on between the choice and the reading
            newer.rename(run / "checkpoints" / newer.name)
            shutil.rmtree(older)
        return load_run(*arguments, **options)

    monkeypatch.setattr("attnres.look.subject.load_run", load)
    with serving([RunSubject(run, "block")]) as client:
        assert client.one("look", view={"model": 0, **question})["step"] == 8
        assert "no checkpoint of step 6" in client.one("look", view={"model": 0, "step": 6, **question})["message"]


def test_a_run_that_is_replaced_is_not_mixed_with_what_was_opened(tmp_path):
    run, question = train_small(tmp_path, "block"), {"view": {"model": 0, "text": "the brown dog"}}
    with serving([RunSubject(run, "block")]) as client:
        assert client.one("look", **question)["kind"] == "picture"
        for happened in ("is gone", "was replaced by another"):
            shutil.rmtree(run, ignore_errors=True)
            if happened != "is gone":
                train_small(tmp_path, "block", seed=1)
            says = f"{run}: the run that was opened {happened}; start attnres look again"
            for command, request in (("look", question), ("watch", {"model": 0})):
                assert client.one(command, **request) == {"kind": "failure", "message": says}
            (model,) = client.session()["models"]
            assert (model["description"], model["steps"], model["training"]) == (says, [], False)


def test_other_weights_of_the_same_step_are_read(tmp_path):
    """As when a run goes on to more steps, whose last ones before have other learning rates then."""
    run, question = train_small(tmp_path, "block"), {"view": {"model": 0, "text": "the brown dog"}}
    with serving([RunSubject(run, "block")]) as client:
        before = client.one("look", **question)["loss"]
        shutil.rmtree(run)
        train_small(tmp_path, "block", steps=12, keep=9)
        view = {**question["view"], "step": 6}
        trained, now = load_run(run, step=6), client.one("look", view=view)["loss"]
        with torch.no_grad():
            tokens = torch.tensor([trained.tokenizer.encode(view["text"])])
            losses = F.cross_entropy(trained.model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
        assert now[1:] == pytest.approx(losses.tolist(), rel=1e-5) and now != before
        assert client.ask("watch", model=0)[0]["total_steps"] == 12


def test_with_nothing_given_a_pair_is_trained_first(tmp_path):
    jobs = [Job(name, small_config(tmp_path, name), tmp_path / name) for name in ("residual", "block")]
    preparation = Preparation(jobs)
    with serving([], preparation) as client:
        assert client.session()["models"] == []
        lines = client.ask("prepare")
        assert [model["name"] for model in lines[-1]["models"]] == ["residual", "block"]
        assert lines[0]["kind"] == "progress" and lines[0]["total"] == 12
        assert client.one("look", **VIEW)["kind"] == "picture"
        assert len(client.ask("prepare")) == 1
    preparation.stop()


def test_a_pair_that_another_process_was_training_is_tried_again(tmp_path):
    jobs = [Job("residual", small_config(tmp_path, "residual"), tmp_path / "residual")]
    preparation = Preparation(jobs)
    jobs[0].folder.mkdir()
    (jobs[0].folder / "notes.txt").write_text("in the way")
    with serving([], preparation) as client:
        assert "holds files and no run" in client.ask("prepare")[-1]["message"]
        (jobs[0].folder / "notes.txt").unlink()
        assert [model["name"] for model in client.ask("prepare")[-1]["models"]] == ["residual"]
    preparation.stop()


def start(*arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
    """`attnres look` as a user starts it, and its address."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in a terminal: it would inherit that of nohup pytest
    process = subprocess.Popen(
        [sys.executable, "-m", "attnres", "look", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    return process, process.stdout.readline()


def test_the_command_prints_an_address_and_ends_with_ctrl_c(runs):
    process, line = start(*runs[:2], "--no-browser")
    found = re.fullmatch(r"Depth microscope: http://127\.0\.0\.1:(\d+)/\?token=([\w-]{20,})\n", line)
    assert found, line + process.stderr.read()  # type: ignore[union-attr]
    from tests.look.runs import Client

    client = Client(int(found[1]), found[2])
    assert [model["name"] for model in client.session()["models"]] == ["residual", "block"]
    reading = client.open("POST", "/api/continue", {**VIEW, "count": 80})
    assert reading.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    reading.close()
    with pytest.raises(OSError):
        client.session()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_of_an_answer_ends_it(runs, number):
    process, line = start(runs[0], "--no-browser")
    port, token = re.findall(r":(\d+)/\?token=([\w-]+)", line)[0]
    from tests.look.runs import Client

    reading = Client(int(port), token).open("POST", "/api/continue", {**VIEW, "count": 80})
    assert reading.readline()
    process.send_signal(number)
    assert reading.read() is not None, "the stream has its end"
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_client_that_goes_in_the_middle_of_a_request_is_no_error(runs):
    process, line = start(runs[0], "--no-browser")
    port, token = re.findall(r":(\d+)/\?token=([\w-]+)", line)[0]
    from tests.look.runs import Client

    for _ in range(2):
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            head = f"POST /api/look HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Attnres-Token: {token}\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{}}".encode())
            time.sleep(0.3)
    assert Client(int(port), token).session()["models"]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")


def test_bad_arguments_are_said_in_one_line(runs, client, tmp_path, capsys, monkeypatch):
    from attnres.cli import main

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    for arguments, says in [
        ([str(tmp_path)], "not a run folder"),
        ([str(runs[0]), f"{runs[0]}/../{runs[0].name}"], f"{runs[0].name} is given twice; give each run or model once"),
        ([str(tmp_path / "model")], "there is no tokenizer.json"),
        ([str(runs[0]), "--port", "99999"], "--port must be 0 to 65535"),
        ([str(runs[0]), "--token", "short"], "--token must be 16"),
        ([str(runs[0]), "--host", "256.0.0.1"], "cannot listen on 256.0.0.1"),
        ([str(runs[0]), "--port", str(client.port)], f"port {client.port} (Address already in use)"),
    ]:
        assert main(["look", *arguments, "--no-browser"]) == 2
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "uvicorn" else find(name, *rest)
    )
    assert main(["look", str(runs[0])]) == 2
    assert "look needs uvicorn" in capsys.readouterr().err


def test_two_runs_of_one_name_are_told_apart(tmp_path, runs):
    folders = [tmp_path / name for name in ("1/a/seed-0", "1/b/seed-0", "2/b/seed-0", "1/c/seed-1")]
    for folder in folders:
        shutil.copytree(runs[0], folder)
    for opened, names in (
        (folders[:1], ["seed-0"]),
        (folders[:2], ["a/seed-0", "b/seed-0"]),
        (folders[:3], ["1/a/seed-0", "1/b/seed-0", "2/b/seed-0"]),
        ([folders[0], folders[3]], ["a/seed-0", "c/seed-1"]),
    ):
        assert [subject.name for subject in open_subjects(opened)] == names
