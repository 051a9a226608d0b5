"""Fit power laws to points of your own: loss against compute, and the compute that one connection saves over another.

    attnres fit results/paper-scaling.csv
    attnres fit losses.csv --out runs/losses

Reads a CSV with the columns arm, compute, loss and, if you like, size and seed; the first arm is the baseline. Runs of
one size (of one compute, where sizes have no names) are one point. Fits L = A C^-a in log space, and says how many
times the compute the first arm needs for the others' loss, with 95% bootstrap intervals over the sizes, which are
paired where all arms have the same; of several arms also with those for all of them at once. Ends with a table and
OUT/figures/scaling-fit.png; `attnres scaling` trains such points first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._tables import Output, print_line, print_table

UNIT = "units of the file"


def command(
    csv: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CSV")],
    out: Path = Path("runs/fit"),
) -> int:
    """Fit.

    Args:
        csv: The file of the points.
        out: The folder of the figure.
    """
    from attnres.analysis.powerlaw import fit_power_laws, read_points
    from attnres.lab.laws import scaling_table, write_fit

    console, points = Output(), read_points(csv)
    print_table(console, scaling_table(points, *fit_power_laws(points), UNIT, {}))
    print_line(console, f"Figure: {write_fit(points, UNIT, out)}")
    return 0
