"""What the documents say of the ladder of 32 layers in words is so."""

from __future__ import annotations

import itertools
import statistics

from scipy.stats import binomtest, ttest_1samp, ttest_ind, ttest_rel

from tests.docs.deep import AFTER_10, BESIDE, LARGEST, PROBED, losses_apart, other_lines
from tests.docs.ladders import (
    AHEAD,
    LADDER,
    between_sizes,
    by_clock,
    decided,
    ladder,
    ladder_check,
    lead_at,
    needed_at,
)
from tests.docs.probes import more_right
from tests.docs.records import EVIDENCE, answers, ends, number, record, rows


def test_what_the_page_says_of_the_ladder_of_32_layers_is_so():
    deep, before = ({arm: ladder(arm, of) for arm in LADDER} for of in ("32-20", "32"))
    steps = {run["size"]: run["steps"] for run in record("ladder-32-20")["runs"]}
    after_20 = {"32x12": 540, "32x16": 960, "32x24": 2160, "32x32": 3840, "32x48": 8640}
    assert steps == after_20 | {"32x56": 5880, "32x64": 7680}
    assert all(of[size] == before[arm][size] for arm, of in deep.items() for size in of if size < "32x24")
    pairs = [apart for arm in AHEAD for apart in deep[arm].values()]
    first = [apart for arm in AHEAD for apart in (deep[arm] | {"32x32": before[arm]["32x32"]}).values()]
    assert max(map(max, pairs)) < 0 and {len(apart) for apart in (*pairs, *first)} == {3}
    assert f"ends below the plain residual in all {sum(map(len, pairs))} pairs at 32 layers" in EVIDENCE
    assert f"as it was run first, in {sum(apart < 0 for of in first for apart in of)}" in EVIDENCE
    assert binomtest(21, 21).pvalue < 0.0001
    means = {arm: {size: statistics.fmean(apart) for size, apart in of.items()} for arm, of in deep.items()}
    delta = [mean for size, mean in means["delta:block_size=4"].items() if size != "32x32"]
    assert max(map(abs, (*means["rms-residual"].values(), *delta))) < 0.02
    assert decided("32", "32x32") == decided("32-20", "32x12") == []
    assert decided("32-20", "32x24") == decided("32-20", "32x16") == ["interlayer"]
    assert sorted(decided("32-20", "32x32")) == sorted(AHEAD)
    assert decided("32-20", "32x48") == ["block", "full", "interlayer"]
    assert decided("32-20", "32x56") == ["interlayer", "block", "full", "rms-block", "delta:block_size=4"]
    assert sorted(decided("32-20", "32x64")) == sorted(AHEAD)
    of_two = 2 * ttest_1samp(deep["delta:block_size=4"]["32x56"], 0).pvalue  # the last two of Holm's procedure
    assert f"Delta Block's at 32x56, too (p = {number(of_two, 3)} for six arms)" in EVIDENCE
    assert all(means[arm]["32x12"] < means[arm]["32x16"] < means[arm]["32x24"] for arm in AHEAD), "leads fall with size"
    larger = [means[arm]["32x24"] - means[arm][size] for arm in AHEAD for size in ("32x48", *AFTER_10)]
    assert sum(apart > 0 for apart in larger) == 7 and "seven of 12 larger" in EVIDENCE
    assert max(map(abs, larger)) < 0.015, "near what they are there"
    fall = [1 - means[arm]["32x64"] / means[arm]["32x56"] for arm in AHEAD]
    assert [f"{100 * most(fall):.0f}" for most in (min, max)] == ["11", "33"], "of one length all four fall"
    falls = [b > a for arm in AHEAD for a, b in zip(*(deep[arm][size] for size in AFTER_10), strict=True)]
    assert (sum(falls), len(falls)) == (11, 12)
    shares = [means[arm][size] / means[arm]["32x12"] for arm in AHEAD for size in ("32x48", *AFTER_10)]
    assert min(shares) > 0.33 and max(shares) < 0.68, "a third to two thirds of those at 32x12"
    assert all(0.25 < means[arm]["32x48"] / means[arm]["32x32"] < 0.46 for arm in AHEAD), "a quarter to nearly a half"
    left = [
        statistics.fmean(ladder(arm, "16-20")["16x64"]) / statistics.fmean(lead_at(arm, 1.0, "16x64", "ladder-16"))
        for arm in AHEAD
    ]
    assert min(left) > 0.45 and max(left) < 0.7, "at 16x64 leads shrank by a third to a half"
    for arm in AHEAD:
        for size in ("32x32", "32x48", *AFTER_10):
            end = statistics.fmean(lead_at(arm, 1.0, size))
            assert statistics.fmean(lead_at(arm, 0.8, size)) < end, "they shrink when the rate falls"
        assert all(statistics.fmean(lead_at(arm, 0.4, size)) < means[arm][size] for size in ("32x48", *AFTER_10))


def test_what_the_page_says_of_twice_the_depth_is_so():
    deep, shallow = ({arm: ladder(arm, of) for arm in AHEAD} for of in ("32-20", "16-20"))
    ratio = {
        (arm, size): statistics.fmean(deep[arm][size]) / statistics.fmean(shallow[arm][BESIDE[size]])
        for size in BESIDE
        for arm in AHEAD
    }
    less = {place: of for place, of in ratio.items() if of < 1}
    assert [*less] == [("rms-block", "32x24"), ("interlayer", "32x24")], "all others gain more at twice the depth"
    assert min(less.values()) > 0.45 and max(less.values()) < 0.56
    of_depth = sorted(
        (ttest_ind(deep[arm][size], shallow[arm][nearest], equal_var=False).pvalue, arm, size)
        for arm in AHEAD
        for size, nearest in BESIDE.items()
    )
    held = itertools.takewhile(lambda one: (len(of_depth) - one[0]) * one[1][0] < 0.05, enumerate(of_depth))
    decided_ones = {("block", "32x56"), ("block", "32x32"), ("full", "32x32")}
    assert {place[1:] for _, place in held} == decided_ones, "by Holm's procedure"
    plain, higher = losses_apart("residual"), [losses_apart(arm) for arm in AHEAD]
    assert min(plain.values()) > 0, "depth itself does not pay"
    assert all([size for size in [*BESIDE][:5] if of[size] < 0] == ["32x48"] for of in higher)
    assert all(min(of[size] for of in higher) < 0 < max(of[size] for of in higher) for size in AFTER_10)


def test_what_the_page_says_of_rates_and_twice_the_tokens_at_32_layers_is_so():
    deep, before = ({arm: ladder(arm, of) for arm in LADDER} for of in ("32-20", "32"))
    rates = {size: {run["arm"]: run.get("factor", 1.0) for run in runs_at(size)} for size in ("32x12", "32x24")}
    assert f"{rates['32x12']['residual']:.2f} times the default to `residual`" in EVIDENCE
    of_rules = sorted(f"{rates['32x12'][arm]:.2f}" for arm in AHEAD)
    assert f"and {of_rules[0]} to {of_rules[-1]} times to the four rules at 32x12." in EVIDENCE
    assert f"`rms-block` has {rates['32x24'].pop('rms-block'):.2f} of the default" in EVIDENCE
    assert {f"{rate:.2f}" for rate in rates["32x24"].values()} == {"0.50"}
    grows = {arm: ttest_rel(deep[arm]["32x24"], before[arm]["32x24"]).pvalue for arm in AHEAD}
    by_itself = grows.pop("interlayer")
    of_all = number(len(LADDER) * by_itself, 3)
    assert f"grows has p = {number(by_itself, 3)} by itself, {of_all} for six arms" in EVIDENCE
    assert min(grows.values()) > 0.3
    grows = {arm: ttest_rel(deep[arm]["32x32"], before[arm]["32x32"]).pvalue for arm in LADDER}
    full, block, rms_block = (number(grows[arm], 3) for arm in ("full", "block", "rms-block"))
    assert f"`full`'s has p = {full} by itself, `block`'s {block} and `rms-block`'s {rms_block};" in EVIDENCE
    assert len(LADDER) * min(grows.values()) > 0.05
    ends_at = [statistics.fmean(of["interlayer"]["32x32"]) for of in (deep, before)]
    assert abs(ends_at[0] - ends_at[1]) < 0.01, "three of four"
    gained = {arm: -float(ladder_check(arm, "32x24")[1]) for arm in ("residual", "full")}
    assert gained["full"] > gained["residual"] > 0
    gains = [arm for arm in ("residual", *LADDER) if min(map(float, ladder_check(arm, "32x32"))) < 0]
    assert gains == ["rms-block", "interlayer"]
    for size in ("32x32", "32x48", *AFTER_10):
        assert {run["factor"] for run in runs_at(size)} == {0.5}


def test_what_the_page_says_of_compute_at_32_layers_is_so():
    lines = other_lines()
    saves = {name: [arm for arm in AHEAD if of[arm].interval[0] > 1] for name, of in lines.items()}
    assert saves["all seven"] == ["block", "rms-block", "interlayer"]
    assert all({"rms-block", "interlayer"} <= {*arms} and "full" not in arms for arms in saves.values())
    for_six = {name: [arm for arm in AHEAD if of[arm].joint[0] > 1] for name, of in lines.items()}
    assert for_six.pop("all seven") == ["interlayer"]
    assert for_six.pop("32x24 and 32x32 after 10") == ["block", "rms-block"]
    assert set.intersection(*map(set, for_six.values())) == {"interlayer"}, "whichever size is left out"
    seconds = {arm: [ends(interval) for _, interval in by_clock(arm, "32-20")] for arm in LADDER}
    assert all(low < 1 for of in seconds.values() for low, _ in of), "and no time"
    slower = {arm: [high < 1 for _, high in of] for arm, of in seconds.items()}
    slower = {arm: [size for size, lost in zip(BESIDE, of, strict=True) if lost] for arm, of in slower.items()}
    sizes = [*BESIDE]
    shown = {"rms-residual": sizes[:4], "full": sizes[:6], "rms-block": sizes[:3], "delta:block_size=4": sizes}
    assert {arm: of for arm, of in slower.items() if of} == shown
    in_seconds = {
        size: [ends(between_sizes(arm, axis="seconds", size=size).partition(" ")[2]) for arm in AHEAD]
        for size in ("32x24", "32x32", "32x48", LARGEST)
    }
    saved = {size: [low > 1 for low, _ in of] for size, of in in_seconds.items()}
    assert saved == dict.fromkeys(in_seconds, 4 * [False]) | {"32x32": [True, False, False, True]}
    lost = {
        size: [arm for arm, (_, high) in zip(AHEAD, of, strict=True) if high < 1] for size, of in in_seconds.items()
    }
    assert lost == {"32x24": list(AHEAD), "32x32": ["full"], "32x48": ["block", "full"], LARGEST: ["full"]}
    of_six = {arm: ends(between_sizes(arm, joint=True, size="32x48").partition(" ")[2]) for arm in AHEAD}
    assert [arm for arm, (low, _) in of_six.items() if low > 1] == ["block"]
    assert all(ends(between_sizes(arm, joint=True, size=LARGEST).partition(" ")[2])[0] < 1 for arm in AHEAD)
    six = [arm for arm in AHEAD if ends(needed_at("32x32", arm, 6).partition(" ")[2])[0] > 1]
    assert six == ["interlayer"] and "for six arms, that of `interlayer` at 32x32 alone leaves out 1" in EVIDENCE
    assert all(ends(needed_at("32x24", arm, 6).partition(" ")[2])[0] < 1 for arm in AHEAD)
    for size, not_shown in (("32x32", []), ("32x48", ["full"]), (LARGEST, [])):
        assert [arm for arm in AHEAD if ends(between_sizes(arm, size=size).partition(" ")[2])[0] <= 1] == not_shown
    assert min(ends(needed_at("32x32", arm).partition(" ")[2])[0] for arm in AHEAD) > 1


def test_what_the_page_says_of_the_models_of_32_layers_is_so():
    found = not_by_chance(PROBED["32x32"])
    not_decided = [(of, arm) for of in ("next byte", "names", "copying") for arm in AHEAD if found[of][arm] >= 0.05]
    assert not_decided == [("names", "rms-block")] and max(answers(PROBED["32x32"])["induction"]) < 0.15
    found = not_by_chance(PROBED["32x48"])
    shown = [(of, arm) for of in ("next byte", "names", "copying") for arm in AHEAD if found[of][arm] < 0.05]
    assert shown == [*(("next byte", arm) for arm in AHEAD), ("copying", "block")]
    also = ("copying", "delta:block_size=4"), ("brackets", "block")
    assert all(found[of][arm] < 0.05 for of, arm in also)
    assert f"(p = {number(found['induction']['full'], 3)} for six arms; not for six tasks" in EVIDENCE
    assert 6 * found["induction"]["full"] > 0.05
    assert [arm for arm in LADDER if found["induction"][arm] < 0.05] == ["full"]
    found, more = not_by_chance(PROBED["32x64"]), more_right(PROBED["32x64"])
    assert [(task, arm) for task, of in found.items() for arm in of if of[arm] < 0.05] == [("next byte", "interlayer")]
    assert min(more["delta:block_size=4", "copying"]) > 0
    assert all(min(more[arm, task]) > 0 for arm in AHEAD for task in ("copying", "next byte"))
    assert all(min(more[arm, "names"]) < 0 < max(more[arm, "names"]) for arm in AHEAD), "and know no more names"
    assert min(more["full", "induction"]) > 0
    assert max(max(more[arm, "induction"]) for arm in ("block", "rms-block", "rms-residual")) < 0
    letters = {arm: statistics.fmean(more[arm, "induction"]) for arm in LADDER}
    assert max(letters, key=letters.__getitem__) == "full", "continues best"


def not_by_chance(name: str) -> dict[str, dict[str, float]]:
    """The corrected p of every task of a record of probes, by arm."""
    task = ""
    found: dict[str, dict[str, float]] = {}
    for row in rows("What a lead is worth", f"({name})"):
        if row["p"]:
            found[task][row["claim, connection"]] = float(row["p"].lstrip("<"))
        else:
            task = row["claim, connection"].partition(":")[0]
            found[task] = {}
    return found


def test_the_sizes_of_both_depths_have_the_parameters_that_the_page_says():
    sizes = {run["size"]: run["parameters"] for layers in (16, 32) for run in record(f"ladder-{layers}-20")["runs"]}
    said = [f"{sizes[of]:,}{{}} at {of} and {sizes[nearest]:,} at {nearest}" for of, nearest in BESIDE.items()]
    assert ", ".join(said).format(" parameters in the sublayers", *6 * [""]) in EVIDENCE
    larger = (
        ("32x12", "16x16"),
        ("16x24", "32x16"),
        ("32x24", "16x32"),
        ("16x48", "32x32"),
        ("32x48", "16x64"),
        ("16x96", "32x64"),
    )
    assert all(8 * sizes[large] == 9 * sizes[small] for large, small in larger)
    assert f"{sizes['16x80'] / sizes['32x56'] - 1:.0%}" == "2%" and f"{sizes[LARGEST] / sizes['32x12']:.0f}" == "28"


def runs_at(size: str) -> list[dict]:
    return [run for run in record("ladder-32-20")["runs"] if run["size"] == size]
