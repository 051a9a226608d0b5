"""Plan a cluster: memory traffic, bytes between pipeline stages, and whether they hide behind compute.

Everything here is computed, nothing is measured. The paper's layout:

    attnres cost --layers 128 --block-size 16 --pipeline 8 --virtual 4 --dim 7168 --tokens 4096

Other machines and schedules, with a picture of what each rank does when, and everything as JSON:

    attnres cost --pipeline 4 --virtual 2 --link 25 --tflops 300
    attnres cost --schedule zero-bubble --figure timeline.png --out cost.json

--layers counts sublayers (the paper's layers): attention and MLP are one each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from attnres.analysis.cost import Plan
from attnres.cli._tables import Output, print_table
from attnres.errors import UsageError
from attnres.files import write_bytes, write_json
from attnres.report.cost import cost_record, cost_tables

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
    steps = plan.timelines() if plan.pipeline > 1 else {}
    others = plan.with_pipelines() if steps else []
    scaling = {other.pipeline: steps if other == plan else other.timelines() for other in others}
    console = Output()
    for table in cost_tables(plan, steps, scaling):
        print_table(console, table)
    if figure is not None:
        from attnres.report.timeline import draw_timelines  # matplotlib takes a second to import

        write_bytes(figure, draw_timelines(steps, plan.virtual))
    if out is not None:
        write_json(out, cost_record(plan, steps, scaling))
    return 0
