"""Power-law fits: the paper's published curves, scipy as an oracle, coverage of the intervals, bad input."""

import itertools

import numpy as np
import pytest
from scipy import stats

from attnres import UsageError
from attnres.analysis.powerlaw import (
    Point,
    fit_power_laws,
    fit_where_possible,
    read_points,
)

PAPER = {"baseline": (1.891, 0.057), "block": (1.870, 0.058), "full": (1.865, 0.057)}  # PFLOP/s-days


def curve(scale, exponent, computes, noise=0.0, generator=None, seeds=1, of_sizes=0.0):
    """Points beside a line: each run by `noise`, and all runs of one size together by `of_sizes`."""
    points = []
    for size, compute in enumerate(computes):
        own = of_sizes * generator.standard_normal() if generator is not None else 0.0
        for seed in range(seeds):
            bump = own + noise * generator.standard_normal() if generator is not None else 0.0
            points.append(Point(compute, scale * compute**-exponent * np.exp(bump), f"size {size}", seed))
    return points


def test_the_papers_curves_give_their_numbers_back(tmp_path):
    lines = ["arm,compute,loss"]
    for arm, (scale, exponent) in PAPER.items():
        lines += [f"{arm},{c},{scale * c**-exponent:.12g}" for c in np.geomspace(0.5, 5.6, 5)]
    path = tmp_path / "paper.csv"
    path.write_text("\n".join(lines) + "\n")
    fits, advantages = fit_power_laws(read_points(path))
    for fit in fits:
        assert (fit.scale, fit.exponent) == pytest.approx(PAPER[fit.arm], rel=1e-9)
        assert fit.scale_interval == pytest.approx((fit.scale, fit.scale), rel=1e-6)
    block = next(a for a in advantages if a.arm == "block")
    assert block.compute == 5.6 and round(block.factor, 2) == 1.25


def test_the_line_is_scipys():
    points = curve(2.0, 0.1, [1, 3, 10, 30, 90], 0.05, np.random.default_rng(0), seeds=3)
    fits, _ = fit_power_laws({"one": points})
    oracle = stats.linregress(np.log([p.compute for p in points]), np.log([p.loss for p in points]))
    assert fits[0].exponent == pytest.approx(-oracle.slope) and np.log(fits[0].scale) == pytest.approx(oracle.intercept)


@pytest.mark.parametrize(("computes", "of_sizes"), [([1, 2, 4, 8, 16], 0.0), ([1, 8, 64], 0.003)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(computes, of_sizes, monkeypatch):
    """Also where sizes lie beside the line by more than their seeds apart; runs taken for points hold it in half."""
    monkeypatch.setattr("attnres.analysis.powerlaw.RESAMPLES", 300)
    generator, held, trials = np.random.default_rng(1), [], 120
    truth = (2.0 / 1.95) ** (1 / 0.06)
    for _ in range(trials):
        base = curve(2.0, 0.06, computes, 0.001, generator, 3, of_sizes)
        arm = curve(1.95, 0.06, computes if of_sizes else computes[:-1], 0.001, generator, 3, of_sizes)
        fits, advantages = fit_power_laws({"base": base, "arm": arm})
        held.append(fits[0].exponent_interval[0] <= 0.06 <= fits[0].exponent_interval[1])
        held += [one.interval[0] <= truth <= one.interval[1] for one in advantages]
    assert 0.9 < np.mean(held) < 0.995


def test_intervals_of_few_sizes_are_of_every_resample_and_no_draw():
    generator = np.random.default_rng(4)
    points = {arm: curve(2.0, 0.06, [1, 4, 16, 64], 0.01, generator) for arm in ("base", "arm", "other")}
    fits, (advantage, other) = fit_power_laws(points)
    assert (fits, [advantage, other]) == fit_power_laws(points, seed=1)
    x = np.log([1, 4, 16, 64])

    def ends(arm, outside):
        """That share of draws lies outside of the intervals of the baseline's exponent and of the arm's advantage."""
        levels = [100 * outside / 2, 100 - 100 * outside / 2]
        widened = np.sqrt(4 / 2) * stats.t.ppf(1 - outside / 2, 2) / stats.norm.ppf(1 - outside / 2)
        lines = []
        for of_arm in (points["base"], points[arm]):
            y = np.log([point.loss for point in of_arm])
            fitted = np.polyval(np.polyfit(x, y, 1), x)
            picks = itertools.product(widened * (y - fitted), repeat=4)
            lines.append(np.array([np.polyfit(x, fitted + residuals, 1) for residuals in picks]).T)
        (slope, level), (of_arm, at_one) = lines
        factors = np.exp((of_arm * x[-1] + at_one - level) / slope - x[-1])
        return np.percentile(-slope, levels), np.percentile(factors, levels)

    exponent, alone = ends("arm", 0.05)
    assert fits[0].exponent_interval == pytest.approx(exponent) and advantage.interval == pytest.approx(alone)
    assert advantage.joint == pytest.approx(ends("arm", 0.025)[1])
    assert other.joint == pytest.approx(ends("other", 0.025)[1])
    _, (only,) = fit_power_laws({arm: points[arm] for arm in ("base", "arm")})
    assert only.joint == only.interval == pytest.approx(alone)
    seven = {arm: curve(2.0, 0.06, [2**i for i in range(7)], 0.01, generator) for arm in ("base", "arm")}
    assert fit_power_laws(seven) == fit_power_laws(seven, seed=1)


def test_sizes_are_paired_by_name_where_an_arm_has_another_order_of_computes():
    """As in seconds, where a deep narrow model may be slower than a wide one under one rule alone."""
    of_sizes = 0.02 * np.random.default_rng(5).standard_normal(5)

    def arm(scale, computes, names="abcde"):
        return [
            Point(c, scale * c**-0.06 * np.exp(of_size), name)
            for c, of_size, name in zip(computes, of_sizes, names, strict=True)
        ]

    base, order = arm(2.0, [1, 2.0, 2.1, 8, 16]), [1, 2.1, 2.0, 8, 16]
    widths = []
    for names in ("abcde", "fghij"):
        _, (advantage,) = fit_power_laws({"base": base, "arm": arm(1.95, order, names)})
        widths.append(advantage.interval[1] - advantage.interval[0])
    assert widths[0] < 0.5 * widths[1]


def test_a_weak_arm_leaves_the_others_their_fits():
    arms = {name: curve(2.0, 0.1, [1, 4, 9]) for name in ("base", "arm")} | {"weak": curve(2.0, 0.1, [1, 4])}
    fits, advantages = fit_where_possible(arms)
    assert [fit.arm for fit in fits] == ["base", "arm"] and [one.arm for one in advantages] == ["arm"]
    fits, advantages = fit_where_possible({"weak": arms["weak"], **arms})
    assert [fit.arm for fit in fits] == ["base", "arm"] and advantages == []
    assert fit_where_possible({"weak": []}) == ([], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arm,compute,loss\na,1,2\na,2,1.9\n", "too few for a fit"),
        ("arm,compute,loss,size\na,1,2,s\na,2,1.9,s\na,3,1.8,m\na,4,1.7,l\n", "size 's' is at computes from 1 to 2"),
        ("arm,compute,loss\na,1,2\na,2,nan\na,3,1\n", "positive and finite"),
    ],
)
def test_bad_input_is_one_line(tmp_path, text, message):
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        fit_power_laws(read_points(path))
