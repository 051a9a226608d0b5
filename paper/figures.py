"""Draw the figures of the report, docs/results.md and docs/performance.md: `python paper/figures.py` in a clone.

Numbers are read from results/tables.md, or from the record that a function names.
The files are SVG, light or dark as the reader's system is.
"""

from __future__ import annotations

import io
import json
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnres.report.style import arm_styles

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
FOUR, OTHERS = ("block", "full", "rms-block", "interlayer"), ("rms-residual", "delta:block_size=4")
SIZES = {
    16: ("16x16", "16x24", "16x32", "16x48", "16x64", "16x80", "16x96"),
    32: ("32x12", "32x16", "32x24", "32x32", "32x48", "32x56", "32x64"),
}
SERIES = {layers: f"Does it last with scale? (ladder-{layers}-20)" for layers in SIZES}
INK, GREY, PAPER = "#1f2328", "#6e7781", "#ffffff"
DARK = {INK: "#e6edf3", GREY: "#9198a1", PAPER: "#0d1117", "#0072b2": "#4493f8"}
"""What takes a colour's place on a dark page; the others are seen on both."""
STYLE: Any = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "figure.titlesize": 12.5,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "attnres",
}


def table(section: str, title: str) -> dict[str, dict[str, list[float]]]:
    """The numbers in the cells of a table of tables.md by row and column; a row is named by its texts in front."""
    text = (ROOT / "results" / "tables.md").read_text(encoding="utf-8")
    text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0].partition(f"\n### {title}\n")[2]
    lines = [line.strip("| \n").split(" | ") for line in text.partition("\n#")[0].splitlines() if line.startswith("|")]
    rows = {}
    for cells in lines[2:]:
        name = short(cells[0]) + (f" {cells[1]}" if lines[0][1] == "size" else "")
        rows[name] = {
            column: [float(one) for one in NUMBER.findall(cell)] for column, cell in zip(lines[0], cells, strict=False)
        }
    return rows


def short(arm: str) -> str:
    """The rule as the figures call it: the blocks of four that the text speaks of are not named."""
    return re.sub(r"^((?:rms-)?block):block_size=4", r"\1", arm)


def colour(rule: str) -> str:
    return arm_styles([rule.partition(":")[0]])[rule.partition(":")[0]].colour or GREY


def save(figure: Figure, name: str, folder: str = "paper/figures") -> None:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    rules = [
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important }}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    svg = buffer.getvalue().replace("<defs>", f"{style}<defs>", 1)
    (ROOT / folder / f"{name}.svg").write_text("\n".join(map(str.rstrip, svg.splitlines())) + "\n", encoding="utf-8")


def parameters(size: str) -> float:
    layers, width = map(int, size.split("x"))
    return 12 * layers * width**2 / 1e6


def along_sizes(rules: tuple[str, ...]) -> Figure:
    """Differences to the plain residual against size, 16 and 32 layers."""
    figure, panels = plt.subplots(1, 2, figsize=(6, 3.9), sharey=True)
    figure.suptitle("Four rules beat the plain residual at 16 and 32 layers")
    for axes, (layers, sizes) in zip(panels, SIZES.items(), strict=True):
        rows = table(SERIES[layers], "Along the range")
        for rule in rules:
            mean, error = zip(*(rows[f"{rule} {size}"]["difference to residual"] for size in sizes), strict=True)
            dashes = "-" if rule in FOUR else ":"
            x = [parameters(size) for size in sizes]
            style = {"color": colour(rule), "linestyle": dashes, "marker": ".", "elinewidth": 1}
            axes.errorbar(x, mean, error, **style, label=rule.partition(":")[0])
        axes.axhline(0, color=GREY, linewidth=1)
        axes.set_xscale("log")
        axes.set_xticks([0.1, 0.3, 1], labels=["0.1", "0.3", "1"])
        axes.minorticks_off()
        axes.set_title(f"{layers} layers")
        axes.set_xlabel("million parameters")
    panels[0].set_ylabel("nats per byte from\nthe plain residual")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4 if rules == FOUR else 3, frameon=False, fontsize=10)
    return figure


def cost() -> Figure:
    figure, axes = plt.subplots(figsize=(6, 3.8))
    figure.suptitle("A step is slower in narrow and deep models")
    for layers, dashes in ((16, "-"), (32, "--")):
        rows = table(SERIES[layers], "A step's time")
        widths = [int(size.split("x")[1]) for size in SIZES[layers]]
        for rule in ("block", "full"):
            times = [rows[rule][size][0] for size in SIZES[layers]]
            axes.plot(widths, times, dashes, color=colour(rule), marker=".", label=f"{rule}, {layers} layers")
    bench = {row["what"]: row["ratio"] for row in json.loads((ROOT / "results/bench.json").read_text())["rows"]}
    for rule in ("block", "full"):
        ratio = bench[f"step, width 256, 12 layers, 8x256 tokens: {rule.title()}"]
        axes.plot(256, ratio, "*", color=colour(rule), markersize=11, label=f"{rule}, 12 layers")
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([12, 16, 24, 32, 48, 64, 96, 256], labels=["12", "16", "24", "32", "48", "64", "96", "256"])
    axes.minorticks_off()
    axes.set_xlabel("width")
    axes.set_ylabel("time of a CPU step,\ntimes the plain residual's")
    axes.legend(frameon=False, fontsize=10)
    return figure


def operator() -> Figure:
    figure, panels = plt.subplots(1, 2, figsize=(6, 3.8), sharey=True)
    figure.suptitle("The CPU operator stays near the memory bandwidth")
    lines = {"stacked, ms": "eager PyTorch", "compiled reference, ms": "torch.compile", "attnres, ms": "attnres"}
    lines["bytes that must move at the copy bandwidth, ms"] = "lower bound"
    rows = [row["details"] for row in json.loads((ROOT / "results/bench-curves.json").read_text())["rows"]]
    for axes, (axis, label) in zip(panels, (("sources", "sources"), ("time", "tokens of a sequence")), strict=True):
        for (column, name), style in zip(lines.items(), ("#D55E00", "#009E73", "#0072B2", GREY), strict=True):
            points = [(row[axis], row[column]) for row in rows if row["axis"] == axis and column in row]
            dashes = "--" if name == "lower bound" else "-"
            axes.plot(*zip(*points, strict=True), dashes, color=style, marker="." * (dashes == "-"), label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted(row[axis] for row in rows if row["axis"] == axis)[:: 2 if axis == "sources" else 1]
        axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axes.set_xlabel(label)
    panels[0].set_yticks([0.1, 1, 10, 100, 1000], labels=["0.1", "1", "10", "100", "1000"])
    panels[0].set_ylabel("forward + backward, ms")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    return figure


def gpu() -> Figure:
    """Forward and backward of the operator, times what moving its bytes once takes at the bandwidth of a copy."""
    rows = {row["what"]: row["details"] for row in json.loads((ROOT / "results/bench-gpu.json").read_text())["rows"]}
    bandwidth = next(row["copy bandwidth, GB/s"] for row in rows.values() if "copy bandwidth, GB/s" in row)
    times = next(row for what, row in rows.items() if what.startswith("operator forward+backward over the fastest"))
    sources, tokens, width, size = 9, 4 * 16384, 1024, 2
    moved = (sources + 1 + 2 * sources + 1) * tokens * width * size
    limit = moved / bandwidth / 1e6
    names = {
        "attnres": "attnres",
        "fla-core, checkpoint level 0": "fla-core",
        "compiled reference": "torch.compile",
        "liger-kernel, its stack given": "liger-kernel",
        "flash-attn-res, its stack given": "flash-attn-res",
        "stacked": "eager PyTorch",
    }
    figure, axes = plt.subplots(figsize=(6, 3.3))
    figure.suptitle("On an H200 attnres is the nearest to the bandwidth limit")
    for place, (row, name) in enumerate(names.items()):
        ratio = times[f"{row}, ms"] / limit
        axes.barh(place, ratio - 1, left=1, height=0.62, color="#0072B2" if name == "attnres" else GREY)
        axes.text(ratio * 1.04, place, f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}", va="center")
    axes.set_yticks(range(len(names)), labels=names.values())
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    axes.set_xlim(1, 38)
    axes.set_xticks([1, 2, 5, 10, 20], labels=["1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_xlabel("time of forward + backward, times the bandwidth limit\n(left edge, 1: each byte moved once)")
    return figure


def evidence() -> Figure:
    """The loss with attention over depth, against the plain residual's, from us and from others."""
    figure, axes = plt.subplots(figsize=(6, 4.4))
    figure.suptitle("Gains shrink with size, and two short large runs lose")
    for layers, marker in ((16, "o"), (32, "s")):
        runs = json.loads((ROOT / f"results/ladder-{layers}-20.json").read_text())["runs"]
        rows = table(SERIES[layers], "Along the range")
        for size in SIZES[layers]:
            plain = np.mean(
                [run["loss"] for run in runs if (run["arm"], run["at"], run.get("part")) == ("residual", size, None)]
            )
            mean, error = (100 * value / plain for value in rows[f"block {size}"]["difference to residual"])
            label = f"ours, {layers} layers" if size == SIZES[layers][0] else None
            style = {"color": "#0072B2", "marker": marker, "markersize": 5, "elinewidth": 1}
            axes.errorbar(parameters(size), mean, error, linestyle="none", label=label, **style)
    colours = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", GREY)
    reports = tomllib.loads((ROOT / "results/others.toml").read_text())["reports"]
    for report, ink, marker in zip(reports, colours, "^v<>D", strict=True):
        losses = report.get("losses") or [[math.log(each) for each in pair] for pair in report.get("perplexities", [])]
        percent = report.get("percent") or [100 * (ours / plain - 1) for plain, ours in losses]
        style = {"color": ink, "marker": marker, "markersize": 7, "fillstyle": "none", "linewidth": 1}
        axes.plot(
            report["sizes"], percent, linestyle="-" if report.get("fitted") else "none", label=report["who"], **style
        )
    axes.axhline(0, color=GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 1, 10, 100, 1000, 10000], labels=["0.1M", "1M", "10M", "100M", "1B", "10B"])
    axes.minorticks_off()
    axes.set_xlabel("active parameters")
    axes.set_ylabel("loss against the plain residual, %")
    named = zip(*axes.get_legend_handles_labels(), strict=True)
    ordered = sorted(named, key=lambda one: not one[1].startswith("ours"))
    figure.legend(*zip(*ordered, strict=True), loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    return figure


def dots(axes: Axes, rows: Sequence[tuple[Any, ...]]) -> None:
    """A row each: name, mean and standard error."""
    for place, (name, mean, error) in enumerate(rows):
        axes.errorbar(mean, place, xerr=error, color=colour(name.partition(":")[0]), marker="o", markersize=5)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), labels=[name for name, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.25)


def differences(section: str, title: str, arms: tuple[str, ...]) -> list[tuple[str, float, float]]:
    rows = table(section, title)
    return [
        (arm, rows[arm]["difference to residual"][0], rows[arm]["standard error"][0]) for arm in arms if arm in rows
    ]


def short_runs() -> Figure:
    figure, axes = plt.subplots(figsize=(6, 4.6))
    figure.suptitle("Attention over depth and normalised outputs add up")
    arms = ("rms-full", "rms-block", "full", "block", "rms-residual", "haares", "mhc", "hc", "x0", "highway")
    dots(
        axes,
        differences(
            "Which residual rule?",
            "embedding std 1, nats per byte",
            (*arms, "delta:block_size=4", "denseformer", "window"),
        ),
    )
    axes.set_xticks([-0.1, -0.05, 0, 0.05])
    axes.set_xlabel("nats per byte from the plain residual, after 160 steps")
    return figure


def advantage() -> Figure:
    figure, panels = plt.subplots(1, 2, figsize=(6, 3.7), sharey=True)
    figure.suptitle("A little compute is saved, and less wall-clock time")
    for axes, column in zip(panels, ("advantage in operations", "advantage in seconds"), strict=True):
        for layers, shift, fill in ((16, -0.15, "full"), (32, 0.15, "none")):
            rows, size = table(SERIES[layers], "Along the range"), SIZES[layers][-1]
            for place, rule in enumerate(FOUR):
                middle, low, high = rows[f"{rule} {size}"][column]
                ends = [[middle - low], [high - middle]]
                marker = {"marker": "o", "fillstyle": fill}
                axes.errorbar(middle, place + shift, xerr=ends, color=colour(rule), **marker)
        axes.axvline(1, color=GREY, linewidth=1)
        axes.set_xscale("log")
        axes.set_xticks([0.7, 1, 1.4, 2], labels=["0.7", "1", "1.4", "2"])
        axes.minorticks_off()
    panels[0].set_title("compute")
    panels[1].set_title("wall-clock time, CPU")
    panels[0].set_yticks(range(len(FOUR)), labels=FOUR)
    panels[0].set_ylim(3.6, -0.6)
    figure.supxlabel(
        "what the plain residual needs for the same loss,\ntimes the rule's; filled: 16x96, open: 32x64", fontsize=11
    )
    return figure


def copying() -> Figure:
    figure, axes = plt.subplots(figsize=(6, 3.9))
    figure.suptitle("Leads are largest where copying is learned late")
    places = {"16x48": "", "16x64": "-64", "16x80": "-80", "16x96": "-96", "32x32": "-32", "32x48": "-32-48"}
    places["32x64"] = "-32-64"
    for at, name in enumerate(places.values()):
        rows = table(f"What is a lead worth? (probes-ladder{name})", "What runs get right")
        for shift, rule in zip((-0.24, -0.08, 0.08, 0.24), FOUR, strict=True):
            more = 100 * (rows[rule]["copying"][0] - rows["residual"]["copying"][0])
            axes.bar(at + shift, more, 0.15, color=colour(rule), label=rule if at == 0 else None)
    axes.axhline(0, color=GREY, linewidth=1)
    axes.axvline(3.5, color=GREY, linewidth=1)
    axes.set_xticks(range(len(places)), labels=list(places))
    axes.set_ylabel("right bytes in a repeated text,\npoints above the plain residual")
    axes.legend(frameon=False, fontsize=10, loc="upper left", bbox_to_anchor=(0.28, 1))
    return figure


def stream() -> Figure:
    figure, axes = plt.subplots(figsize=(6, 3.7))
    figure.suptitle("Attention over depth keeps the stream small")
    runs = json.loads((ROOT / "results/dynamics.json").read_text())["runs"]
    for rule in ("residual", "block", "full"):
        of_rule = [run["measured"]["moments"][-1]["input_rms"] for run in runs if run["arm"] == rule]
        mean = np.mean(of_rule, 0)
        axes.plot(np.arange(len(mean)) / 2, mean, color=colour(rule))
        axes.text(len(mean) / 2, mean[-1], rule, color=colour(rule), va="center")
    axes.set_yscale("log")
    axes.set_yticks([1, 3, 10, 30], labels=["1", "3", "10", "30"])
    axes.minorticks_off()
    axes.set_xlim(0, 18.4)
    axes.set_xticks([0, 4, 8, 12, 16], labels=["0", "4", "8", "12", "readout"])
    axes.set_xlabel("layer")
    axes.set_ylabel("RMS of what sublayers read")
    return figure


def retrofit() -> Figure:
    figure, panels = plt.subplots(1, 3, figsize=(6, 3), sharex=True, sharey=True)
    figure.suptitle("A rule added to a trained model gains nothing")
    titles = ("After 5% more: 30 steps", "After 20% more: 120 steps", "After 100% more: 600 steps")
    for axes, title in zip(panels, titles, strict=True):
        rows = table("Is a retrofit worth it?", title)
        names = ("block@1", "full@1", "rms-block@1", "delta:block_size=4@1", "x0")
        dots(
            axes, [(name.partition("@")[0].partition(":")[0], *rows[name]["difference to residual"]) for name in names]
        )
        axes.set_title(title.split(":")[0].removeprefix("After ") + " steps")
    figure.supxlabel("nats per byte from the model without a rule", fontsize=11)
    return figure


def test() -> Figure:
    figure, panels = plt.subplots(1, 2, figsize=(6, 3.6), sharex=True)
    figure.suptitle("The candidate, interlayer, wins by far at 48 layers only")
    arms = ("interlayer", "rms-block:block_size=2", "rms-block:block_size=12", "block:block_size=8")
    arms = (*arms, "block:block_size=12", "rms-block", "block", "x0")
    for axes, (depth, name) in zip(panels, (("shallow", "16 layers"), ("deep", "48 layers")), strict=True):
        section = f"Which residual rule? (verdict-{depth}-short)"
        rows = sorted(differences(section, "embedding std 1, nats per byte", arms), key=lambda row: row[1])
        dots(axes, rows)
        axes.set_yticks(range(len(rows)), labels=[row[0].replace("block_size=", "") for row in rows])
        axes.set_title(name)
    figure.supxlabel("nats per byte from the plain residual, four seeds, 2 tokens per parameter", fontsize=10)
    return figure


if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        save(along_sizes((*FOUR, *OTHERS)), "series")
        save(along_sizes(FOUR), "gain", "docs/figures")
        save(cost(), "cost", "docs/figures")
        for draw in (operator, gpu, evidence):
            save(draw(), draw.__name__, "docs/figures")
        made = (short_runs, advantage, copying, stream, retrofit, test)
        for draw in made:
            save(draw(), draw.__name__.removesuffix("_runs"))
