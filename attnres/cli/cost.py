"""Plan a cluster: memory traffic, bytes between pipeline stages, and whether they hide behind compute.

Everything here is computed, nothing is measured. The paper's layout:

    attnres cost --layers 128 --block-size 16 --pipeline 8 --virtual 4 --dim 7168 --tokens 4096

Other machines and schedules, with a picture of what each rank does when, and everything as JSON:

    attnres cost --pipeline 4 --virtual 2 --link 25 --tflops 300
    attnres cost --schedule zero-bubble --figure timeline.png --out cost.json

--layers counts sublayers (the paper's layers): attention and MLP are one each.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from attnres.analysis.cost import Plan, Transfers, cached_total, memory_traffic, naive_total
from attnres.analysis.timeline import Timeline
from attnres.errors import UsageError
from attnres.files import write_bytes, write_json

DEFAULTS = Plan()


def command(
    plan: Annotated[Plan, tyro.conf.arg(name="")] = DEFAULTS,
    figure: Path | None = None,
    out: Path | None = None,
) -> int:
    """Cost.

    Args:
        figure: Draw the simulated step to this PNG file.
        out: Also write everything to this JSON file.
    """
    if figure is not None and plan.pipeline == 1:
        raise UsageError("a picture of the pipeline needs one: give --pipeline 2 or more")
    console = Console()
    console.print(_traffic(plan))
    record: dict[str, Any] = {"plan": dataclasses.asdict(plan), "memory_traffic": _traffic_record(plan)}
    if plan.pipeline > 1:
        timelines = plan.timelines()
        scaling = {p.pipeline: p.timelines() for p in plan.with_pipelines() if p.micro_batches >= p.pipeline > 1}
        for table in (_totals(plan), _transitions(plan), _step(timelines), _scaling(plan, scaling)):
            console.print(table)
        record["pipeline"] = _pipeline_record(plan)
        record["step"] = {name: {"seconds": t.seconds, "busy": t.busy} for name, t in timelines.items()}
        record["scaling"] = [
            {"pipeline": pipeline, "seconds": {name: t.seconds for name, t in steps.items()}}
            for pipeline, steps in scaling.items()
        ]
        if figure is not None:
            from attnres.report.timeline import draw_timelines  # matplotlib takes a second to import

            write_bytes(figure, draw_timelines(timelines, plan.virtual))
    if out is not None:
        write_json(out, record)
    return 0


def _traffic(plan: Plan) -> Table:
    table = Table(
        "connection",
        "symbolic",
        "here",
        title=f"memory traffic per token and sublayer, in units of d (N = {_number(plan.blocks)}, m = {plan.streams})",
    )
    for row in memory_traffic(plan.dim, plan.block_size, plan.blocks, plan.streams):
        table.add_row(row.connection, row.formula, f"{row.units:.4g}")
    return table


def _totals(plan: Plan) -> Table:
    chunks = plan.pipeline * plan.virtual
    table = Table(
        "forward, one micro-batch",
        "naive",
        "cached",
        "naive / cached",
        title=f"between {plan.pipeline} ranks with {plan.virtual} virtual stages each: C = {chunks} chunks, "
        f"N_p = {_number(plan.new_blocks)}; an entry is {_size(plan.entry_bytes)}",
    )
    formula, counted = plan.formula(), plan.counted()
    naive, cached = (total(plan.pipeline, plan.virtual, plan.new_blocks) for total in (naive_total, cached_total))
    assert (naive, cached) == (sum(formula.naive), sum(formula.cached)), "the formulas add up their transitions"
    table.add_row("formula, in all", *_pair(plan, naive, cached))
    table.add_row("  largest transition", *_pair(plan, *map(max, _lists(formula))))
    table.add_row("as sent, in all", *_pair(plan, *map(sum, _lists(counted))))
    table.add_row("  largest transition", *_pair(plan, *map(max, _lists(counted))))
    table.add_row("plain residual, in all", *_pair(plan, *[Fraction(chunks - 1)] * 2))
    table.caption = (
        "Formula: C(C-1)/2 N_p naive, P(P-1)/2 N_p + (V-1) P^2 N_p cached; finished blocks alone. As sent: the "
        "embedding and the open partial too, whole blocks only, and nothing to the rank that made it. The backward "
        "pass returns as many bytes."
    )
    return table


def _transitions(plan: Plan) -> Table:
    table = Table(
        "into chunk",
        "ranks",
        "site",
        "naive",
        "cached",
        "naive, ms",
        "cached, ms",
        title=f"what each transition sends forward, in entries; time at {plan.link:g} GB/s",
    )
    counted = plan.counted()
    for chunk, (naive, cached) in enumerate(zip(counted.naive, counted.cached, strict=True), 1):
        ranks = f"{(chunk - 1) % plan.pipeline} to {chunk % plan.pipeline}"
        times = (f"{1e3 * plan.transfer_seconds(entries):.2f}" for entries in (naive, cached))
        table.add_row(str(chunk), ranks, str(plan.sites[chunk].start), str(naive), str(cached), *times)
    return table


def _step(timelines: dict[str, Timeline]) -> Table:
    table = Table("simulated step", "ms", "ranks compute", "over residual")
    for name, timeline in timelines.items():
        over = timeline.seconds / timelines["residual"].seconds
        table.add_row(name, f"{1e3 * timeline.seconds:,.1f}", f"{timeline.busy:.1%}", f"{over:.4f}")
    return table


def _scaling(plan: Plan, scaling: dict[int, dict[str, Timeline]]) -> Table:
    one_rank = 3 * plan.sublayer_seconds * plan.layers * plan.micro_batches
    names = list(next(iter(scaling.values()))) if scaling else []
    table = Table(
        "P",
        *(f"{name}, ms" for name in names),
        "efficiency, cached",
        title=f"the same step on more ranks, on paper ({1e3 * one_rank:,.0f} ms on one)",
    )
    for pipeline, steps in scaling.items():
        efficiency = one_rank / pipeline / steps["block, cached"].seconds
        table.add_row(str(pipeline), *(f"{1e3 * steps[name].seconds:,.1f}" for name in names), f"{efficiency:.1%}")
    return table


def _traffic_record(plan: Plan) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in memory_traffic(plan.dim, plan.block_size, plan.blocks, plan.streams)]


def _pipeline_record(plan: Plan) -> dict[str, Any]:
    return {
        "entry_bytes": plan.entry_bytes,
        "new_blocks": float(plan.new_blocks),
        "formula": {
            "naive": float(naive_total(plan.pipeline, plan.virtual, plan.new_blocks)),
            "cached": float(cached_total(plan.pipeline, plan.virtual, plan.new_blocks)),
        },
        "formula_transitions": {name: list(map(float, x)) for name, x in vars(plan.formula()).items()},
        "counted_transitions": {name: list(map(float, x)) for name, x in vars(plan.counted()).items()},
    }


def _lists(transfers: Transfers) -> tuple[list[Fraction], list[Fraction]]:
    return transfers.naive, transfers.cached


def _pair(plan: Plan, naive: Fraction | int, cached: Fraction | int) -> tuple[str, str, str]:
    cells = (f"{_number(entries)} = {_size(float(entries) * plan.entry_bytes)}" for entries in (naive, cached))
    return (*cells, f"{float(naive) / float(cached):.2f}")  # type: ignore[return-value]


def _number(value: Fraction | int) -> str:
    return f"{float(value):.4g}"


def _size(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
