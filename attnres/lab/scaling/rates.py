"""Learning rates of every arm and size: a grid at the two smallest sizes, carried on by a line, checked beyond them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attnres.lab.ahead import Phase
from attnres.lab.outcome import done_runs
from attnres.lab.scaling.plan import Plan, Planned, Size, planned
from attnres.lab.scaling.record import SizedRun
from attnres.lab.tuning import MOST_BEYOND, TUNING_SEED, beyond

Rates = dict[str, dict[str, float]]
"""arm -> size -> the multiple of both learning rates."""
CHECKED_AT = (0.5, 2.0)
"""What a size's rate is multiplied by where it is checked."""


def grid_runs(plan: Plan) -> list[Planned]:
    """Every arm and multiple at the two smallest sizes; none if there is nothing to choose."""
    if len(plan.options.grid) < 2:
        return []
    seed = plan.options.config.seed + TUNING_SEED
    pairs = [(size, arm) for size in plan.sizes[:2] for arm in plan.options.arms]
    return [planned(plan, arm, size, seed, factor) for size, arm in pairs for factor in plan.options.grid]


def wider_runs(plan: Plan, tried: Sequence[SizedRun]) -> list[Planned]:
    """One multiple more for each arm and size whose best one so far lies at an edge of what was tried."""
    seed = plan.options.config.seed + TUNING_SEED
    pairs = [(size, arm) for size in plan.sizes[:2] for arm in plan.options.arms]
    following = [(arm, size, beyond(_of(tried, arm, size))) for size, arm in pairs]
    return [planned(plan, arm, size, seed, factor) for arm, size, factor in following if factor is not None]


def _of(tried: Sequence[SizedRun], arm: str, size: Size) -> list[SizedRun]:
    return [run for run in tried if (run.arm, run.size) == (arm, size.name)]


def seed_runs(plan: Plan, size: Size, rates: Rates) -> list[Planned]:
    """What is reported of a size: every arm at its own rate on all seeds."""
    return [planned(plan, arm, size, seed, rates[arm][size.name]) for seed in plan.seeds for arm in plan.options.arms]


def check_runs(plan: Plan, size: Size, rates: Rates) -> list[Planned]:
    """A size at half and twice its rate, on the first seed; none if it is not among those that are checked."""
    seed = plan.options.config.seed
    return [
        planned(plan, arm, size, seed, rounded(rates[arm][size.name] * by))
        for arm in plan.options.arms
        for by in CHECKED_AT
        if size in plan.checked
    ]


def phases(plan: Plan) -> list[Phase]:
    """All runs in order, before any rate is chosen: the grid, what may come beyond it, the sizes and the check."""
    grid = [run.job for run in grid_runs(plan)]
    undecided = {arm: {size.name: 1.0 for size in plan.sizes} for arm in plan.options.arms}
    ahead = [Phase(grid), *[Phase(grid[:: len(plan.options.grid)], certain=False)] * MOST_BEYOND]
    for size in plan.sizes:
        ahead.append(Phase([run.job for run in seed_runs(plan, size, undecided)]))
        ahead.append(Phase([run.job for run in check_runs(plan, size, undecided)]))
    return ahead


def chosen_rates(plan: Plan, grid: Sequence[SizedRun]) -> Rates:
    """The multiple of every arm and size.

    At the two smallest sizes: the lowest point of the parabola through the best of the grid and its neighbours, loss
    over log multiple, or the best itself at an edge. From there on: the line through both, log multiple over log
    parameters, kept within what the arm tried. Without a grid it is the one multiple that there is.
    """
    only, *others = plan.options.grid
    if not others:
        return {arm: {size.name: only for size in plan.sizes} for arm in plan.options.arms}
    rates: Rates = {}
    for arm in plan.options.arms:
        of_sizes = [_of(grid, arm, size) for size in plan.sizes[:2]]
        first, second = (best({run.factor: run.loss for run in done_runs(runs)}) for runs in of_sizes)
        tried = [run.factor for runs in of_sizes for run in runs]
        low, high = min(tried), max(tried)
        rates[arm] = {
            size.name: rounded(min(high, max(low, _on_line(plan.sizes, first, second, size)))) for size in plan.sizes
        }
    return rates


def best(losses: Mapping[float, float]) -> float:
    """The multiple of lowest loss, between those that were tried; 1 where no run came to its end."""
    if not losses:
        return 1.0
    factors = sorted(losses)
    at = factors.index(min(losses, key=lambda factor: losses[factor]))
    if at in (0, len(factors) - 1):
        return factors[at]
    x = [math.log(factor / factors[at]) for factor in factors[at - 1 : at + 2]]
    y = [losses[factor] - losses[factors[at]] for factor in factors[at - 1 : at + 2]]
    curvature = (y[2] / x[2] - y[0] / x[0]) / (x[2] - x[0])
    slope = y[2] / x[2] - curvature * x[2]
    return factors[at] * math.exp(-slope / (2 * curvature)) if curvature > 0 else factors[at]


def _on_line(sizes: Sequence[Size], first: float, second: float, size: Size) -> float:
    along = math.log(size.parameters / sizes[0].parameters) / math.log(sizes[1].parameters / sizes[0].parameters)
    return first * (second / first) ** along


def rounded(factor: float) -> float:
    """Three digits: folders carry it in their names."""
    return float(f"{factor:.3g}")
