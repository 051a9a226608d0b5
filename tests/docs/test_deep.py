"""What the documents say of the ladder of 32 layers in words is so."""

from __future__ import annotations

import itertools
import statistics

from scipy.stats import binomtest, ttest_ind, ttest_rel

from tests.docs.deep import BESIDE, PROBES, lines_at_first, losses_apart
from tests.docs.ladders import (
    AHEAD,
    LADDER,
    LADDER_32,
    along,
    between_sizes,
    by_clock,
    decided,
    ladder,
    ladder_check,
    lead_at,
    needed_at,
)
from tests.docs.records import EVIDENCE, advantage, answers, ends, number, record, rows


def test_what_the_page_says_of_the_ladder_of_32_layers_is_so():
    deep, before = ({arm: ladder(arm, of) for arm in LADDER} for of in ("32-20", "32"))
    steps = {run["size"]: run["steps"] for run in record("ladder-32-20")["runs"]}
    assert steps == {"32x12": 540, "32x16": 960, "32x24": 2160, "32x32": 3840}
    assert all(of[size] == before[arm][size] for arm, of in deep.items() for size in of if size < "32x24")
    pairs = [apart for arm in AHEAD for apart in deep[arm].values()]
    first = [apart for arm in AHEAD for apart in (deep[arm] | {"32x32": before[arm]["32x32"]}).values()]
    assert max(map(max, pairs)) < 0 and {len(apart) for apart in (*pairs, *first)} == {3}
    assert f"ends below the plain residual in all {sum(map(len, pairs))} pairs at 32 layers" in EVIDENCE
    assert f"as it was run first, in {sum(apart < 0 for of in first for apart in of)}" in EVIDENCE
    means = {arm: [statistics.fmean(apart) for apart in sizes.values()] for arm, sizes in deep.items()}
    shallow = {arm: [statistics.fmean(apart) for apart in ladder(arm, "16-20").values()][:4] for arm in LADDER}
    delta = means["delta:block_size=4"]
    assert max(map(abs, (*means["rms-residual"], *delta[:3]))) < 0.02
    assert f"Delta Block ends {number(-delta[3], 3)} below it there" in EVIDENCE
    gain_more = [[arm for arm in AHEAD if means[arm][i] < shallow[arm][i]] for i in range(4)]
    assert gain_more == [[*AHEAD], [*AHEAD], ["block", "full"], [*AHEAD]]
    assert all(0.45 < means[arm][2] / shallow[arm][2] < 0.56 for arm in ("rms-block", "interlayer"))
    assert all(sorted(of := means[arm][:3]) == of and 0.34 < of[2] / of[0] < 0.52 for arm in AHEAD)
    of_depth = [
        ttest_ind(deep[arm][size], ladder(arm, "16-20")[nearest], equal_var=False).pvalue
        for arm in AHEAD
        for size, nearest in BESIDE.items()
    ]
    values = sorted(zip(of_depth, ((arm, size) for arm in AHEAD for size in BESIDE), strict=True))
    held = itertools.takewhile(lambda one: (len(values) - one[0]) * one[1][0] < 0.05, enumerate(values))
    assert [place for _, (_, place) in held] == [("block", "32x32"), ("full", "32x32")], "by Holm's procedure"
    higher = {arm: losses_apart(arm) for arm in ("residual", *AHEAD)}
    plain = [number(least(higher["residual"]), 3) for least in (min, max)]
    assert "the plain residual ends {} to {} higher at 32 layers than at 16".format(*plain) in EVIDENCE
    assert all(min(of) > 0 for of in higher.values()), "the four rules end higher, too"
    now, then = ({arm: losses_apart(arm)[3] for arm in arms} for arms in (AHEAD, ("residual",)))
    assert max(now.values()) < 0.55 * then["residual"], "about half of it or more"
    assert decided("32", "32x32") == decided("32-20", "32x12") == [] and sorted(decided("32-20", "32x32")) == sorted(
        AHEAD
    )
    assert decided("32-20", "32x24") == decided("32-20", "32x16") == ["interlayer"]
    assert all(means[arm][3] < means[arm][0] for arm in AHEAD if arm != "interlayer")
    for arm in AHEAD:
        assert statistics.fmean(lead_at(arm, 0.8, "32x32")) < means[arm][3], "they shrink when the rate falls"
    assert number(binomtest(12, 12).pvalue, 4) == "0.0005"


def test_what_the_page_says_of_rates_and_twice_the_tokens_at_32_layers_is_so():
    deep, before = ({arm: ladder(arm, of) for arm in LADDER} for of in ("32-20", "32"))
    rates = {size: {run["arm"]: run.get("factor", 1.0) for run in runs_at(size)} for size in ("32x12", "32x24")}
    assert f"{rates['32x12']['residual']:.2f} times the default to `residual`" in EVIDENCE
    of_rules = sorted(f"{rates['32x12'][arm]:.2f}" for arm in AHEAD)
    assert f"and {of_rules[0]} to {of_rules[-1]} times to the four rules at 32x12:" in EVIDENCE
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


def test_what_the_page_says_of_compute_at_32_layers_is_so():
    operations = {
        arm: [ends(interval) for interval in (advantage(arm, LADDER_32)[1], *along(arm, LADDER_32))] for arm in LADDER
    }
    seconds = {arm: [ends(interval) for _, interval in by_clock(arm, "32-20")] for arm in LADDER}
    assert all(low < 1 < high or arm == "interlayer" for arm, of in operations.items() for low, high in of)
    assert number(operations["interlayer"][3][0], 2) == "1.00"
    assert all(low < 1 for of in seconds.values() for low, _ in of)
    slower = {arm: [high < 1 for _, high in of] for arm, of in seconds.items()}
    assert {arm: of for arm, of in slower.items() if any(of)} == {"delta:block_size=4": 4 * [True]}
    in_seconds = {
        size: [ends(between_sizes(arm, axis="seconds", size=size).partition(" ")[2])[0] > 1 for arm in AHEAD]
        for size in ("32x24", "32x32")
    }
    assert in_seconds == {"32x24": 4 * [False], "32x32": [True, False, True, True]}
    assert lines_at_first()["full"].interval[1] < 1
    six = [arm for arm in AHEAD if ends(needed_at("32x32", arm, 6).partition(" ")[2])[0] > 1]
    assert six == ["interlayer"] and "for six arms, the interval of `interlayer` alone leaves out 1" in EVIDENCE
    alone = {arm: ends(between_sizes(arm, size="32x32").partition(" ")[2])[0] for arm in AHEAD}
    assert min(*alone.values(), *(ends(needed_at("32x32", arm).partition(" ")[2])[0] for arm in AHEAD)) > 1


def test_what_the_page_says_of_the_models_of_32x32_is_so():
    task = ""
    found: dict[str, dict[str, float]] = {}
    for row in rows("What a lead is worth", f"({PROBES})"):
        if row["p"]:
            found[task][row["claim, connection"]] = float(row["p"])
        else:
            task = row["claim, connection"].partition(":")[0]
            found[task] = {}
    not_decided = [(of, arm) for of in ("next byte", "names", "copying") for arm in AHEAD if found[of][arm] >= 0.05]
    assert not_decided == [("names", "rms-block")] and max(answers(PROBES)["induction"]) < 0.15


def test_the_sizes_of_both_depths_have_the_parameters_that_the_page_says():
    sizes = {run["size"]: run["parameters"] for layers in (16, 32) for run in record(f"ladder-{layers}")["runs"]}
    said = [f"{sizes[of]:,}{{}} at {of} and {sizes[nearest]:,} at {nearest}" for of, nearest in BESIDE.items()]
    assert ", ".join(said).format(" parameters in the sublayers", *3 * [""]) in EVIDENCE
    larger = (("32x12", "16x16"), ("16x24", "32x16"), ("32x24", "16x32"), ("16x48", "32x32"))
    assert all(8 * sizes[large] == 9 * sizes[small] for large, small in larger)
    assert sizes["32x32"] / sizes["32x12"] < 8


def runs_at(size: str) -> list[dict]:
    return [run for run in record("ladder-32-20")["runs"] if run["size"] == size]
