"""The parts of `attnres bench`, on sizes too small to mean anything."""

from __future__ import annotations

import os

import pytest
import torch

from attnres.bench import decode, measure, step
from attnres.bench.measure import RatioRow, Setting

SETTING = Setting(rounds=1, quick=True)


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


def test_steps_of_every_connection(monkeypatch):
    peaks = dict.fromkeys(step.RULES, 20e6) | {"residual": 20e6, "block": 22e6}
    monkeypatch.setattr(step, "in_a_process", lambda name, _: peaks[name])
    monkeypatch.setattr(step, "copy_bandwidth", lambda: 1e10)
    by_hand, block, full, *memory = step.measure(SETTING)
    assert by_hand.ratio is not None and block.ratio is not None and full.ratio is not None
    assert by_hand.bandwidth is None and block.bandwidth is not None and block.bandwidth > 1
    assert [row.ratio for row in memory] == pytest.approx([1.1, *[1.0] * 5])
    assert memory[0].details["block, MB"] == 22.0


def test_the_loop_by_hand_is_the_residual():
    model = step.build_model("residual", 16, 2)
    tokens = torch.randint(0, 256, (2, 5))
    torch.testing.assert_close(step._by_hand(model, tokens), model(tokens))


def test_decoding_our_own_model_and_an_attached_one(monkeypatch):
    monkeypatch.setattr(decode, "find_spec", lambda _: None)
    own, first, second = decode.measure(SETTING)
    assert own.ratio is not None and own.ratio > 0
    assert (first.ratio, second.ratio) == (None, None) and "not installed" in str(second.details["Transformers"])


@pytest.mark.slow
def test_an_attached_step_is_measured():
    pytest.importorskip("transformers")
    assert all(row.ratio is not None and row.ratio > 0 for row in decode._attached(SETTING))


def test_memory_is_measured_with_pages_for_every_tensor(in_this_process):
    """Else the C library keeps what was freed, in the same step sometimes 45 MB more than in others."""
    assert step.in_a_process("full", quick=True) >= 0
    assert in_this_process == [os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}]
