"""A plan of a cluster as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from attnres.analysis.cost import Plan, Transfers, memory_traffic
from attnres.analysis.timeline import Timeline
from attnres.texttable import TextTable


def cost_tables(plan: Plan) -> list[TextTable]:
    """What the plan costs; without a pipeline its memory traffic alone."""
    of_pipeline = [_totals(plan), _simulated(plan.timelines())] if plan.pipeline > 1 else []
    return [_traffic(plan), *of_pipeline]


def _traffic(plan: Plan) -> TextTable:
    traffic = memory_traffic(plan.dim, plan.block_size, plan.blocks, plan.streams)
    return TextTable(
        f"memory traffic per token and sublayer, in units of d (N = {_number(plan.blocks)}, m = {plan.streams})",
        ("connection", "symbolic", "here"),
        tuple((row.connection, row.formula, f"{row.units:.4g}") for row in traffic),
    )


def _totals(plan: Plan) -> TextTable:
    chunks = plan.pipeline * plan.virtual
    formula, counted = plan.formula(), plan.counted()
    return TextTable(
        f"between {plan.pipeline} ranks with {plan.virtual} virtual stages each: C = {chunks} chunks, "
        f"each of N_p = {_number(plan.new_blocks)} blocks; an entry is {_size(plan.entry_bytes)}",
        ("forward, one micro-batch", "naive", "cached", "naive / cached"),
        (
            ("formula, in all", *_pair(plan, *map(sum, _lists(formula)))),
            ("  largest transition", *_pair(plan, *map(max, _lists(formula)))),
            ("as sent, in all", *_pair(plan, *map(sum, _lists(counted)))),
            ("  largest transition", *_pair(plan, *map(max, _lists(counted)))),
            ("plain residual, in all", *_pair(plan, *[Fraction(chunks - 1)] * 2)),
        ),
        "Formula: C(C-1)/2 N_p naive, P(P-1)/2 N_p + (V-1) P^2 N_p cached, N_p being what one chunk makes, not a "
        "rank in all of its chunks; finished blocks alone. As sent: the embedding and the open partial too, whole "
        "blocks only, and nothing to the rank that made it. The backward "
        "pass returns as many bytes.",
    )


def _simulated(steps: Mapping[str, Timeline]) -> TextTable:
    plain = steps["residual"].seconds
    rows = tuple(
        (name, _milliseconds(step.seconds), f"{step.busy:.1%}", f"{step.seconds / plain:.4f}")
        for name, step in steps.items()
    )
    return TextTable("one step, simulated", ("simulated step", "ms", "ranks compute", "over residual"), rows)


def _lists(transfers: Transfers) -> tuple[list[Fraction], list[Fraction]]:
    return transfers.naive, transfers.cached


def _pair(plan: Plan, naive: Fraction | int, cached: Fraction | int) -> tuple[str, str, str]:
    first, second = (f"{_number(entries)} = {_size(float(entries) * plan.entry_bytes)}" for entries in (naive, cached))
    return first, second, f"{float(naive) / float(cached):.2f}"


def _number(value: Fraction | int) -> str:
    return f"{float(value):.4g}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds >= 1e-3 else f"{1e3 * seconds:.3g}"


def _size(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
