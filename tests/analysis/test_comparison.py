from __future__ import annotations

import math

import pytest

from attnres.analysis.comparison import compare_arms


def summary(loss, seconds=1.0, memory=100):
    return {"validation_loss": loss, "step_seconds": seconds, "peak_memory_bytes": memory}


def test_differences_are_paired_by_seed():
    rows = compare_arms(
        {
            "residual": {0: summary(2.0), 1: summary(3.0), 2: summary(4.0)},
            "full": {0: summary(1.9, 1.5, 110), 1: summary(2.7, 1.3, 120), 2: summary(3.8, 1.4, 130)},
        },
        "residual",
    )
    base, full = rows
    assert base.difference is None and base.step_time_ratio == 1
    assert full.validation_loss == pytest.approx((1.9 + 2.7 + 3.8) / 3)
    assert full.difference == pytest.approx(-0.2)
    # By hand: the differences are -0.1, -0.3, -0.2, of standard deviation 0.1.
    assert full.difference_error == pytest.approx(0.1 / math.sqrt(3))
    assert full.step_time_ratio == pytest.approx(1.4) and full.peak_memory_ratio == pytest.approx(1.2)


def test_only_seeds_that_both_have_are_paired():
    rows = compare_arms({"a": {0: summary(2.0)}, "b": {0: summary(1.5), 1: summary(9.0)}, "c": {}}, "a")
    assert rows[1].difference == pytest.approx(-0.5) and rows[1].difference_error is None and rows[1].seeds == 2
    assert rows[2].validation_loss is None and rows[2].difference is None and rows[2].step_time_ratio is None
