"""What the documents say of the ladders in words is so."""

from __future__ import annotations

import itertools
import math
import statistics

from scipy.stats import binomtest, ttest_1samp, ttest_rel

from attnres.analysis.powerlaw import fit_where_possible
from attnres.lab.record import read_record
from attnres.lab.scaling.fit import final_points
from attnres.lab.scaling.record import ScalingRecord
from attnres.model import TransformerConfig
from tests.docs.ladders import (
    AHEAD,
    HALVED,
    LADDER,
    LADDER_16,
    LADDER_16_20,
    LADDER_32,
    LARGEST,
    at_rate,
    beside_line,
    by_clock,
    decided,
    ladder,
    ladder_check,
    ladder_step,
    lead_at,
    share,
)
from tests.docs.records import (
    EVIDENCE,
    RESULTS,
    advantage,
    answers,
    number,
    record,
    rows,
)


def test_the_ladders_parameters_are_those_that_the_page_says():
    assert "Parameters are counted as 12 dim² per layer; at width 16 and 32 there are a twelfth more" in EVIDENCE
    assert "at 80 a thirtieth, at 64 a forty-eighth" in EVIDENCE
    for width, more in ((16, 13), (24, 12), (32, 13), (48, 12), (64, 12.25), (80, 12.4), (96, 12)):
        model = TransformerConfig(dim=width, heads=1, layers=1)
        assert 4 * width**2 + 3 * width * model.n_hidden == more * width**2


def test_what_the_page_says_of_the_ladder_is_so():
    pairs = [apart for arm in ("rms-block", "interlayer") for of_size in ladder(arm).values() for apart in of_size]
    assert max(pairs) < 0 and f"In all {len(pairs)} pairs" in EVIDENCE
    every = {arm: [apart for of_size in ladder(arm).values() for apart in of_size] for arm in LADDER}
    ahead = [apart for arm in AHEAD for apart in every[arm]]
    assert f"with `block` and `full` {sum(apart < 0 for apart in ahead)} of {len(ahead)}." in EVIDENCE
    below = {arm: sum(apart < 0 for apart in of) for arm, of in every.items()}
    assert all(binomtest(below[arm], 21).pvalue < 1e-4 for arm in AHEAD)
    normalised = number(binomtest(below["rms-residual"], 21).pvalue, 3)
    twice = [apart for of_size in ladder("rms-residual", "16-20").values() for apart in of_size]
    told = f"in {sum(apart < 0 for apart in twice)} pairs of {len(twice)}"
    assert f"with {below['rms-residual']} (p = {normalised}), which after 20 tokens per parameter is below {told}" in (
        EVIDENCE
    )
    for arm in ("rms-block", "interlayer"):
        assert statistics.fmean(ladder(arm)["16x48"]) == min(map(statistics.fmean, ladder(arm).values()))
    for arm in LADDER:
        means = [statistics.fmean(ladder(arm)[size]) for size in HALVED]
        assert all(max(ladder(arm)[size]) < 0 for size in HALVED) if arm in AHEAD else max(map(abs, means[:2])) < 0.01
        assert max(ladder(arm)[LARGEST]) < 0
    by_size = {size: found for size in ladder("block") if (found := sorted(decided("16", size)))}
    assert by_size == {"16x32": ["block", "full"], "16x64": ["interlayer"], "16x80": ["block"]}
    assert "`full` and `block` at 16x32, `interlayer` alone at 16x64, `block` alone at 16x80, and nothing" in EVIDENCE
    everything = {(arm, size): ttest_1samp(of, 0).pvalue for arm in LADDER for size, of in ladder(arm).items()}
    first = min(everything, key=everything.__getitem__)
    least = number(len(everything) * everything[first], 3)
    assert first == ("interlayer", "16x64") and "of all 42 differences of the table together none" in EVIDENCE
    assert least == "0.056" and f"(`interlayer` at 16x64: p = {least})" in EVIDENCE


def test_what_the_page_says_of_how_the_lead_goes_is_so():
    on_the_way = {
        part: [number(-statistics.fmean(lead_at(arm, part)), 3) for arm in ("block", "interlayer")]
        for part in (0.5, 0.9)
    }
    assert (
        "Half of the way through 16x96 `block` is {} below and `interlayer` {}, after nine tenths {} and {}.".format(
            *on_the_way[0.5], *on_the_way[0.9]
        )
    ) in EVIDENCE
    closer = [
        sum(
            later > before
            for arm in AHEAD
            for before, later in zip(ladder(arm)[smaller], ladder(arm)[larger], strict=True)
        )
        for smaller, larger in itertools.pairwise(HALVED)
    ]
    assert closer == [11, 6] and "falls in eleven of 12 pairs, from there to 16x96 in six of 12" in EVIDENCE
    shares = [sorted(number(100 * share(arm, size), 1) for arm in AHEAD) for size in HALVED]
    assert (
        "as a share of the loss from {} to {}% to {} to {}% and {} to {}%.".format(
            *(of[i] for of in shares for i in (0, -1))
        )
    ) in EVIDENCE


def test_what_the_page_says_of_rates_is_so():
    """The table is held by `halves`; here, what is said of it in words."""
    gains = {
        size: {arm: run["loss"] - at_rate(size, 0.5)[arm]["loss"] for arm, run in at_rate(size, 0.25).items()}
        for size in HALVED
    }
    assert set(gains[LARGEST]) == {"residual", *LADDER} and max(gains[LARGEST].values()) < 0
    assert max(gains["16x80"].values()) < 0 and "and 16x80 under each that was tried." in EVIDENCE
    assert min(gains["16x64"], key=gains["16x64"].__getitem__) == "full"
    assert min(of for arm, of in gains["16x64"].items() if arm != "full") > -0.012
    gains_at_16x48 = [arm for arm in ("residual", *LADDER) if min(map(float, ladder_check(arm, "16x48"))) < 0]
    assert gains_at_16x48 == ["block"]
    assert ladder("full")["16x48"][0] == min(ladder("full")["16x48"]), "the seed of the check is the best of three"
    (table,) = [one for one in record("other-runs") if one["title"] == "16x80 on a GPU and on a CPU"]
    curves = {(run["arm"], run["seed"]): run["curve"] for run in record("ladder-16")["runs"] if run["size"] == "16x80"}
    for step, plain, _, _, ours, _, _ in table["rows"]:
        at = [dict(map(tuple, curves[arm, 0]))[int(step.replace(",", "")) * 2048] for arm in ("residual", "block")]
        assert [plain, ours] == [number(loss, 4) for loss in at]
    apart = [[number(row[place], 3, "+") for row in table["rows"]] for place in (3, 6)]
    assert "lie at {}, {} and {} (`residual`) and {}, {} and {} (`block`) from".format(*apart[0], *apart[1]) in EVIDENCE


def test_what_the_page_says_of_compute_is_so():
    above = {arm: sum(ends(found)[0] > 1 for found in along(arm, LADDER_16)[:-1]) for arm in LADDER}
    assert {arm: count for arm, count in above.items() if count} == {
        "block": 1,
        "full": 4,
        "rms-block": 5,
        "interlayer": 6,
    }
    assert all(ends(found)[1] > 1 for arm in LADDER for found in along(arm, LADDER_16))
    assert "16 lie above 1 and none below: six of `interlayer`, five of `rms-block`, four of `full`" in EVIDENCE
    assert [arm for arm in LADDER if ends(advantage(arm, LADDER_16)[1])[0] > 1] == ["full"]
    beside = {
        size: sorted(abs(100 * (math.exp(beside_line(arm, size)) - 1)) for arm in ("residual", *LADDER))
        for size in ("16x64", LARGEST)
    }
    below, over = ([number(of[i], 1) for i in (0, -1)] for of in beside.values())
    assert all(beside_line(arm, "16x64") < 0 < beside_line(arm, LARGEST) for arm in ("residual", *LADDER))
    assert f"end {below[0]} to {below[1]}% below their own, at 16x96 {over[0]} to {over[1]}% above." in EVIDENCE
    seconds = {arm: [ends(interval) for _, interval in by_clock(arm)] for arm in LADDER}
    assert all(low < 1 for of in seconds.values() for low, _ in of)
    lost = {arm: [high < 1 for _, high in of] for arm, of in seconds.items()}
    losers = ("block", "full", "delta:block_size=4")
    assert {arm: of for arm, of in lost.items() if any(of)} == dict.fromkeys(losers, 5 * [True] + 2 * [False])
    assert [ladder_step("block", "16x64"), ladder_step("block", "16x64", "16-20")] == ["1.19", "1.19"]


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
    assert steps == {"16x48": {4320}, "16x64": {7680}} and len(runs["16-20"]) == 105
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
    every = [apart for arm in AHEAD for of_size in now[arm].values() for apart in of_size]
    assert max(every) < 0 and f"in all {len(every)} pairs" in EVIDENCE
    plain = {run["loss"] for run in runs["16-20"].values() if run["arm"] == "residual"}
    same = [apart for arm in AHEAD for size in ("16x16", "16x24", "16x32") for apart in now[arm][size]]
    assert all(now[arm][size] == then[arm][size] for arm in AHEAD for size in ("16x16", "16x24", "16x32"))
    assert f"against the same {len(plain)} runs of `residual`, and {len(same)} of the pairs are" in EVIDENCE
    assert decided("16-20", "16x64") == [], "the pages say that none of the four is"
    shrinks = [ttest_rel(now[arm]["16x64"], then[arm]["16x64"]).pvalue for arm in AHEAD]
    assert len(shrinks) * min(shrinks) > 0.05
    of_arms = [(then[arm]["16x64"], now[arm]["16x64"]) for arm in AHEAD]
    closer = [after > before for of_arm in of_arms for before, after in zip(*of_arm, strict=True)]
    assert (sum(closer), len(closer)) == (10, 12) and "ten of these 12 pairs are closer than they were" in EVIDENCE
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


def test_what_the_pages_say_of_compute_after_twice_the_tokens_is_so():
    assert [arm for arm in LADDER if ends(advantage(arm, LADDER_16_20)[1])[0] > 1] == ["rms-block"]
    now = {arm: ladder(arm, "16-20") for arm in LADDER}
    sizes = list(now["block"])
    above = {
        arm: [s for s, found in zip(sizes, along(arm, LADDER_16_20), strict=True) if ends(found)[0] > 1]
        for arm in LADDER
    }
    assert {arm: of for arm, of in above.items() if of} == {
        "block": ["16x32"],
        "rms-block": ["16x32", "16x48"],
        "interlayer": ["16x24", "16x32", "16x48"],
    }
    of_seconds = {arm: [ends(interval) for _, interval in by_clock(arm, "16-20")] for arm in LADDER}
    assert all(low < 1 for intervals in of_seconds.values() for low, _ in intervals)
    slower = {arm: [s for s, (_, high) in zip(sizes, of, strict=True) if high < 1] for arm, of in of_seconds.items()}
    assert slower == {
        "rms-residual": ["16x32"],
        "block": sizes[:4],
        "full": sizes,
        "rms-block": sizes[:3],
        "delta:block_size=4": sizes,
        "interlayer": [],
    }
    lines = {size: [100 * beside_line(arm, size, "16-20") for arm in ("residual", *LADDER)] for size in sizes[3:]}
    below, beyond = sorted(-of for of in lines["16x48"]), sorted(lines["16x64"])
    assert (
        f"all seven end {below[0]:.1f} to {below[-1]:.1f}% below theirs at 16x48 and {beyond[0]:.1f} to "
        f"{beyond[-1]:.1f}% above at 16x64"
    ) in EVIDENCE
    points = final_points(read_record(RESULTS / "ladder-16-20.json", ScalingRecord))
    fitted = {}
    for left_out in sizes[:4]:
        four = {arm: [point for point in of if point.size != left_out] for arm, of in points.items()}
        (fitted[left_out],) = [found for found in fit_where_possible(four)[1] if found.arm == "rms-block"]
    assert all(found.interval[0] < 1 for found in fitted.values())
    low, high = fitted["16x48"].interval
    assert f"without 16x48 it is {fitted['16x48'].factor:.2f} [{low:.2f}, {high:.2f}]." in EVIDENCE
    assert len(along("block", LADDER_16_20)) == 5


def spread_without_delta(runs: list[dict]) -> float:
    """The standard deviation of the seeds of one arm at 16x48, pooled over all arms but Delta Block."""
    arms = [arm for arm in ("residual", *LADDER) if arm != "delta:block_size=4"]
    losses = [[run["loss"] for run in runs if (run["arm"], run["size"]) == (arm, "16x48")] for arm in arms]
    return statistics.fmean(map(statistics.variance, losses)) ** 0.5


def ends(interval: str) -> tuple[float, float]:
    low, high = map(float, interval.strip("[]").split(","))
    return low, high


def run_of(run: dict) -> tuple[str, str, int]:
    return run["arm"], run["size"], run["seed"]


def test_what_the_page_says_of_the_ladder_of_32_layers_is_so():
    deep = {arm: ladder(arm, "32") for arm in LADDER}
    always = [arm for arm, sizes in deep.items() if max(map(max, sizes.values())) < 0]
    assert always == ["full", "rms-block", "interlayer"] and {len(apart) for apart in deep["block"].values()} == {3}
    pairs = sum(len(apart) for arm in always for apart in deep[arm].values())
    below = [apart < 0 for of_size in deep["block"].values() for apart in of_size]
    assert f"in all {pairs} pairs at 32 layers, `block` in {sum(below)} of {len(below)}" in EVIDENCE
    means = {arm: [statistics.fmean(apart) for apart in sizes.values()] for arm, sizes in deep.items()}
    shallow = {arm: [statistics.fmean(apart) for apart in ladder(arm).values()][:4] for arm in LADDER}
    assert max(abs(mean) for arm in LADDER if arm not in AHEAD for mean in means[arm]) < 0.02
    assert all(of < beside for arm in AHEAD for of, beside in zip(means[arm][:2], shallow[arm][:2], strict=True))
    assert [[arm for arm in AHEAD if means[arm][i] < shallow[arm][i]] for i in (2, 3)] == [["block", "full"], ["block"]]
    assert all(0.25 < means[arm][2] / shallow[arm][2] < 0.4 for arm in ("rms-block", "interlayer"))
    assert abs(shallow["block"][3]) < 0.005
    assert all(sorted(of := means[arm][:3]) == of and of[2] > of[0] / 2 for arm in AHEAD)
    of_32x24 = [means[arm][2] for arm in AHEAD]
    assert max(of_32x24) - min(of_32x24) < 0.01
    assert all(abs(means[arm][3] - means[arm][1]) < 0.01 for arm in ("rms-block", "interlayer"))
    assert all(abs(means[arm][3] - means[arm][2]) < 0.01 for arm in ("block", "full"))
    assert all(1.4 < means[arm][1] / shallow[arm][1] < 1.9 for arm in ("block", "rms-block", "interlayer"))
    smallest = min(ttest_1samp(deep[arm]["32x32"], 0).pvalue for arm in LADDER)  # Holm's first step corrects it most
    assert len(LADDER) * smallest > 0.05
    operations = {arm: [advantage(arm, LADDER_32)[1], *along(arm)] for arm in LADDER}
    seconds = {arm: [interval for _, interval in by_clock(arm, "32")] for arm in LADDER}
    assert all(ends(interval)[0] < 1 for of in (operations, seconds) for arm in LADDER for interval in of[arm])
    assert [arm for arm in LADDER if max(ends(interval)[1] for interval in operations[arm]) < 1] == ["full"]
    slower = {arm: [ends(interval)[1] < 1 for interval in seconds[arm]] for arm in LADDER}
    assert {arm: of for arm, of in slower.items() if any(of)} == {
        "block": [False, False, True, False],
        "full": 4 * [True],
        "rms-block": [True, True, True, False],
        "delta:block_size=4": 4 * [True],
    }
    gained = {arm: -float(ladder_check(arm, "32x24")[1]) for arm in ("residual", "full")}
    assert gained["full"] > gained["residual"] > 0
    gains = [arm for arm in ("residual", *LADDER) if min(map(float, ladder_check(arm, "32x32"))) < 0]
    assert gains == ["rms-block", "interlayer"]
    sizes = {run["size"]: run["parameters"] for layers in (16, 32) for run in record(f"ladder-{layers}")["runs"]}
    beside = {"32x12": "16x16", "32x16": "16x24", "32x24": "16x32", "32x32": "16x48"}
    said = [f"{sizes[of]:,}{{}} at {of} and {sizes[nearest]:,} at {nearest}" for of, nearest in beside.items()]
    assert ", ".join(said).format(" parameters in the sublayers", *3 * [""]) in EVIDENCE
    larger = (("32x12", "16x16"), ("16x24", "32x16"), ("32x24", "16x32"), ("16x48", "32x32"))
    assert all(8 * sizes[large] == 9 * sizes[small] for large, small in larger)
    assert sizes["32x32"] / sizes["32x12"] < 8


def along(arm: str, of: str = LADDER_32) -> list[str]:
    """The intervals of an arm of a ladder in operations, by size."""
    of_arm = [row for row in rows("Along the range", of) if row["connection"] == arm]
    return [row["advantage in operations"].partition("x ")[2] for row in of_arm]


def test_what_the_page_says_of_the_ladders_probes_is_so():
    apart = {}
    for name in ("probes-ladder", "probes-ladder-64", "probes-ladder-80"):
        of = record(name)
        right = {(run["arm"], run["seed"]): run["right"] for run in of["runs"]}
        for i, task in enumerate(of["tasks"]):
            for arm, _ in right:
                gaps = [right[arm, seed][i] - right["residual", seed][i] for seed in range(3)]
                apart[name, arm, task["name"]] = gaps
    ahead = [("probes-ladder", arm, task) for arm in ("rms-block", "interlayer") for task in ("names", "copying")]
    ahead += [("probes-ladder", arm, "next byte") for arm in ("rms-block", "interlayer")]
    ahead += [("probes-ladder-64", arm, task) for arm in AHEAD for task in ("copying", "next byte")]
    ahead += [("probes-ladder-80", arm, "next byte") for arm in AHEAD]
    ahead += [("probes-ladder-80", arm, "copying") for arm in ("full", "rms-block")]
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
