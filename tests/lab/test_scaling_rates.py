"""Learning rates of the scaling sweep's arms, and what its record says along the range."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from attnres.analysis.powerlaw import advantages_at_sizes
from attnres.errors import UsageError
from attnres.lab.ahead import Ahead
from attnres.lab.scaling.figures import scaling_law
from attnres.lab.scaling.fit import axes_of, final_points, finding, paired_lead
from attnres.lab.scaling.plan import MOST_TOKENS, Options, Plan, Planned, parse_size, plan
from attnres.lab.scaling.rates import (
    best,
    check_runs,
    chosen_rates,
    grid_runs,
    phases,
    seed_runs,
    wider_runs,
)
from attnres.lab.scaling.record import ScalingRecord, SizedRun, StepTimes
from attnres.lab.scaling.tables import scaling_tables
from attnres.lab.tuning import MOST_BEYOND
from tests.lab.sample import parsed

GRID = (0.5, 1.0, 2.0)
UNUSED = {"parameters": 1, "seed": 1000, "steps": 1, "tokens": 1, "flops_per_token": 1.0}


def a_plan(**options) -> Plan:
    given = {"arms": ("residual", "full"), "sizes": ("2x32", "1x16", "2x16", "2x64@3"), "grid": GRID, **options}
    return plan(Options(**given), Path("out"))


def losses_around(optimum: dict[tuple[str, str], float], runs: list[Planned]) -> list[SizedRun]:
    """Parabolas in log rate."""
    return [
        SizedRun(
            arm=run.arm,
            size=run.size.name,
            factor=run.factor,
            status="done",
            loss=2 + math.log(run.factor / at) ** 2,
            **UNUSED,
        )
        for run in runs
        for at in [optimum[run.arm, run.size.name]]
    ]


def test_a_size_may_have_its_own_tokens_per_parameter():
    assert [size.name for size in a_plan().sizes] == ["1x16", "2x16", "2x32", "2x64"]
    assert [size.tokens_per_parameter for size in a_plan().sizes] == [None, None, None, 3.0]
    for text in ("16x60", "16x64@0"):
        with pytest.raises(UsageError, match="write LAYERSxDIM"):
            parse_size(text)
    with pytest.raises(UsageError, match="each LAYERSxDIM once"):
        a_plan(sizes=("1x16", "2x16", "2x32", "2x32@3"))


def test_a_grid_needs_two_smallest_sizes_of_different_parameters():
    sizes = ("1x32", "4x16", "2x32")
    with pytest.raises(UsageError, match="two smallest, 1x32 and 4x16, must differ in parameters"):
        a_plan(sizes=sizes)
    assert len(a_plan(sizes=sizes, grid=(1.0,)).sizes) == 3


def test_the_grid_is_of_the_two_smallest_sizes_and_a_seed_of_its_own():
    runs = grid_runs(a_plan())
    assert {(run.size.name, run.arm, run.factor) for run in runs} == {
        (size, arm, factor) for size in ("1x16", "2x16") for arm in ("residual", "full") for factor in GRID
    }
    assert {run.seed for run in runs} == {1000} and len({run.job.folder for run in runs}) == len(runs)
    half = next(run.job.config.optimizer for run in runs if run.factor == 0.5)
    assert (half.lr, half.adamw_lr) == (0.01, 0.0015)


def test_rates_are_on_the_line_through_the_two_smallest_sizes_and_stay_in_the_grid():
    sweep = a_plan()
    at = {("residual", "1x16"): 1.2, ("residual", "2x16"): 0.9, ("full", "1x16"): 1.0, ("full", "2x16"): 1.0}
    rates = chosen_rates(sweep, losses_around(at, grid_runs(sweep)))
    assert rates["full"] == {"1x16": 1.0, "2x16": 1.0, "2x32": 1.0, "2x64": 1.0}
    # twice the parameters take 0.75 of the rate, and 2x32 has four times those of 2x16
    expected = {"1x16": 1.2, "2x16": 0.9, "2x32": 0.9 * 0.75**2, "2x64": 0.5}
    assert rates["residual"] == pytest.approx(expected, rel=5e-3)
    for checks, checked in ((0, []), (1, ["2x32"]), (2, ["2x32", "2x64"]), (9, ["2x32", "2x64"])):
        sweep = a_plan(checks=checks)
        runs = [run for size in sweep.sizes for run in check_runs(sweep, size, rates)]
        expected = [("full", size, 0, factor) for size in checked for factor in (0.5, 2.0)]
        assert [(run.arm, run.size.name, run.seed, run.factor) for run in runs if run.arm == "full"] == expected
        assert len(runs) == 2 * len(expected)
    with pytest.raises(UsageError, match="checks must be a whole number of at least 0"):
        a_plan(checks=-1)


def test_a_grid_goes_on_where_the_best_lies_at_its_edge():
    sweep = a_plan()
    at = {("residual", "1x16"): 3.6, ("residual", "2x16"): 0.3, ("full", "1x16"): 1.0, ("full", "2x16"): 1.0}
    tried = losses_around(at, grid_runs(sweep))
    wider = wider_runs(sweep, tried)
    assert [(run.arm, run.size.name, run.factor) for run in wider] == [
        ("residual", "1x16", 4.0),
        ("residual", "2x16", 0.25),
    ]
    assert {run.seed for run in wider} == {1000}
    tried += losses_around(at, wider)
    wider = wider_runs(sweep, tried)
    assert [(run.size.name, run.factor) for run in wider] == [("1x16", 8.0), ("2x16", 0.125)], "4 and 0.25 were best"
    tried += losses_around(at, wider)
    assert wider_runs(sweep, tried) == []
    rates = chosen_rates(sweep, tried)
    # a twelfth for twice the parameters, kept within what the arm tried
    assert rates["residual"] == pytest.approx({"1x16": 3.6, "2x16": 0.3, "2x32": 0.125, "2x64": 0.125}, rel=5e-3)
    assert set(rates["full"].values()) == {1.0}


@pytest.mark.parametrize(("checks", "runs"), [(0, 36), (1, 40), (2, 44)])
def test_what_is_ahead_is_all_that_is_trained(checks, runs):
    """The best rates of one arm lie at edges, so that some of what may come does."""
    sweep = a_plan(checks=checks)
    ahead = Ahead(phases(sweep), lambda job: 2.0)
    assert ahead.announced().startswith(f"{runs} runs, ") and "and up to 12 runs, " in ahead.announced()
    at = {("residual", "1x16"): 3.6, ("residual", "2x16"): 0.3, ("full", "1x16"): 1.0, ("full", "2x16"): 1.0}
    trained = [grid_runs(sweep)]
    tried = losses_around(at, trained[0])
    for _ in range(MOST_BEYOND):
        trained.append(wider_runs(sweep, tried))
        tried += losses_around(at, trained[-1])
    rates = chosen_rates(sweep, tried)
    for size in sweep.sizes:
        trained += [seed_runs(sweep, size, rates), check_runs(sweep, size, rates)]
    costs = [sum(2 * run.job.config.steps for run in runs) for runs in trained]
    for position in range(len(trained)):
        later, least, most = costs[position + 1 :], *ahead.begin()
        assert least <= sum(later) <= most and (position < MOST_BEYOND or least == most)


def test_without_a_grid_the_seeds_alone_are_ahead():
    assert Ahead(phases(a_plan(grid=(1.0,)))).announced().startswith("24 runs, ")
    assert "edge" not in Ahead(phases(a_plan(grid=(1.0,)))).announced()


@pytest.mark.parametrize("sizes", [("1x16@999999", "2x16", "4096x4096"), ("1x16", "2x16", "4096x4096@999999")])
def test_every_size_has_its_own_limit_of_steps(sizes):
    with pytest.raises(UsageError, match="steps must be at most 2147483647"):
        a_plan(sizes=sizes, tokens_per_parameter=MOST_TOKENS)


def test_the_best_of_a_grid():
    assert best({0.5: 2.1, 1: 2.0, 2: 2.2}) == pytest.approx(2 ** (-1 / 6))  # by hand: y = 0.15 x^2 + 0.05 x
    assert best({0.5: 2.0, 1: 2.1, 2: 2.2}) == 0.5 and best({0.5: 2.2, 1: 2.1, 2: 2.0}) == 2
    assert best({1: 2.0}) == 1 and best({}) == 1


def test_without_a_grid_every_run_has_the_one_multiple():
    sweep = a_plan(grid=(2.0,))
    assert grid_runs(sweep) == [] and sweep.checked == ()
    assert set(chosen_rates(sweep, [])["full"].values()) == {2.0}


def a_record(timed: bool = True) -> ScalingRecord:
    """The arm needs half the compute per token and ends where the baseline does; each seed ends a little higher."""
    runs = []
    for arm, flops in (("residual", 6.0), ("full", 3.0)):
        for size in (1, 2, 4, 8):
            for seed in range(3):
                loss = 3 * (6.0 * size**2) ** -0.1 * (1 + 0.01 * seed) - 0.001 * seed * (arm == "full")
                run = {
                    "arm": arm,
                    "size": f"{size}x16",
                    "parameters": size**2,
                    "seed": seed,
                    "steps": 10,
                    "tokens": size**2,
                }
                run |= {"flops_per_token": flops, "loss": loss, "status": "done"}
                runs.append(run | ({"step_seconds": flops * size**2 * 2} if timed else {}))
    done = {"arm": "full", "status": "done", **UNUSED}
    grid = [{**done, "size": "1x16", "factor": 0.5, "loss": 3.0}]
    check = [{**done, "size": "4x16", "factor": factor, "loss": 9.0, "seed": 0} for factor in (0.5, 2.0)]
    entries = {"arms": ["residual", "full"], "tokens_per_parameter": 1.0, "runs": runs, "grid": grid, "check": check}
    return parsed(ScalingRecord, entries)


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
    lead, error = paired_lead(record, "full", "2x16")
    assert lead == pytest.approx(-0.001) and error == pytest.approx(0.001 / math.sqrt(3))


def test_the_tables_have_the_range_and_the_rates():
    law, along, rates = scaling_tables(a_record())
    assert law.title == "L = A C^-a" and len(along.rows) == 4
    assert along.rows[0][:3] == ("full", "1x16", "-0.0010 ± 0.0006") and along.rows[0][3].startswith("2.0")
    assert rates.rows[1][:5] == ("full", "x1", "x1", "x1", "x1") and rates.rows[1][5].startswith("x0.5: +7.0994, x2")


@pytest.mark.parametrize(("tried", "shown"), [((0.5, 1.0, 2.0), "x1"), ((1.0, 2.0), "x1*"), ((0.25, 0.5, 1.0), "x1*")])
def test_a_rate_at_the_edge_of_what_was_tried_is_marked(tried, shown):
    done = {"arm": "full", "status": "done", "size": "2x16", "loss": 3.0, **UNUSED}
    record = replace(a_record(), grid=tuple(SizedRun(**done, factor=factor) for factor in tried))
    (table,) = (table for table in scaling_tables(record) if table.title == "Learning rates")
    assert table.rows[1][1:4] == ("x1", shown, "x1") and "* still at the edge" in table.note


def test_steps_timed_by_turns_count_before_the_runs_own():
    seconds = {f"{size}x16": {"residual": size**2 * 1.0, "full": size**2 * 4.0} for size in (1, 2, 4, 8)}
    times = StepTimes(seconds, "2026-11-23", "abc", {"cores": 2})
    record = replace(a_record(), step_times=times)
    for (_, size), advantage in advantages_at_sizes(axes_of(record)["seconds"]).items():
        assert advantage.factor == pytest.approx(0.25, rel=0.02), size
    tables = {table.title: table for table in scaling_tables(record)}
    assert "by turns" in tables["Along the range"].note
    assert tables["A step's time"].rows == (
        ("residual", "1000 ms", "4000 ms", "16000 ms", "64000 ms"),
        ("full", *["4.00x"] * 4),
    )
    del seconds["8x16"]["full"]  # trained later: times of two kinds are not mixed
    assert axes_of(record) == axes_of(a_record())
    tables = {table.title: table for table in scaling_tables(record)}
    assert "blurs" in tables["Along the range"].note and tables["A step's time"].rows[1][-1] == ""


def test_between_sizes_are_those_of_one_length():
    record = a_record()
    (place,) = (i for i, name in enumerate(scaling_tables(record)[1].columns) if name == "operations, between sizes")
    assert [row[place] != "" for row in scaling_tables(record)[1].rows] == [False, True, True, True]
    shorter = tuple(replace(run, tokens=run.tokens // 2) if run.size == "4x16" else run for run in record.runs)
    rows = scaling_tables(replace(record, runs=shorter))[1].rows
    assert [row[place] != "" for row in rows] == [False, True, False, False]
    before = [row[place] for row in scaling_tables(record)[1].rows]
    less = tuple(replace(run, tokens=8, loss=run.loss + 0.26) if run.size == "8x16" else run for run in record.runs)
    rows = scaling_tables(replace(record, runs=less))[1].rows
    assert [row[place] for row in rows] == [*before[:3], ""], "8x16 has less compute and more loss than 4x16"


def test_seconds_of_a_gpu_and_of_a_cpu_are_not_compared():
    record = a_record()
    moved = tuple(replace(run, gpu="H100") if run.size == "8x16" else run for run in record.runs)
    assert list(axes_of(replace(record, runs=moved))) == ["operations"]
    everywhere = tuple(replace(run, gpu="H100") for run in record.runs)
    assert list(axes_of(replace(record, runs=everywhere))) == ["operations", "seconds"]


def only(record: ScalingRecord, arm: str, *sizes: str) -> ScalingRecord:
    """That arm diverged at all other sizes."""
    runs = [replace(run, status="diverged") if run.arm == arm and run.size not in sizes else run for run in record.runs]
    return replace(record, runs=tuple(runs))


def test_a_weak_arm_has_a_blank_fit_and_a_note():
    record = only(a_record(), "full", "1x16", "2x16")
    law, along, _ = scaling_tables(record)
    assert law.rows[0][1] == "12" and law.rows[0][3].startswith("0.1") and law.columns[-1].endswith("over residual")
    assert law.rows[1] == ("full", "6, 6 diverged", "", "", "")
    assert "No fit where fewer than 3 different computes are left: full." in law.note
    assert {row[3::2] for row in along.rows} == {("", "")} and "one of both lines is missing" in along.note
    assert finding(record) == "No compute advantage is given: no other connection has a fit."
    figure = scaling_law(record)
    assert figure
    drawn = {line.get_label(): len(line.get_xdata()) for line in figure.axes[0].lines if line.get_linestyle() != "None"}
    assert drawn["residual"] > 1 and drawn["full"] == 0, "in the legend, for the other panels, and without a line"


def test_fits_are_of_the_same_seeds():
    """A seed that one arm alone has lost moved its line by what seeds differ, and called that the arm's."""
    record = a_record()
    lost = ("full", "8x16", 0)
    without = replace(record, runs=tuple(run for run in record.runs if (run.arm, run.size, run.seed) != lost))
    seeds = {(arm, point.size, point.seed) for arm, points in final_points(without).items() for point in points}
    every = {(arm, point.size, point.seed) for arm, points in final_points(record).items() for point in points}
    assert every - seeds == {("residual", "8x16", 0), lost}
    law, *_ = scaling_tables(without)
    assert [row[1] for row in law.rows] == ["11", "11"] and law.note.endswith("seed at their size: 1.")
    assert "left out" not in scaling_tables(record)[0].note


def test_a_weak_baseline_leaves_the_other_fits_without_advantages():
    record = only(a_record(), "residual", "1x16")
    law, *_ = scaling_tables(record)
    assert law.rows[0] == ("residual", "3, 9 diverged", "", "", "")
    assert law.rows[1][3].startswith("0.1") and law.rows[1][4] == ""
    assert finding(record) == "No compute advantage is given: residual has no fit." and finding(record) in law.note
    figure = scaling_law(record)
    assert figure and figure.axes[2].texts
    nothing = only(only(record, "residual"), "full")
    assert {row[2:] for row in scaling_tables(nothing)[0].rows} == {("", "", "")} and scaling_law(nothing) is None


def test_a_baseline_that_does_not_fall_leaves_advantages_blank():
    record = a_record()
    rising = tuple(replace(run, loss=6 - run.loss) if run.arm == "residual" else run for run in record.runs)
    law, along, _ = scaling_tables(replace(record, runs=rising))
    assert law.rows[0][3].startswith("-0.") and law.rows[1][3].startswith("0.1") and law.rows[1][4] == ""
    assert law.note.endswith("given: the 95% interval of residual's exponent is not all above 0.")
    assert {row[3::2] for row in along.rows} == {("", "")} and finding(replace(record, runs=rising)) in law.note
    assert scaling_law(replace(record, runs=rising)) is not None


def test_a_panel_without_anything_says_why():
    record = a_record()
    short = replace(record, runs=tuple(replace(run, curve=run.curve[-1:]) for run in record.runs))
    weak = only(short, "full", "1x16", "2x16")
    figure = scaling_law(weak)
    assert figure
    *_, advantages, iso = figure.axes
    assert [axes.texts[0].get_text().partition(":")[0] for axes in (advantages, iso)] == ["none", "none"]
    assert not advantages.lines[0].get_xdata().size  # the legend's alone
    whole = scaling_law(record)
    assert whole and not whole.axes[2].texts


def test_the_check_is_held_against_its_own_seed():
    """The check trains with the first seed, whose run at the rate itself may have diverged."""
    record = a_record()
    at_rate = [run for run in record.runs if (run.arm, run.size, run.seed) == ("full", "4x16", 0)]
    others = tuple(run for run in record.runs if run not in at_rate)
    checks = [scaling_tables(replace(record, runs=runs))[2].rows[1][5] for runs in ((*others, *at_rate), others)]
    assert checks == ["x0.5: +7.0994, x2: +7.0994", ""]


def test_the_tables_of_few_sizes_are_without_a_fit():
    few = replace(a_record(), runs=a_record().runs[:1], grid=(), check=())
    (along,) = scaling_tables(few)
    assert along.title == "Along the range" and len(along.columns) == 3
    assert finding(few) == "Fewer than 3 sizes are done." and scaling_law(few) is None
