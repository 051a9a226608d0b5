from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats

from attnres.analysis.comparison import compare_arms, finding, on_common_seeds


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
    assert base.difference is None and base.step_time_ratio == 1
    assert full.validation_loss == pytest.approx((1.9 + 2.7 + 3.8) / 3)
    assert full.difference == pytest.approx(-0.2)
    # By hand: the differences are -0.1, -0.3, -0.2, of standard deviation 0.1.
    assert full.difference_error == pytest.approx(0.1 / math.sqrt(3))
    assert full.step_time_ratio == pytest.approx(1.4) and full.peak_memory_ratio == pytest.approx(1.2)


def test_p_values_are_paired_and_corrected_together():
    losses = {"a": [2.0, 3.0, 4.0], "b": [1.9, 2.8, 3.7], "c": [2.1, 2.9, 4.2]}
    rows = compare_arms({arm: {s: summary(x) for s, x in enumerate(of)} for arm, of in losses.items()}, "a")
    tests: list[Any] = [stats.ttest_rel(losses[arm], losses["a"]) for arm in ("b", "c")]
    by_scipy = [float(test.pvalue) for test in tests]
    assert rows[0].p_value is None and rows[0].differences == {}
    assert rows[1].p_value == pytest.approx(min(1, 2 * by_scipy[0])) and rows[1].differences[2] == pytest.approx(-0.3)
    assert rows[2].p_value == pytest.approx(max(by_scipy[1], rows[1].p_value))


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
            "d (-0.2000, p < 0.001) and b (-0.1000, p < 0.001) end below a in validation loss (nats per byte); "
            "not decided: c.",
        ),
        (
            {"b": [-0.1, 0.08, -0.01], "c": [0.05, -0.05, 0.03]},
            "With 3 seeds nothing is decided: the differences to a, from -0.0100 (b) to +0.0100 (c) nats "
            "per byte, may be chance.",
        ),
    ],
)
def test_the_finding_says_what_is_decided_and_no_more(differences, expected):
    assert finding(compared(**differences)) == expected


def test_a_seed_that_one_arm_did_not_finish_is_left_out_everywhere():
    kept = on_common_seeds({"a": {0: summary(2.0), 1: summary(9.0)}, "b": {0: summary(1.5)}, "c": {}})
    assert {arm: list(runs) for arm, runs in kept.items()} == {"a": [0], "b": [0], "c": []}
    base, arm, _ = compare_arms(kept, "a")
    assert arm.difference == arm.validation_loss - base.validation_loss


def test_the_step_time_is_withheld_where_the_seeds_are_too_far_apart():
    """One run of three was alone on the machine, and the ratio of 0.07 made x0 ten times as fast as the residual."""
    arms = {"a": {seed: summary(2, 0.2) for seed in range(3)}}
    arms["b"] = {seed: summary(2, seconds) for seed, seconds in enumerate((0.2, 0.31, 0.25))}
    arms["c"] = {seed: summary(2, seconds) for seed, seconds in enumerate((0.2, 0.29, 0.25))}
    _, withheld, shown = compare_arms(arms, "a")
    assert withheld.step_time_ratio is None and withheld.step_time_range is None
    assert shown.step_time_ratio == pytest.approx(1.25) and shown.step_time_range == pytest.approx((1.0, 1.45))


def test_no_cost_is_told_of_one_seed():
    base, row = compare_arms({arm: {0: summary(2, time)} for arm, time in {"a": 1.0, "b": 0.51}.items()}, "a")
    assert (base.step_time_ratio, base.step_time_range) == (1.0, None)
    assert row.step_time_ratio is row.peak_memory_ratio is None
