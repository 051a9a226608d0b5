"""What docs/RESULTS.md says in numbers of ours, and which of its numbers are others'."""

from __future__ import annotations

import re
import statistics

from tests.docs.deep import losses_apart
from tests.docs.ladders import (
    AHEAD,
    LADDER_16_20,
    LARGEST,
    by_clock,
    halves,
    ladder,
    ladder_leads,
    ladder_step,
    needed,
    on_lines,
)
from tests.docs.records import (
    COSTS,
    READING,
    STD_1,
    cell,
    costs,
    enlarged,
    joint,
    judged_at,
    number,
    record,
    retrofit,
    searched_scale,
)

SIZES = list(ladder("block"))
TWO = ("block", "rms-block")
THREE = ("block", "full", "rms-block")
NOT_OURS = {  # of settings and of other people
    "0.05 to 1.77 million parameters",
    "at 1.77 million parameters",
    "hyper-connections are 0.02 to 0.03",
    "a std of 5.66",
    "paper has 1.25",
    "p < 0.0001",
    "by 2 to 3% of the loss",
    "about 2% at the largest size",
    "at the two largest by 3 to 5%",  # the largest of 32 layers, checked in test_reading.py
    "by 4 to 6%, about twice the lead",
    "0.3 to 0.7 more of 100",
    "At 32x64 it is 0.7 to 0.9",  # checked in test_reading.py
    "1.13 to 1.22 times the operations",
    "(95% intervals)",
    "after 20% more training",
    "after 100% at",
    "arxiv.org/abs/2502.02732",
    *(line for line in READING.partition("| who | what they see")[2].splitlines() if line.startswith("|")),
}


def sizes_row(arm: str) -> str:
    """A rule's row of the table of long trainings."""
    places = (("16-20", 2), ("16-20", 4), ("16-20", 6), ("32-20", 3), ("32-20", 6))
    cells = [ladder_leads(arm, of)[place] for of, place in places]
    for setting in ("shallow-long", "deep-long"):
        ran = {cell["arm"] for cell in record(f"verdict-{setting}")["cells"]}
        cells.append(judged_at(setting, arm, "+") if arm in ran else "")
    return f"| `{arm}` | {' | '.join(cells)} |"


def readings() -> list[str]:
    """What docs/RESULTS.md says in numbers of ours."""
    leads_of = {arm: number(-float(cell(STD_1, arm, "difference to residual")), 3) for arm in (*TWO, "rms-full")}
    plain = enlarged("residual", "std 1").split()[0].lstrip("-")
    block, both = (enlarged(arm).split()[0].lstrip("-") for arm in TWO)
    longer_scale = searched_scale("shallow-long", "residual", 5.66, to_std=1.0)
    then, now = (sorted(leads_at("16x64", of)) for of in ("16", "16-20"))
    last = sorted(leads_at(LARGEST, "16"))
    gains, ahead = (re.findall(r"\d\.\d+", text) for text in [text for text in halves() if text[0] != "|"][:2])
    time, memory = ({arm: costs(COSTS[arm])[place] for arm in THREE} for place in (0, 1))
    of_six = [joint(arm, LADDER_16_20) for arm in THREE]
    clock = [" ".join(by_clock(arm, "16-20")[-1]) for arm in THREE]
    of_three = {arm: needed(arm) for arm in THREE}
    deep = [on_lines(size, of="32-20") for size in ("", "32x32")]
    plain_apart = sorted(number(apart, 3) for apart in losses_apart("residual").values())
    return [
        f"`rms-block` ends {leads_of['rms-block']} below the plain residual and `rms-full` {leads_of['rms-full']}.",
        f"`block` gives {leads_of['block']}, and so does `rms-residual`",
        f"ends {plain} lower; `block` is then {block} below it and `rms-block` {both}.",
        f"one seed, the larger embedding gives the plain residual {longer_scale.lstrip('-')}, and `block` is then "
        f"{searched_scale('shallow-long', 'block', 5.66)} above it.",
        *map(sizes_row, (*THREE, "interlayer", "rms-residual", "delta:block_size=4")),
        f"by {last[0]} to {last[-1]}.",
        f"takes {time['block']} times as long under `block`, {time['full']} under `full` and {time['rms-block']} under "
        f"`rms-block`, and {memory['block']}, {memory['full']} and {memory['rms-block']} times the memory",
        f"under `block` {ladder_step('block', '16x16')} times at width 16 and {ladder_step('block', LARGEST)} at 96",
        f"needs {of_three['block']} times `block`'s operations, {of_three['full']} times `full`'s and "
        f"{of_three['rms-block']} times `rms-block`'s (95% intervals);",
        "With six rules at once the intervals are {}, {} and {}, and".format(*of_six),
        "Through 32-layer sizes they are {}, {} and {}, without 32x32 {}, {} and {};".format(
            *(number(of[arm].factor, 2) for of in deep for arm in THREE)
        ),
        f"with six rules `interlayer`'s, {number(deep[0]['interlayer'].factor, 2)}, alone",
        f"it ends {plain_apart[0]} to {plain_apart[-1]} above that of 16",
        "it is {}, {} and {} at width 96, at 32x64 {}, {} and {};".format(
            *clock, *(by_clock(arm, "32-20")[-1][0] for arm in THREE)
        ),
        f"At 16x64 the lead is {then[0]} to {then[-1]} after 10 tokens per parameter and {now[0]} to {now[-1]} after "
        "20;",
        f"is better for every rule by {gains[0]} to {gains[1]}, for the plain residual by {gains[2]}, and the four are "
        f"then {ahead[0]} to {ahead[1]} ahead.",
        f"`block` (with the weights' own rate) is at {retrofit('20%', 'block@1')}, after 100% at "
        f"{retrofit('100%', 'block@1')}",
    ]


def retrofit_arms() -> list[str]:
    return [arm["name"] for arm in record("retrofit")["arms"][1:]]


def leads_at(size: str, of: str) -> list[str]:
    return [number(-statistics.fmean(ladder(arm, of)[size]), 3) for arm in AHEAD]
