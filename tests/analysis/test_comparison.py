from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats

from attnres.analysis.comparison import compare_arms, finding, holm, on_common_seeds


def summary(loss, seconds=1.0, memory=100):
    return SimpleNamespace(loss=loss, step_seconds=seconds, peak_memory_bytes=memory)


def test_differences_are_paired_by_seed():
    rows = compare_arms(
        {
            "residual": {0: summary(2.0), 1: summary(3.0), 2: summary(4.0)},
            "full": {0: summary(1.9, 1.5, 110), 1: summary(2.7, 1.3, 120), 2: summary(3.8, 1.4, 130)},
        },
        "residual",
    )
    base, full = rows
    assert base.difference is None and base.step_times == []
    assert full.validation_loss == pytest.approx((1.9 + 2.7 + 3.8) / 3)
    assert full.difference == pytest.approx(-0.2)
    # By hand: the differences are -0.1, -0.3, -0.2, of standard deviation 0.1.
    assert full.difference_error == pytest.approx(0.1 / math.sqrt(3))
    assert full.step_times == pytest.approx([1.5, 1.3, 1.4]) and full.peak_memories == pytest.approx([1.1, 1.2, 1.3])


def test_p_values_are_paired_and_corrected_together():
    losses = {"a": [2.0, 3.0, 4.0], "b": [1.9, 2.8, 3.7], "c": [2.1, 2.9, 4.2]}
    rows = compare_arms({arm: {s: summary(x) for s, x in enumerate(of)} for arm, of in losses.items()}, "a")
    tests: list[Any] = [stats.ttest_rel(losses[arm], losses["a"]) for arm in ("b", "c")]
    by_scipy = [float(test.pvalue) for test in tests]
    assert rows[0].p_value is None and rows[0].differences == {}
    assert rows[1].p_value == pytest.approx(min(1, 2 * by_scipy[0])) and rows[1].differences[2] == pytest.approx(-0.3)
    assert rows[2].p_value == pytest.approx(max(by_scipy[1], rows[1].p_value))


def test_holms_method_by_hand():
    """In order 4 x 0.01, 3 x 0.02, 2 x 0.03 and 0.04, none below the one before it and none above 1."""
    assert holm([0.04, 0.01, None, 0.03, 0.02]) == pytest.approx([0.06, 0.04, None, 0.06, 0.06])
    assert holm([0.7, 0.6]) == [1.0, 1.0]


@pytest.mark.parametrize(("worst", "order"), [(math.nan, ("better", "diverged")), (math.inf, ("diverged", "better"))])
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract:RuntimeWarning")  # numpy's, of infinities
def test_an_arm_without_a_finite_loss_is_not_tested_and_changes_no_other(worst, order):
    of = {"better": [-0.1, -0.11, -0.12], "diverged": [0.1, worst, 0.1]}
    rows = {row.arm: row for row in compared(**{arm: of[arm] for arm in order})}
    assert rows["diverged"].p_value is None and not rows["diverged"].decided
    assert rows["better"].p_value == compared(better=of["better"])[1].p_value and rows["better"].decided


def compared(**differences):
    """Arms of three seeds with these differences to `a`."""
    base = {seed: 2.0 + seed for seed in range(3)}
    arms = {"a": {seed: summary(loss) for seed, loss in base.items()}}
    for arm, of in differences.items():
        arms[arm] = {seed: summary(base[seed] + d) for seed, d in enumerate(of)}
    return compare_arms(arms, "a")


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        (
            {"b": [-0.1, -0.1001, -0.0999], "c": [0.05, -0.05, 0.01], "d": [-0.2, -0.2001, -0.1999]},
            "d (-0.2000, p < 0.001), b (-0.1000, p < 0.001) below a; 1 of 3 not decided",
        ),
        ({"b": [-0.1, 0.08, -0.01], "c": [0.05, -0.05, 0.03]}, "2 of 2 not decided"),
    ],
)
def test_the_finding_says_what_is_decided_and_no_more(differences, expected):
    assert finding(compared(**differences)) == expected


def test_a_seed_that_one_arm_did_not_finish_is_left_out_everywhere():
    kept = on_common_seeds({"a": {0: summary(2.0), 1: summary(9.0)}, "b": {0: summary(1.5)}, "c": {}})
    assert {arm: list(runs) for arm, runs in kept.items()} == {"a": [0], "b": [0], "c": []}
    base, arm, _ = compare_arms(kept, "a")
    assert arm.difference == arm.validation_loss - base.validation_loss
