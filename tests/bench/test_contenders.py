"""Whom `attnres bench` gives a speed: only what is right, and whatever else fails stops no other."""

from __future__ import annotations

import pytest

from attnres.bench import operator, readers
from attnres.bench.measure import Setting, take_turns

SETTING = Setting(rounds=1)
SMALL = operator.OperatorShape(2, 4, 16, 3)


def test_contenders_take_turns():
    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = take_turns(contenders, 3, lambda _: None, "")
    assert set(seconds) == {"a", "b"} and {len(taken) for taken in seconds.values()} == {3}
    assert order == list("ab") * 5


def test_the_operator_is_held_against_all_that_run_here():
    first, *others = operator.measure(SETTING)
    contenders = {"attnres", "stacked", "compiled reference", "compiled stacked", "fla-core"}
    assert {name.removesuffix(", ms") for name in first.details if name.endswith(", ms")} >= contenders
    assert all(row.ratio is not None and row.ratio > 0 for row in (first, *others))
    for name in ("flash-attn-res", "liger-kernel"):
        assert "not measured" in str(first.details[name]), "a package that cannot run says why"


def test_what_does_not_compile_is_left_out_of_every_row(monkeypatch):
    failing = readers.plain() | {"compiled reference": lambda *_: 1 / 0}
    monkeypatch.setattr(readers, "plain", lambda: failing)
    timed = []

    def in_processes_of_their_own(names, *_):
        timed.extend(names)
        return dict.fromkeys(names, 1.0)

    monkeypatch.setattr(operator, "in_processes_of_their_own", in_processes_of_their_own)
    stacked, *compiled, _ = operator.measure(SETTING)
    assert stacked.ratio == 1 and [row.ratio for row in compiled] == [None]
    assert "compiled reference" not in timed, "its process would fail"
    assert "ZeroDivisionError" in str(stacked.details["compiled reference"])


def test_a_wrong_contender_gets_no_speed():
    wrong = {
        "attnres": lambda *x: 0.999 * readers.ours(*x),  # output
        "detached": lambda sources, query, gain: readers.stacked(sources, query, gain.detach() + 0 * gain),  # gradient
        "raises": lambda *_: 1 / 0,
        "stacked": readers.stacked,
    }
    result = operator.compare(SMALL, wrong, SETTING, {})
    assert set(result.seconds) == {"stacked"}
    assert result.errors["attnres"] == pytest.approx(1e-3, rel=0.1) and result.errors["detached"] > 0.1
    assert result.missing["raises"].startswith("ZeroDivisionError")
    assert result.over("stacked") is None and result.over_the_next() is None
