"""The server of the depth microscope."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from attnres.errors import UsageError
from attnres.look import answers
from attnres.look import messages as m
from attnres.look.guard import Guard
from attnres.look.page import served
from attnres.look.subject import Subject
from attnres.look.wire import decode, encode
from attnres.look.work import Steps, WorkItem

SAMPLE = "def add(a, b):\n    return a + b\n\ndef mul(a, b):\n    return a *"

COMMANDS: dict[str, tuple[type[Any], Callable[[Subject, Any, WorkItem], Steps]]] = {
    "look": (m.Look, answers.look),
    "explain": (m.Explain, answers.explanation),
    "remove": (m.Remove, answers.remove),
    "continue": (m.Continue, answers.go_on),
}


class Microscope:
    """The models, and what the page asks about them."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self.subjects = list(subjects)

    def session(self) -> m.Session:
        models = tuple(subject.describe() for subject in self.subjects)
        return m.Session(models, SAMPLE[: min(subject.context for subject in self.subjects)])

    def answer(self, command: str, body: bytes) -> AsyncIterator[m.Message]:
        """What a command answers. Raises UsageError on a request that is none."""
        if command not in COMMANDS:
            raise UsageError(f"there is no command {command[:40]!r}")
        cls, work = COMMANDS[command]
        request = decode(cls, body)
        subject = next((each for each in self.subjects if each.entry.id == request.view.model), None)
        if subject is None:
            raise UsageError(f"the model {request.view.model[:80]!r} is not open here; reload the page")
        return subject.worker.run(lambda piece: work(subject, request, piece))

    def close(self) -> None:
        """End all work, and with it the open streams."""
        for subject in self.subjects:
            subject.worker.closed = True


def make_app(microscope: Microscope, token: str) -> Guard:
    """The whole application, behind its guard."""

    async def session(request: Request) -> Response:
        return _json(await asyncio.to_thread(microscope.session))

    async def command(request: Request) -> Response:
        try:
            messages = microscope.answer(request.path_params["command"], await request.body())
        except UsageError as error:
            return _json(m.Failure(str(error)), 400)
        except ClientDisconnect:
            return Response(status_code=400)  # which nobody reads
        return StreamingResponse(_lines(messages), media_type="application/x-ndjson")

    def file(media_type: str, text: str) -> Callable[[Request], Response]:
        return lambda request: Response(text, media_type=media_type)

    routes = [
        *(Route(path, file(*content)) for path, content in served().items()),
        Route("/api/session", session),
        Route("/api/{command}", command, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token)


def _json(message: m.Failure | m.Session, status: int = 200) -> Response:
    return Response(encode(message), status, media_type="application/json")


async def _lines(messages: AsyncIterator[m.Message]) -> AsyncIterator[bytes]:
    """Messages as they come; the work is stopped when the page is gone."""
    async with contextlib.aclosing(messages):  # type: ignore[type-var]
        async for message in messages:
            yield encode(message)


def listen(host: str, port: int) -> socket.socket:
    """Take the port, any free one for 0. Raises UsageError where it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"cannot listen on {host} port {port} ({error.strerror or error}); choose another") from None


class Server(uvicorn.Server):
    """The server behind the guard, yet to be run. It ends open streams before it waits for them."""

    def __init__(self, microscope: Microscope, token: str) -> None:
        app = make_app(microscope, token)
        quiet = {"log_level": "warning", "server_header": False}
        super().__init__(uvicorn.Config(app, lifespan="off", ws="none", timeout_graceful_shutdown=5, **quiet))
        self._microscope = microscope

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._microscope.close()
        await super().shutdown(sockets)
