"""Numbers of the ladders' records, and what docs/EVIDENCE.md says in them."""

from __future__ import annotations

import math
import statistics

from attnres.analysis.powerlaw import Point, advantages_between_sizes, fit_where_possible
from attnres.lab.record import read_record
from attnres.lab.scaling.fit import axes_of, final_points
from attnres.lab.scaling.rates import best
from attnres.lab.scaling.record import ScalingRecord
from tests.docs.records import (
    RESULTS,
    advantage,
    answers,
    differences,
    factor_of,
    joint,
    number,
    probed,
    record,
    rows,
)

LADDER_16 = "(ladder-16)"
LADDER_16_20 = "(ladder-16-20)"
LADDER_32 = "(ladder-32)"
LADDER = ("rms-residual", "block", "full", "rms-block", "delta:block_size=4", "interlayer")
AHEAD = ("block", "full", "rms-block", "interlayer")
"""Attention over depth in the ladders, but for Delta Block."""
FAR_APART = (("full", "16x48"), ("interlayer", "16x32"))


def ladder(arm: str, of: str = "16") -> dict[str, list[float]]:
    """By size, what an arm of a ladder is from the baseline, seed by seed."""
    runs = record(f"ladder-{of}")["runs"]
    sizes = dict.fromkeys(run["size"] for run in runs)
    return {size: list(differences([run for run in runs if run["size"] == size], arm).values()) for size in sizes}


def ladder_leads(arm: str, of: str = "16") -> list[str]:
    """By size, the mean of those and its standard error."""
    return [
        f"{number(statistics.fmean(apart), 3, '+')} ± {number(statistics.stdev(apart) / len(apart) ** 0.5, 3)}"
        for apart in ladder(arm, of).values()
    ]


def ladder_seeds(arm: str, size: str) -> str:
    """What an arm of a ladder is from the baseline at a size, in every seed."""
    *others, last = [number(apart, 3, "+") for apart in ladder(arm, size.partition("x")[0])[size]]
    return f"{', '.join(others)} and {last}"


def ladder_spread(size: str) -> tuple[str, str]:
    """The standard deviation of the seeds of one arm of a ladder at a size, pooled, and that of the arms' means."""
    runs = [run for run in record(f"ladder-{size.partition('x')[0]}")["runs"] if run["size"] == size]
    arms = [[run["loss"] for run in runs if run["arm"] == arm] for arm in ("residual", *LADDER)]
    within = statistics.fmean(statistics.variance(losses) for losses in arms) ** 0.5
    return number(within, 3), number(statistics.stdev(statistics.fmean(losses) for losses in arms), 3)


def ladder_row(arm: str) -> str:
    leads = ladder_leads(arm)
    needed = (" ".join(of) for of in (advantage(arm, "(ladder-16)"), by_clock(arm)[-1]))
    return f"| `{arm}` | {' | '.join(leads)} | {' | '.join(needed)} |"


def by_clock(arm: str, of: str = "16") -> list[tuple[str, str]]:
    """By size, what the baseline needs over an arm of a ladder in seconds, and the interval."""
    along = rows("Along the range", f"(ladder-{of})")
    cells = [row["advantage in seconds"] for row in along if row["connection"] == arm]
    return [(factor, interval) for factor, interval in (cell.split("x ") for cell in cells)]


def twice_the_tokens_row(arm: str) -> str:
    """Leads at 16x48 and 16x64 after 10 and 20 tokens per parameter; what the baseline needs on lines of the latter."""
    leads = zip(ladder_leads(arm)[3:5], ladder_leads(arm, "16-20")[3:], strict=True)
    needed = (" ".join(of) for of in (advantage(arm, "(ladder-16-20)"), by_clock(arm, "16-20")[-1]))
    return f"| `{arm}` | {' | '.join(lead for pair in leads for lead in pair)} | {' | '.join(needed)} |"


def needed_at(size: str, arm: str) -> str:
    """How many times an arm's operations the baseline needs for its loss after 20 tokens per parameter.

    By a line through the baseline's own losses after 10 and 20, over the logarithm of operations, seed by seed; the
    mean of the logarithms and its 95% interval.
    """
    logs = []
    for seed in range(3):
        (before, fewer), (after, more) = (_loss_and_operations(of, "residual", size, seed) for of in ("16", "16-20"))
        loss, used = _loss_and_operations("16-20", arm, size, seed)
        slope = (after - before) / math.log(more / fewer)
        logs.append((loss - after) / slope + math.log(more / used))
    return factor_of(logs)


def _loss_and_operations(of: str, arm: str, size: str, seed: int) -> tuple[float, float]:
    """The loss and the operations of a run of one of the ladders."""
    runs = record(f"ladder-{of}")["runs"]
    (run,) = [run for run in runs if (run["arm"], run["size"], run["seed"]) == (arm, size, seed)]
    return run["loss"], run["tokens"] * run["flops_per_token"]


def points_of_16(axis: str = "operations") -> dict[str, list[Point]]:
    """The final losses of the ladder of 16 layers, by arm."""
    return axes_of(read_record(RESULTS / "ladder-16.json", ScalingRecord))[axis]


def exponent_of_16(axis: str = "operations") -> float:
    """That of the baseline's fitted line."""
    return next(fit.exponent for fit in fit_where_possible(points_of_16(axis))[0] if fit.arm == "residual")


def between_sizes(arm: str, size: str = "16x80", axis: str = "operations", joint: bool = False) -> str:
    """An arm's advantage at a size of the ladder by the baseline's own losses there and one size below."""
    found = advantages_between_sizes(points_of_16(axis))[arm, size]
    ends = found.joint if joint else found.interval
    return f"{number(found.factor, 2)} [{number(ends[0], 2)}, {number(ends[1], 2)}]"


def along_between(arm: str) -> str:
    """Its factors from the second size on."""
    *others, last = [between_sizes(arm, size).split()[0] for size in list(ladder(arm))[1:]]
    return f"{', '.join(others)} and {last}"


def by_exponent(arm: str, size: str = "16x80", axis: str = "operations", at_once: int = 1) -> str:
    """The same with the exponent of the baseline's fitted line, over the seeds."""
    points, exponent = points_of_16(axis), exponent_of_16(axis)
    of = {(name, point.size, point.seed): point for name in points for point in points[name]}
    pairs = [(of["residual", size, seed], of[arm, size, seed]) for seed in range(3)]
    logs = [
        math.log(plain.loss / ours.loss) / exponent + math.log(plain.compute / ours.compute) for plain, ours in pairs
    ]
    return factor_of(logs, at_once)


def local_exponents() -> list[str]:
    """Of the baseline between its three largest sizes, from the means over seeds."""
    points, of = points_of_16()["residual"], {}
    for size in ("16x48", "16x64", "16x80"):
        at = [point for point in points if point.size == size]
        of[size] = math.log(statistics.fmean(point.loss for point in at)), math.log(at[0].compute)
    pairs = (("16x48", "16x64"), ("16x64", "16x80"))
    return [number((of[a][0] - of[b][0]) / (of[b][1] - of[a][1]), 3) for a, b in pairs]


def half_of_full() -> str:
    """What half of the rate gives `full` at 16x64, and its lead at both."""
    of = record("ladder-16")
    at_rate, half = (
        {run["arm"]: run["loss"] for run in runs if (run["size"], run["seed"], run.get("factor", 1.0)) == place}
        for runs, place in ((of["runs"], ("16x64", 0, 0.5)), (of["check"], ("16x64", 0, 0.25)))
    )
    before, after = (number(losses["residual"] - losses["full"], 3) for losses in (at_rate, half))
    return f"`full` {number(half['full'] - at_rate['full'], 3)}, whose lead goes from {before} to {after}"


def half_of_the_rate_at_16x80() -> list[str]:
    """What the page says of the one seed of two arms at half the rate of 16x80."""
    of = record("ladder-16")
    at_rate, half = (
        {(run["arm"], run["size"]): run for run in runs if run["seed"] == 0 and run.get("factor", 1.0) == rate}
        for runs, rate in ((of["runs"], 0.5), (of["check"], 0.25))
    )
    arms = ("residual", "block")
    assert [arm for arm, size in half if size == "16x80"] == list(arms)
    moved = [number(half[arm, "16x80"]["loss"] - at_rate[arm, "16x80"]["loss"], 3) for arm in arms]
    leads = [number(runs["residual", "16x80"]["loss"] - runs["block", "16x80"]["loss"], 3) for runs in (at_rate, half)]
    assert leads[0] == leads[1] and moved[0] == moved[1]
    before, plain, ours = half["residual", "16x64"], half["residual", "16x80"], half["block", "16x80"]
    used = [run["tokens"] * run["flops_per_token"] for run in (before, plain, ours)]
    exponent = math.log(before["loss"] / plain["loss"]) / math.log(used[1] / used[0])
    needed = math.exp(math.log(plain["loss"] / ours["loss"]) / exponent) * used[1] / used[2]
    return [
        f"Half of the rate gives `residual` {moved[0]} and `block` {moved[1]} on that seed, so that the lead stays "
        f"{leads[0]};",
        f"with an exponent of {number(exponent, 3)} in place of {local_exponents()[1]}, and needs {number(needed, 2)} "
        "times the operations of `block`.",
    ]


def largest_of_16() -> list[str]:
    """What the page says of what 16x80 saves."""
    others, six = ("full", "rms-block", "interlayer"), len(LADDER)
    two = {arm: between_sizes(arm) for arm in LADDER}
    line = {arm: by_exponent(arm) for arm in LADDER}
    joints = [of for arm in others for of in (between_sizes(arm, joint=True), by_exponent(arm, at_once=six))]
    assert max(float(of.split("[")[1].split(",")[0]) for of in joints) < 1, "every other reaches below 1"

    def both_joints(arm: str, size: str = "16x80", axis: str = "operations") -> str:
        of = between_sizes(arm, size, axis, joint=True), by_exponent(arm, size, axis, six)
        return " and ".join(one.partition(" ")[2] for one in of)

    def clock(arm: str) -> list[str]:
        return [between_sizes(arm, axis="seconds"), by_exponent(arm, axis="seconds")]

    before, last = local_exponents()
    delta = clock("delta:block_size=4")
    return [
        f"needs {two['block']} times the operations of `block`, {two['full']} for `full`, {two['rms-block']} for "
        f"`rms-block` and {two['interlayer']} for `interlayer`, on the power law",
        f"and {line['block']}, {line['full']}, {line['rms-block']} and {line['interlayer']} with the exponent",
        f"is the table's {' '.join(advantage('block', LADDER_16))}. From 16x24 on the first gives "
        + ", ".join(f"{along_between(arm)} for `{arm}`" for arm in AHEAD[:-1])
        + f" and {along_between(AHEAD[-1])} for `{AHEAD[-1]}`.",
        f"that of `block` is {both_joints('block')}, and every other reaches below 1. Delta Block is at "
        f"{two['delta:block_size=4'][:4]} and {line['delta:block_size=4'][:4]}, `rms-residual` at "
        f"{two['rms-residual'][:4]} and {line['rms-residual'][:4]}.",
        f"show nothing for `block` once they are to hold for six arms, {both_joints('block', '16x64')}, and for "
        f"`interlayer` {both_joints('interlayer', '16x64')}.",
        f"its exponent is {last} there, {before} between 16x48 and 16x64, and {number(exponent_of_16(), 3)} along the "
        "line.",
        f"they are {clock('block')[0]} and {clock('block')[1]} for `block`, whose step takes "
        f"{ladder_step('block', '16x80')} times the plain one's, and for six arms at once "
        f"{both_joints('block', axis='seconds')}",
        f"`full` is at {clock('full')[0]} and {clock('full')[1]}, Delta Block at {delta[0]} and {delta[1]}.",
    ]


def ladder_step(arm: str, size: str, of: str = "") -> str:
    """What a step of an arm of a ladder takes over the baseline's."""
    seconds = record(f"ladder-{of or size.partition('x')[0]}")["step_times"]["seconds"][size]
    return number(seconds[arm] / seconds["residual"], 2)


def ladder_check(arm: str, size: str) -> list[str]:
    """What half and twice the rate of one of a ladder's sizes give, from the loss at the rate itself."""
    half, at_rate, twice = _losses_at_rates(arm, size)
    return [number(loss - at_rate, 3, "+") for loss in (half, twice)]


def line_of_rates(arm: str, size: str) -> str:
    """The multiple of the default rates that the line through an arm's two smallest sizes leads to, unbounded."""
    of = record(f"ladder-{size.partition('x')[0]}")
    parameters = {run["size"]: run["parameters"] for run in of["runs"]}
    sizes = list(parameters)[:2]
    rates = []
    for smallest in sizes:
        grid = [run for run in of["grid"] if (run["arm"], run["size"]) == (arm, smallest)]
        rates.append(math.log(best({run.get("factor", 1.0): run["loss"] for run in grid})))
    x = [math.log(parameters[name]) for name in (*sizes, size)]
    return number(math.exp(rates[0] + (rates[1] - rates[0]) * (x[2] - x[0]) / (x[1] - x[0])), 2)


def ladder_best(arm: str, size: str) -> str:
    """How far an arm is below the baseline on the seed of that check, each at the best of its three rates."""
    return number(min(_losses_at_rates("residual", size)) - min(_losses_at_rates(arm, size)), 3)


def beside_line(arm: str, size: str, of: str = "16") -> float:
    """How far the losses of a size of a ladder lie above the arm's fitted line, as a share of them."""
    points = final_points(read_record(RESULTS / f"ladder-{of}.json", ScalingRecord))
    (line,) = [fit for fit in fit_where_possible(points)[0] if fit.arm == arm]
    of_size = [point for point in points[arm] if point.size == size]
    return statistics.fmean(math.log(point.loss / line.loss(point.compute)) for point in of_size)


def _losses_at_rates(arm: str, size: str) -> tuple[float, float, float]:
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
    steps = {arm: [ladder_step(arm, size) for size in ("16x16", "16x80")] for arm in LADDER}
    largest = {size: [number(-statistics.fmean(ladder(arm)[size]), 3) for arm in AHEAD] for size in ("16x64", "16x80")}
    seeds = {(arm, size): [number(apart, 3, "+") for apart in sorted(ladder(arm)[size])] for arm, size in FAR_APART}
    rates = {arm: line_of_rates(arm, "16x80") for arm in ("residual", "block", "rms-block", "interlayer")}
    two = ("block", "rms-block")
    checked = {
        arm: _losses_at_rates(arm, "16x64") for arm in ("residual", "block", "rms-block", "rms-residual", "interlayer")
    }
    at_half, at_rate = ([number(checked["residual"][i] - checked[arm][i], 3) for arm in two] for i in (0, 1))
    assert at_half == at_rate, "the page says that the leads stay"
    half, twice = zip(*(ladder_check(arm, "16x64") for arm in checked), strict=True)
    return [
        *map(ladder_row, LADDER),
        f"`rms-block` is at {joint('rms-block', LADDER_16)} at the largest size, `interlayer` at "
        f"{joint('interlayer', LADDER_16)} and `block` at {joint('block', LADDER_16)}.",
        *largest_of_16(),
        f"gives `residual` {half[0]}, `block` {half[1]} and `rms-block` {half[2]}, so that their leads stay "
        f"{at_rate[0]} and {at_rate[1]}, `rms-residual` {half[3]} and `interlayer` {half[4]}, and "
        f"{half_of_full()}; twice it gives the first five {', '.join(twice[:4])} and {twice[4]}.",
        *half_of_the_rate_at_16x80(),
        f"for `residual` lowest: to {rates['residual']} of the default at 16x80, for `block` to {rates['block']}, for "
        f"`rms-block` to {rates['rms-block']} and for `interlayer` to {rates['interlayer']}. "
        "At 16x48 half of that rate leaves "
        f"`residual` {ladder_check('residual', '16x48')[0].lstrip('+')} further up, at 16x64",
        f"at half of it `residual` ends at {checks['residual'][0]}",
        f"no arm but `residual` gains more than {number(-min(others), 3)}",
        f"none but `block`: at half its rate it ends at {half_rate}, and with that is "
        f"{number(-block - float(half_rate), 3)} below `residual` on that seed in place of {number(block, 3)} above it",
        f"takes {steps['rms-block'][0]} times as long under `rms-block` as the plain one at width 16 and "
        f"{steps['rms-block'][1]} times at width 80 (`block`: {' and '.join(steps['block'])}, "
        f"`interlayer`: {' and '.join(steps['interlayer'])})",
        *(f"{', '.join(of[:2])} and {of[2]} at {size}" for (_, size), of in seeds.items()),
        "at 16x64 `block` is {} below `residual`, `full` {}, `rms-block` {} and `interlayer` {}, at 16x80 {}, {}, {} "
        "and {}, each in every seed.".format(*largest["16x64"], *largest["16x80"]),
        f"close together at 16x80, at {ladder_seeds('block', '16x80')};",
        f"of the smaller sizes' those of {shown_along_the_range()} do not",
    ]


def shown_along_the_range() -> str:
    """Where on its lines an arm's advantage in operations has an interval above 1."""
    rules = {}
    for row in rows("Along the range", LADDER_16):
        interval = row["advantage in operations"].split("x ")[1]
        if float(interval.strip("[").split(",")[0]) > 1:
            rules.setdefault(row["connection"], []).append(f"{row['size']} {interval}")
    named = [f"`{arm}` at {', '.join(sizes)}" for arm, sizes in rules.items()]
    return f"{', of '.join(named[:-1])} and of {named[-1]}"


def twice_the_tokens() -> list[str]:
    """What the page says of 16x48 and 16x64 after 20 tokens per parameter."""
    then, now = (sorted(-statistics.fmean(ladder(arm, of)["16x64"]) for arm in AHEAD) for of in ("16", "16-20"))
    smaller, needed = ({arm: needed_at(size, arm) for arm in AHEAD} for size in ("16x48", "16x64"))
    return [
        *map(twice_the_tokens_row, LADDER),
        f"{number(now[0], 3)} to {number(now[-1], 3)} are left of {number(then[0], 3)} to {number(then[-1], 3)}",
        f"`residual` needs {' '.join(advantage('rms-block', LADDER_16_20))} times the operations of `rms-block`",
        f"it is {smaller['rms-block']} for `rms-block`, {smaller['block']} for `block`, {smaller['full']} for `full` "
        f"and {smaller['interlayer']} for `interlayer` at 16x48, and {needed['rms-block']}, {needed['block']}, "
        f"{needed['full']} and {needed['interlayer']} at 16x64",
        f"at 16x64 it is {needed_at('16x64', 'delta:block_size=4')} for Delta Block and "
        f"{needed_at('16x64', 'rms-residual')} for `rms-residual`, a loss.",
        f"Where the intervals of all six are to hold at once it is {joint('rms-block', LADDER_16_20)}.",
        f"The lines put `rms-block` {below_on_lines('rms-block', '16x64')} below `residual` at 16x64, where its runs "
        f"end {number(-statistics.fmean(ladder('rms-block', '16-20')['16x64']), 3)} below.",
    ]


def below_on_lines(arm: str, size: str, of: str = "16-20") -> str:
    """How far an arm's line is below the baseline's at a size of a ladder, at the compute of each."""
    points = final_points(read_record(RESULTS / f"ladder-{of}.json", ScalingRecord))
    lines = {fit.arm: fit for fit in fit_where_possible(points)[0]}
    losses = [
        lines[name].loss(next(point.compute for point in points[name] if point.size == size))
        for name in ("residual", arm)
    ]
    return number(losses[0] - losses[1], 3)


def deep_ladder() -> list[str]:
    """What the page says of the ladder of 32 layers."""
    needed = {arm: " ".join(advantage(arm, LADDER_32)) for arm in LADDER}
    clock = {arm: " ".join(by_clock(arm, "32")[-1]) for arm in LADDER}
    checks = {arm: ladder_check(arm, "32x24") for arm in ("residual", *LADDER)}
    halves = sorted(float(half) for half, _ in checks.values())
    gained = {arm: -float(twice) for arm, (_, twice) in checks.items()}
    most = sorted(gained, key=gained.__getitem__, reverse=True)
    gains = {arm: number(gained[arm], 3) for arm in most}
    best = {size: {arm: ladder_best(arm, size) for arm in LADDER} for size in ("32x24", "32x32")}
    largest = {arm: [float(change) for change in ladder_check(arm, "32x32")] for arm in ("residual", *LADDER)}
    further_up = sorted(largest[arm][0] for arm in LADDER)
    plain_half, plain_twice = (number(change, 3) for change in largest["residual"])
    seeds = {arm: ladder_seeds(arm, "32x32") for arm in AHEAD}
    within, between = ladder_spread("32x32")
    return [
        f"`interlayer` ends at {seeds['interlayer']} from the plain residual, `rms-block` at {seeds['rms-block']}, "
        f"`block` at {seeds['block']}, `full` at {seeds['full']}.",
        f"seeds of one rule have a standard deviation of {within}, the rules' means one of {between}",
        *(f"| `{arm}` | {side_by_side(arm)} |" for arm in LADDER),
        f"is {needed['block']} times `block`'s operations, {needed['full']} for `full`, {needed['rms-block']} for "
        f"`rms-block` and {needed['interlayer']} for `interlayer`. By the clock it is {clock['block']}, "
        f"{clock['full']}, {clock['rms-block']} and {clock['interlayer']} times: a step of `block` takes "
        f"{ladder_step('block', '32x32')} times as long as the plain one at 32x32.",
        f"none leaves out 1; that of `full` is {joint('full', LADDER_32)}.",
        f"every arm ends {number(halves[0], 3)} to {number(halves[-1], 3)} further up",
        f"`{most[0]}` gains {gains[most[0]]}, `{most[1]}` {gains[most[1]]}, `{most[2]}` {gains[most[2]]} and no other "
        f"more than {gains[most[3]]}",
        "`interlayer` is {interlayer} below `residual`, `full` {full}, `block` {block} and `rms-block` "
        "{rms-block}.".format(**best["32x24"]),
        "`interlayer` is {interlayer} below `residual`, `block` {block}, `rms-block` {rms-block} and `full` "
        "{full}.".format(**best["32x32"]),
        f"where the line of `residual` leads to {line_of_rates('residual', '32x32')} of it; on one seed half of that "
        f"rate leaves `residual` {plain_half} further up, twice it {plain_twice}, and the other arms "
        f"{number(further_up[0], 3)} to {number(further_up[-1], 3)} further up at half of it.",
        f"At twice the rate `interlayer` gains {number(-largest['interlayer'][1], 3)} and `rms-block` "
        f"{number(-largest['rms-block'][1], 3)}, and no other gains.",
    ]


def side_by_side(arm: str) -> str:
    """An arm's leads at the sizes of both ladders."""
    return " | ".join(
        f"{lead} | {deep}" for lead, deep in zip(ladder_leads(arm), ladder_leads(arm, "32"), strict=False)
    )


def ladder_probes() -> list[str]:
    """What the page says of what the ladder's largest models can do."""

    def points(task: str, arm: str) -> str:
        return probed(task, arm, "(probes-ladder)")

    def larger(arm: str, task: str = "copying") -> str:
        return probed(task, arm, "(probes-ladder-64)")

    small, large = (answers(name) for name in ("probes-ladder", "probes-ladder-64"))
    right = {arm: larger_right("induction", arm) for arm in ("residual", *LADDER)}
    copied = statistics.correlation(small["loss"], small["copying"])
    next_byte = [larger(arm, "next byte").split()[0] for arm in AHEAD]
    return [
        f"`rms-block` gets {points('names', 'rms-block')} more of the bytes",
        f"and {points('copying', 'rms-block')} more of a text that comes again; `interlayer` gets "
        f"{points('names', 'interlayer')} and {points('copying', 'interlayer')}.",
        f"({points('next byte', 'rms-block')} and {points('next byte', 'interlayer')})",
        *(
            f"of the names `residual` has {statistics.fmean(of['names'][:3]):.3f} right, {told} 21 models lie between "
            f"{min(of['names']):.3f} and {max(of['names']):.3f}"
            for of, told in ((small, "and the"), (large, "the"))
        ),
        f"`block` gets {larger('block')} more of a text that comes again, `full` {larger('full')}, `interlayer` "
        f"{larger('interlayer')} and `rms-block` {larger('rms-block')}, each",
        f"these four get {min(next_byte)} to {max(next_byte)} more right",
        f"(r = {copied:.2f}), and seeds of one rule spread as widely, with a standard deviation of "
        f"{small['within']:.3f}, as the rules' means do, with {small['between']:.3f}; at 16x64 it is "
        f"{large['within']:.3f} against {large['between']:.3f}.",
        f"`residual` has {right['residual']} of them right, `block` {right['block']} and `rms-residual` "
        f"{right['rms-residual']}, each fewer in every seed, `interlayer` {right['interlayer']} and `rms-block` "
        f"{right['rms-block']}, fewer in two of three, and `full` {right['full']} and Delta Block "
        f"{right['delta:block_size=4']}. Of the names Delta Block gets fewer right in every seed, "
        f"{larger_right('names', 'delta:block_size=4')}.",
    ]


def largest_probes() -> list[str]:
    """What the page says of what the models of 16x80 can do."""

    def more(arm: str, task: str = "copying") -> str:
        return probed(task, arm, "(probes-ladder-80)")

    def right(arm: str, task: str = "names") -> str:
        return larger_right(task, arm, "probes-ladder-80")

    next_byte = sorted(more(arm, "next byte").split()[0] for arm in AHEAD)
    letters = {arm: right(arm, "induction") for arm in ("residual", *LADDER)}
    return [
        f"`full` gets {more('full')} more and `rms-block` {more('rms-block')}, in every seed, `block` {more('block')} "
        f"and `interlayer` {more('interlayer')}. Of the next byte the four still get {next_byte[0]} to {next_byte[-1]} "
        "more right, in every seed",
        f"the most right of all arms, {right('residual')}; `block` has {right('block')}, Delta Block "
        f"{right('delta:block_size=4')} and `interlayer` {right('interlayer')}, each fewer in every seed.",
        f"At 16x80 `residual` has {letters['residual']} of the random letters right, `full` {letters['full']} and "
        f"`rms-block` {letters['rms-block']}, mostly by one seed each, and `block` {letters['block']} and `interlayer` "
        f"{letters['interlayer']}, fewer in every seed.",
    ]


def larger_right(task: str, arm: str, name: str = "probes-ladder-64") -> str:
    """What share of a task the models of a size, 16x64 where no other is named, get right under an arm."""
    of = record(name)
    (place,) = [i for i, one in enumerate(of["tasks"]) if one["name"] == task]
    return number(statistics.fmean(run["right"][place] for run in of["runs"] if run["arm"] == arm), 3)
