"""Scaling: which runs, which rates, and what the record says, by hand; its sweeps train nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attnres import UsageError
from attnres.analysis.powerlaw import advantages_at_sizes
from attnres.lab.engine import Planned
from attnres.lab.experiments.scaling import (
    ScalingOptions,
    ScalingPlan,
    best,
    finding,
    parse_size,
    pictures,
    run,
    tables,
)
from attnres.lab.experiments.scaling import plan as make_plan
from attnres.lab.laws import axes_of, final_points, leads
from attnres.lab.runs import Record, RunResult
from tests.lab.machine import Machine
from tests.lab.sample import scaling

GRID = (0.5, 1.0, 2.0)
UNUSED = {"parameters": 1, "tokens": 1, "flops_per_token": 1.0}


def a_plan(**options) -> ScalingPlan:
    given = {"arms": ("residual", "full"), "sizes": ("2x32", "1x16", "2x16", "2x64"), "grid": GRID, **options}
    return make_plan(ScalingOptions(**given), Path("out"))


def test_a_grid_needs_two_smallest_sizes_of_different_parameters():
    sizes = ("1x32", "4x16", "2x32")
    with pytest.raises(UsageError, match="two smallest, 1x32 and 4x16, must differ in parameters"):
        a_plan(sizes=sizes)
    assert len(a_plan(sizes=sizes, grid=(1.0,)).sizes) == 3


OPTIMA = {("residual", "1x16"): 1.2, ("residual", "2x16"): 0.9, ("full", "1x16"): 1.0, ("full", "2x16"): 1.0}


def swept(machine: Machine, tmp_path: Path, optima: dict[tuple[str, str], float], **options) -> Record:
    """The record of a sweep whose losses at the two smallest sizes are parabolas in log rate."""

    def loss(one: Planned) -> float:
        return 2 + math.log(one.rate / optima.get((one.arm, one.at), 1.0)) ** 2

    machine.loss = loss
    return run(replace(a_plan(**options), out=tmp_path), tmp_path / "scaling.json", machine).record


def rates_of(record: Record, arm: str) -> dict[str, float]:
    return {run.at: run.rate for run in record.of(arm)}


def test_rates_are_on_the_line_through_the_two_smallest_sizes_and_stay_in_the_grid(machine, tmp_path):
    record = swept(machine, tmp_path, OPTIMA)
    grid = record.of(part="tuning")
    assert {(run.at, run.arm, run.rate) for run in grid} == {
        (size, arm, rate) for size in ("1x16", "2x16") for arm in ("residual", "full") for rate in GRID
    }
    assert {run.seed for run in grid} == {1000}
    assert rates_of(record, "full") == {"1x16": 1.0, "2x16": 1.0, "2x32": 1.0, "2x64": 1.0}
    # twice the parameters take 0.75 of the rate, and 2x32 has four times those of 2x16
    expected = {"1x16": 1.2, "2x16": 0.9, "2x32": 0.9 * 0.75**2, "2x64": 0.5}
    assert rates_of(record, "residual") == pytest.approx(expected, rel=5e-3)
    half = a_plan().run("full", "1x16", 0.5, 0).config.optimizer
    assert (half.lr, half.adamw_lr) == (0.01, 0.0015)


def test_the_best_of_a_grid():
    assert best({0.5: 2.1, 1: 2.0, 2: 2.2}) == pytest.approx(2 ** (-1 / 6))  # by hand: y = 0.15 x^2 + 0.05 x
    assert best({0.5: 2.0, 1: 2.1, 2: 2.2}) == 0.5 and best({0.5: 2.2, 1: 2.1, 2: 2.0}) == 2
    assert best({1: 2.0}) == 1 and best({}) == 1


def a_record(timed: bool = True) -> Record:
    """The arm needs half the compute per token and ends where the baseline does; each seed ends a little higher."""
    runs = []
    for arm, flops in (("residual", 6.0), ("full", 3.0)):
        for size in (1, 2, 4, 8):
            for seed in range(3):
                loss = 3 * (6.0 * size**2) ** -0.1 * (1 + 0.01 * seed) - 0.001 * seed * (arm == "full")
                own = {"parameters": size**2, "tokens": size**2, "flops_per_token": flops}
                run = {"arm": arm, "at": f"{size}x16", "seed": seed, "steps": 10, "loss": loss, "measured": own}
                runs.append(run | ({"step_seconds": flops * size**2 * 2} if timed else {}))
    more = {"arm": "full", "steps": 1, "measured": UNUSED}
    runs.append({**more, "at": "1x16", "rate": 0.5, "loss": 3.0, "seed": 1000, "part": "tuning"})
    return scaling(runs)


def moved(record: Record, change: Callable[[RunResult], RunResult | None]) -> Record:
    """The record with reported runs changed, or without those that become None."""
    runs = (change(run) if run.part == "runs" else run for run in record.runs)
    return replace(record, runs=tuple(run for run in runs if run is not None))


def test_the_advantage_is_told_at_every_size_in_operations_and_in_seconds():
    record = a_record()
    axes = axes_of(record)
    assert list(axes) == ["operations", "seconds"] and list(axes_of(a_record(timed=False))) == ["operations"]
    for points in axes.values():
        found = advantages_at_sizes(points)
        assert list(found) == [("full", f"{size}x16") for size in (1, 2, 4, 8)]
        for advantage in found.values():
            assert advantage.factor == pytest.approx(2, rel=0.02)
            assert advantage.interval[0] < advantage.factor < advantage.interval[1]
    assert leads(record, "full", "2x16") == pytest.approx([0, -0.001, -0.002])


@pytest.mark.parametrize(("tried", "shown"), [((0.5, 1.0, 2.0), "x1"), ((1.0, 2.0), "x1*"), ((0.25, 0.5, 1.0), "x1*")])
def test_a_rate_at_the_edge_of_what_was_tried_is_marked(tried, shown):
    other = a_record()
    place = {"arm": "full", "at": "2x16", "loss": 3.0, "seed": 1000, "part": "tuning", "status": "done"}
    record = replace(other, runs=(*other.of(), *(RunResult(**place, rate=rate) for rate in tried)))
    (table,) = (table for table in tables(record) if table.title == "Learning rates")
    assert table.rows[1][1:4] == ("x1", shown, "x1") and "* still at the edge" in table.note


def test_steps_timed_by_turns_count_before_the_runs_own():
    seconds = {f"{size}x16": {"residual": size**2 * 1.0, "full": size**2 * 4.0} for size in (1, 2, 4, 8)}
    times = {"seconds": seconds, "date": "2026-11-23", "commit": "abc", "machine": {"cores": 2}}
    record = replace(a_record(), found={"step_times": times})
    for (_, size), advantage in advantages_at_sizes(axes_of(record)["seconds"]).items():
        assert advantage.factor == pytest.approx(0.25, rel=0.02), size
    by_title = {table.title: table for table in tables(record)}
    assert "by turns" in by_title["Along the range"].note
    assert by_title["A step's time"].rows == (
        ("residual", "1000 ms", "4000 ms", "16000 ms", "64000 ms"),
        ("full", *["4.00x"] * 4),
    )
    del seconds["8x16"]["full"]  # trained later: times of two kinds are not mixed
    assert axes_of(record) == axes_of(a_record())
    by_title = {table.title: table for table in tables(record)}
    assert "blurs" in by_title["Along the range"].note and by_title["A step's time"].rows[1][-1] == ""


def test_seconds_of_a_gpu_and_of_a_cpu_are_not_compared():
    record = a_record()
    one = moved(record, lambda run: replace(run, gpu="H100") if run.at == "8x16" else run)
    assert list(axes_of(one)) == ["operations"]
    assert list(axes_of(moved(record, lambda run: replace(run, gpu="H100")))) == ["operations", "seconds"]


def only(record: Record, arm: str, *sizes: str) -> Record:
    """That arm diverged at all other sizes."""
    return moved(record, lambda run: replace(run, status="diverged") if run.arm == arm and run.at not in sizes else run)


def test_a_weak_arm_has_a_blank_fit_and_a_note():
    record = only(a_record(), "full", "1x16", "2x16")
    law, along, _ = tables(record)
    assert law.rows[0][1] == "12" and law.rows[0][3].startswith("0.1") and law.columns[-1].endswith("over residual")
    assert law.rows[1] == ("full", "6, 6 diverged", "", "", "")
    assert "No fit where fewer than 3 different computes are left: full." in law.note
    assert {row[3:] for row in along.rows} == {("", "")} and "one of both lines is missing" in along.note
    assert finding(record) == "No compute advantage is given: no other connection has a fit."
    (picture,) = pictures(record)
    drawn = {line.name: len(line.x) for line in picture.charts[0].lines if line.as_ == "line"}
    assert drawn["residual"] > 1 and drawn["full"] == 0, "in the legend, for the other charts, and without a line"


def test_fits_are_of_the_same_seeds():
    """A seed that one arm alone has lost moved its line by what seeds differ, and called that the arm's."""
    record = a_record()
    lost = ("full", "8x16", 0)
    without = moved(record, lambda run: None if (run.arm, run.at, run.seed) == lost else run)
    seeds = {(arm, point.size, point.seed) for arm, points in final_points(without).items() for point in points}
    every = {(arm, point.size, point.seed) for arm, points in final_points(record).items() for point in points}
    assert every - seeds == {("residual", "8x16", 0), lost}
    law, *_ = tables(without)
    assert [row[1] for row in law.rows] == ["11", "11"] and law.note.endswith("seed at their size: 1.")
    assert "left out" not in tables(record)[0].note


def test_a_weak_baseline_leaves_the_other_fits_without_advantages():
    record = only(a_record(), "residual", "1x16")
    law, *_ = tables(record)
    assert law.rows[0] == ("residual", "3, 9 diverged", "", "", "")
    assert law.rows[1][3].startswith("0.1") and law.rows[1][4] == ""
    assert finding(record) == "No compute advantage is given: residual has no fit." and finding(record) in law.note
    (picture,) = pictures(record)
    assert "none, see the table" in picture.charts[2].x_label and not picture.charts[2].rows
    nothing = only(only(record, "residual"), "full")
    assert {row[2:] for row in tables(nothing)[0].rows} == {("", "", "")} and not pictures(nothing)


def test_heads_have_16_channels_unless_their_number_is_given():
    assert [parse_size(text).heads for text in ("3x32", "3x64")] == [2, 4]
    assert [parse_size(text, heads=1).heads for text in ("3x24", "3x64")] == [1, 1]
    with pytest.raises(UsageError, match="dim a multiple of 6"):
        parse_size("3x32", heads=3)
    plan = make_plan(ScalingOptions(sizes=("1x8", "1x16", "1x24"), heads=1), Path("runs"))
    assert {plan.run("full", size, 1.0, 0).config.model.heads for size in plan.sizes} == {1}
    with pytest.raises(UsageError, match="heads must be"):
        make_plan(ScalingOptions(heads=0), Path("runs"))
