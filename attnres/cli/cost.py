"""Plan a cluster: memory traffic, bytes between pipeline stages, and whether they hide behind compute.

Everything here is computed, nothing is measured. The paper's layout:

    attnres cost --layers 128 --block-size 16 --pipeline 8 --virtual 4 --dim 7168 --tokens 4096

Other machines and schedules:

    attnres cost --pipeline 4 --virtual 2 --link 25 --tflops 300
    attnres cost --schedule zero-bubble

--layers counts sublayers (the paper's layers): attention and MLP are one each.
"""

from __future__ import annotations

from typing import Annotated

import tyro

from attnres.analysis.cost import Plan
from attnres.cli._tables import Output, print_table
from attnres.report.cost import cost_tables

DEFAULTS = Plan()


def command(plan: Annotated[Plan, tyro.conf.arg(name="")] = DEFAULTS) -> int:
    """Cost."""
    console = Output()
    for table in cost_tables(plan):
        print_table(console, table)
    return 0
