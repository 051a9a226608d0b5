"""Power laws of loss in compute, and how much compute one rule saves over another."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from attnres.analysis.comparison import t_quantile
from attnres.errors import UsageError

FEWEST_SIZES = 3
"""A line through two points has no error; below three sizes there is no fit."""
SAME_COMPUTE = 1.5
"""Runs of one size differ by less, as measured seconds do."""
RESAMPLES = 100_000
"""How many are drawn where not all are taken. Of 2,000 another seed moved the end of an interval across 1."""
MOST_RESAMPLES = 1_000_000
"""Up to so many, those of seven sizes, all are taken."""
CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """The final loss of one run. Runs of one `size`, or where it has no name of one compute, are one point of a fit."""

    compute: float
    loss: float
    size: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Fit:
    """L = A C^-a, least squares in log space over the means of the sizes, with percentile bootstrap intervals."""

    arm: str
    runs: int
    computes: Interval
    """The smallest and the largest."""
    scale: float
    """A: the loss at compute 1, in the unit of compute that the points have."""
    exponent: float
    """a"""
    scale_interval: Interval
    exponent_interval: Interval

    @property
    def falls(self) -> bool:
        """Whether the whole interval of the exponent is above 0; a line that may be level tells no compute."""
        return self.exponent_interval[0] > 0

    def loss(self, compute: float) -> float:
        return self.scale * compute**-self.exponent


@dataclass(frozen=True)
class Advantage:
    """How many times the arm's compute the baseline needs for the arm's loss, at `compute`."""

    arm: str
    baseline: str
    compute: float
    factor: float
    interval: Interval
    joint: Interval
    """The interval where those of all n arms are to hold at once: at 1 - 5% / n (Bonferroni). Percentiles of few
    residuals end short of such tails: of five sizes and six arms all hold in nine cases of ten."""


def fit_power_laws(
    curves: Mapping[str, Sequence[Point]], compute: float | None = None, seed: int = 0
) -> tuple[list[Fit], list[Advantage]]:
    """Fit every arm, and compare each with the first one at `compute` (the first arm's largest when not given).

    A line goes through the mean log loss of each size. How far these lie beside it has in it what seeds do and what a
    size has of its own, as its shape or its learning rate; runs of one size share the latter, and more of them do not
    make it less. There are no advantages over a first arm whose exponent's interval is not all above 0. The intervals
    hold 95% of a bootstrap of the residuals of the n sizes, widened by sqrt(n / (n - 2)) for the two fitted numbers and
    by t / z, Student's 97.5% quantile of n - 2 degrees of freedom over the normal one: three residuals say little of
    how far they scatter. An advantage has the interval, too, that it has among all of them (`Advantage.joint`). Where
    all arms have the same sizes a resample takes the same ones for every arm, so that what a size or its seeds do to
    all arms alike cancels in the comparison; of up to seven sizes every resample is taken once.

    Raises:
        UsageError: too few sizes, a compute or loss that has no logarithm, one size at several computes, or a baseline
            whose loss does not fall with compute.
    """
    if not curves:
        raise UsageError("no runs to fit")
    for arm, points in curves.items():
        _check(arm, points)
    fits, advantages = fit_where_possible(curves, compute, seed)
    if fits[0].exponent <= 0:
        raise UsageError(
            f"{fits[0].arm}: the loss does not fall with compute, so it has no compute advantage to measure"
        )
    return fits, advantages


def fit_where_possible(
    curves: Mapping[str, Sequence[Point]], compute: float | None = None, seed: int = 0
) -> tuple[list[Fit], list[Advantage]]:
    """Fit as `fit_power_laws`, without the arms of too few computes, so that a weak arm does not hide the others.

    There are no advantages where the first arm is one of them, or where its exponent's interval is not all above 0.
    Computes and losses are positive and finite.
    """
    lines = _FittedLines(curves, seed)
    fits = [lines.fit(arm) for arm in lines.points]
    baseline = next(iter(curves))
    if baseline not in lines.points or not fits[0].falls:
        return fits, []
    at = fits[0].computes[1] if compute is None else compute
    others = [arm for arm in lines.points if arm != baseline]
    return fits, [lines.advantage(arm, baseline, at, len(others)) for arm in others]


def advantages_at_sizes(curves: Mapping[str, Sequence[Point]]) -> dict[tuple[str, str], Advantage]:
    """(arm, size) -> the advantage at the arm's compute there, over the first arm and by both lines alone.

    Without those that the fits do not tell, as in `fit_where_possible`.
    """
    arms, found = list(curves), {}
    for arm in arms[1:]:
        lines = _FittedLines({name: curves[name] for name in (arms[0], arm)})
        if len(lines.points) == 2 and lines.fit(arms[0]).falls:
            for size, compute in {point.size: point.compute for point in curves[arm]}.items():
                found[arm, size] = lines.advantage(arm, arms[0], compute)
    return found


def read_points(path: str | Path) -> dict[str, list[Point]]:
    """Read a CSV with the columns arm, compute, loss and, optionally, size and seed. The first arm is the baseline.

    Raises:
        UsageError: no such file, or what cannot be meant as such points, by its line.
    """
    curves: dict[str, list[Point]] = {}
    text = Path(path).read_text(encoding="utf-8-sig")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    rows.fieldnames = columns = [name.strip() for name in rows.fieldnames or ()]
    if missing := {"arm", "compute", "loss"} - set(columns):
        raise UsageError(f"{path}: the first line must name the columns arm, compute, loss; missing: {sorted(missing)}")
    for row in rows:
        try:
            size, seed = (row.get("size") or "").strip(), int(row.get("seed") or 0)
            point = Point(float(row["compute"]), float(row["loss"]), size, seed)
        except (TypeError, ValueError):
            raise UsageError(f"{path}, line {rows.line_num}: compute, loss and seed must be numbers") from None
        curves.setdefault((row["arm"] or "").strip(), []).append(point)
    return curves


class _FittedLines:
    """The line of every arm that has one, and those through resampled residuals."""

    points: dict[str, Sequence[Point]]
    """arm -> its runs, of the arms that have a line."""

    def __init__(self, curves: Mapping[str, Sequence[Point]], seed: int = 0) -> None:
        self.points = {arm: points for arm, points in curves.items() if _computes(points) >= FEWEST_SIZES}
        self._lines: dict[str, np.ndarray] = {}
        self._noise: dict[str, np.ndarray] = {}
        paired = len({tuple(_sizes(points)) for points in self.points.values()}) == 1
        generator = np.random.default_rng(seed)
        picks: np.ndarray | None = None
        for arm, points in self.points.items():
            x, y = _means(points)
            self._lines[arm] = scale, exponent = _line(x, y)
            if not (paired and len(x) ** len(x) <= MOST_RESAMPLES) and (picks is None or not paired):
                picks = generator.integers(0, len(x), (RESAMPLES, len(x)))
            self._noise[arm] = _noise(x, y - (scale - exponent * x), picks)

    def fit(self, arm: str) -> Fit:
        scale, exponent = self._lines[arm]
        scales, exponents = self._draws(arm)
        intervals = _interval(np.exp(scales)), _interval(exponents)
        computes = [point.compute for point in self.points[arm]]
        ends = min(computes), max(computes)
        return Fit(arm, len(computes), ends, float(np.exp(scale)), float(exponent), *intervals)

    def advantage(self, arm: str, baseline: str, compute: float, at_once: int = 1) -> Advantage:
        factor = _advantage(self._lines[arm], self._lines[baseline], compute)
        joint = 1 - (1 - CONFIDENCE) / at_once
        intervals = {
            share: _interval(_advantage(self._draws(arm, share), self._draws(baseline, share), compute), share)
            for share in {CONFIDENCE, joint}  # once where they are the same
        }
        return Advantage(arm, baseline, compute, float(factor), intervals[CONFIDENCE], intervals[joint])

    def _draws(self, arm: str, share: float = CONFIDENCE) -> np.ndarray:
        return self._lines[arm][:, None] + _widening(len(_sizes(self.points[arm])), share) * self._noise[arm]


def _check(arm: str, points: Sequence[Point]) -> None:
    for point in points:
        if not (0 < point.compute < np.inf and 0 < point.loss < np.inf):
            raise UsageError(f"{arm}: compute and loss must be positive and finite, not {point.compute}, {point.loss}")
    for size, runs in _sizes(points).items():
        computes = [run.compute for run in runs]
        if max(computes) > SAME_COMPUTE * min(computes):
            raise UsageError(
                f"{arm}: size {size!r} is at computes from {min(computes):g} to {max(computes):g}; give each compute a "
                "size of its own name"
            )
    if _computes(points) < FEWEST_SIZES:
        raise UsageError(
            f"{arm}: {_computes(points)} different computes are too few for a fit; give at least {FEWEST_SIZES}"
        )


def _computes(points: Sequence[Point]) -> int:
    """How many sizes of different compute there are."""
    return len({np.mean([run.compute for run in runs]) for runs in _sizes(points).values()})


def _sizes(points: Sequence[Point]) -> dict[str | float, list[Point]]:
    """size, or compute where it has no name -> its runs, in an order that all arms of the same sizes have."""
    sizes: dict[str | float, list[Point]] = {}
    for point in sorted(points, key=lambda point: (point.size, point.compute)):
        sizes.setdefault(point.size or point.compute, []).append(point)
    return sizes


def _means(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """The mean log compute and log loss of each size."""
    sizes = [np.log([(run.compute, run.loss) for run in runs]).mean(0) for runs in _sizes(points).values()]
    x, y = np.transpose(sizes)
    return x, y


def _line(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[log A, a] of y = log A - a x by least squares; y may have leading axes, which then follow."""
    centred = x - x.mean()
    exponent = -(y @ centred) / (centred @ centred)
    return np.stack([y.mean(-1) + exponent * x.mean(), exponent])


def _noise(x: np.ndarray, residuals: np.ndarray, picks: np.ndarray | None) -> np.ndarray:
    """How far the lines through resampled residuals lie from the line: float [2, resamples].

    picks: which residual each size has in each resample, int [resamples, sizes]; without it every resample is taken
    once, whose lines are sums of one term for each size, as a line is linear in what it goes through.
    """
    weights = _line(x, np.eye(len(x)))
    if picks is not None:
        return weights @ residuals[picks].T
    sums = np.zeros((2, 1))
    for of_size in weights.T:
        sums = (sums[:, :, None] + np.outer(of_size, residuals)[:, None, :]).reshape(2, -1)
    return sums


def _widening(sizes: int, share: float) -> float:
    """What residuals are multiplied by for intervals that hold that share."""
    return math.sqrt(sizes / (sizes - 2)) * t_quantile(sizes - 2, share) / NormalDist().inv_cdf((1 + share) / 2)


def _advantage(arm: np.ndarray, baseline: np.ndarray, compute: float) -> np.ndarray:
    """C'/C with baseline(C') = arm(C); infinite where the baseline's loss does not fall."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        log_loss = arm[0] - arm[1] * np.log(compute)
        factor = np.exp((baseline[0] - log_loss) / baseline[1] - np.log(compute))
        return np.where(baseline[1] > 0, factor, np.inf)


def _interval(draws: np.ndarray, share: float = CONFIDENCE) -> Interval:
    with np.errstate(invalid="ignore"):  # between two infinite draws
        low, high = np.quantile(draws, [(1 - share) / 2, (1 + share) / 2])
    low, high = (math.inf if np.isnan(end) else float(end) for end in (low, high))
    return low, high
