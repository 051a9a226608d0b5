"""Numbers of the ladders' records, and what docs/EVIDENCE.md says in them."""

from __future__ import annotations

import itertools
import math
import statistics

from scipy.stats import ttest_1samp

from attnres.analysis.powerlaw import Advantage, Point, fit_where_possible
from attnres.lab.record import read_record
from attnres.lab.scaling.fit import advantages_over_the_size_below, axes_of
from attnres.lab.scaling.rates import best
from attnres.lab.scaling.record import ScalingRecord
from tests.docs.records import (
    RESULTS,
    advantage,
    differences,
    ends,
    factor_of,
    joint,
    number,
    record,
    rows,
)

LADDER_16_20 = "(ladder-16-20)"
LADDER_32 = "(ladder-32-20)"
LADDER = ("rms-residual", "block", "full", "rms-block", "delta:block_size=4", "interlayer")
AHEAD = ("block", "full", "rms-block", "interlayer")
"""Attention over depth in the ladders, but for Delta Block."""
LARGEST = "16x96"
HALVED = ("16x64", "16x80", LARGEST)
"""The sizes of 16 layers whose rates were checked at half, with every arm at half the default."""


def ladder(arm: str, of: str = "16") -> dict[str, list[float]]:
    """By size, what an arm of a ladder is from the baseline, seed by seed."""
    runs = record(f"ladder-{of}")["runs"]
    sizes = dict.fromkeys(run["size"] for run in runs)
    return {size: list(differences([run for run in runs if run["size"] == size], arm).values()) for size in sizes}


def ladder_leads(arm: str, of: str = "16") -> list[str]:
    """By size, the mean of those and its standard error."""
    return [with_error(apart) for apart in ladder(arm, of).values()]


def with_error(apart: list[float]) -> str:
    return f"{number(statistics.fmean(apart), 3, '+')} ± {number(statistics.stdev(apart) / len(apart) ** 0.5, 3)}"


def lead_at(arm: str, share: float, size: str = LARGEST, of: str = "") -> list[float]:
    """What an arm is from the baseline after that share of the training of a size, seed by seed.

    of: the record, that of the size's depth after 20 tokens per parameter by default.
    """
    runs = {
        (run["arm"], run["seed"]): dict(map(tuple, run["curve"]))
        for run in record(of or f"ladder-{size.partition('x')[0]}-20")["runs"]
        if run["size"] == size
    }
    tokens = share * max(runs[arm, 0])
    return [runs[arm, seed][tokens] - runs["residual", seed][tokens] for seed in range(3)]


def share(arm: str, size: str) -> float:
    """An arm's lead as a share of the baseline's loss."""
    of = f"{size.partition('x')[0]}-20"
    runs = record(f"ladder-{of}")["runs"]
    plain = [run["loss"] for run in runs if (run["arm"], run["size"]) == ("residual", size)]
    return -statistics.fmean(ladder(arm, of)[size]) / statistics.fmean(plain)


def decided(of: str, size: str) -> list[str]:
    """The arms whose lead at a size is decided by Holm's procedure over all six."""
    values = sorted((ttest_1samp(ladder(arm, of)[size], 0).pvalue, arm) for arm in LADDER)
    held = list(itertools.takewhile(lambda one: (len(LADDER) - one[0]) * one[1][0] < 0.05, enumerate(values)))
    return [arm for _, (_, arm) in held]


def needed(arm: str, of: str = LADDER_16_20) -> str:
    """How many times an arm's operations the baseline needs on fitted lines, and the interval."""
    return " ".join(advantage(arm, of))


def ladder_row(arm: str) -> str:
    leads = ladder_leads(arm, "16-20")
    return f"| `{arm}` | {' | '.join(leads)} | {needed(arm)} | {' '.join(by_clock(arm, '16-20')[-1])} |"


def by_clock(arm: str, of: str = "16-20") -> list[tuple[str, str]]:
    """By size, what the baseline needs over an arm of a ladder in seconds, and the interval."""
    along = rows("Along the range", f"(ladder-{of})")
    cells = [row["advantage in seconds"] for row in along if row["connection"] == arm]
    return [(factor, interval) for factor, interval in (cell.split("x ") for cell in cells)]


def twice_the_tokens_row(arm: str, layers: str = "16", sizes: slice = slice(3, 5)) -> str:
    """Leads at 16x48 and 16x64, or at other two sizes, after 10 and 20 tokens per parameter."""
    leads = zip(ladder_leads(arm, layers)[sizes], ladder_leads(arm, f"{layers}-20")[sizes], strict=True)
    return f"| `{arm}` | {' | '.join(lead for pair in leads for lead in pair)} |"


def needed_at(size: str, arm: str, at_once: int = 1) -> str:
    """How many times an arm's operations the baseline needs for its loss after 20 tokens per parameter.

    By a line through the baseline's own losses after 10 and 20, over the logarithm of operations, seed by seed; the
    mean of the logarithms and its 95% interval.
    """
    logs, depth = [], size.partition("x")[0]
    twice = f"{depth}-20"
    for seed in range(3):
        (before, fewer), (after, more) = (_loss_and_operations(of, "residual", size, seed) for of in (depth, twice))
        loss, used = _loss_and_operations(twice, arm, size, seed)
        slope = (after - before) / math.log(more / fewer)
        logs.append((loss - after) / slope + math.log(more / used))
    return factor_of(logs, at_once)


def _loss_and_operations(of: str, arm: str, size: str, seed: int) -> tuple[float, float]:
    """The loss and the operations of a run of one of the ladders."""
    runs = record(f"ladder-{of}")["runs"]
    (run,) = [run for run in runs if (run["arm"], run["size"], run["seed"]) == (arm, size, seed)]
    return run["loss"], run["tokens"] * run["flops_per_token"]


def points_of(of: str, axis: str = "operations") -> dict[str, list[Point]]:
    """The final losses of a ladder, by arm."""
    return axes_of(scaling_record(of))[axis]


def scaling_record(of: str) -> ScalingRecord:
    return read_record(RESULTS / f"ladder-{of}.json", ScalingRecord)


def between_sizes(arm: str, axis: str = "operations", joint: bool = False, size: str = LARGEST) -> str:
    """An arm's advantage at a size by the baseline's own losses there and one size below."""
    of = f"{size.partition('x')[0]}-20"
    found = advantages_over_the_size_below(scaling_record(of), points_of(of, axis))[arm, size]
    return told(found.factor, found.joint if joint else found.interval)


def by_exponent(arm: str, at_once: int = 1, size: str = LARGEST) -> str:
    """An arm's advantage at a size with the exponent of the baseline's fitted line, over the seeds."""
    points = points_of(f"{size.partition('x')[0]}-20")
    exponent = next(fit.exponent for fit in fit_where_possible(points)[0] if fit.arm == "residual")
    of = {(name, point.seed): point for name in points for point in points[name] if point.size == size}
    pairs = [(of["residual", seed], of[arm, seed]) for seed in range(3)]
    logs = [
        math.log(plain.loss / ours.loss) / exponent + math.log(plain.compute / ours.compute) for plain, ours in pairs
    ]
    return factor_of(logs, at_once)


def on_lines(without: str = "", of: str = "16-20") -> dict[str, Advantage]:
    """By arm, what the baseline needs of its operations at its largest size on lines that leave out a size."""
    points = {arm: [point for point in found if point.size != without] for arm, found in points_of(of).items()}
    return {one.arm: one for one in fit_where_possible(points)[1]}


def line_rows() -> list[str]:
    """The rows of the table of lines through other sizes."""
    lines = {"all seven": on_lines(), "16x48 and 16x64 after 10": on_lines(of="16")}
    lines |= {f"without {size}": on_lines(size) for size in ladder("block")}
    return [f"| {name} | {lines_cells(of)} |" for name, of in lines.items()]


def lines_cells(of: dict[str, Advantage]) -> str:
    """The cells of a row of a table of lines."""
    return " | ".join(told(of[arm].factor, of[arm].interval) for arm in AHEAD)


def told(factor: float, interval: tuple[float, float]) -> str:
    return f"{number(factor, 2)} [{number(interval[0], 2)}, {number(interval[1], 2)}]"


def at_rate(size: str, rate: float) -> dict[str, dict]:
    """The runs of the first seed at a size of 16 layers and a rate, by arm."""
    of = record("ladder-16")
    place = (size, 0, rate)
    return {
        run["arm"]: run
        for run in (*of["runs"], *of["check"])
        if (run["size"], run["seed"], run.get("factor", 1.0)) == place
    }


def half_row(arm: str) -> str:
    """What half of the rate gives an arm at the three largest sizes, and the difference to the baseline at both."""
    row = []
    for size in HALVED:
        whole, half = at_rate(size, 0.5), at_rate(size, 0.25)
        gained = number(half[arm]["loss"] - whole[arm]["loss"], 3, "+") if arm in half else ""
        apart = [number(of[arm]["loss"] - of["residual"]["loss"], 3, "+") for of in (half, whole) if arm in of]
        row += [gained, "" if arm == "residual" or not gained else "{} ({})".format(*apart)]
    return f"| `{arm}` | {' | '.join(row)} |"


def halves() -> list[str]:
    """What the page says of half of the rate."""
    rows = {arm: (at_rate(LARGEST, 0.5)[arm]["loss"], at_rate(LARGEST, 0.25)[arm]["loss"]) for arm in LADDER}
    plain = (at_rate(LARGEST, 0.5)["residual"]["loss"], at_rate(LARGEST, 0.25)["residual"]["loss"])
    gains = sorted(number(whole - half, 3) for whole, half in (*rows.values(), plain))
    then, now = ([number(plain[i] - rows[arm][i], 3) for arm in AHEAD] for i in (0, 1))
    part = [number(100 * (1 - rows[arm][1] / plain[1]), 1) for arm in AHEAD]
    twice = sorted(number(run["loss"] - at_rate("16x64", 0.5)[arm]["loss"], 3) for arm, run in twice_at_16x64().items())
    rates = {arm: line_of_rates(arm, LARGEST) for arm in ("residual", "block", "rms-block", "interlayer")}
    return [
        *map(half_row, ("residual", *LADDER)),
        f"gains every arm {gains[0]} to {gains[-1]} there, the plain residual {number(plain[0] - plain[1], 3)}.",
        f"the four rules are {min(now)} to {max(now)} below it with half of the rate, {min(part)} to {max(part)}% of "
        f"the loss, where on that seed they are {min(then)} to {max(then)} with the whole",
        f"Twice the rate costs the five arms that tried it at 16x64 {twice[0]} to {twice[-1]}.",
        f"to {rates['residual']} of the default at 16x96 for `residual`, to {rates['block']} for `block`, to "
        f"{rates['rms-block']} for `rms-block` and to {rates['interlayer']} for `interlayer`",
    ]


def twice_at_16x64() -> dict[str, dict]:
    runs = [run for run in record("ladder-16")["check"] if run["size"] == "16x64" and run.get("factor", 1.0) == 1]
    assert len(runs) == 5
    return {run["arm"]: run for run in runs}


def needed_at_half(arm: str) -> str:
    """What the baseline needs of an arm's operations at the largest size by half the rate of it and of the one below.

    One seed: the power law through the baseline's two losses.
    """
    before, after = (at_rate(size, 0.25) for size in HALVED[-2:])
    log_compute = [math.log(_operations(of["residual"])) for of in (before, after)]
    exponent = math.log(before["residual"]["loss"] / after["residual"]["loss"]) / (log_compute[1] - log_compute[0])
    log = math.log(after["residual"]["loss"] / after[arm]["loss"]) / exponent
    return number(math.exp(log + log_compute[1]) / _operations(after[arm]), 2)


def _operations(run: dict) -> float:
    return run["tokens"] * run["flops_per_token"]


def needs_of_16() -> list[str]:
    """What the page says of the compute that a rule saves."""
    two, line = ({arm: of(arm) for arm in AHEAD} for of in (between_sizes, by_exponent))
    for arm in LADDER:
        for of in (between_sizes(arm, joint=True), by_exponent(arm, 6)):
            assert ends(of.partition(" ")[2])[0] < 1, "the page says that neither shows anything for six rules at once"
    of_six = {arm: joint(arm, LADDER_16_20) for arm in AHEAD}
    clock = [" ".join(by_clock(arm, "16-20")[-1]) for arm in AHEAD]
    seconds = [between_sizes(arm, axis="seconds").split()[0] for arm in AHEAD]
    return [
        "`residual` needs {} times the operations of `block`, {} of `full`, {} of `rms-block` and {} of `interlayer`, "
        "each by its own interval".format(*map(needed, AHEAD)),
        f"that of `rms-block` is {of_six['rms-block']}, and those of `block` {of_six['block']}, `full` "
        f"{of_six['full']} and `interlayer` {of_six['interlayer']} reach 1 or below.",
        *line_rows(),
        "{}, {}, {} and {} times with the exponent of its line, taken as known,".format(*line.values()),
        "and {}, {}, {} and {} times on the power law through its own losses there and at 16x80".format(*two.values()),
        "on that seed it would need {}, {}, {} and {} times".format(*map(needed_at_half, AHEAD)),
        "On the lines it is {}, {}, {} and {} times in seconds at width 96".format(*clock),
        f"between 16x80 and 16x96 {min(seconds)} to {max(seconds)} times, with intervals that all reach below 1.",
    ]


def along(arm: str, of: str) -> list[str]:
    """The intervals of an arm of a ladder in operations, by size."""
    of_arm = [row for row in rows("Along the range", of) if row["connection"] == arm]
    return [row["advantage in operations"].partition("x ")[2] for row in of_arm]


def ladder_step(arm: str, size: str) -> str:
    """What a step of an arm of a ladder takes over the baseline's."""
    seconds = record(f"ladder-{size.partition('x')[0]}-20")["step_times"]["seconds"][size]
    return number(seconds[arm] / seconds["residual"], 2)


def ladder_check(arm: str, size: str) -> list[str]:
    """What half and twice the rate of one of a ladder's sizes give, from the loss at the rate itself."""
    half, at_rate, twice = losses_at_rates(arm, size)
    return [number(loss - at_rate, 3, "+") for loss in (half, twice)]


def line_of_rates(arm: str, size: str) -> str:
    """The multiple of the default rates that the line through an arm's two smallest sizes leads to, unbounded."""
    of = record(f"ladder-{size.partition('x')[0]}-20")
    parameters = {run["size"]: run["parameters"] for run in of["runs"]}
    sizes = list(parameters)[:2]
    rates = []
    for smallest in sizes:
        grid = [run for run in of["grid"] if (run["arm"], run["size"]) == (arm, smallest)]
        rates.append(math.log(best({run.get("factor", 1.0): run["loss"] for run in grid})))
    x = [math.log(parameters[name]) for name in (*sizes, size)]
    return number(math.exp(rates[0] + (rates[1] - rates[0]) * (x[2] - x[0]) / (x[1] - x[0])), 2)


def beside_line(arm: str, size: str, ladder: str = "16-20") -> float:
    """How far the losses of a size of a ladder lie above the arm's fitted line, as a share of them."""
    points = points_of(ladder)
    (line,) = [fit for fit in fit_where_possible(points)[0] if fit.arm == arm]
    of_size = [point for point in points[arm] if point.size == size]
    return statistics.fmean(math.log(point.loss / line.loss(point.compute)) for point in of_size)


def losses_at_rates(arm: str, size: str) -> tuple[float, float, float]:
    of = record(f"ladder-{size.partition('x')[0]}")
    tried = [run for run in of["check"] if (run["arm"], run["size"]) == (arm, size)]
    half, twice = sorted(tried, key=lambda run: run.get("factor", 1.0))
    (at_rate,) = [run for run in of["runs"] if (run["arm"], run["size"], run["seed"]) == (arm, size, half["seed"])]
    return half["loss"], at_rate["loss"], twice["loss"]


def ladders() -> list[str]:
    """What the page says of the runs to the compute-optimal point."""
    checks = {arm: ladder_check(arm, "16x32") for arm in ("residual", *LADDER)}
    others = [float(change) for arm, of in checks.items() if arm != "residual" for change in of]
    half_rate, _ = ladder_check("block", "16x48")
    block = ladder("block")["16x48"][0]
    steps = {arm: [ladder_step(arm, size) for size in ("16x16", LARGEST)] for arm in LADDER}
    largest = [sorted(number(-statistics.fmean(ladder(arm, "16-20")[size]), 3) for arm in AHEAD) for size in HALVED]
    return [
        *map(ladder_row, LADDER),
        *halves(),
        *needs_of_16(),
        f"at half of it `residual` ends at {checks['residual'][0]}",
        f"no arm but `residual` gains more than {number(-min(others), 3)}",
        f"none but `block`: at half its rate it ends at {half_rate}, and with that is "
        f"{number(-block - float(half_rate), 3)} below `residual` on that seed in place of {number(block, 3)} above it",
        f"takes {steps['rms-block'][0]} times as long under `rms-block` as the plain one at width 16 and "
        f"{steps['rms-block'][1]} times at width 96 (`block`: {' and '.join(steps['block'])}, "
        f"`interlayer`: {' and '.join(steps['interlayer'])})",
        "are {} to {} below `residual` at 16x64, {} to {} at 16x80 and {} to {} at 16x96.".format(
            *(of[i] for of in largest for i in (0, -1))
        ),
    ]


def twice_the_tokens() -> list[str]:
    """What the page says of 16x48 and 16x64 after 20 tokens per parameter."""
    then, now = (sorted(-statistics.fmean(ladder(arm, of)["16x64"]) for arm in AHEAD) for of in ("16", "16-20"))
    smaller, larger = ({arm: needed_at(size, arm) for arm in AHEAD} for size in ("16x48", "16x64"))
    return [
        *map(twice_the_tokens_row, LADDER),
        f"{number(now[0], 3)} to {number(now[-1], 3)} are left of {number(then[0], 3)} to {number(then[-1], 3)}",
        f"it is {smaller['rms-block']} for `rms-block`, {smaller['block']} for `block`, {smaller['full']} for `full` "
        f"and {smaller['interlayer']} for `interlayer` at 16x48, and {larger['rms-block']}, {larger['block']}, "
        f"{larger['full']} and {larger['interlayer']} at 16x64",
        f"at 16x64 it is {needed_at('16x64', 'delta:block_size=4')} for Delta Block and "
        f"{needed_at('16x64', 'rms-residual')} for `rms-residual`, a loss.",
    ]


def below_on_lines(arm: str, size: str = LARGEST) -> str:
    """How far an arm's line is below the baseline's at a size, at the compute of each."""
    points = points_of(f"{size.partition('x')[0]}-20")
    lines = {fit.arm: fit for fit in fit_where_possible(points)[0]}
    losses = [
        lines[name].loss(next(point.compute for point in points[name] if point.size == size))
        for name in ("residual", arm)
    ]
    return number(losses[0] - losses[1], 3)
