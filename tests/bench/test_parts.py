"""The parts of `attnres bench`, on sizes too small to mean anything."""

from __future__ import annotations

import os

import pytest
import torch

from attnres.bench import decode, measure, step
from attnres.bench.measure import RatioRow, Setting

SETTING = Setting(rounds=1)


def test_how_ratios_are_written():
    written = [
        RatioRow("", "", must, ratio).measured for must, ratio in [("20x", 2.5), ("1.06", 1.0512), ("2%", 0.0123)]
    ]
    assert written == ["2.5x", "1.051", "1.2%"]
    assert RatioRow("", "", "2%").measured == measure.NOT_MEASURED


def test_a_ratio_has_the_spread_of_its_rounds():
    seconds = {"plain": [1.0, 2.0, 4.0, 1.0, 1.0], "block": [1.1, 2.4, 4.0, 1.3, 1.0]}
    row = measure.over(seconds, "block", "plain", "step", "here", "1.03")
    assert row.ratio == pytest.approx(1.3) and row.spread == pytest.approx((1.0, 1.2))
    assert [row.written(each) for each in (*row.spread, row.ratio)] == ["1.000", "1.200", "1.300"]


def test_steps_and_their_memory():
    """In this process, where memory that was freed stays: a number, and no more than that."""
    sizes = step.StepSizes(64, 1, 2, 8, {"block": "1.06", "full": "-"})
    by_hand, block, full = step._times(sizes, 1e10, SETTING)
    assert all(row.ratio is not None and row.ratio > 0 for row in (by_hand, block, full))
    assert block.bandwidth is not None and block.bandwidth > 1
    assert step.peak("full", sizes) >= 0 and "MALLOC_MMAP_THRESHOLD_" not in os.environ


def test_peaks_are_ratios_to_the_residual(monkeypatch):
    peaks = dict.fromkeys(step.RULES, 20e6) | {"residual": 20e6, "block": 22e6}
    monkeypatch.setattr(step, "peak", lambda name, _: peaks[name])
    memory = step._peaks(step.WIDE, SETTING)
    assert [row.ratio for row in memory] == pytest.approx([1.1, *[1.0] * 5])
    assert memory[0].details["block, MB"] == 22.0


def test_the_loop_by_hand_is_the_residual():
    model = step.build_model("residual", 16, 2)
    tokens = torch.randint(0, 256, (2, 5))
    torch.testing.assert_close(step._by_hand(model, tokens), model(tokens))


def test_decoding_our_own_model_and_an_attached_one(monkeypatch):
    monkeypatch.setattr(decode, "OURS", decode.DecoderSizes(64, 1))
    monkeypatch.setattr(decode, "find_spec", lambda _: None)
    own, first, second = decode.measure(SETTING)
    assert own.ratio is not None and own.ratio > 0
    assert (first.ratio, second.ratio) == (None, None) and "not installed" in str(second.details["Transformers"])


@pytest.mark.slow
def test_an_attached_step_is_measured():
    pytest.importorskip("transformers")
    rows = decode._attached(decode.DecoderSizes(64, 4), SETTING)
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)


def test_a_process_of_its_own():
    assert measure.alone(os.getpid) != os.getpid()
