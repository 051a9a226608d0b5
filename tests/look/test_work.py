"""Work takes turns on a model's thread, ends when nobody waits for it, and holds up no other model."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from attnres.look import answers, work
from attnres.look.work import Worker

LIMIT = 60
"""Seconds after which a test that hangs is ended."""


class Gate:
    """Holds up the traces of one text at every site of depth, until it is opened."""

    def __init__(self, monkeypatch, text: str) -> None:
        self.text, self.sublayers = text, 0
        self.reached, self.opened = threading.Event(), threading.Event()
        self.pieces: list[work.WorkItem] = []
        inner, gate = answers.trace, self

        class WorkItem(work.WorkItem):
            def __init__(self, worker) -> None:
                super().__init__(worker)
                gate.pieces.append(self)

        def trace(model, ids, changes, read, on_site):
            def held(site: int) -> None:
                on_site(site)
                if len(ids) == len(text):
                    gate.sublayers += 1
                    gate.reached.set()
                    assert gate.opened.wait(LIMIT)

            return inner(model, ids, changes, read, held)

        monkeypatch.setattr(answers, "trace", trace)
        monkeypatch.setattr(work, "WorkItem", WorkItem)


@pytest.fixture
def gate(monkeypatch):
    made = Gate(monkeypatch, "a text that nobody read yet")
    yield made
    made.opened.set()


def test_a_closed_tab_stops_its_work(client, gate):
    answer = client.open("POST", "/api/look", {"view": {"model": 1, "text": gate.text}})
    assert gate.reached.wait(LIMIT)
    answer.close()
    ended = time.monotonic() + LIMIT
    while not gate.pieces[0].stopped and time.monotonic() < ended:
        time.sleep(0.01)
    gate.opened.set()
    assert client.one("look", view={"model": 1, "text": "the brown dog"})["kind"] == "picture"
    assert gate.sublayers == 1, "it went on"


def test_how_far_a_long_trace_is_is_said_on_the_way(client, gate):
    answer = client.open("POST", "/api/look", {"view": {"model": 1, "text": gate.text}})
    assert json.loads(answer.readline()) == {"kind": "progress", "what": "sublayers", "done": 0, "total": 5}
    gate.opened.set()
    assert json.loads(answer.read().splitlines()[-1])["kind"] == "picture"


def test_pieces_of_work_take_turns():
    """A long answer lets a short one in."""
    order: list[str] = []

    def steps(name: str):
        for number in range(3):
            order.append(name)
            yield number

    async def together() -> list[list[int]]:
        worker = Worker("of a test")

        async def all_of(name: str) -> list[int]:
            return [message async for message in worker.run(lambda _: steps(name))]  # type: ignore[misc]

        return list(await asyncio.gather(all_of("a"), all_of("b")))

    assert asyncio.run(together()) == [[0, 1, 2]] * 2
    assert order == ["a", "b"] * 3
