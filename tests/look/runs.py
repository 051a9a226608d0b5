"""Runs small enough to be trained in a test, and what talks to a microscope as its page does."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnres.data.dataconfig import DataConfig
from attnres.look.server import Microscope, Server, listen
from attnres.look.subject import Subject
from attnres.model import TransformerConfig
from attnres.train import RunConfig, train

TEXT = "the quick brown fox jumps over the lazy dog; depth is what we mix. "
TOKEN = "a-token-of-the-tests"


def small_config(folder: Path, connection: str, layers: int = 2, **fields: Any) -> RunConfig:
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number in range(10):
        (corpus / f"{number}.txt").write_text(f"{number} {TEXT * 8}", encoding="utf-8")
    return RunConfig(
        model=TransformerConfig(dim=16, layers=layers, heads=2, context=96, connection=connection),
        data=DataConfig(paths=(str(corpus),), cache=str(folder / "cache"), validation_fraction=0.2),
        **{"steps": 6, "batch_size": 2, "evaluate_every": 2, "save_every": 2, "validation_tokens": 192, **fields},
    )


def train_small(folder: Path, connection: str, layers: int = 2, **fields: Any) -> Path:
    """Train one run in a moment; its folder."""
    run = folder / connection.partition(":")[0]
    train(small_config(folder, connection, layers, **fields), run)
    return run


@dataclass
class Client:
    """Asks as the page does; a model may be given by its place among those of the session."""

    port: int
    token: str = TOKEN

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = self._with_id(body)
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        usual = {"X-Attnres-Token": self.token, "Content-Type": "application/json", "Connection": "close"}
        connection.request(method, path, sent, {name: v for name, v in {**usual, **headers}.items() if v})
        return connection.getresponse()

    def _with_id(self, body: Any) -> Any:
        if not isinstance(body, dict) or "model" not in body.get("view", body):
            return body
        if "view" in body:
            return {**body, "view": self._with_id(body["view"])}
        models = self.session()["models"] if type(body["model"]) is int else ()
        return {**body, "model": models[body["model"]]["id"]} if body["model"] in range(len(models)) else body

    def ask(self, command: str, **request: Any) -> list[dict[str, Any]]:
        """All the lines that a command answers with."""
        answer = self.open("POST", f"/api/{command}", request)
        return [json.loads(line) for line in answer.read().splitlines()]

    def one(self, command: str, **request: Any) -> dict[str, Any]:
        """The one line that is no progress."""
        (line,) = (line for line in self.ask(command, **request) if line["kind"] != "progress")
        return line

    def session(self) -> dict[str, Any]:
        return json.loads(self.open("GET", "/api/session").read())


@contextmanager
def serving(subjects: Sequence[Subject]) -> Iterator[Client]:
    """A microscope in a thread, on a free port."""
    listening = listen("127.0.0.1", 0)
    server = Server(Microscope(subjects), TOKEN)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield Client(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


def numbers(array: dict[str, Any]) -> np.ndarray:
    """What an Array holds."""
    return np.frombuffer(base64.b64decode(array["float32"]), dtype="<f4").reshape(array["shape"])
