"""What docs/EVIDENCE.md says of the ladder of 32 layers, in numbers of its records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from attnres.analysis.powerlaw import Advantage, fit_where_possible
from tests.docs.ladders import (
    AHEAD,
    LADDER,
    LADDER_32,
    below_on_lines,
    beside_line,
    between_sizes,
    by_clock,
    by_exponent,
    ladder,
    ladder_check,
    ladder_step,
    lead_at,
    line_of_rates,
    lines_cells,
    losses_at_rates,
    needed_at,
    on_lines,
    points_of,
    twice_the_tokens_row,
    with_error,
)
from tests.docs.probes import larger_right
from tests.docs.records import answers, joint, number, probed, record

BESIDE = {
    "32x12": "16x16",
    "32x16": "16x24",
    "32x24": "16x32",
    "32x32": "16x48",
    "32x48": "16x64",
    "32x56": "16x80",
    "32x64": "16x96",
}
"""The sizes of 32 layers, and the nearest of 16."""
AFTER_10 = ("32x56", "32x64")
"""Those that were trained to 10 tokens per parameter, all others to 20; as it is of 16 layers."""
LARGEST = "32x64"
PROBED = {"32x32": "probes-ladder-32", "32x48": "probes-ladder-32-48", "32x64": "probes-ladder-32-64"}
"""The sizes whose models were probed, and the records of it."""


def deep_ladder() -> list[str]:
    """What the page says of the ladder of 32 layers."""
    higher = {arm: losses_apart(arm) for arm in ("residual", *AHEAD)}
    plain = {size: number(apart, 3) for size, apart in higher.pop("residual").items()}
    of_rules = sorted(number(higher[arm]["32x32"], 3) for arm in AHEAD)
    lower = sorted(number(-higher[arm]["32x48"], 3) for arm in AHEAD)
    least, most = (
        {size: number(of(higher[arm][size] for arm in AHEAD), 3).lstrip("-") for size in AFTER_10} for of in (min, max)
    )
    clock = {arm: " ".join(by_clock(arm, "32-20")[-1]) for arm in LADDER}
    return [
        *side_by_side(),
        *leads_at_32x32(),
        *leads_at_32x48(),
        *leads_after_10(),
        f"At 32x32 the plain residual ends {plain['32x32']} higher than at 16x48 and the four {of_rules[0]} to "
        f"{of_rules[-1]}; at 32x48 it ends {plain['32x48']} higher than at 16x64 and the four {lower[0]} to "
        f"{lower[-1]} lower, with an eighth more parameters; at 32x56 {plain['32x56']} higher than at 16x80 and the "
        f"four from {least['32x56']} lower to {most['32x56']} higher, with 2% fewer; and at 32x64 {plain['32x64']} "
        f"higher than at 16x96 and the four from {least['32x64']} lower to {most['32x64']} higher, with a ninth fewer.",
        *(twice_the_tokens_row(arm, "32", slice(2, 4)) for arm in LADDER),
        *deep_rates(),
        *deep_lines(),
        f"By the clock it is {clock['block']}, {clock['full']}, {clock['rms-block']} and {clock['interlayer']} times "
        f"in seconds at 32x64: a step of `block` takes {ladder_step('block', LARGEST)} times as long as the plain one "
        "there.",
        *by_itself(),
        f"({on_cpus('32x56')} hours of one thread beside the four runs of the GPU, and {on_cpus('32x64')})",
    ]


def on_cpus(size: str) -> str:
    """The hours of the runs of a size that no GPU trained."""
    on_cpu = [run for run in record("ladder-32-20")["runs"] if run["size"] == size and "gpu" not in run]
    return number(sum(run["steps"] * run["step_seconds"] for run in on_cpu) / 3600, 1)


def deep_rates() -> list[str]:
    """What the page says of rates, which were checked after 10 tokens per parameter."""
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
    return [
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


def leads_at_32x32() -> list[str]:
    """What the page says of the leads at 32x32, and of what its models can do."""
    along = leads_along("32x32", 0.4, 0.8, 1.0)
    return [
        f"{number(-statistics.fmean(ladder('delta:block_size=4', '32-20')['32x32']), 3)} below it there, at "
        f"{ladder_seeds('delta:block_size=4', '32x32')}.",
        in_every_seed("32x32"),
        *able("32x32"),
        "the four are {} to {} below after two fifths and {} to {} after four fifths, and {} to {} at the end".format(
            *along
        ),
    ]


def leads_at_32x48() -> list[str]:
    """What the page says of the leads at 32x48, and of what its models can do."""
    letters = {arm: larger_right("induction", arm, PROBED["32x48"]) for arm in ("residual", *LADDER)}
    return [
        in_every_seed("32x48"),
        "the four are {} to {} below it after two fifths of the way, {} to {} after four fifths and {} to {} at the "
        "end".format(*leads_along("32x48", 0.4, 0.8, 1.0)),
        *able("32x48"),
        "which has learned names, has {} to {}".format(*leads_along("32x48", 1.0)),
        f"Of random letters that come again `full` continues {letters.pop('full')} right, the plain residual "
        f"{letters['residual']} and no other arm more than {max(letters.values())}",
    ]


def leads_after_10() -> list[str]:
    """What the page says of the leads at the two largest sizes."""
    ends_at = [extremes(ladder(arm, "32-20")[size] for arm in AHEAD) for size in AFTER_10]
    then = [extremes(lead_at(arm, 0.4, size) for arm in AHEAD) for size in AFTER_10]
    shallow = [extremes(ladder(arm)[BESIDE[size]] for arm in AHEAD) for size in AFTER_10]
    others = [
        with_error(ladder(arm, "32-20")[size]) for size in AFTER_10 for arm in ("rms-residual", "delta:block_size=4")
    ]
    pairs = "{} to {} and {} to {}"
    copies = f"({PROBED['32x64']})"
    letters = [
        larger_right("induction", arm, PROBED["32x64"])
        for arm in ("full", "residual", "block", "rms-block", "rms-residual")
    ]
    return [
        *map(in_every_seed, AFTER_10),
        f"the four end {pairs} below the plain residual".format(*(end for of in ends_at for end in of)),
        f"after two fifths of the way they were {pairs} below it".format(*(end for of in then for end in of)),
        "from {} to {} after a fifth to {} to {} after four.".format(*leads_along(LARGEST, 0.2, 0.8)),
        f"they are {pairs} below it".format(*(end for of in shallow for end in of)),
        "`rms-residual` is at {} and Delta Block at {} at 32x56, {} and {} at 32x64".format(*others),
        *able("32x64"),
        f"Delta Block copies better in every seed, too, by {probed('copying', 'delta:block_size=4', copies)}",
        "with {} right and more than the plain residual ({}) in every seed; `block` ({}), `rms-block` ({}) and "
        "`rms-residual` ({}) have fewer in every seed".format(*letters),
    ]


def able(size: str) -> list[str]:
    """What the page says of the names, the copying and the next byte of a size's models."""
    of = PROBED[size]
    names = [larger_right("names", arm, of) for arm in ("residual", *AHEAD)]
    more = [probed(task, arm, f"({of})") for task in ("copying", "next byte") for arm in AHEAD]
    together = statistics.correlation(answers(of)["loss"], answers(of)["copying"])
    return [
        "it has {} right, `block` {}, `full` {}, `rms-block` {} and `interlayer` {}. Of a text that comes again "
        "`block` gets {} more right, `full` {}, `rms-block` {} and `interlayer` {}, and of the next byte {}, {}, {} "
        "and {};".format(*names, *more),
        f"(r = {together:.2f} over the 21 models)",
    ]


def in_every_seed(size: str) -> str:
    seeds = {arm: ladder_seeds(arm, size) for arm in AHEAD}
    return (
        f"`interlayer` ends at {seeds['interlayer']} from the plain residual, `rms-block` at {seeds['rms-block']}, "
        f"`block` at {seeds['block']}, `full` at {seeds['full']}."
    )


def leads_along(size: str, *shares: float) -> list[str]:
    """The smallest and the largest of the four leads after each of these shares of the training."""
    return [end for part in shares for end in extremes(lead_at(arm, part, size) for arm in AHEAD)]


def extremes(leads: Iterable[list[float]]) -> tuple[str, str]:
    """The smallest and the largest of leads over the baseline, each the mean of its seeds."""
    means = sorted(number(-statistics.fmean(of), 3) for of in leads)
    return means[0], means[-1]


def other_lines() -> dict[str, dict[str, Advantage]]:
    """By name, what the baseline needs at 32x64 on lines through other sizes, or other lengths of the training."""
    after_10, after_20 = (points_of(of) for of in ("32", "32-20"))
    first = {
        arm: [
            point
            for of in (after_20, after_10)
            for point in of[arm]
            if (point.size in ("32x24", "32x32")) == (of is after_10)
        ]
        for arm in after_20
    }
    lines = {"all seven": on_lines(of="32-20")}
    lines["32x24 and 32x32 after 10"] = {one.arm: one for one in fit_where_possible(first)[1]}
    return lines | {f"without {size}": on_lines(size, of="32-20") for size in BESIDE}


def deep_lines() -> list[str]:
    """What the page says of lines through the sizes of 32 layers."""
    off = [[number(abs(part), 1) for part in off_lines(size)] for size in ("32x24", "32x32", LARGEST)]
    return [
        *(f"| {name} | {lines_cells(of)} |" for name, of in other_lines().items()),
        "end {} to {}% above their own at 32x24, {} to {}% below it at 32x32 and {} to {}% above it at 32x64, "
        "`residual` {}%, so that the lines put the four leads there at {} to {}, not {} to {}.".format(
            *(of[i] for of in off for i in (0, -1)),
            number(100 * math.expm1(beside_line("residual", LARGEST, "32-20")), 1),
            *(of(below_on_lines(arm, LARGEST) for arm in AHEAD) for of in (min, max)),
            *leads_along(LARGEST, 1.0),
        ),
        "for six they are {}, {}, {} and {}".format(*(joint(arm, LADDER_32) for arm in AHEAD)),
    ]


def off_lines(size: str) -> list[float]:
    """How far three rules end from their fitted lines at a size, in percent, the nearest first."""
    off = [100 * math.expm1(beside_line(arm, size, "32-20")) for arm in ("block", "full", "rms-block")]
    return sorted(off, key=abs)


def side_by_side() -> Iterable[str]:
    """The rows of the sizes of 32 layers, each under the nearest of 16 after as many tokens per parameter."""
    leads = {arm: ladder(arm, "16-20") | ladder(arm, "32-20") for arm in LADDER}
    for deep, shallow in BESIDE.items():
        for name, size in ((shallow, shallow), (f"**{deep}**", deep)):
            yield f"| {name} | {' | '.join(with_error(leads[arm][size]) for arm in LADDER)} |"


def by_itself() -> list[str]:
    """What the page says of the operations that rules save at a size by itself, by the baseline's own losses."""
    table = []
    for arm in AHEAD:
        cells = [of for size in ("32x24", "32x32") for of in (between_sizes(arm, size=size), needed_at(size, arm))]
        cells += [between_sizes(arm, size=size) for size in ("32x48", LARGEST)]
        table.append(f"| `{arm}` | {' | '.join(cells)} |")
    of_six, seconds = (
        [of(arm, size) for size in ("32x32", "32x48", LARGEST) for arm in AHEAD]
        for of in (
            lambda arm, size: between_sizes(arm, joint=True, size=size).partition(" ")[2],
            lambda arm, size: between_sizes(arm, axis="seconds", size=size),
        )
    )
    return [
        *table,
        f"(that of `full` at 32x48 is {between_sizes('full', size='32x48').partition(' ')[2]};",
        "that of two sizes is {} for `block`, {} for `full`, {} for `rms-block` and {} for `interlayer` at 32x32, {}, "
        "{}, {} and {} at 32x48, and {}, {}, {} and {} at 32x64. In seconds it is {} for `block`, {} for `full`, "
        "{} for `rms-block` and {} for `interlayer` at 32x32, {}, {}, {} and {} at 32x48, and {}, {}, {} and {} at "
        "32x64;".format(*of_six, *seconds),
        "the plain residual needs {}, {}, {} and {} times at 32x64.".format(
            *(by_exponent(arm, size=LARGEST) for arm in AHEAD)
        ),
        "at 32x64 the lines lead to {} of it for `residual` and {} to {} for the four.".format(
            line_of_rates("residual", LARGEST), *(of(line_of_rates(arm, LARGEST) for arm in AHEAD) for of in (min, max))
        ),
    ]


def ladder_best(arm: str, size: str) -> str:
    """How far an arm is below the baseline on the seed of that check, each at the best of its three rates."""
    return number(min(losses_at_rates("residual", size)) - min(losses_at_rates(arm, size)), 3)


def ladder_seeds(arm: str, size: str) -> str:
    """What an arm of a ladder is from the baseline at a size, in every seed."""
    *others, last = [number(apart, 3, "+") for apart in ladder(arm, f"{size.partition('x')[0]}-20")[size]]
    return f"{', '.join(others)} and {last}"


def losses_apart(arm: str) -> dict[str, float]:
    """By size of 32 layers, how much higher an arm ends than at the nearest of 16, after as many tokens a parameter."""
    return {size: loss_over(nearest, arm, size) for size, nearest in BESIDE.items()}


def loss_over(nearest: str, arm: str, size: str) -> float:
    """How much higher an arm ends at a size of 32 layers than at one of 16."""
    deep, shallow = (
        statistics.fmean(run["loss"] for run in record(name)["runs"] if (run["arm"], run["size"]) == (arm, of_size))
        for name, of_size in (("ladder-32-20", size), ("ladder-16-20", nearest))
    )
    return deep - shallow
