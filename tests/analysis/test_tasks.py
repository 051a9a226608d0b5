"""What is asked of models of bytes: the questions and the answers of a model, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnres import Transformer, TransformerConfig
from attnres.analysis.tasks import Task, closes, commonest, indents, recalls, shares_right, tasks


def places(text: str, marks: str) -> list[int]:
    """Where the second line has a mark under the first one."""
    assert len(text) == len(marks)
    return [at for at, mark in enumerate(marks) if mark == "^"]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("f(a[1], {2: b})", "     ^       ^^"),
        (") f(x)", "     ^"),
        ("f(']', x) (y)", "            ^"),  # in the string nothing tells what is open, and what was is forgotten
        ("((]))", "     "),
        ("f(", "  "),
    ],
)
def test_brackets_that_close_what_is_open(text, marks):
    assert closes(text.encode()) == places(text, marks)


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("  a\n    b c\nd\n", "    ^^^^^   ^ "),  # of the first line it is not known where it began
        ("a\n\n  \nb", "   ^^ ^"),
        ("a  b", "    "),
    ],
)
def test_indentation_goes_on_or_ends(text, marks):
    assert indents(text.encode()) == places(text, marks)


def test_names_that_were_long_ago():
    text = "value = other + ab # ....  other + value"
    marks = "                             ^^^     ^^^"
    assert recalls(text.encode()) == [at for at in places(text, marks) if at >= 35], "other was 19 before, not 20"
    assert recalls(b"value = value + 1 + 2") == [], "a name just said is no memory"


def test_every_task_asks_at_the_place_before_the_answer():
    window = np.frombuffer(b"x = [1]\n  y = 2\n" + b"a" * 17, dtype=np.uint8).astype(np.int64)[None]
    by_name = {task.name: task for task in tasks(window)}
    assert by_name["next byte"].asked.all()
    (at,) = np.flatnonzero(by_name["brackets"].asked[0])
    assert chr(window[0, at + 1]) == "]"
    asked = window[0, 1:][by_name["indentation"].asked[0]]
    assert bytes(asked.tolist()) == b"  ya"
    for name in ("copying", "induction"):
        windows, half = by_name[name].windows, window.shape[1] // 2
        assert (windows[:, :half] == windows[:, half:]).all()
        assert np.flatnonzero(by_name[name].asked[0]).tolist() == list(range(half + 1, 2 * half - 1))
    assert (by_name["copying"].windows[:, :16] == window[:, :16]).all()
    assert set(bytes(by_name["induction"].windows[0].tolist())) <= set(b"abcdefghijklmnopqrstuvwxyz")


class Says(nn.Module):
    """A model that knows the probabilities of the next byte whatever came before."""

    def __init__(self, **probabilities: float) -> None:
        super().__init__()
        self.logits = torch.full((256,), -30.0)
        for byte, probability in probabilities.items():
            self.logits[ord(byte)] = torch.tensor(probability).log()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits.expand(*tokens.shape, 256)


def test_answers_are_of_classes_and_each_place_counts_once():
    windows = np.frombuffer(b"abac" * 20 + b"a", dtype=np.uint8).astype(np.int64).reshape(27, 3)
    everywhere, each, targets = np.ones((27, 2), bool), np.arange(256), windows[:, 1:]
    together, choice = np.where(np.isin(each, [ord("b"), ord("c")]), 0, 1), np.full(256, -1)
    choice[[ord("b"), ord("c")]] = 0, 1
    a, c = targets == ord("a"), targets == ord("c")
    asked = [
        Task("each", "", windows, everywhere, each),
        Task("b and c are one answer", "", windows, everywhere, together),
        Task("a is no answer", "", windows, ~a, choice),
        Task("other windows", "", windows[:5], everywhere[:5], each),
    ]
    model = Says(a=0.4, b=0.29, c=0.31)
    shares = shares_right(model, asked)  # type: ignore[arg-type]
    assert shares == (a.mean(), 1 - a.mean(), c.sum() / (~a).sum(), a[:5].mean())
    assert commonest(asked[2]) == pytest.approx(max(shares[2], 1 - shares[2]))


def test_a_vocabulary_may_have_room_for_more_than_bytes():
    """Its further ids are no answer, however likely."""
    config = TransformerConfig(dim=16, heads=1, layers=1, context=64, vocab_size=300)
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        model.head.weight[256:] += 10 * model.head.weight[:44]
    text = np.random.default_rng(0).integers(32, 127, (4, 65))
    asked = [task for task in tasks(text) if task.asked.any()]
    assert all(0 <= share <= 1 for share in shares_right(model, asked))
