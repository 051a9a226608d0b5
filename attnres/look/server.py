"""The server of the depth microscope: routes, streams, limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from attnres.errors import UsageError
from attnres.look import answers
from attnres.look import messages as m
from attnres.look.guard import Guard
from attnres.look.page import served
from attnres.look.prepare import Preparation
from attnres.look.subject import RunSubject, Subject
from attnres.look.wire import decode, encode
from attnres.look.work import Steps, WorkItem

WATCH_SECONDS = 0.5
SAMPLE = "def add(a, b):\n    return a + b\n\ndef mul(a, b):\n    return a *"

MODEL_WORK: dict[str, tuple[type[Any], Callable[[Subject, Any, WorkItem], Steps]]] = {
    "look": (m.Look, answers.look),
    "explain": (m.Explain, answers.explanation),
    "remove": (m.Remove, answers.remove),
    "continue": (m.Continue, answers.go_on),
}


class Microscope:
    """What the routes share: the models, and what has to be trained before there are any."""

    def __init__(self, subjects: Sequence[Subject], preparation: Preparation | None = None) -> None:
        self.subjects = list(subjects)
        self.preparation = preparation
        self.closing = asyncio.Event()
        """Set when the server ends, so that open streams end before it."""

    def session(self) -> m.Session:
        models = tuple(subject.describe() for subject in self.subjects)
        return m.Session(
            models=models,
            text=SAMPLE[: min((model.context for model in models), default=None)],
            max_characters=answers.MAX_CHARACTERS,
            max_changes=answers.MAX_CHANGES,
            max_new_tokens=answers.MAX_NEW_TOKENS,
        )

    def subject(self, asked: str) -> Subject:
        for subject in self.subjects:
            if subject.id == asked:
                return subject
        raise UsageError(f"the model {asked[:80]!r} is not open here; reload the page")

    def answer(self, command: str, body: bytes) -> AsyncIterator[m.Message]:
        """What a command answers. Raises UsageError on a request that is none."""
        if command == "prepare":
            return self._prepare()
        if command == "watch":
            return self._watch(self.subject(decode(m.Watch, body).model))
        cls, work = MODEL_WORK[command]
        request = decode(cls, body)
        subject = self.subject(request.view.model)
        return subject.worker.run(lambda piece: work(subject, request, piece))

    async def _prepare(self) -> AsyncIterator[m.Message]:
        if self.preparation is not None and not self.subjects:
            async for progress in self.preparation.follow():
                yield progress
            self.subjects = self.subjects or list(self.preparation.subjects)
        yield self.session()

    async def _watch(self, subject: Subject) -> AsyncIterator[m.Message]:
        if not isinstance(subject, RunSubject):
            raise UsageError(f"{subject.name} is no run of the lab; there is no training to watch")
        told: m.Curve | None = None
        steps: tuple[int, ...] | None = None
        while True:
            curve, now = await asyncio.to_thread(lambda: (subject.curve(), subject.steps))
            if curve != told:
                yield curve
            if steps is not None and now != steps:
                yield await asyncio.to_thread(self.session)
            told, steps = curve, now
            if not curve.running:
                return
            await asyncio.sleep(WATCH_SECONDS)


class MessageLines(Response):
    """Messages as they come, one line each; the work is stopped when the page is gone."""

    def __init__(self, messages: AsyncIterator[m.Message], closing: asyncio.Event) -> None:
        super().__init__(media_type="application/x-ndjson")
        self._messages = messages
        self._closing = closing

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        tasks = [asyncio.create_task(task) for task in (self._write(send), _left(receive), self._closing.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await task
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Any) -> None:
        async with contextlib.aclosing(self._messages) as messages:  # type: ignore[type-var]
            try:
                async for message in messages:
                    await send({"type": "http.response.body", "body": encode(message), "more_body": True})
            except UsageError as error:
                await send({"type": "http.response.body", "body": encode(m.Failure(str(error))), "more_body": True})


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def make_app(microscope: Microscope, host: str, token: str) -> Guard:
    """The whole application, behind its guard."""

    async def page(request: Request) -> Response:
        return _file("")

    async def page_file(request: Request) -> Response:
        return _file(request.path_params["name"])

    async def session(request: Request) -> Response:
        told = await asyncio.to_thread(microscope.session)
        return Response(encode(told), media_type="application/json")

    async def command(request: Request) -> Response:
        name = request.path_params["command"]
        if name not in (*MODEL_WORK, "watch", "prepare"):
            return _failure(404, f"there is no command {name[:40]!r}")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _failure(415, "a request is JSON")
        try:
            return MessageLines(microscope.answer(name, await request.body()), microscope.closing)
        except UsageError as error:
            return _failure(400, str(error))
        except ClientDisconnect:
            return Response(status_code=400)  # which nobody reads

    routes = [
        Route("/", page),
        Route("/page/{name}", page_file),
        Route("/api/session", session),
        Route("/api/{command}", command, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), host, token)


def _failure(status: int, message: str) -> Response:
    return Response(encode(m.Failure(message)), status, media_type="application/json")


def _file(name: str) -> Response:
    """One of the page's own files: a name is looked up among those there are, and no path is made of it."""
    known = served()
    if name not in known:
        return _failure(404, "there is no such file")
    media_type, text = known[name]
    return Response(text, media_type=media_type)


def listen(host: str, port: int) -> socket.socket:
    """Take the port, any free one for 0. Raises UsageError where it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"cannot listen on {host} port {port} ({error.strerror or error}); choose another") from None


def make_server(microscope: Microscope, host: str, token: str) -> Server:
    """The server behind the guard, yet to be run."""
    config = uvicorn.Config(
        make_app(microscope, host, token),
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return Server(config, microscope.closing)


class Server(uvicorn.Server):
    """One that ends open streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)
