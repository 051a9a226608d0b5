"""What the documents say of the ladder of 32 layers in words is so."""

from __future__ import annotations

import statistics

from scipy.stats import binomtest, ttest_1samp, ttest_ind, ttest_rel

from tests.docs.deep import losses_apart
from tests.docs.ladders import (
    AHEAD,
    LADDER,
    LADDER_32,
    along,
    by_clock,
    decided,
    ladder,
    ladder_check,
    on_lines,
)
from tests.docs.records import EVIDENCE, advantage, ends, number, record


def test_what_the_page_says_of_the_ladder_of_32_layers_is_so():
    deep, before = ({arm: ladder(arm, of) for arm in LADDER} for of in ("32-20", "32"))
    steps = {run["size"]: run["steps"] for run in record("ladder-32-20")["runs"]}
    assert steps == {"32x12": 540, "32x16": 960, "32x24": 2160, "32x32": 1920}
    assert all(of[size] == before[arm][size] for arm, of in deep.items() for size in of if size != "32x24")
    always = [arm for arm, sizes in deep.items() if max(map(max, sizes.values())) < 0]
    assert always == ["full", "rms-block", "interlayer"] and {len(apart) for apart in deep["block"].values()} == {3}
    pairs = sum(len(apart) for arm in always for apart in deep[arm].values())
    below = [apart < 0 for of_size in deep["block"].values() for apart in of_size]
    assert f"in all {pairs} pairs at 32 layers" in EVIDENCE and f"`block` in {sum(below)} of {len(below)}" in EVIDENCE
    means = {arm: [statistics.fmean(apart) for apart in sizes.values()] for arm, sizes in deep.items()}
    shallow = {arm: [statistics.fmean(apart) for apart in ladder(arm, "16-20").values()][:3] for arm in LADDER}
    for arm in LADDER:
        shallow[arm].append(statistics.fmean(ladder(arm)["16x48"]))
    assert max(abs(mean) for arm in LADDER if arm not in AHEAD for mean in means[arm]) < 0.02
    assert all(of < beside for arm in AHEAD for of, beside in zip(means[arm][:2], shallow[arm][:2], strict=True))
    assert [[arm for arm in AHEAD if means[arm][i] < shallow[arm][i]] for i in (2, 3)] == [["block", "full"], ["block"]]
    assert all(0.45 < means[arm][2] / shallow[arm][2] < 0.56 for arm in ("rms-block", "interlayer"))
    assert abs(shallow["block"][3]) < 0.005
    assert all(sorted(of := means[arm][:3]) == of and 0.34 < of[2] / of[0] < 0.52 for arm in AHEAD)
    of_depth = [
        ttest_ind(deep[arm][size], ladder(arm, "16-20")[nearest], equal_var=False).pvalue
        for arm in AHEAD
        for size, nearest in (("32x12", "16x16"), ("32x16", "16x24"), ("32x24", "16x32"))
    ]
    assert len(of_depth) * min(of_depth) > 0.05, "seeds decide none of this"
    ten = {arm: [-statistics.fmean(before[arm][size]) for size in ("32x24", "32x32")] for arm in AHEAD}
    told = ", ".join("from {} to {} (`{}`)".format(*(number(x, 3) for x in ten[arm]), arm) for arm in AHEAD)
    assert f"they go {' and'.join(told.rsplit(',', 1))}." in EVIDENCE
    higher = {arm: losses_apart(arm) for arm in ("residual", *AHEAD)}
    plain = [number(least(higher["residual"]), 3) for least in (min, max)]
    assert "the plain residual ends {} to {} higher at 32 layers than at 16".format(*plain) in EVIDENCE
    assert all(min(of) > 0 for of in higher.values()), "the four rules end higher, too"
    now, then = (sorted(number(-statistics.fmean(of[arm]["32x24"]), 3) for arm in AHEAD) for of in (deep, before))
    assert f"the four are {now[0]} to {now[-1]} below `residual` after 20 tokens per parameter, in all 12" in EVIDENCE
    assert f"and were {then[0]} to {then[-1]} after 10." in EVIDENCE
    assert max(max(deep[arm]["32x24"]) for arm in AHEAD) < 0 and decided("32", "32x24") == ["rms-block"]
    assert decided("32-20", "32x24") == decided("32-20", "32x16") == ["interlayer"]
    assert max(deep[arm]["32x32"][0] for arm in ("interlayer", "block", "full")) < 0
    assert all(deep[arm]["32x32"][0] == min(deep[arm]["32x32"]) for arm in ("interlayer", "block", "full"))
    assert [number(binomtest(12, 12).pvalue, 4), number(binomtest(11, 12).pvalue, 3)] == ["0.0005", "0.006"]
    for size in ("32x24", "32x32"):
        assert on_lines(size, of="32-20")["full"].interval[1] > 1, "without it the interval reaches above 1"
    rates = {size: {run["arm"]: run.get("factor", 1.0) for run in runs_at(size)} for size in ("32x12", "32x24")}
    assert f"{rates['32x12']['residual']:.2f} times the default to `residual`" in EVIDENCE
    of_rules = sorted(f"{rates['32x12'][arm]:.2f}" for arm in AHEAD)
    assert f"and {of_rules[0]} to {of_rules[-1]} times to the four rules at 32x12:" in EVIDENCE
    assert f"`rms-block` has {rates['32x24'].pop('rms-block'):.2f} of the default" in EVIDENCE
    assert {f"{rate:.2f}" for rate in rates["32x24"].values()} == {"0.50"}
    of = record("ladder-32-20")
    of_clock = [of["step_times"]["seconds"][size]["residual"] * steps[size] for size in ("32x24", "32x32")]
    assert "nearly one point, {:.0f} and {:.0f} s of `residual`".format(*of_clock) in EVIDENCE
    grows = {arm: ttest_rel(deep[arm]["32x24"], before[arm]["32x24"]).pvalue for arm in AHEAD}
    by_itself = grows.pop("interlayer")
    of_all = number(len(LADDER) * by_itself, 3)
    assert f"grows has p = {number(by_itself, 3)} by itself, {of_all} for six arms" in EVIDENCE
    assert min(grows.values()) > 0.3
    assert all(abs(means[arm][3] - means[arm][1]) < 0.01 for arm in ("rms-block", "interlayer"))
    assert abs(means["block"][3] - means["block"][2]) < 0.003 and 0 < means["full"][3] - means["full"][2] < 0.01
    smallest = min(ttest_1samp(deep[arm]["32x32"], 0).pvalue for arm in LADDER)  # Holm's first step corrects it most
    assert len(LADDER) * smallest > 0.05
    operations = {
        arm: [ends(interval) for interval in (advantage(arm, LADDER_32)[1], *along(arm, LADDER_32))] for arm in LADDER
    }
    seconds = {arm: [ends(interval) for _, interval in by_clock(arm, "32-20")] for arm in LADDER}
    assert {arm: [low > 1 for low, _ in of] for arm, of in operations.items() if max(of)[0] > 1} == {
        "block": [False, True, True, False, False],
        "interlayer": [False, False, True, True, False],
    }
    assert [arm for arm in LADDER if max(high for _, high in operations[arm]) < 1] == ["full"]
    assert all(low < 1 for of in seconds.values() for low, _ in of)
    slower = {arm: [high < 1 for _, high in of] for arm, of in seconds.items()}
    assert {arm: of for arm, of in slower.items() if any(of)} == {
        "block": [False, False, True, True],
        "full": [False, True, True, True],
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


def runs_at(size: str) -> list[dict]:
    return [run for run in record("ladder-32-20")["runs"] if run["size"] == size]
