"""The documents' numbers are the records': RESULTS.md and EVIDENCE.md number by number, the tables as they stand."""

from __future__ import annotations

import re
import statistics

import pytest

from attnres.lab.document import tables_page
from attnres.lab.page import read_records
from tests.docs.deep import deep_ladder
from tests.docs.ladders import (
    ladders,
    twice_the_tokens,
)
from tests.docs.probes import ladder_probes, largest_probes
from tests.docs.reading import NOT_OURS, readings
from tests.docs.records import (
    BLOCKS,
    EVIDENCE,
    READING,
    README,
    RESULTS,
    ROOT,
    STD_002,
    STD_1,
    TABLES,
    adds,
    advantage,
    apart_at,
    block_needs,
    candidates_lead,
    cell,
    cells,
    differences,
    dynamics,
    enlarged,
    gain,
    judged,
    kendall,
    leads,
    number,
    other_decimals,
    period,
    probed,
    prune,
    readout,
    record,
    removable,
    retrofit,
    rounding,
    rows,
    searched,
    searched_deep,
    searched_scale,
    slower,
    span,
)


def claims() -> list[str]:
    streams = ("hc", "identity-hc", "mhc-lite", "mhc", "kromhc")
    hc = [abs(float(cell(STD_1, arm, "difference to residual"))) for arm in streams]
    spread = [cell("Magnitudes over depth", arm, "gradient: spread") for arm in ("block", "residual")]
    gini = [prune(arm, "Gini") for arm in ("block", "residual")]
    demo = {arm: cell("The demo", arm, "difference to residual") for arm in ("block", "full", "x0")}
    error = {arm: number(cell("The demo", arm, "standard error"), 3) for arm in demo}
    added = "What Block's successors add"
    seeds = [{**run, "arm": arm} for arm in ("rms-residual", "residual") for run in cells()[arm, 1.0]["runs"]]
    spread_of_control = differences(seeds, "rms-residual").values()
    (tau_1, p_1), (tau_002, p_002) = kendall(STD_1), kendall(STD_002)
    scale = float(cell("The embedding's scale", "residual", "validation, nats/byte")) - 2.0101
    longer = [[float(row[arm]) for arm in ("residual", "full", "block") if row[arm]] for row in LONGER]
    apart = [loss - losses[0] for losses in longer for loss in losses[1:]]
    largest = leads("block").split(", ")[-1]
    entropies = {number(dynamics(arm, "trained"), 2) for arm in ("block", "full")}
    assert "(2.0101 and" in TABLES and len(entropies) == 1
    return [
        f"end {number(-float(cell(STD_1, 'block', 'difference to residual')), 2)} nats per byte below",
        f"of such short runs, {number(-float(largest), 2)} of that is left",
        f"`block` is at {gain('block')} and `full` at {gain('full')}",
        f"{number(min(hc), 2)} to {number(max(hc), 2)} below the baseline at std 1",
        f"Kendall's tau {number(tau_1, 2, '+')}, p = {number(p_1, 2)}",
        f"(tau {number(tau_002, 2, '+')}, p = {number(p_002, 2)})",
        f"`rms-residual` is at {gain('rms-residual')} without",
        f"`block` is {adds('Block beats the control that only normalises')} from it",
        f"`rms-block` is at {gain('rms-block')}. On",
        f"attention gives {adds('attention helps on normalised outputs')} "
        f"(p = {cell(added, 'attention helps on normalised outputs', 'p', std='1')})",
        f"which is {adds('attention helps more there than on raw ones')} from",
        f"leads all arms** with {gain('rms-full')}",
        f"{gain('delta:block_size=4', sign='+')} in blocks of four and {gain('delta', sign='+')} without blocks",
        f"Delta Block is {adds('Delta Block beats Block', '+')} above",
        f"no difference: {adds('normalising the open block at once helps', '+')}",
        f"add little: {adds('reads of their own help Block')} to Block and "
        f"{adds('reads of their own help RMS Block')} to RMS Block",
        f"between {number(min(spread_of_control), 3)} and {number(max(spread_of_control), 3)}",
        f"`rms-block` is at {gain('rms-block', STD_002)} and `rms-full` at {gain('rms-full', STD_002)}",
        f"where `block` has {gain('block', STD_002)}",
        f"first of all arms, at {gain('rms-block:reads=qkv-gate-up', STD_002)}",
        f"Block gains {adds('reads of their own help Block', std='0.02')} by them",
        f"adds nothing here: {gain('haares')} against {gain('block').split()[0]} of `block` "
        f"(at std 0.02 {gain('haares', STD_002)})",
        f"Delta is level with the baseline, at {gain('delta', STD_002)}",
        f"`rezero`'s {number(cell(STD_1, 'rezero', 'difference to residual'), 3, '+')}",
        f"needs {advantage('block')[0]} times as much for the same loss, 95% interval {advantage('block')[1]}",
        f"own operations are counted: {' '.join(advantage('full'))}",
        f"`block` is at {leads('block')} and `full` at {leads('full')}",
        f"a factor of {span()} in compute",
        f"an RMS of {readout('residual')} under `residual`, {readout('block')} under `block` and {readout('full')}",
        f"by block (p = {period()})",
        f"with {number(dynamics('hc', 'embedding'), 2)} times an equal share",
        f"an entropy of {entropies.pop()} of theirs",
        "1 for `residual`, 8 for `block`, 17 for `full`",
        f"({number(spread[0], 2)} under `block`, {number(spread[1], 2)} under `residual`)",
        f"sublayers {removable('residual')} can go",
        f"of `block`'s {removable('block')}, of `full`'s {removable('full')}",
        f"a Gini coefficient of {number(gini[0], 2)} under `block`, {number(gini[1], 2)} under `residual`",
        f"{number(prune('block', 'added, mean'), 3)} under `block` and "
        f"{number(prune('residual', 'added, mean'), 3)} under `residual`",
        f"`block` ends {number(-float(demo['block']), 3)} ± {error['block']} and `full` "
        f"{number(-float(demo['full']), 3)} ± {error['full']} below",
        f"`x0` is level with it, at {float(demo['x0']):+.3f} ± {error['x0']}",
        f"was {number(min(apart), 3)} to {number(max(apart), 3, '+')}, one seed each",
        f"gave `full` {rounding('difference to residual, first run')} and then {rounding('second run')}",
        f"moved the baseline by {number(scale, 2)}",
        f"(`block@1`) ends {retrofit('5%', 'block@1')} from its twin after 5% more steps, "
        f"{retrofit('20%', 'block@1')} after 20% and {retrofit('100%', 'block@1')} after 100%",
        f"`block` is at {retrofit('20%', 'block')} and {retrofit('100%', 'block')} "
        f"after 20% and 100%, and `full` at {retrofit('20%', 'full')} and {retrofit('100%', 'full')}",
        f"`rms-block@1` is at {retrofit('20%', 'rms-block@1')} and {retrofit('100%', 'rms-block@1')} there, "
        f"Delta Block at {retrofit('20%', 'delta:block_size=4')} and {retrofit('100%', 'delta:block_size=4')} "
        f"and `x0` at {retrofit('20%', 'x0')} and {retrofit('100%', 'x0')}",
        f"`block` is at {searched('block')}, `rms-block` at {searched('rms-block')} and `rms-residual` at "
        f"{searched('rms-residual')}: with",
        f"in blocks of two**, at {searched('rms-block:block_size=2')}",
        f"fed back in, is at {searched('recipes/rules/candidates.py:RMSStream')} for 191",
        f"behind the baseline, at {searched('delta:block_size=4', '+')}",
        f"the plain residual {enlarged('residual', 'std 1')}, as",
        *searches(),
        *verdicts(),
        *ladders(),
        *twice_the_tokens(),
        *deep_ladder(),
        *ladder_probes(),
        *largest_probes(),
        f"gains {enlarged('rms-residual', 'std 1')} by it, `block` {enlarged('block', 'std 1')} and "
        f"`rms-block` {enlarged('rms-block', 'std 1')}.",
        f"`block` is at {enlarged('block')}, `rms-residual` at {enlarged('rms-residual')} and "
        f"`rms-block` at {enlarged('rms-block')}, each",
        f"gets {probed('next byte', 'block')} more of all next bytes right than `residual`, and "
        f"{probed('names', 'block')} more of those in names",
    ]


def searches() -> list[str]:
    """What the page says of the search behind its first part."""
    rules = "recipes/rules/"
    ours = f"{rules}fresh.py:Fresh:raw=true"
    arms = {cell["arm"] for path in RESULTS.glob("search-*.json") for cell in record(path.stem)["cells"]}
    candidates = [arm for arm in arms if arm.startswith(rules)]

    def second(arm: str) -> str:
        return searched(arm, part="shallow-2")

    def longer(arm: str) -> str:
        return searched(arm, part="shallow-long-2")

    return [
        f"it tried {len(candidates)} candidates",
        f"beside {len(arms) - len(candidates)} forms of the rules",
        f"blocks of eight are at {searched('block:block_size=8')}, and afterwards",
        f"of sixteen at {searched('block:block_size=16', part='shallow-block')} and "
        f"of two at {searched('block:block_size=2', '+', part='shallow-block')}",
        f"It is at {second(ours)}, where `rms-block:block_size=2` is at {second('rms-block:block_size=2')}",
        f"(`FedLayer`) {second(f'{rules}layer.py:FedLayer')} is left",
        f"(`whole`) {second(f'{rules}inner.py:Inner:whole=true')}",
        f"(`Inner`) it is {second(f'{rules}inner.py:Inner')}",
        f"(`keen=0`), {second(f'{rules}inner.py:Inner:keen=0.0')}",
        f"learns nothing, is at {second(f'{rules}plain.py:Plain')}",
        f"`interlayer`'s form is at {longer(ours)}, with blocks of four at "
        f"{longer(f'{rules}fresh.py:Fresh:block_size=4,raw=true')}, `rms-block:block_size=2` at "
        f"{longer('rms-block:block_size=2')} and `block` at {longer('block')}",
        f"the larger embedding gains {searched_scale('shallow-long', 'residual', 5.66, to_std=1.0)} there",
        f"gives the plain residual {searched_scale('shallow-long', 'residual', 5.66, to_std=1.0)}, takes Block from "
        f"{searched_scale('shallow-long', 'block', 1.0)} below it to "
        f"{searched_scale('shallow-long', 'block', 5.66, sign='+')} above, and leaves `rms-residual` at "
        f"{searched_scale('shallow-long', 'rms-residual', 5.66, sign='+')}.",
        f"`interlayer`'s form is at {searched_deep(ours)}, `Stream:size=none` without attention at "
        f"{searched_deep(f'{rules}streams.py:Stream:size=none')}, `block` in blocks of twelve at "
        f"{searched_deep('block:block_size=12')} and `x0` at {searched_deep('x0')}",
        f"is {searched_scale('deep', 'residual', 9.8, to_std=1.0).lstrip('-')} below itself, `block` in blocks of "
        f"twelve at {searched_scale('deep', 'block:block_size=12', 9.8)} and `rms-residual` at "
        f"{searched_scale('deep', 'rms-residual', 9.8)} from it",
    ]


def verdicts() -> list[str]:
    """What the page says of the verdict's arms that are done."""
    settings = [path.stem.removeprefix("verdict-") for path in RESULTS.glob("verdict-*.json")]
    reads = apart_at("deep-short", "rms-block:reads=qkv-gate-up")
    by_setting = [
        f"verdict-{setting}.json): {', '.join(judged(setting))}."
        + (f" `interlayer` from {', from '.join(leads)}." if (leads := candidates_lead(setting)) else "")
        for setting in settings
    ]
    needs = {
        (depth, length): block_needs(depth, length) for depth in ("shallow", "deep") for length in ("short", "long")
    }
    return [
        *by_setting,
        f"with such reads ends at {number(max(reads), 2, '+')} at 48 layers",
        f"after 2 tokens per parameter {needs['shallow', 'short']} times the candidate's compute for its loss at 16 "
        f"layers and {needs['deep', 'short']} at 48, after 10 {needs['shallow', 'long']} and {needs['deep', 'long']}, "
        "each with its 95% interval",
        *(
            f"at {16 if 'shallow' in setting else 48} layers {slower(setting)}"
            for setting in settings
            if setting.endswith("seconds")
        ),
    ]


LONGER = rows("Twice the tokens per step, 300 steps")

NOT_RESULTS = {
    "p < 0.05": "a level",
    "less than 0.01 nats": "what counts as removable",
    "0.4 tokens per parameter": "a setting",
    "0.2 million parameters": "a setting",
    "1.77 million parameters": "a setting",
    "one H100, all 21 runs": "of docs/EVIDENCE.md's own run, not in the record",
    "within 2.1e-5 and its gradient norms within 1.5e-4": "the same",
    "p = 0.068": "checked in test_ladders.py",
    "lie at +0.009, -0.024 and -0.051 (`residual`) and +0.013, +0.030 and +0.005 (`block`) from": "the same",
    "leave the CPU's by up to 0.05": "the same",
    "a quarter ends 0.001 and 0.000 above it": "the same",
    "each `block` is 0.023 ahead, and with half of it `full` is 0.036, `rms-block` 0.024 and `interlayer` 0.019": (
        "the same"
    ),
    "is 0.106 below after a fifth of the way, where `block` is 0.016 above": "the same",
    "they are 0.034 and 0.027 below, at the end 0.018 and 0.017": "the same",
    "3.7 to 6.4% below their own, at 16x96 4.4 to 6.0% above": "the same",
    "put `block` 0.018 below `residual`, `full` 0.022, `rms-block` 0.025 and `interlayer` 0.022": "the same",
    "decides that for each of them (p < 0.0001)": "the same",
    "took 1.15, 1.18, 1.19 and 1.19 times": "the same, but for the first two, of records before (aeb8139, d17c2ac)",
    "with torch 2.11 and": "a version",
    "two fitted lines, 95% interval": "a level",
    "within 0.02 of it": "the ladder of 32 layers, checked in test_deep.py",
    "(p above 0.3)": "the same",
    "p = 0.011 by itself, 0.063 for six arms": "the same",
    "(21 for each: p < 0.0001 by a sign test, chosen afterwards)": "the same",
    "of that kind, of up to 0.113, were there after 10 tokens per parameter and 0.033 to 0.048": "16x48, below",
    "`full`'s has p = 0.023 by itself, `block`'s 0.061 and `rms-block`'s 0.079": "the same",
    "and 3.39 times the default to `residual` and 2.02 to 2.26 times": "the same",
    "`rms-block` has 0.59 of the default": "the same",
    "within 2.4e-5": "of docs/EVIDENCE.md's own run, not in the record",
    "within 1.7e-5": "the same",
    "(p = 0.047 for six arms;": "checked in test_deep.py",
    "at 32x56, too (p = 0.047 for six arms).": "the same",
    "at 32x56 and 32x64 (1.2 and 1.6 million)": "the same",
    "within 0.015 of those at 32x24": "the same",
    "by 11 to 33%, in 11 of 12 pairs of seeds": "the same",
    "2 to 6% lower beside the plain one's at 32x32, `rms-block` saved time there, too, 1.20 [1.05, 1.38]": (
        "of results/ladder-32-20.json at commit 7ba010f"
    ),
    "at -0.033 to -0.048 there, where after 10 they were at +0.003 to -0.113": "16x48 at 20 tokens, checked there, too",
    "a standard deviation of 0.009, where it was 0.039": "the same",
    "its seeds lie at -0.032, +0.002 and +0.061": "the same",
    "moves a run by as much as 0.10": "the same",
    "leave them by up to 0.10": "the same",
    "std 0.02": "a setting",
    "level with it at 0.02": "a setting",
    "by 0.03 to 0.06": "against results/ablation.json at commit 474e2ba",
    "ended 0.288 above": "against the same",
    "5% more steps": "a setting",
    "after 20%": "a setting",
    "after 100%": "a setting",
    "with std 9.8": "a setting",
}


def test_the_tables_are_the_records():
    assert tables_page(read_records(RESULTS), RESULTS) == TABLES, "run attnres report --tables > docs/TABLES.md"


PAGES = {"long": (EVIDENCE, claims(), NOT_RESULTS), "short": (READING, readings(), NOT_OURS)}


@pytest.mark.parametrize(("page", "claim"), [(name, claim) for name, (_, said, _) in PAGES.items() for claim in said])
def test_what_a_page_says_is_what_the_records_hold(page, claim):
    assert claim in PAGES[page][0]


@pytest.mark.parametrize("page", PAGES)
def test_no_other_number_of_a_page_has_decimals(page):
    text, said, others = PAGES[page]
    assert other_decimals(text, (*said, *others)) == []


def test_the_candidate_is_ahead_in_every_seed_where_the_page_says_so():
    ours = apart_at("deep-short", "interlayer")
    others = {cell["arm"] for cell in record("verdict-deep-short")["cells"]} - {"interlayer"}
    assert len(others) == 12
    assert all(apart > lead for arm in others for apart, lead in zip(apart_at("deep-short", arm), ours, strict=True))


def test_every_seed_is_below_the_baseline_where_the_page_says_so():
    both = [(arm, std) for arm in ("block", "full", "rms-block", "rms-full") for std in (1.0, 0.02)]
    for arm, std in (*both, *((arm, 1.0) for arm in (*BLOCKS, "full:query=input", "rms-residual"))):
        runs = [{**run, "arm": name} for name in (arm, "residual") for run in cells()[name, std]["runs"]]
        assert max(differences(runs, arm).values()) < 0


def test_the_retrofits_advice_is_its_record():
    """docs/TRANSFORMERS.md has the differences of every arm, and what a rate is worth."""
    guide, of = (ROOT / "docs" / "TRANSFORMERS.md").read_text(encoding="utf-8"), record("retrofit")
    shares = [f"{100 * fraction:g}%" for fraction in of["fractions"]]
    assert f"| difference to the plain twin | {' | '.join(f'{share} more' for share in shares)} |" in guide
    for arm in (arm["name"] for arm in of["arms"][1:]):
        assert f"| `{arm}` | {' | '.join(retrofit(share, arm) for share in shares)} |" in guide
    for name, column in (("the twin's own loss", "loss"), ("the twin's rate, over its training's", "lr")):
        assert f"| {name} | {' | '.join(retrofit(share, 'residual', column) for share in shares)} |" in guide
    tried = {run["factor"]: run["loss"] for run in of["tuning"] if (run["arm"], run["fraction"]) == ("residual", 0.05)}
    best = min(tried, key=tried.__getitem__)
    assert best == 0.125 and f"the whole rate left it {number(tried[1.0] - tried[best], 4)} above" in guide
    losses = {(run["arm"], run["fraction"], run["seed"]): run["loss"] for run in of["runs"]}
    seeds = sorted({seed for _, _, seed in losses})

    def gains(arm: str, fraction: float, over: str = "residual") -> list[float]:
        return [losses[over, fraction, seed] - losses[arm, fraction, seed] for seed in seeds]

    names = [arm["name"] for arm in of["arms"][1:]]
    assert all(statistics.fmean(gains(arm, share)) < 0.01 for arm in names for share in of["fractions"])
    assert all(statistics.fmean(gains(arm, 1.0)) < 0 for arm in names if arm != "x0")
    assert sum(gain > 0 for gain in gains("x0", 1.0)) == 2 and len(seeds) == 3
    rules = [gains(arm, share) for arm in names if arm != "x0" for share in of["fractions"]]
    assert not any(min(of_cell) > 0 for of_cell in rules), "the guide says that none is ahead in all three seeds"
    assert (sum(max(of_cell) < 0 for of_cell in rules), len(rules)) == (11, 24) and "eleven of the 24 cells" in guide
    assert f"{of['date']}, commit {of['commits'][0][:7]}, {of['hours']:.1f} hours" in guide
    for arm in ("block", "full", "rms-block"):
        assert all(statistics.fmean(gains(f"{arm}@1", share, over=arm)) > 0 for share in of["fractions"])
    operations = {arm: cell("What the arms are and cost", arm, "operations") for arm in ("block", "full")}
    assert f"{operations['block']} times the operations of the twin's with `block` and {operations['full']}" in guide


def test_the_readmes_numbers_are_the_records():
    for row in rows("The demo"):
        (shown,) = [line for line in README.splitlines() if re.match(rf"\| `{row['connection']}`.* \| 2\.", line)]
        loss, difference = number(row["validation, nats/byte"], 3), row["difference to residual"]
        paired = f"{float(difference):+.3f} ± {number(row['standard error'], 3)}" if difference else ""
        cells = [loss, paired, row["step time"], row["peak memory"]]
        assert [text.strip() for text in shown.strip("|").split("|")][1:] == cells
