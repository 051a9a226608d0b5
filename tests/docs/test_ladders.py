"""What the documents say of the ladders in words is so."""

from __future__ import annotations

import math
import statistics

from scipy.stats import binomtest, t, ttest_1samp, ttest_rel

from attnres.model import TransformerConfig
from tests.docs.ladders import (
    AHEAD,
    HALVED,
    LADDER,
    LADDER_16_20,
    LARGEST,
    along,
    at_rate,
    below_on_lines,
    beside_line,
    between_sizes,
    by_clock,
    decided,
    ladder,
    ladder_check,
    ladder_step,
    lead_at,
    on_lines,
)
from tests.docs.probes import more_right
from tests.docs.records import (
    EVIDENCE,
    answers,
    ends,
    number,
    record,
    rows,
)

SIZES = list(ladder("block"))


def test_the_ladders_parameters_are_those_that_the_page_says():
    assert "Parameters are counted as 12 dim² per layer; at width 16 and 32 there are a twelfth more" in EVIDENCE
    assert "at 80 a thirtieth, at 64 a forty-eighth" in EVIDENCE
    for width, more in ((16, 13), (24, 12), (32, 13), (48, 12), (64, 12.25), (80, 12.4), (96, 12)):
        model = TransformerConfig(dim=width, heads=1, layers=1)
        assert 4 * width**2 + 3 * width * model.n_hidden == more * width**2


def test_what_the_page_says_of_the_ladder_is_so():
    of = {arm: ladder(arm, "16-20") for arm in LADDER}
    every = {arm: [apart for of_size in of[arm].values() for apart in of_size] for arm in LADDER}
    pairs = [apart for arm in AHEAD for apart in every[arm]]
    assert max(pairs) < 0 and f"below the plain residual in all {len(pairs)} pairs** of `block`, `full`" in EVIDENCE
    assert binomtest(21, 21).pvalue < 1e-4 and {len(apart) for apart in every.values()} == {21}
    below = {arm: sum(apart < 0 for apart in apart_of) for arm, apart_of in every.items()}
    told = f"is below in {below['delta:block_size=4']} of 21, normalising alone in {below['rms-residual']}."
    assert told in EVIDENCE
    for arm in ("rms-residual", "delta:block_size=4"):
        assert max(of[arm][LARGEST]) < 0
        assert 0.35 < statistics.fmean(of[arm][LARGEST]) / statistics.fmean(of["block"][LARGEST]) < 0.7
    by_size = {size: found for size in of["block"] if (found := sorted(decided("16-20", size)))}
    assert by_size == {"16x32": ["block", "full"], "16x48": ["rms-block"], "16x80": ["block"]}
    assert "`full` and `block` at 16x32, `rms-block` at 16x48 and `block` at 16x80;" in EVIDENCE
    everything = {(arm, size): ttest_1samp(apart, 0).pvalue for arm in LADDER for size, apart in of[arm].items()}
    first = min(everything, key=everything.__getitem__)
    least = number(len(everything) * everything[first], 3)
    assert first == ("block", "16x80") and f"none (`block` at 16x80: p = {least})" in EVIDENCE and float(least) > 0.05
    assert len(everything) == 42 and 10.5 < t.ppf(1 - 0.05 / 6 / 2, 2) < 11.5, "eleven times its standard error"


def test_what_the_page_says_of_how_the_lead_goes_is_so():
    fifth, late, last = (
        {arm: number(-statistics.fmean(lead_at(arm, part)), 3) for arm in ("rms-block", "block")}
        for part in (0.2, 0.8, 1.0)
    )
    assert (
        f"at 16x96 `rms-block` is {fifth['rms-block']} below after a fifth of the way, where `block` is "
        f"{fifth['block'].lstrip('-')} above; after eight tenths they are {late['rms-block']} and {late['block']} "
        f"below, at the end {last['rms-block']} and {last['block']}."
    ) in EVIDENCE
    assert float(fifth["block"]) < 0
    for size in (size for size in SIZES if size != "16x32"):
        at_last, at_eight = ([statistics.fmean(lead_at(arm, part, size)) for arm in AHEAD] for part in (1.0, 0.8))
        shrinks = [after > before for after, before in zip(at_last, at_eight, strict=True)]
        assert shrinks == 4 * [size not in ("16x16", "16x24")], size
    closer = [
        after > before
        for arm in AHEAD
        for before, after in zip(ladder(arm)["16x80"], ladder(arm)[LARGEST], strict=True)
    ]
    assert (sum(closer), len(closer)) == (6, 12) and "neither rises nor falls: in six of 12 pairs each" in EVIDENCE


def test_what_the_page_says_of_rates_is_so():
    """The table is held by `halves`; here, what is said of it in words."""
    gains = {
        size: {arm: run["loss"] - at_rate(size, 0.5)[arm]["loss"] for arm, run in at_rate(size, 0.25).items()}
        for size in HALVED
    }
    assert set(gains[LARGEST]) == {"residual", *LADDER} and max(gains[LARGEST].values()) < 0
    assert max(gains["16x80"].values()) < 0 and "and 16x80 under each that was tried (all but" in EVIDENCE
    larger = [arm for arm in LADDER if gains[LARGEST][arm] < gains[LARGEST]["residual"]]
    assert set(LADDER) - set(larger) == {"rms-residual"} and "five of six leads are larger with it" in EVIDENCE
    assert min(gains["16x64"], key=gains["16x64"].__getitem__) == "full"
    assert min(of for arm, of in gains["16x64"].items() if arm != "full") > -0.012
    gains_at_16x48 = [arm for arm in ("residual", *LADDER) if min(map(float, ladder_check(arm, "16x48"))) < 0]
    assert gains_at_16x48 == ["block"]
    assert ladder("full")["16x48"][0] == min(ladder("full")["16x48"]), "the seed of the check is the best of three"
    (table,) = [one for one in record("other-runs") if one["title"] == "16x80 at a quarter of its rate"]
    rates = {arm: [float(loss) for loss in losses] for arm, *losses in table["rows"]}
    for arm, (whole, half, quarter) in rates.items():
        assert [whole, half] == [float(number(at_rate("16x80", rate)[arm]["loss"], 4)) for rate in (0.5, 0.25)]
        assert half < quarter < whole
    above = [number(quarter - half, 3) for _, half, quarter in rates.values()]
    assert list(rates) == ["residual", "block"] and "ends {} and {} above it".format(*above) in EVIDENCE
    ahead = number(min(rates["residual"]) - min(rates["block"]), 3)
    half = {arm: run["loss"] for arm, run in at_rate("16x80", 0.25).items()}
    full, rms_block, interlayer = (number(half["residual"] - half[arm], 3) for arm in AHEAD[1:])
    assert (
        f"of three each `block` is {ahead} ahead, and with half of it `full` is {full}, `rms-block` {rms_block} and "
        f"`interlayer` {interlayer}."
    ) in EVIDENCE
    assert set(half) == {"residual", *LADDER} - {"delta:block_size=4"}
    (table,) = [one for one in record("other-runs") if one["title"] == "16x80 on a GPU and on a CPU"]
    curves = {(run["arm"], run["seed"]): run["curve"] for run in record("ladder-16")["runs"] if run["size"] == "16x80"}
    for step, plain, _, _, ours, _, _ in table["rows"]:
        at = [dict(map(tuple, curves[arm, 0]))[int(step.replace(",", "")) * 2048] for arm in ("residual", "block")]
        assert [plain, ours] == [number(loss, 4) for loss in at]
    apart = [[number(row[place], 3, "+") for row in table["rows"]] for place in (3, 6)]
    assert "lie at {}, {} and {} (`residual`) and {}, {} and {} (`block`) from".format(*apart[0], *apart[1]) in EVIDENCE


def test_what_the_page_says_of_compute_is_so():
    found = {arm: [ends(interval)[0] > 1 for interval in along(arm, LADDER_16_20)] for arm in LADDER}
    assert all(all(found[arm][3:]) for arm in AHEAD), "all of them at every size from 16x48 on"
    assert not any(any(found[arm]) for arm in LADDER if arm not in AHEAD)
    on_other_lines = {(size, arm): of.interval[0] for size in ladder("block") for arm, of in on_lines(size).items()}
    reach = [place for place, low in on_other_lines.items() if place[1] in AHEAD and number(low, 2) < "1.00"]
    assert reach == [("16x16", "interlayer")], "the table shows it"
    beside = {
        size: sorted(100 * abs(math.exp(beside_line(arm, size)) - 1) for arm in ("residual", *LADDER))
        for size in ("16x48", LARGEST)
    }
    below, over = ([number(of[i], 1) for i in (0, -1)] for of in beside.values())
    assert f"end {below[0]} to {below[1]}% below their own, at 16x96 {over[0]} to {over[1]}% above." in EVIDENCE
    signs = [beside_line(arm, size) for size in beside for arm in ("residual", *LADDER)]
    assert max(signs[:7]) < 0 < min(signs[7:])
    put = {arm: below_on_lines(arm) for arm in AHEAD}
    assert (
        f"they put `block` {put['block']} below `residual`, `full` {put['full']}, `rms-block` {put['rms-block']} and "
        f"`interlayer` {put['interlayer']}."
    ) in EVIDENCE
    lost = {arm: [ends(interval)[1] < 1 for _, interval in by_clock(arm, "16-20")] for arm in LADDER}
    up_to = {"block": 4, "rms-block": 3, "full": 6, "delta:block_size=4": 7}
    assert all(lost[arm] == [True] * many + [False] * (7 - many) for arm, many in up_to.items())
    assert all(ends(interval)[0] < 1 for arm in LADDER for _, interval in by_clock(arm, "16-20"))
    assert all(ends(between_sizes(arm, axis="seconds").partition(" ")[2])[0] < 1 for arm in AHEAD)
    assert [ladder_step("block", "16x64"), ladder_step("block", "16x80")] == ["1.19", "1.16"]


def test_the_largest_sizes_were_trained_on_a_gpu_and_no_others():
    of = record("ladder-16")
    on_gpu = [run for run in (*of["runs"], *of["check"]) if run.get("gpu")]
    assert {(run["size"], run.get("factor", 1.0)) for run in on_gpu} == {
        ("16x80", 0.5),
        (LARGEST, 0.5),
        (LARGEST, 0.25),
    }
    assert len(on_gpu) == 49 and {run["gpu"] for run in on_gpu} == {"NVIDIA H100 80GB HBM3"}
    assert {(run["steps"], run["parameters"]) for run in on_gpu} == {(6000, 1_228_800), (8640, 1_769_472)}


def test_what_the_page_says_of_twice_the_tokens_is_so():
    runs = {of: {run_of(run): run for run in record(f"ladder-{of}")["runs"]} for of in ("16", "16-20")}
    steps = {
        size: {run["steps"] for run in runs["16-20"].values() if run["size"] == size} for size in ("16x48", "16x64")
    }
    assert steps == {"16x48": {4320}, "16x64": {7680}} and len(runs["16-20"]) == 147
    before_it_falls, moved = {"16x48": 1512 * 2048, "16x64": 2688 * 2048}, []
    for key, run in runs["16-20"].items():
        until = before_it_falls.get(run["size"], math.inf)
        longer, shorter = ([point for point in of["curve"] if point[0] <= until] for of in (run, runs["16"][key]))
        apart = max(abs(a - b) for (_, a), (_, b) in zip(longer, shorter, strict=True))
        if run["size"] == "16x48":
            moved.append(apart)
        else:
            assert longer == shorter, "what came before is not of the same run"
    assert f"{moved.count(0.0)} of 21 runs have the losses of the first time" in EVIDENCE
    assert f"leave them by up to {number(max(moved), 2)}" in EVIDENCE
    then, now = ({arm: ladder(arm, of) for arm in LADDER} for of in ("16", "16-20"))
    others = [size for size in SIZES if size not in ("16x48", "16x64")]
    assert all(now[arm][size] == then[arm][size] for arm in LADDER for size in others), "the same runs"
    assert decided("16-20", "16x64") == [], "the pages say that none of the four is"
    shrinks = [ttest_rel(now[arm]["16x64"], then[arm]["16x64"]).pvalue for arm in AHEAD]
    assert len(shrinks) * min(shrinks) > 0.05
    of_arms = [(then[arm]["16x64"], now[arm]["16x64"]) for arm in AHEAD]
    closer = [after > before for of_arm in of_arms for before, after in zip(*of_arm, strict=True)]
    assert (sum(closer), len(closer)) == (10, 12) and "ten of the 12 pairs are closer than they were" in EVIDENCE
    middle = {
        of: sorted(statistics.fmean(leads[arm]["16x48"]) for arm in AHEAD) for of, leads in (("10", then), ("20", now))
    }
    said = [number(value, 3, "+") for of in ("20", "10") for value in (middle[of][-1], middle[of][0])]
    assert "The four are at {} to {} there, where after 10 they were at {} to {};".format(*said) in EVIDENCE
    spreads = [number(spread_without_delta(list(of.values())), 3) for of in (runs["16-20"], runs["16"])]
    assert "have a standard deviation of {}, where it was {}.".format(*spreads) in EVIDENCE
    assert min(now["rms-residual"]["16x64"]) > 0 and abs(statistics.fmean(now["rms-residual"]["16x48"])) < 0.005
    delta = now["delta:block_size=4"]
    assert abs(statistics.fmean(delta["16x64"])) < 0.005
    assert "its seeds lie at {}, {} and {}".format(*(number(apart, 3, "+") for apart in delta["16x48"])) in EVIDENCE


def spread_without_delta(runs: list[dict]) -> float:
    """The standard deviation of the seeds of one arm at 16x48, pooled over all arms but Delta Block."""
    arms = [arm for arm in ("residual", *LADDER) if arm != "delta:block_size=4"]
    losses = [[run["loss"] for run in runs if (run["arm"], run["size"]) == (arm, "16x48")] for arm in arms]
    return statistics.fmean(map(statistics.variance, losses)) ** 0.5


def run_of(run: dict) -> tuple[str, str, int]:
    return run["arm"], run["size"], run["seed"]


def test_what_the_page_says_of_the_ladders_probes_is_so():
    names = ("probes-ladder", "probes-ladder-64", "probes-ladder-80", "probes-ladder-96")
    apart = {(name, *place): gaps for name in names for place, gaps in more_right(name).items()}
    ahead = [("probes-ladder", arm, task) for arm in ("rms-block", "interlayer") for task in ("names", "copying")]
    ahead += [("probes-ladder", arm, "next byte") for arm in ("rms-block", "interlayer")]
    ahead += [("probes-ladder-64", arm, task) for arm in AHEAD for task in ("copying", "next byte")]
    ahead += [("probes-ladder-80", arm, "next byte") for arm in AHEAD]
    ahead += [("probes-ladder-80", arm, "copying") for arm in ("full", "rms-block")]
    ahead += [("probes-ladder-96", arm, "next byte") for arm in AHEAD]
    ahead += [("probes-ladder-96", arm, "copying") for arm in ("full", "block")]
    ahead += [("probes-ladder-96", "block", "induction")]
    assert all(min(apart[place]) > 0 for place in ahead)
    means = {place: statistics.fmean(gaps) for place, gaps in apart.items()}
    assert all(abs(mean) < 0.01 for (*_, task), mean in means.items() if task in ("brackets", "indentation"))
    assert all(mean < 0.01 for (name, _, task), mean in means.items() if (name[-2:], task) == ("64", "names"))
    readings = {
        name: [row for row in rows("What a lead is worth", f"({name})") if row["reading"] == "shown"]
        for name in ("probes-ladder", "probes-ladder-64")
    }
    assert [row["claim, connection"] for row in readings["probes-ladder"]] == []
    assert [row["claim, connection"] for row in readings["probes-ladder-64"]] == ["block", "full", "interlayer"]
    assert statistics.fmean(answers("probes-ladder-64")["induction"]) < 0.2
    fewer = {arm: sum(gap < 0 for gap in apart["probes-ladder-64", arm, "induction"]) for arm in LADDER}
    assert [fewer[arm] for arm in ("block", "rms-residual", "interlayer", "rms-block")] == [3, 3, 2, 2]
    assert max(apart["probes-ladder-64", "delta:block_size=4", "names"]) < 0
    largest = "probes-ladder-80"
    behind = [(arm, "names") for arm in ("block", "delta:block_size=4", "interlayer")]
    behind += [(arm, "induction") for arm in ("block", "interlayer")]
    assert all(max(apart[largest, arm, task]) < 0 for arm, task in behind)
    assert max(means[largest, arm, "names"] for arm in LADDER) < 0, "the plain residual has the most right"
    assert all(
        max(apart[largest, arm, "induction"]) > 2 / 3 * sum(apart[largest, arm, "induction"])
        for arm in ("full", "rms-block")
    )
    assert all(0.003 < means[largest, arm, "next byte"] < 0.007 for arm in AHEAD)
    shown = [row for row in rows("What a lead is worth", f"({largest})") if row["reading"] == "shown"]
    assert shown == [], "nothing is decided to be as much as a point"
    largest = "probes-ladder-96"
    behind = [(arm, "names") for arm in ("rms-block", "delta:block_size=4")]
    behind += [(arm, "induction") for arm in ("rms-residual", "delta:block_size=4", "rms-block")]
    assert all(max(apart[largest, arm, task]) < 0 for arm, task in behind)
    assert max(means[largest, arm, "names"] for arm in LADDER) < 0, "the plain residual has the most right again"
    brackets = {arm: means[largest, arm, "brackets"] for arm in LADDER}
    assert min(brackets.values()) > 0 and max(brackets, key=brackets.__getitem__) == "interlayer"
    assert sum(gap > 0 for gap in apart[largest, "full", "induction"]) == 2, "by two"
    decided = [row for row in rows("What a lead is worth", f"({largest})") if row["p"] and float(row["p"]) < 0.05]
    assert [(row["claim, connection"], row["value"][:7]) for row in decided] == [("rms-block", "-0.1456")]
