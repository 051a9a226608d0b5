"""What docs/EVIDENCE.md says of the ladder of 32 layers, in numbers of its records."""

from __future__ import annotations

import statistics

from tests.docs.ladders import (
    AHEAD,
    LADDER,
    LADDER_32,
    between_sizes,
    by_clock,
    ladder,
    ladder_check,
    ladder_leads,
    ladder_step,
    line_of_rates,
    losses_at_rates,
    needed_at,
)
from tests.docs.records import joint, number, record, rows


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
    seeds = {arm: ladder_seeds(arm, "32x32") for arm in AHEAD}
    within, of_means = ladder_spread("32x32")
    between = {arm: between_sizes(arm, size="32x24") for arm in AHEAD}
    of_six = {size: between_sizes("interlayer", joint=True, size=size).partition(" ")[2] for size in ("32x16", "32x24")}
    alone_of_six = needed_at("32x24", "interlayer", 6).partition(" ")[2]
    alone = {arm: needed_at("32x24", arm) for arm in AHEAD}
    return [
        f"`interlayer` ends at {seeds['interlayer']} from the plain residual, `rms-block` at {seeds['rms-block']}, "
        f"`block` at {seeds['block']}, `full` at {seeds['full']}.",
        f"seeds of one rule have a standard deviation of {within}, the rules' means one of {of_means}",
        *(f"| `{arm}` | {side_by_side(arm)} |" for arm in LADDER),
        *deep_along(),
        f"none leaves out 1 at 32x32; that of `full` is {joint('full', LADDER_32)}.",
        f"At 32x32 it is {clock['block']}, {clock['full']}, {clock['rms-block']} and {clock['interlayer']} times in "
        f"seconds: a step of `block` takes {ladder_step('block', '32x32')} times as long as the plain one there.",
        f"it needs {between['interlayer']} times the operations of `interlayer` ({of_six['32x24']} for six arms), "
        f"{between['block']} of `block`, {between['full']} of `full` and {between['rms-block']} of `rms-block`; on the "
        f"line through its own losses there after 10 and after 20, {alone['interlayer']} ({alone_of_six} for six "
        f"arms), {alone['block']}, {alone['full']} and {alone['rms-block']}. In seconds the first is "
        f"{between_sizes('interlayer', axis='seconds', size='32x24')} for `interlayer`; at 32x16 it is "
        f"{between_sizes('interlayer', size='32x16')} in operations ({of_six['32x16']} for six arms).",
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


def deep_along() -> list[str]:
    """The rows of the table of what is needed of a rule's operations, along the lines of the ladder of 32 layers."""
    table = rows("Along the range", LADDER_32)
    needed = {arm: [row["advantage in operations"] for row in table if row["connection"] == arm] for arm in AHEAD}
    return [f"| `{arm}` | {' | '.join(cell.replace('x ', ' ') for cell in cells)} |" for arm, cells in needed.items()]


def side_by_side(arm: str) -> str:
    """An arm's leads at the sizes of both ladders, side by side after as many tokens per parameter."""
    shallow = [*ladder_leads(arm, "16-20")[:3], ladder_leads(arm)[3]]
    return " | ".join(f"{lead} | {deep}" for lead, deep in zip(shallow, ladder_leads(arm, "32-20"), strict=True))


def ladder_best(arm: str, size: str) -> str:
    """How far an arm is below the baseline on the seed of that check, each at the best of its three rates."""
    return number(min(losses_at_rates("residual", size)) - min(losses_at_rates(arm, size)), 3)


def ladder_spread(size: str) -> tuple[str, str]:
    """The standard deviation of the seeds of one arm of a ladder at a size, pooled, and that of the arms' means."""
    runs = [run for run in record(f"ladder-{size.partition('x')[0]}")["runs"] if run["size"] == size]
    arms = [[run["loss"] for run in runs if run["arm"] == arm] for arm in ("residual", *LADDER)]
    within = statistics.fmean(statistics.variance(losses) for losses in arms) ** 0.5
    return number(within, 3), number(statistics.stdev(statistics.fmean(losses) for losses in arms), 3)


def ladder_seeds(arm: str, size: str) -> str:
    """What an arm of a ladder is from the baseline at a size, in every seed."""
    *others, last = [number(apart, 3, "+") for apart in ladder(arm, size.partition("x")[0])[size]]
    return f"{', '.join(others)} and {last}"


def losses_apart(arm: str) -> list[float]:
    """How much higher an arm ends at 32 layers than at the nearest size of 16, after as many tokens per parameter."""

    def mean(of: str, size: str) -> float:
        runs = record(f"ladder-{of}")["runs"]
        return statistics.fmean(run["loss"] for run in runs if (run["arm"], run["size"]) == (arm, size))

    pairs = {"32x12": "16x16", "32x16": "16x24", "32x24": "16x32"}
    apart = [mean("32-20", size) - mean("16-20", nearest) for size, nearest in pairs.items()]
    return [*apart, mean("32", "32x32") - mean("16", "16x48")]
