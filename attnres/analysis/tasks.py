"""What is asked of a model of bytes: windows of tokens, the places where it is asked, and among what it chooses.

    asked = tasks(windows)              # held-out bytes, int64 [windows, time + 1]
    shares_right(model, asked)          # for each task the share of right answers

A model that is asked at place t sees tokens 0 .. t and is to say token t + 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attnres.model import Transformer

Bytes = Sequence[int]

BRACKETS = {ord(left): ord(right) for left, right in ("()", "[]", "{}")}
NEWLINE, SPACE = ord("\n"), ord(" ")
BYTES = 256
BATCH = 16
"""Windows at a time."""
NAME = re.compile(rb"[A-Za-z_]\w{3,}")
SURE = 2
"""How many bytes of a name, or of a text that comes again, a model has seen before it is asked for the next."""


@dataclass(frozen=True)
class Task:
    """Questions of one kind."""

    name: str
    what: str
    windows: np.ndarray
    """Tokens, int64 [windows, time + 1]."""
    asked: np.ndarray
    """bool [windows, time]: whether token t + 1 is asked for at place t."""
    classes: np.ndarray
    """int64 [256]: bytes of one class count as one answer, that with most probability; -1: no answer at all."""


def tasks(text: np.ndarray, seed: int = 0) -> list[Task]:
    """Every task on held-out windows, int64 [windows, time + 1] of an odd width."""
    each = np.arange(256)
    closing = np.full(256, -1)
    closing[list(BRACKETS.values())] = range(len(BRACKETS))
    blank = np.where(each == SPACE, 0, 1)
    twice, drawn = (np.concatenate([half, half], 1) for half in (_half(text), _random_like(text, seed)))
    return [
        Task("next byte", "the next byte", text, np.ones(text[:, 1:].shape, bool), each),
        Task("brackets", "which bracket closes", text, _every(text, closes), closing),
        Task("indentation", "whether a line's indentation goes on", text, _every(text, indents), blank),
        Task("names", "a name last seen half a window ago", text, _every(text, recalls), each),
        Task("copying", "held-out text that comes again", twice, _second_half(twice), each),
        Task("induction", "random letters that come again", drawn, _second_half(drawn), each),
    ]


def closes(window: Bytes) -> list[int]:
    """Where a bracket closes the innermost one that the window has opened."""
    found, still_open = [], []
    for at, byte in enumerate(window):
        if byte in BRACKETS:
            still_open.append(BRACKETS[byte])
        elif byte in BRACKETS.values() and still_open:
            if still_open.pop() == byte:
                found.append(at)
            else:  # in a string or a comment: nothing before it tells what is open
                still_open.clear()
    return found


def indents(window: Bytes) -> list[int]:
    """The bytes of every line of the window up to the first that is no space, but for empty lines."""
    found, indenting = [], False
    for at, byte in enumerate(window):
        if indenting and byte != NEWLINE:
            found.append(at)
        indenting = byte == NEWLINE or (indenting and byte == SPACE)
    return found


def recalls(window: Bytes) -> list[int]:
    """The bytes, from the third on, of names that the window last had at least half of its width before."""
    found: list[int] = []
    last: dict[bytes, int] = {}
    for match in NAME.finditer(bytes(window)):
        name, start = match.group(), match.start()
        if name in last and start - last[name] >= len(window) // 2:
            found += range(start + SURE, match.end())
        last[name] = start
    return found


def _every(windows: np.ndarray, places: Callable[[Bytes], list[int]]) -> np.ndarray:
    """Ask for the tokens at those places of each window; the first one has nothing before it."""
    asked = np.zeros(windows.shape, bool)
    for row, window in zip(asked, windows, strict=True):
        row[places(window.tolist())] = True
    return asked[:, 1:]


def _half(windows: np.ndarray) -> np.ndarray:
    return windows[:, : windows.shape[1] // 2]


def _random_like(windows: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(ord("a"), ord("z") + 1, _half(windows).shape)


def _second_half(windows: np.ndarray) -> np.ndarray:
    asked = np.zeros(windows.shape, bool)
    asked[:, windows.shape[1] // 2 + SURE :] = True
    return asked[:, 1:]


@torch.no_grad()
def shares_right(model: Transformer, asked: Sequence[Task]) -> tuple[float, ...]:
    """For each task the share of places at which the most probable answer is the right one."""
    right = dict.fromkeys((task.name for task in asked), 0)
    for windows in {id(task.windows): task.windows for task in asked}.values():  # one pass for all that is asked there
        for first in range(0, len(windows), BATCH):
            tokens = torch.from_numpy(windows[first : first + BATCH])
            probabilities = model(tokens[:, :-1]).softmax(-1)[..., :BYTES]  # a vocabulary may have room for more
            for task in asked:
                if task.windows is windows:
                    places = torch.from_numpy(task.asked[first : first + BATCH])
                    right[task.name] += _right(probabilities[places], tokens[:, 1:][places], task)
    return tuple(right[task.name] / int(task.asked.sum()) for task in asked)


def _right(probabilities: torch.Tensor, targets: torch.Tensor, task: Task) -> int:
    """How many are right, of probabilities [place, 256] and targets [place]."""
    classes = torch.from_numpy(task.classes)
    answers = torch.nn.functional.one_hot(classes + 1)[:, 1:].float()  # [byte, answer]; no answer, no column
    return int(((probabilities @ answers).argmax(-1) == classes[targets]).sum())


def commonest(task: Task) -> float:
    """How often the commonest answer would be right."""
    return float(np.bincount(task.classes[task.windows[:, 1:][task.asked]]).max() / task.asked.sum())
