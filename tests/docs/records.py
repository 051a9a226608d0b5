"""Numbers of the records under results/ and of the tables made from them, as documents print them."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from scipy.stats import t

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
EVIDENCE = (ROOT / "docs" / "EVIDENCE.md").read_text(encoding="utf-8")
READING = (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLES = (ROOT / "docs" / "TABLES.md").read_text(encoding="utf-8")
STD_1, STD_002 = "embedding std 1, nats per byte", "embedding std 0.02, nats per byte"
BLOCKS = ("block", *(f"block:block_size={size}" for size in (2, 8, 16)))


def record(kind: str) -> dict:
    return json.loads((RESULTS / f"{kind}.json").read_text(encoding="utf-8"))


def bench(part: str = "") -> list[dict]:
    return json.loads((ROOT / "results" / f"bench{part}.json").read_text(encoding="utf-8"))["rows"]


def rows(title: str, section: str = "") -> list[dict[str, str]]:
    """The first table under that heading of docs/TABLES.md, behind a section's heading."""
    _, _, rest = TABLES[TABLES.index(section) :].partition(f"### {title}\n")
    lines = [line for line in rest.partition("\n#")[0].splitlines() if line.startswith("|")]
    columns, _, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(columns, row, strict=True)) for row in cells]


def cell(title: str, name: str, column: str, **others: str) -> str:
    """The cell of the row that begins with the name and, if that is not enough, has these other cells."""
    named = (row for row in rows(title) if next(iter(row.values())) == name)
    (found,) = [row[column] for row in named if others.items() <= row.items()]
    return found


def number(text: str | float, digits: int, sign: str = "", place: int = 0) -> str:
    """The number at a place of a cell, rounded half up to so many digits."""
    values = re.findall(r"[-+]?\d+(?:\.\d+)?", str(text))
    rounded = Decimal(values[place]).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{rounded:{sign}}"


def gain(name: str, title: str = STD_1, sign: str = "") -> str:
    difference = cell(title, name, "difference to residual")
    return f"{number(difference, 3, sign)} ± {number(cell(title, name, 'standard error'), 3)}"


def adds(claim: str, sign: str = "", std: str = "1") -> str:
    """What a successor of Block adds at an embedding scale."""
    title = "What Block's successors add"
    difference = number(cell(title, claim, "ours", std=std), 3, sign)
    return f"{difference} ± {number(cell(title, claim, 'standard error', std=std), 3)}"


def cells() -> dict[tuple[str, float], dict]:
    return {(cell["arm"], cell["embedding_std"]): cell for cell in record("ablation")["cells"]}


def differences(runs: list[dict], arm: str) -> dict[int, float]:
    losses = {name: {run["seed"]: run["loss"] for run in runs if run["arm"] == name} for name in (arm, "residual")}
    return {seed: loss - losses["residual"][seed] for seed, loss in losses[arm].items()}


def leads(arm: str) -> str:
    runs = record("scaling")["runs"]
    sizes = dict.fromkeys(run["size"] for run in runs)
    by_size = [differences([run for run in runs if run["size"] == size], arm) for size in sizes]
    return ", ".join(number(statistics.fmean(of_size.values()), 3, "+") for of_size in by_size)


def factor_of(logs: list[float], at_once: int = 1) -> str:
    """The exponential of a mean and of its 95% interval; at_once: of how many that hold together (Bonferroni)."""
    mean, quantile = statistics.fmean(logs), 1 - 0.025 / at_once
    reach = t.ppf(quantile, len(logs) - 1) * statistics.stdev(logs) / len(logs) ** 0.5
    low, times, high = (number(math.exp(value), 2) for value in (mean - reach, mean, mean + reach))
    return f"{times} [{low}, {high}]"


def readout(arm: str) -> str:
    (runs,) = [entry["runs"] for entry in record("dynamics")["arms"] if entry["arm"] == arm]
    return number(statistics.fmean(run["moments"][-1]["input_rms"][-1] for run in runs), 0)


def span() -> str:
    computes = [run["flops_per_token"] * run["tokens"] for run in record("scaling")["runs"] if run["arm"] == "residual"]
    return number(max(computes) / min(computes), 0)


def advantage(arm: str, section: str = "") -> tuple[str, str]:
    (row,) = [row for row in rows("L = A C^-a", section) if row["connection"] == arm]
    factor, low, high = re.findall(r"\d+\.\d+", row["compute advantage over residual"])
    return factor, f"[{low}, {high}]"


def joint(arm: str, section: str) -> str:
    """The interval of an arm's compute advantage where those of all six arms are to hold at once."""
    (row,) = [row for row in rows("L = A C^-a", section) if row["connection"] == arm]
    return row["all 6 at once"]


def ends(interval: str) -> tuple[float, float]:
    low, high = map(float, interval.strip("[]").split(","))
    return low, high


def removable(arm: str) -> str:
    return number(100 * float(number(prune(arm, "removable"), 4)), 0) + "%"


def prune(arm: str, column: str) -> str:
    return cell("Loss added by switching one sublayer off", arm, column)


def dynamics(arm: str, column: str) -> str:
    return cell("Depth weights and ranks of M", arm, column)


def rounding(place: str) -> str:
    full = cell("Fewer seeds and more steps", "full", place)
    return f"{number(full, 3)} ± {number(full, 3, place=1)}"


def searched(name: str, sign: str = "", part: str = "shallow") -> str:
    """The difference of an arm in a record of the search."""
    (row,) = [row for row in rows(STD_1, f"(search-{part})") if row["connection"] == name]
    return f"{number(row['difference to residual'], 3, sign)} ± {number(row['standard error'], 3)}"


def judged(setting: str) -> list[str]:
    """What each arm of a setting of the verdict is from the baseline."""
    _, *arms = rows(STD_1, f"(verdict-{setting})")
    return [
        f"`{row['connection']}` {number(row['difference to residual'], 3)} ± {number(row['standard error'], 3)}"
        for row in arms
    ]


def judged_at(setting: str, arm: str, sign: str = "") -> str:
    """What one arm of a setting of the verdict is from the baseline."""
    row = next(row for row in rows(STD_1, f"(verdict-{setting})") if row["connection"] == arm)
    return f"{number(row['difference to residual'], 3, sign)} ± {number(row['standard error'], 3)}"


def arms_of(setting: str) -> set[str]:
    """Which arms of a setting of the verdict are done; none where it has not begun."""
    done = (RESULTS / f"verdict-{setting}.json").is_file()
    return {cell["arm"] for cell in record(f"verdict-{setting}")["cells"]} if done else set()


def apart_at(setting: str, arm: str) -> list[float]:
    """What one arm of a setting of the verdict is from the baseline, seed by seed."""
    runs = [{**run, "arm": cell["arm"]} for cell in record(f"verdict-{setting}")["cells"] for run in cell["runs"]]
    return [apart for _, apart in sorted(differences(runs, arm).items())]


def candidates_lead(setting: str) -> list[str]:
    """What the verdict's candidate is from every other arm but the baseline, seed by seed."""
    ours = losses_of(setting, "interlayer")
    others = [cell["arm"] for cell in record(f"verdict-{setting}")["cells"]]
    leads = {
        arm: [ours[seed] - loss for seed, loss in losses_of(setting, arm).items()]
        for arm in others
        if arm not in ("residual", "interlayer")
    }
    return [
        f"`{arm}` {number(statistics.fmean(of), 3)} ± {number(statistics.stdev(of) / len(of) ** 0.5, 3)}"
        for arm, of in leads.items()
    ]


def block_needs(depth: str, length: str) -> str:
    """How many times the candidate's compute `block` needs for its loss, by a line through `block`'s two lengths.

    Loss over the logarithm of compute, seed by seed; the mean of the logarithms and its 95% interval.
    """
    short, long = (losses_of(f"{depth}-{name}", "block") for name in ("short", "long"))
    steps = [record(f"verdict-{depth}-{name}")["sweep"]["config"]["steps"] for name in ("short", "long")]
    ours, theirs = (losses_of(f"{depth}-{length}", arm) for arm in ("interlayer", "block"))
    slope = {seed: (long[seed] - short[seed]) / math.log(steps[1] / steps[0]) for seed in short}
    return factor_of([(ours[seed] - theirs[seed]) / slope[seed] for seed in slope])


def slower(setting: str) -> str:
    """The steps of the arms that ran for equal wall clock, over the baseline's."""
    costs = record(f"verdict-{setting}")["sweep"]["costs"]
    return ", ".join(f"`{arm}`'s {number(cost, 2)}" for arm, cost in costs.items() if cost != 1)


def losses_of(setting: str, arm: str) -> dict[int, float]:
    """The losses of an arm of a setting of the verdict, by seed."""
    (found,) = [cell for cell in record(f"verdict-{setting}")["cells"] if cell["arm"] == arm]
    return {run["seed"]: run["loss"] for run in found["runs"]}


def searched_deep(arm: str) -> str:
    """The difference of an arm at its better rate to the baseline at its own."""
    tried = [
        {cell["arm"]: cell["runs"][0]["loss"] for cell in record(f"search-deep-rate-{rate}")["cells"]}
        for rate in (4, 8)
    ]
    return number(min(losses[arm] for losses in tried) - min(losses["residual"] for losses in tried), 3)


def searched_scale(
    part: str, arm: str, std: float, to: str = "residual", to_std: float | None = None, sign: str = ""
) -> str:
    """The difference of an arm at an embedding scale to another one, of one seed."""
    cells = record(f"search-{part}-scale")["cells"]
    losses = {(cell["arm"], cell["embedding_std"]): cell["runs"][0]["loss"] for cell in cells}
    return number(losses[arm, std] - losses[to, std if to_std is None else to_std], 3, sign)


def enlarged(arm: str, to: str = "residual") -> str:
    """The difference to another arm at embedding std 5.66, or to the arm itself at std 1."""
    losses = {cell["arm"]: [run["loss"] for run in cell["runs"]] for cell in record("ablation-scale")["cells"]}
    others = losses[to] if to != "std 1" else [run["loss"] for run in cells()[arm, 1.0]["runs"]]
    apart = [loss - other for loss, other in zip(losses[arm], others, strict=True)]
    assert to == "std 1" or max(apart) < 0
    return f"{number(statistics.fmean(apart), 3)} ± {number(statistics.stdev(apart) / len(apart) ** 0.5, 3)}"


def kendall(title: str) -> list[str]:
    return re.findall(r"tau ([-+]?\d\.\d+), p = (\d\.\d+)", TABLES.partition(title)[2])[0]


def retrofit(share: str, arm: str, column: str = "difference to residual") -> str:
    """A cell of the table of what came of so much further training."""
    (title,) = re.findall(rf"^### (After {share} more: \d+ steps)$", TABLES, re.MULTILINE)
    return cell(title, arm, column)


def probed(claim: str, arm: str, section: str = "") -> str:
    """The value of an arm under a claim on probes."""
    table = iter(rows("What a lead is worth", section))
    next(row for row in table if row["claim, connection"].startswith(claim))
    return next(row["value"] for row in table if row["claim, connection"] == arm)


def answers(name: str) -> dict:
    """Loss and share of right answers of a record's 21 models, the baseline's first, and how far they spread."""
    of = record(name)
    runs = sorted(of["runs"], key=lambda run: run["arm"] != "residual")
    arms = [[run["loss"] for run in runs if run["arm"] == arm] for arm in dict.fromkeys(run["arm"] for run in runs)]
    assert [len(losses) for losses in arms] == 7 * [3]
    return {
        "loss": [run["loss"] for run in runs],
        **{task["name"]: [run["right"][i] for run in runs] for i, task in enumerate(of["tasks"])},
        "within": statistics.fmean(statistics.variance(losses) for losses in arms) ** 0.5,
        "between": statistics.stdev(statistics.fmean(losses) for losses in arms),
    }


def period() -> str:
    table = iter(rows("What this shows"))
    next(row for row in table if row["claim, connection"] == "h is periodic by block")
    return next(row["p"] for row in table if row["claim, connection"] == "block")


COSTS = {
    "block": "Block S=4",
    "full": "Full",
    "rms-block": "RMS Block S=4",
}


def other_decimals(page: str, known: Iterable[str]) -> list[str]:
    """The numbers with decimals on a page, its commands apart, that are in no text that is known."""
    rest = page
    for text in sorted(known, key=len, reverse=True):
        assert text in page, text
        rest = rest.replace(text, "")
    return re.findall(r".{30}\d\.\d.{10}|\d+%.{10}", re.sub(r"^    .*$", "", rest, flags=re.MULTILINE))


def costs(what: str) -> list[str]:
    """Time and memory of a training step over the residual's."""
    starts = f"training step, {what} over residual,", f"peak memory of that step, {what} over residual"
    return [number(row["ratio"], 3) for start in starts for row in bench() if row["what"].startswith(start)]


def bench_tables(*headings: str) -> list[list[str]]:
    """Return the cells of the tables' rows under these headings of docs/PERFORMANCE.md."""
    page = (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    sections = [page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] for heading in headings]
    rows = [line.strip("| ").split(" | ") for text in sections for line in text.splitlines() if line.startswith("| ")]
    assert rows
    return rows
