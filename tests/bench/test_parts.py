"""The parts of `attnres bench`, on sizes too small to mean anything."""

from __future__ import annotations

import os

import pytest

from attnres.bench import decode, measure, step
from attnres.bench.measure import RatioRow, Setting

SETTING = Setting(rounds=1, quick=True)


def test_how_ratios_are_written():
    written = [
        RatioRow("", "", must, "", ratio).measured for must, ratio in [("20x", 2.5), ("1.06", 1.0512), ("2%", 0.0123)]
    ]
    assert written == ["2.50x", "1.05", "1.2%"]
    assert RatioRow("", "", "2%", "").measured == measure.NOT_MEASURED


def test_steps_of_every_connection(monkeypatch):
    peaks = {name: iter([10e6, 30e6, 20e6]) for name in step.NAMES} | {"block": iter([22e6, 99e6, 1e6])}
    monkeypatch.setattr(step, "in_a_process", lambda name, _: next(peaks[name]))
    rows = list(step.measure(SETTING))
    times, memory, widths = rows[:6], rows[6:12], rows[12:]
    what = [rule.what for rule in step.RULES.values()]
    assert [row.what.split(" over ")[0] for row in times] == [f"training step, {one}" for one in what]
    assert [row.ratio for row in memory] == pytest.approx([1.1, *[1.0] * 5]), "medians of three processes"
    assert memory[0].details["block, MB"] == "22.0, 99.0, 1.0"
    assert [row.what.rpartition(" over ")[0] for row in widths] == [f"training step, {one}" for one in what[:2]]
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)


def test_decoding_our_own_model_and_an_attached_one(monkeypatch):
    monkeypatch.setattr(decode, "find_spec", lambda _: None)
    own, first, second = decode.measure(SETTING)
    assert own.ratio is not None and own.ratio > 0
    assert (first.ratio, second.ratio) == (None, None) and "not installed" in str(first.details["Transformers"])


@pytest.mark.slow
def test_an_attached_step_is_measured():
    pytest.importorskip("transformers")
    assert all(row.ratio is not None and row.ratio > 0 for row in decode._attached(SETTING))


def test_memory_is_measured_with_pages_for_every_tensor(in_this_process):
    """Else the C library keeps what was freed, in the same step sometimes 45 MB more than in others."""
    assert step.in_a_process("full", quick=True) >= 0
    assert in_this_process == [os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}]
