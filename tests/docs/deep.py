"""What docs/EVIDENCE.md says of the ladder of 32 layers, in numbers of its records."""

from __future__ import annotations

import math
import statistics

from attnres.analysis.powerlaw import Advantage, fit_where_possible
from tests.docs.ladders import (
    AHEAD,
    LADDER,
    LADDER_32,
    beside_line,
    between_sizes,
    by_clock,
    ladder,
    ladder_check,
    ladder_leads,
    ladder_step,
    lead_at,
    line_of_rates,
    losses_at_rates,
    needed_at,
    points_of,
    told,
    twice_the_tokens_row,
)
from tests.docs.probes import larger_right
from tests.docs.records import answers, number, probed, record, rows

BESIDE = {"32x12": "16x16", "32x16": "16x24", "32x24": "16x32", "32x32": "16x48"}
"""The sizes of 32 layers, and the nearest of 16."""


PROBES = "probes-ladder-32"


def deep_ladder() -> list[str]:
    """What the page says of the ladder of 32 layers."""
    clock = {arm: " ".join(by_clock(arm, "32-20")[-1]) for arm in LADDER}
    checks = {arm: ladder_check(arm, "32x24") for arm in ("residual", *LADDER)}
    halves = sorted(float(half) for half, _ in checks.values())
    gained = {arm: -float(twice) for arm, (_, twice) in checks.items()}
    most = sorted(gained, key=gained.__getitem__, reverse=True)
    gains = {arm: number(gained[arm], 3) for arm in most}
    best = {size: {arm: ladder_best(arm, size) for arm in LADDER} for size in ("32x24", "32x32")}
    largest = {arm: [float(change) for change in ladder_check(arm, "32x32")] for arm in ("residual", *LADDER)}
    further_up = sorted(largest[arm][0] for arm in LADDER)
    plain_half, plain_twice = (number(change, 3) for change in largest["residual"])
    lower = sorted(line_of_rates(arm, "32x24") for arm in ("residual", "rms-residual", "block", "delta:block_size=4"))
    seconds, of_six = (
        [of(arm) for arm in AHEAD]
        for of in (
            lambda arm: between_sizes(arm, axis="seconds", size="32x32"),
            lambda arm: between_sizes(arm, joint=True, size="32x32").partition(" ")[2],
        )
    )
    higher = {arm: losses_apart(arm)[3] for arm in ("residual", *AHEAD)}
    of_rules = sorted(number(higher[arm], 3) for arm in AHEAD)
    at_first = [told(of.factor, of.interval) for of in lines_at_first().values()]
    off = {size: [number(abs(part), 1) for part in off_lines(size)] for size in ("32x24", "32x32")}
    return [
        *leads_at_the_largest(),
        *(f"| `{arm}` | {side_by_side(arm)} |" for arm in LADDER),
        f"At 32x32 it is {number(higher['residual'], 3)} for the plain residual and {of_rules[0]} to {of_rules[-1]} "
        "for the four",
        *(twice_the_tokens_row(arm, "32", slice(2, 4)) for arm in LADDER),
        f"end {off['32x24'][0]} to {off['32x24'][-1]}% above their own at 32x24 and {off['32x32'][0]} to "
        f"{off['32x32'][-1]}% below it at 32x32.",
        *deep_along(),
        f"By the clock it is {clock['block']}, {clock['full']}, {clock['rms-block']} and {clock['interlayer']} times "
        f"in seconds at 32x32: a step of `block` takes {ladder_step('block', '32x32')} times as long as the plain one "
        "there.",
        f"the factors there were {', '.join(at_first[:3])} and {at_first[3]}, and `full` was shown to lose.",
        *by_itself(),
        "the first is {} for `block`, {} for `full`, {} for `rms-block` and {} for `interlayer` at 32x32. "
        "In seconds it is {} for `block`, {} for `full`, {} for `rms-block` and {} for `interlayer`;".format(
            *of_six, *seconds
        ),
        f"lead to {lower[0]} to {lower[-1]}.",
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


def leads_at_the_largest() -> list[str]:
    """What the page says of the leads at 32x32, and of what its models can do."""
    seeds = {arm: ladder_seeds(arm, "32x32") for arm in LADDER}
    along = [
        sorted(number(-statistics.fmean(lead_at(arm, part, "32x32")), 3) for arm in AHEAD) for part in (0.4, 0.8, 1.0)
    ]
    models = answers(PROBES)
    together = statistics.correlation(models["loss"], models["copying"])
    names = [larger_right("names", arm, PROBES) for arm in ("residual", *AHEAD)]
    more = [probed(task, arm, f"({PROBES})") for task in ("copying", "next byte") for arm in AHEAD]
    return [
        f"{number(-statistics.fmean(ladder('delta:block_size=4', '32-20')['32x32']), 3)} below it there, at "
        f"{seeds['delta:block_size=4']}.",
        f"`interlayer` ends at {seeds['interlayer']} from the plain residual, `rms-block` at {seeds['rms-block']}, "
        f"`block` at {seeds['block']}, `full` at {seeds['full']}.",
        "it has {} right, `block` {}, `full` {}, `rms-block` {} and `interlayer` {}. Of a text that comes again "
        "`block` gets {} more right, `full` {}, `rms-block` {} and `interlayer` {}, and of the next byte {}, {}, {} "
        "and {};".format(*names, *more),
        f"Over the 21 models loss goes with copying (r = {together:.2f})",
        "they are {} to {} below after two fifths and {} to {} after four fifths, and {} to {} at the end".format(
            *(of[i] for of in along for i in (0, -1))
        ),
    ]


def lines_at_first() -> dict[str, Advantage]:
    """By arm, what the baseline needs at 32x32 on lines through its losses there after 10 tokens per parameter."""
    after_10, after_20 = (points_of(of) for of in ("32", "32-20"))
    points = {
        arm: [point for of in (after_20, after_10) for point in of[arm] if (point.size == "32x32") == (of is after_10)]
        for arm in after_20
    }
    found = {one.arm: one for one in fit_where_possible(points)[1]}
    return {arm: found[arm] for arm in AHEAD}


def off_lines(size: str) -> list[float]:
    """How far three rules end from their fitted lines at a size, in percent, the nearest first."""
    off = [100 * math.expm1(beside_line(arm, size, "32-20")) for arm in ("block", "full", "rms-block")]
    return sorted(off, key=abs)


def deep_along() -> list[str]:
    """The rows of the table of what is needed of a rule's operations, along the lines of the ladder of 32 layers."""
    table = rows("Along the range", LADDER_32)
    needed = {arm: [row["advantage in operations"] for row in table if row["connection"] == arm] for arm in AHEAD}
    return [f"| `{arm}` | {' | '.join(cell.replace('x ', ' ') for cell in cells)} |" for arm, cells in needed.items()]


def side_by_side(arm: str) -> str:
    """An arm's leads at the sizes of both ladders, side by side after as many tokens per parameter."""
    beside = zip(ladder_leads(arm, "16-20")[:4], ladder_leads(arm, "32-20"), strict=True)
    return " | ".join(f"{shallow} | {deep}" for shallow, deep in beside)


def by_itself() -> list[str]:
    """What the page says of the operations that rules save at a size by itself, by the baseline's own losses."""
    rows = []
    for arm in AHEAD:
        cells = [of for size in ("32x24", "32x32") for of in (between_sizes(arm, size=size), needed_at(size, arm))]
        rows.append(f"| `{arm}` | {' | '.join(cells)} |")
    return rows


def ladder_best(arm: str, size: str) -> str:
    """How far an arm is below the baseline on the seed of that check, each at the best of its three rates."""
    return number(min(losses_at_rates("residual", size)) - min(losses_at_rates(arm, size)), 3)


def ladder_seeds(arm: str, size: str) -> str:
    """What an arm of a ladder is from the baseline at a size, in every seed."""
    *others, last = [number(apart, 3, "+") for apart in ladder(arm, f"{size.partition('x')[0]}-20")[size]]
    return f"{', '.join(others)} and {last}"


def losses_apart(arm: str) -> list[float]:
    """How much higher an arm ends at 32 layers than at the nearest size of 16, after as many tokens per parameter."""

    def mean(of: str, size: str) -> float:
        runs = record(f"ladder-{of}")["runs"]
        return statistics.fmean(run["loss"] for run in runs if (run["arm"], run["size"]) == (arm, size))

    return [mean("32-20", size) - mean("16-20", nearest) for size, nearest in BESIDE.items()]
