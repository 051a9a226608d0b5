"""What the short reading, docs/RESULTS.md, says in words is so, and README's numbers are the records'."""

from __future__ import annotations

import re
import statistics

from scipy.stats import binomtest, ttest_rel

from attnres.lab.ablation.claims import finding
from attnres.lab.ablation.record import AblationRecord
from attnres.lab.record import read_record
from tests.docs.deep import AFTER_10, BESIDE, losses_apart, other_lines
from tests.docs.ladders import (
    AHEAD,
    LADDER,
    LADDER_16_20,
    LADDER_32,
    LARGEST,
    at_rate,
    beside_line,
    by_clock,
    ladder,
    needed,
    on_lines,
    share,
)
from tests.docs.probes import larger_right, more_right
from tests.docs.reading import SIZES, THREE, TWO, retrofit_arms
from tests.docs.records import (
    READING,
    README,
    RESULTS,
    advantage,
    differences,
    ends,
    joint,
    judged_at,
    number,
    probed,
    record,
    retrofit,
    rows,
)


def test_the_reading_has_two_pages_and_three_pictures():
    assert sum(bool(word.strip("|")) for word in READING.split()) < 1480 and READING.count("![") == 3


def test_every_pair_of_the_ladder_is_ahead_as_the_pages_say():
    pairs = {arm: [apart for of_size in ladder(arm, "16-20").values() for apart in of_size] for arm in THREE}
    assert max(map(max, pairs.values())) < 0 and f"All {sum(map(len, pairs.values()))} pairs are below" in READING
    first = [apart for arm in THREE for of_size in ladder(arm).values() for apart in of_size]
    assert f"as run first, {sum(apart < 0 for apart in first)} are" in READING
    assert all(binomtest(len(of), len(of)).pvalue < 1e-4 for of in pairs.values())
    shares = [share(arm, LARGEST) for arm in THREE]
    assert min(shares) > 0.015 and max(shares) < 0.03, "2 to 3% of the loss"
    deep = {arm: ladder(arm, "32-20") for arm in THREE}
    assert max(max(apart) for of in deep.values() for apart in of.values()) < 0 and len(deep["block"]) == 7
    for size in AFTER_10:
        shares = [share(arm, size) for arm in THREE]
        assert min(shares) > 0.025 and max(shares) < 0.05, "3 to 5% at the two largest of 32 layers"
    factors = sorted(needed(arm).split()[0] for arm in THREE)
    for page in (READING, README):
        assert "ends below the plain residual in every seed of a short training at width 64, and of long" in page
        assert f"{factors[0]} to {factors[-1]} times the operations" in page


def test_what_the_reading_says_in_words_of_the_ladder_is_so():
    for arm in ("rms-residual", "delta:block_size=4"):
        means = [statistics.fmean(of) for of in ladder(arm, "16-20").values()]
        assert sum(abs(mean) < 0.011 for mean in means[1:]) >= 4 and min(means) > -0.015
    rms_block, block = ({size: statistics.fmean(of) for size, of in ladder(arm).items()} for arm in TWO[::-1])
    apart = {size: rms_block[size] - block[size] for size in SIZES}
    assert "end level at widths 16, 24 and 64 to 96, and `rms-block` is ahead, undecided, at 32 and 48" in READING
    assert all(abs(apart[size]) < 0.02 for size in ("16x16", "16x24", *SIZES[-3:]))
    assert apart["16x32"] < -0.04 and apart["16x48"] < -0.01
    both = [(ladder(arm, "16-20")[size] for arm in TWO) for size in ("16x32", "16x48")]
    assert min(ttest_rel(*pair).pvalue for pair in both) > 0.05, "undecided"
    deep = zip(ladder("rms-block", "32-20").values(), ladder("block", "32-20").values(), strict=True)
    assert min(ttest_rel(ours, others).pvalue for ours, others in deep) > 0.15, "seeds do not tell them apart"
    wide = [size for size in SIZES if on_lines(size)["rms-block"].joint[0] >= 1]
    assert wide == ["16x32"] and "and the last reaches below 1 without any size but 16x32" in READING
    assert [arm for arm in LADDER if ends(joint(arm, LADDER_32))[0] > 1] == ["interlayer"]
    assert ends(joint("interlayer", LADDER_16_20))[0] < 1, "nor at 16 layers"
    shorter = other_lines()["32x24 and 32x32 after 10"]["interlayer"]
    assert shorter.joint[0] < 1, "with two sizes trained half as long"
    without = [on_lines(size, of="32-20") for size in BESIDE]
    always = [arm for arm in LADDER if min(of[arm].joint[0] for of in without) > 1]
    assert always == ["interlayer"], "alone above 1 with six rules at once whichever size is left out"
    gained = {}
    for arm in AHEAD:
        of_deep, shallow = ladder(arm, "32-20"), ladder(arm, "16-20")
        gained[arm] = [statistics.fmean(of_deep[size]) < statistics.fmean(shallow[BESIDE[size]]) for size in of_deep]
    but_one = [True, True, False, *4 * [True]]
    assert gained == dict.fromkeys(("block", "full"), 7 * [True]) | dict.fromkeys(("rms-block", "interlayer"), but_one)
    plain = losses_apart("residual")
    won_back = [[-statistics.fmean(ladder(arm, "32-20")[size]) / plain[size] for arm in AHEAD] for size in BESIDE]
    assert [min(of) > 0.5 for of in won_back] == [True, False, *5 * [True]], "leads mostly win back"
    deep = {arm: judged_at("deep-long", arm).split(" ± ") for arm in ("block", "rms-block", "rms-block:block_size=12")}
    assert all(float(mean) > -2 * float(error) for mean, error in deep.values()), "published rules gain nothing at 48"
    more = [probed("next byte", arm, f"(probes-ladder-{size})").split()[0] for size in (80, 96) for arm in AHEAD]
    assert [number(100 * float(most(more)), 1) for most in (min, max)] == ["0.3", "0.7"]
    assert "the four get on average 0.3 to 0.7 more of 100 next bytes right, and more in every seed" in READING
    deep_more = more_right("probes-ladder-32-64")
    more = [100 * statistics.fmean(deep_more[arm, "next byte"]) for arm in AHEAD]
    assert f"At 32x64 it is {number(min(more), 1)} to {number(max(more), 1)}, and all four copy better" in READING
    assert min(min(deep_more[arm, task]) for arm in AHEAD for task in ("next byte", "copying")) > 0, "in every seed"
    assert max(max(deep_more[arm, "induction"]) for arm in TWO) < 0, "continue fewer random letters"
    for size in (80, 96):
        names = {arm: larger_right("names", arm, f"probes-ladder-{size}") for arm in ("residual", *LADDER)}
        assert max(names, key=names.__getitem__) == "residual"
    lost = {arm: [ends(of)[1] < 1 for _, of in by_clock(arm, "16-20")] for arm in THREE}
    assert (lost["block"], lost["full"]) == ([True] * 4 + [False] * 3, [True] * 6 + [False])
    beside = [abs(beside_line(arm, LARGEST)) for arm in ("residual", *LADDER)]
    assert min(beside) > 0.035 and max(beside) < 0.065, "the lines miss the largest size by 4 to 6%"
    whole, half = at_rate(LARGEST, 0.5), at_rate(LARGEST, 0.25)
    assert all(half[arm]["loss"] < whole[arm]["loss"] for arm in ("residual", *LADDER))
    others = [float(retrofit("100%", arm).split()[0]) for arm in retrofit_arms() if arm != "block@1"]
    assert (len(others), sum(apart > 0 for apart in others)) == (8, 7)


def test_where_short_trainings_are_sure_is_what_the_reading_says():
    runs = record("scaling")["runs"]

    def apart(arm: str, size: str) -> list[float]:
        return list(differences([run for run in runs if run["size"] == size], arm).values())

    assert all(max(apart(arm, "16x64")) < 0 for arm in ("block", "full"))
    assert [sum(value > 0 for value in apart(arm, "16x32")) for arm in ("block", "full")] == [2, 1]


def test_what_is_decided_of_all_arms_is_what_the_reading_says():
    found = finding(read_record(RESULTS / "ablation.json", AblationRecord))
    below, above = (re.findall(rf"([a-z][\w:=-]*) \({sign}", found) for sign in ("-", "[+]"))
    assert (below, above) == (["block:block_size=2", "block:block_size=16", "block"], ["rezero"])
    assert "at 0.02 no arm is decided" in found
    assert "Decided are `block` in three block sizes, ahead, and `rezero`, behind." in READING


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
    assert all(ends(of)[0] < 1 for of in (interval, wide))
    of_operations = map(needed, THREE)
    told = "needs {} times the operations of `block`, {} of `full` and {} of `rms-block`;"
    assert told.format(*of_operations) in README
    seconds = [" ".join(by_clock(arm, "16-20")[-1]) for arm in THREE]
    assert "in seconds at width 96 it is {}, {} and {}.".format(*seconds) in README
