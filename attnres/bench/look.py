"""How long the depth microscope takes to answer: a first picture, and one after a change.

What is measured is the server's part, from the request to the line that is sent: the model, its depth, the message.
Ratios are of the time that a person may be let wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from attnres.analysis import Change
from attnres.analysis.interventions import connection_in
from attnres.bench.hf import llama
from attnres.bench.measure import Row, Setting, milliseconds, take_turns
from attnres.bench.step import build_model
from attnres.data.tokenizer import ByteTokenizer
from attnres.look import answers, messages
from attnres.look.subject import Subject, shape_of
from attnres.look.wire import encode
from attnres.look.work import Piece

PICTURE_SECONDS, CHANGE_SECONDS, LARGE_SECONDS = 1.0, 0.3, 5.0

VOCABULARY = 32_000


@dataclass(frozen=True)
class Sizes:
    """The lab's model, the transformers model and the text."""

    dim: int
    layers: int
    large_dim: int
    large_layers: int
    tokens: int


FULL, QUICK = Sizes(64, 16, 768, 12, 256), Sizes(64, 1, 64, 2, 8)


def measure(setting: Setting) -> list[Row]:
    sizes = QUICK if setting.quick else FULL
    small = Ready(build_model("block", sizes.dim, sizes.layers).eval())
    rows = []
    what = f"a picture of {sizes.tokens} tokens, d {sizes.dim}, {sizes.layers} layers, over {PICTURE_SECONDS:g} s"
    rows.append(_row(what, picture(small, sizes.tokens), PICTURE_SECONDS, setting))
    what = f"the same after a change, over {CHANGE_SECONDS:g} s"
    rows.append(_row(what, changed(small, sizes.tokens), CHANGE_SECONDS, setting))
    import attnres.hf

    model = attnres.hf.attach(llama(sizes.large_dim, sizes.large_layers, VOCABULARY), "block").eval()
    size = f"d {sizes.large_dim}, {sizes.large_layers} layers"
    what = f"a picture of {sizes.tokens} tokens, transformers' llama, {size}, over {LARGE_SECONDS:g} s"
    rows.append(_row(what, picture(Ready(model), sizes.tokens), LARGE_SECONDS, setting))
    return rows


def _row(what: str, run: Callable[[], object], budget: float, setting: Setting) -> Row:
    medians = take_turns({"answer": run}, setting.rounds, setting.progress, what.partition(",")[0])
    return Row(what, setting.where, "1.00x", "0.50x", medians["answer"] / budget, milliseconds(medians))


def picture(subject: Subject, tokens: int) -> Callable[[], None]:
    """Answer with a picture of a text that was not seen before."""
    texts = (f"{number:06}{'x' * tokens}"[:tokens] for number in count())
    return lambda: _answer(subject, messages.View(subject.id, next(texts)))


def changed(subject: Subject, tokens: int) -> Callable[[], None]:
    """Answer with a picture of one text under a change that was not made before."""
    text, weights = "x" * tokens, count(1)

    def answer() -> None:
        change = messages.Change("pin", source=0, value=1 / next(weights))
        _answer(subject, messages.View(subject.id, text, changes=(change,)))

    return answer


def _answer(subject: Subject, view: messages.View) -> None:
    for message in answers.look(subject, messages.Look(view), Piece(lambda _: None)):
        if message is not None:
            encode(message)


class Ready(Subject):
    """A model that nobody trained, read byte by byte."""

    def __init__(self, model: Any) -> None:
        super().__init__(Path("bench"), "bench", ByteTokenizer())
        self._model = model
        shape = shape_of(connection_in(model))
        rest: dict[str, Any] = {"tokens": self.tokens, "steps": (0,), "training": False, "colour": None}
        self._told = messages.Model(self.id, "bench", "", "", "run", **shape, context=256, vocabulary=256, **rest)

    @property
    def context(self) -> int:
        return 256

    def describe(self) -> messages.Model:
        return self._told

    def step(self, asked: int | None) -> int:
        return 0

    def model(self, step: int) -> torch.nn.Module:
        return self._model

    def python(self, text: str, step: int | None, changes: Sequence[Change]) -> str:
        return ""
