"""The short reading, docs/RESULTS.md, and what README says of it are the records', number by number."""

from __future__ import annotations

import re
import statistics

import pytest
from scipy.stats import binomtest

from attnres.lab.ablation.claims import finding
from attnres.lab.ablation.record import AblationRecord
from attnres.lab.record import read_record
from tests.docs.ladders import (
    AHEAD,
    LADDER,
    LADDER_16,
    LADDER_16_20,
    LADDER_32,
    LARGEST,
    at_rate,
    by_clock,
    decided,
    halves,
    ladder,
    ladder_leads,
    ladder_step,
    lead_at,
    needed,
    share,
)
from tests.docs.records import (
    COSTS,
    READING,
    README,
    RESULTS,
    STD_1,
    advantage,
    cell,
    costs,
    differences,
    enlarged,
    joint,
    judged_at,
    number,
    other_decimals,
    probed,
    record,
    retrofit,
    rows,
    searched_scale,
)

TWO = ("block", "rms-block")
THREE = ("block", "full", "rms-block")
NOT_OURS = {  # of settings and of other people
    "0.05 to 1.77 million parameters",
    "at 1.77 million parameters",
    "hyper-connections 0.02 to 0.03",
    "a std of 5.66",
    "paper has 1.25",
    "p < 0.0001",
    "at the largest size by 2% of the loss",
    "after 20% more training",
    "after 100% at",
    "At width 32 and 0.4 tokens",
    "arxiv.org/abs/2502.02732",
    *(line for line in READING.partition("| who | what they see")[2].splitlines() if line.startswith("|")),
}


def sizes_row(arm: str) -> str:
    """A rule's row of the table of long trainings."""
    cells = [ladder_leads(arm, of)[place] for of, place in (("16", 2), ("16-20", 4), ("16", 5), ("16", 6), ("32", 3))]
    deep = {cell["arm"] for cell in record("verdict-deep-long")["cells"]}
    return f"| `{arm}` | {' | '.join([*cells, judged_at('deep-long', arm, '+') if arm in deep else ''])} |"


def readings() -> list[str]:
    """What docs/RESULTS.md says in numbers of ours."""
    leads_of = {arm: number(-float(cell(STD_1, arm, "difference to residual")), 3) for arm in (*TWO, "rms-full")}
    plain = enlarged("residual", "std 1").split()[0].lstrip("-")
    block, both = (enlarged(arm).split()[0].lstrip("-") for arm in TWO)
    longer_scale = searched_scale("shallow-long", "residual", 5.66, to_std=1.0)
    then, now = (sorted(leads_at("16x64", of)) for of in ("16", "16-20"))
    last = sorted(leads_at(LARGEST, "16"))
    gains, ahead = (re.findall(r"\d\.\d+", text) for text in [text for text in halves() if text[0] != "|"][:2])
    longer, deep = ([" ".join(advantage(arm, of)) for arm in THREE] for of in (LADDER_16_20, LADDER_32))
    of_three = {arm: needed(arm) for arm in THREE}
    return [
        f"`rms-block` ends {leads_of['rms-block']} below the plain residual and `rms-full` {leads_of['rms-full']}.",
        f"`block` gives {leads_of['block']}, and so does `rms-residual`",
        f"ends {plain} lower; `block` is then {block} below it and `rms-block` {both}.",
        f"After 10 tokens per parameter the plain residual gains {longer_scale.lstrip('-')} by it, one seed.",
        *map(sizes_row, (*THREE, "interlayer", "rms-residual", "delta:block_size=4")),
        f"by {last[0]} to {last[-1]}.",
        *(f"| `{name}` | {' | '.join(costs(what))} |" for name, what in COSTS.items()),
        f"under `block` {ladder_step('block', '16x16')} times as long at width 16 and {ladder_step('block', LARGEST)} "
        "times at width 96",
        f"needs {of_three['block']} times `block`'s operations, {of_three['full']} times `full`'s and "
        f"{of_three['rms-block']} times `rms-block`'s;",
        "it is {}, {} and {}, at 32 layers {}, {} and {}.".format(*longer, *deep),
        "it is {}, {} and {} at width 96".format(*(" ".join(by_clock(arm)[-1]) for arm in THREE)),
        f"{now[0]} to {now[-1]} are left at 16x64 of {then[0]} to {then[-1]} after 10",
        f"gains every rule {gains[0]} to {gains[1]}, the plain residual {gains[2]}, and the four rules are then "
        f"{ahead[0]} to {ahead[1]} ahead of it.",
        f"`block` (with the weights' own rate) is at {retrofit('20%', 'block@1')}, after 100% at "
        f"{retrofit('100%', 'block@1')}",
    ]


def leads_at(size: str, of: str) -> list[str]:
    return [number(-statistics.fmean(ladder(arm, of)[size]), 3) for arm in AHEAD]


@pytest.mark.parametrize("claim", readings())
def test_what_the_reading_says_is_what_the_records_hold(claim):
    assert claim in READING


def test_no_other_number_of_the_reading_has_decimals():
    assert other_decimals(READING, (*readings(), *NOT_OURS)) == []


def test_the_reading_has_two_pages_and_three_pictures():
    assert sum(bool(word.strip("|")) for word in READING.split()) < 1370 and READING.count("![") == 3


def test_how_many_pairs_of_long_trainings_are_ahead_is_what_the_pages_say():
    of_16 = {arm: [apart for of_size in ladder(arm).values() for apart in of_size] for arm in LADDER}
    twice = [apart for arm in THREE for size in ("16x48", "16x64") for apart in ladder(arm, "16-20")[size]]
    every = [*(apart for arm in THREE for apart in of_16[arm]), *twice]
    below = f"in {sum(apart < 0 for apart in every)} of {len(every)} pairs"
    assert below in READING and below in README
    ahead = [sum(apart < 0 for apart in of_16[arm]) for arm in THREE]
    assert "in the ladder {}, {} and {} pairs of 21".format(*ahead) in READING
    assert all(binomtest(count, 21).pvalue < 1e-4 for count in ahead)
    assert all(0.015 < share(arm, LARGEST) < 0.03 for arm in THREE), "2% of the loss"


def test_what_the_reading_says_in_words_of_the_ladders_is_so():
    assert decided("16", "16x80") == ["block"] and decided("16", LARGEST) == decided("16-20", "16x64") == []
    for arm in ("rms-residual", "delta:block_size=4"):
        means = [statistics.fmean(of) for of in (*list(ladder(arm).values())[4:], *ladder(arm, "16-20").values())]
        assert sum(abs(mean) < 0.011 for mean in means) >= 6 and min(means) > -0.015
    assert sum(lead_at("rms-block", 0.2)) / 3 < sum(lead_at("block", 0.2)) / 3 - 0.05, "it learns faster early on"
    small = zip(ladder("block", "32").values(), ladder("block").values(), strict=False)
    assert [statistics.fmean(deep) < statistics.fmean(shallow) for deep, shallow in small][:2] == [True, True]
    deep = {arm: judged_at("deep-long", arm).split(" ± ") for arm in ("block", "rms-block", "rms-block:block_size=12")}
    assert all(float(mean) > -2 * float(error) for mean, error in deep.values()), "published rules gain nothing at 48"
    for name in ("probes-ladder-80", "probes-ladder-96"):
        points = [float(probed("next byte", arm, f"({name})").split()[0]) for arm in AHEAD]
        assert min(points) > 0.003 and max(points) < 0.007, "half a point of the next byte"
        of = record(name)
        (names,) = [i for i, task in enumerate(of["tasks"]) if task["name"] == "names"]
        right = {
            arm: statistics.fmean(run["right"][names] for run in of["runs"] if run["arm"] == arm)
            for arm in ("residual", *LADDER)
        }
        assert max(right, key=right.__getitem__) == "residual"
    copying = [float(probed("copying", arm, "(probes-ladder-96)").split()[0]) for arm in ("full", "block")]
    assert all(0.007 < points < 0.011 for points in copying)
    narrower = [float(factor) for arm in THREE for factor, _ in by_clock(arm)[:5]]
    assert max(narrower) < 1, "the reading says that in seconds it is below 1 up to width 64"
    for section in (LADDER_16, LADDER_16_20, LADDER_32):
        low, high = zip(*(map(float, joint(arm, section).strip("[]").split(",")) for arm in LADDER), strict=True)
        assert max(low) < 1 < min(high), "where intervals are to hold for six rules at once none leaves out 1"
    whole, half = at_rate(LARGEST, 0.5), at_rate(LARGEST, 0.25)
    assert all(half[arm]["loss"] < whole[arm]["loss"] for arm in ("residual", *LADDER))


def test_where_short_trainings_are_sure_is_what_the_reading_says():
    runs = record("scaling")["runs"]

    def apart(arm: str, size: str) -> list[float]:
        return list(differences([run for run in runs if run["size"] == size], arm).values())

    assert all(max(apart(arm, "16x64")) < 0 for arm in ("block", "full"))
    assert [sum(value > 0 for value in apart(arm, "16x32")) for arm in ("block", "full")] == [2, 1]
    assert "two of three seeds of `block` end above the plain residual and one of `full`" in READING


def test_what_is_decided_of_all_arms_is_what_the_reading_says():
    found = finding(read_record(RESULTS / "ablation.json", AblationRecord))
    below, above = (re.findall(rf"([a-z][\w:=-]*) \({sign}", found) for sign in ("-", "[+]"))
    assert (below, above) == (["block:block_size=2", "block:block_size=16", "block"], ["rezero"])
    assert "at 0.02 no arm is decided" in found
    assert "decide for `block` in three block sizes and against `rezero`, and nothing else" in READING


def test_the_readmes_numbers_are_the_records():
    for row in rows("The demo"):
        (shown,) = [line for line in README.splitlines() if re.match(rf"\| `{row['connection']}`.* \| 2\.", line)]
        loss, difference = number(row["validation, nats/byte"], 3), row["difference to residual"]
        paired = f"{float(difference):+.3f} ± {number(row['standard error'], 3)}" if difference else ""
        cells = [loss, paired, row["step time"], row["peak memory"]]
        assert [text.strip() for text in shown.strip("|").split("|")][1:] == cells
    (block, interval), (full, wide) = advantage("block"), advantage("full")
    assert f"needs {block} times as much as `block` for the same loss, 95% interval {interval}" in README
    assert f"for `full` it is {full} {wide}: no gain is shown" in README
    assert all(float(low.strip("[").split(",")[0]) < 1 for low in (interval, wide))
    assert f"it is {needed('block')} for `block`, {needed('full')} for `full` and {needed('rms-block')} for" in README
    seconds = [" ".join(by_clock(arm)[-1]) for arm in THREE]
    assert "in seconds {}, {} and {}.".format(*seconds) in README
