"""Whom `attnres bench` gives a speed: only what is right, and whatever else fails stops no other."""

from __future__ import annotations

import pytest
import torch

from attnres.bench import operator, readers, stack
from attnres.bench.measure import Setting, take_turns

SETTING = Setting(rounds=1, quick=True)
SMALL = operator.OperatorShape(2, 4, 16, 3)


def test_contenders_take_turns():
    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = take_turns(contenders, 3, lambda _: None, "")
    assert set(seconds) == {"a", "b"} and {len(taken) for taken in seconds.values()} == {3}
    assert order == list("ab") * 5


def test_the_operator_is_held_against_all_that_run_here(in_this_process):
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


@pytest.mark.parametrize(("kind", "dtype"), [("identity", torch.float32), ("SwiGLU", torch.bfloat16)])
def test_whole_stacks_agree(kind, dtype):
    result = stack.compare(stack.StackShape(kind, 5, 64, 2, 4, 2, dtype), SETTING)
    assert set(result.seconds) == {"attnres", "stacked", "compiled reference", "compiled stacked", "fla-core"}
    assert all(error < stack.TOLERANCE[dtype] for error in result.errors.values())
    assert "flash-attn-res" in result.missing


def test_a_wrong_stack_is_found(monkeypatch):
    def cumulative(x, model):  # spec.md 13, trap 3: the partial is never begun anew
        values, partial = (x,), 0
        for site, sublayer in enumerate(model.sublayers):
            read = readers.stacked(values, model.connection.query[site], model.connection.gain[site])
            partial = partial + sublayer(read)
            values = (*values[: 1 + -(-site // 2)], partial)
        return readers.stacked(values, model.connection.query[-1], model.connection.gain[-1])

    monkeypatch.setattr(stack, "ours", cumulative)
    result = stack.compare(stack.StackShape("identity", 5, 64, 2, 4, 2, torch.float32), SETTING)
    assert "attnres" in result.errors and "attnres" not in result.seconds


def test_a_step_of_a_stack_begins_without_gradients():
    """What it adds to the memory that is taken already is then with them."""
    model, x, grad = stack.make_inputs(stack.StackShape("SwiGLU", 3, 16, 2, 4, 2, torch.float32))
    stack._forward_backward(stack.ours, model, x, grad)()
    assert all(leaf.grad is None for leaf in (x, *model.parameters()))


def test_a_stack_that_does_not_run_at_its_size_or_in_no_graph_stops_no_other(monkeypatch):
    stacks = dict.fromkeys(("attnres", "large", "eager", "greedy"), stack.ours)
    monkeypatch.setattr(stack, "contenders", lambda _: (stacks, {}))

    def raising(*errors):
        outcomes = iter(errors)

        def step(run, *_):
            if error := next(outcomes):
                raise error
            return run

        return step

    monkeypatch.setattr(stack, "peak_bytes", raising(None, RuntimeError("too large"), None, None))
    uncaptured = None, RuntimeError("a copy to the host"), torch.OutOfMemoryError()
    monkeypatch.setattr(stack, "captured", raising(*uncaptured))
    result = stack.compare(stack.StackShape("SwiGLU", 3, 16, 2, 4, 2, torch.float32), SETTING)
    assert result.seconds.keys() == {"attnres", "eager"}
    assert "too large" in result.missing["large"] and result.missing["greedy"] == "out of memory"
    assert "a copy to the host" in str(result.notes["eager, not captured"])
