"""Scaling laws: the points of a record, what is fitted to points from anywhere, its table and its figure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attnres.analysis.powerlaw import (
    FEWEST_SIZES,
    Advantage,
    Fit,
    Point,
    fit_power_laws,
)
from attnres.files import write_bytes
from attnres.lab.judge import paired
from attnres.lab.runs import Record
from attnres.report.charts import Line, Lines, Plot, Row, Rows
from attnres.report.draw import drawn
from attnres.texttable import TextTable

FIT = "figures/scaling-fit.png"
NOTE = "Compute advantage: bar: 95% interval; thin: for all arms at once; diamond: the paper's."

EXTRAPOLATED = 1.5
"""Times an arm's largest compute: further out, its advantage is marked."""

PAPER = {"block": 1.254, "full": 1.275}
"""Times their compute that the plain residual needs for their loss at 5.6 PFLOP/s-days, where the paper reads off its
1.25x, by the paper's curves (2603.15031, Table 2; docs/spec.md 12)."""


def final_points(record: Record) -> dict[str, list[Point]]:
    """The final loss of every run that is compared, by arm, the baseline first; compute in operations."""
    curves: dict[str, list[Point]] = {record.arms[0]: []}
    for at in record.places():
        for arm, runs in record.compared(at).items():
            for run in runs.values():
                compute = run.measured["flops_per_token"] * run.measured["tokens"]
                curves.setdefault(arm, []).append(Point(compute, run.loss, at, run.seed))
    return curves


def axes_of(record: Record) -> dict[str, dict[str, list[Point]]]:
    """The final points over operations and, where every arm was timed at every size, over seconds of one core."""
    axes = {"operations": final_points(record)}
    steps = {(run.arm, run.at): run.steps for run in record.of() if run.done}
    times = step_times(record)
    if times.keys() >= steps.keys():
        axes["seconds"] = {
            arm: [
                dataclasses.replace(point, compute=times[arm, point.size] * steps[arm, point.size]) for point in points
            ]
            for arm, points in axes["operations"].items()
        }
    return axes


def step_times(record: Record) -> dict[tuple[str, str], float]:
    """(arm, size) -> seconds of a step: measured by turns where every run has such a time, else the runs' own.

    None at all where some of these are of a GPU and others not.
    """
    done = [run for run in record.of() if run.done]
    if by_turns(record):
        return {(run.arm, run.at): record.found["step_times"]["seconds"][run.at][run.arm] for run in done}
    if len({run.gpu for run in done}) > 1:
        return {}
    own: dict[tuple[str, str], list[float]] = {}
    for run in done:
        if run.step_seconds:
            own.setdefault((run.arm, run.at), []).append(run.step_seconds)
    return {key: statistics.median(seconds) for key, seconds in own.items()}


def by_turns(record: Record) -> bool:
    """Whether the steps of all finished runs were timed by turns."""
    seconds = record.found["step_times"]["seconds"] if record.found.get("step_times") else {}
    return bool(seconds) and all(run.arm in seconds.get(run.at, ()) for run in record.of() if run.done)


def why_no_advantage(baseline: str, fits: Sequence[Fit]) -> str:
    """Say in one sentence why the fits tell no arm's compute advantage."""
    lines = {fit.arm: fit for fit in fits}
    if baseline not in lines:
        return f"No compute advantage is given: {baseline} has no fit."
    if not lines[baseline].falls:
        return f"No compute advantage is given: the 95% interval of {baseline}'s exponent is not all above 0."
    return "No compute advantage is given: no other connection has a fit."


def leads(record: Record, arm: str, size: str) -> list[float]:
    """The differences to the baseline of the seeds that both finished at that size."""
    return paired(record.losses(size), record.arms[0], float).get(arm, [])


def diverged(record: Record) -> dict[str, int]:
    """How many runs of each arm did not end below where they began."""
    return {arm: sum(run.arm == arm and run.status == "diverged" for run in record.of()) for arm in record.arms}


def scaling_table(
    points: Mapping[str, Sequence[Point]],
    fits: Sequence[Fit],
    advantages: Sequence[Advantage],
    unit: str,
    diverged: Mapping[str, int],
) -> TextTable:
    """What was fitted. points: the baseline first; diverged: how many runs of an arm they are without."""
    lost = {arm: f", {count} diverged" for arm, count in diverged.items() if count}
    lines = {fit.arm: fit for fit in fits}
    counts = {arm: len(of) for arm, of in points.items()}
    counts |= {arm: 0 for arm in lost if arm not in counts}
    baseline = next(iter(counts))
    factors = {advantage.arm: advantage for advantage in advantages}
    several = len(advantages) > 1
    rows = tuple(
        (
            arm,
            f"{count}{lost.get(arm, '')}",
            *_line(lines.get(arm)),
            factor_with_interval(factors.get(arm)),
            *([_interval(factors[arm].joint) if arm in factors else ""] if several else []),
        )
        for arm, count in counts.items()
    )
    note = f"C in {unit}; a line through the means of the sizes, 95% bootstrap intervals over them."
    note += _caveats(fits, advantages, unit)
    if weak := [arm for arm, count in counts.items() if count and arm not in lines]:
        note += f" No fit where fewer than {FEWEST_SIZES} different computes are left: {', '.join(weak)}."
    if len(counts) > 1 and not advantages:
        note += f" {why_no_advantage(baseline, fits)}"
    columns = ("connection", "runs", "A", "a", f"compute advantage over {baseline}")
    joint = (f"all {len(advantages)} at once",) if several else ()
    return TextTable("L = A C^-a", (*columns, *joint), rows, note)


def _line(fit: Fit | None) -> tuple[str, str]:
    if fit is None:
        return "", ""
    return (
        f"{fit.scale:.4g} [{fit.scale_interval[0]:.4g}, {fit.scale_interval[1]:.4g}]",
        f"{fit.exponent:.4f} [{fit.exponent_interval[0]:.4f}, {fit.exponent_interval[1]:.4f}]",
    )


def _caveats(fits: Sequence[Fit], advantages: Sequence[Advantage], unit: str) -> str:
    """Where the advantages hold, and which of them lie outside of what was measured."""
    if not advantages:
        return ""
    at = advantages[0].compute
    text = f" Compute advantage: at C = {at:.3g} {unit}."
    if (count := len(advantages)) > 1:
        text += f" All {count} at once: its interval at 1 - 5% / {count} (Bonferroni)."
    for fit in fits:
        low, high = fit.computes
        if not low <= at <= EXTRAPOLATED * high:
            text += f" Extrapolated for {fit.arm}, measured from {low:.3g} to {high:.3g}."
    beyond = [advantage.arm for advantage in advantages if advantage.factor * at > EXTRAPOLATED * fits[0].computes[1]]
    if beyond and at <= EXTRAPOLATED * fits[0].computes[1]:
        text += f" {fits[0].arm} is extrapolated to what it would need for {', '.join(beyond)}."
    return text


def factor_with_interval(advantage: Advantage | None) -> str:
    if advantage is None:
        return ""
    return f"{_times(advantage.factor)}x {_interval(advantage.interval)}"


def _interval(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"[{_times(low)}, {_times(high)}]"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 1000 else f"{factor:.1e}"


def write_fit(points: Mapping[str, Sequence[Point]], unit: str, folder: Path) -> Path:
    """Write folder/figures/scaling-fit.png from points that are no record's. Returns its path."""
    fits, advantages = fit_power_laws(points)
    charts = [fits_chart(points, fits, unit, "loss"), *([advantages_chart(advantages, {})] if advantages else [])]
    path = folder / FIT
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, drawn(Plot(name="scaling-fit", alt="power laws", charts=charts, note=NOTE)))
    return path


def fits_chart(points: Mapping[str, Sequence[Point]], fits: Sequence[Fit], unit: str, loss: str) -> Lines:
    fitted, lines = {fit.arm: fit for fit in fits}, []
    for arm, of_arm in points.items():
        computes = [point.compute for point in of_arm]
        lines.append(Line(name=arm, x=computes, y=[point.loss for point in of_arm], as_="dots"))
        fit = fitted.get(arm)
        along = np.geomspace(min(computes), max(computes), 50) if fit else np.array([])
        lines.append(Line(name=arm, x=along, y=[fit.loss(compute) for compute in along] if fit else []))
    title = f"{loss} against compute, L = A C^-a"
    return Lines(title=title, x_label=f"training compute C ({unit})", lines=lines, log_x=True, log=True)


def advantages_chart(advantages: Sequence[Advantage], paper: Mapping[str, float]) -> Rows:
    several = len(advantages) > 1
    rows = [
        Row(
            name=one.arm,
            mean=one.factor,
            interval=one.interval,
            wider=one.joint if several else None,
            mark=paper.get(one.arm),
        )
        for one in advantages
    ]
    baseline = f" that {advantages[0].baseline} needs for the same loss" if advantages else ": none, see the table"
    return Rows(title="compute advantage", x_label=f"times the compute{baseline}", rows=rows, zero=1.0)
