"""Show what depth does in a trained run: one HTML page and its figures.

    attnres inspect runs/compare/block/seed-0
    attnres inspect RUN --prompt "def add(a, b): return a + b"
    attnres inspect RUN --out pages/block

Without a prompt it reads a few sequences of the run's own validation text. The last token of either is predicted and
not read. Prints the strongest depth sinks, of the sources that at least a quarter of the sites can see, and writes
OUT/report.html and OUT/figures/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._checks import check_output_folder, check_own_page
from attnres.cli._tables import Output, print_line, print_table
from attnres.cli._terminal import working


def command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    prompt: str | None = None,
    out: Path | None = None,
    best: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Inspect.

    Args:
        run: The run's folder.
        prompt: Text to read instead of the validation set.
        out: Where to write; the folder `report` of the run when not given.
        best: Use the checkpoint of lowest validation loss instead of the newest.
    """
    from attnres.report import write_report
    from attnres.report.comparison import sink_table
    from attnres.report.figures import FIGURES
    from attnres.report.runs import RUN_TITLE, check_prompt, run_report
    from attnres.report.write import PAGE
    from attnres.train import load_run

    place, flag = (run / "report", "without --out the page goes to") if out is None else (out, "--out")
    if out is not None or run.is_dir():  # what is no folder is no run, which load_run says
        check_output_folder(flag, place)
    check_own_page(place, PAGE, RUN_TITLE, FIGURES, flag)
    if prompt is not None:
        check_prompt(run, prompt)
    trained = load_run(run, best)
    console = Output()
    with working(console, "reading the depth of the model"):
        data = run_report(trained, prompt)
        page = write_report(data, place)
    print_table(console, sink_table([(arm.name, profile) for arm, profile in data.profiled]))
    print_line(console, f"Report: {page}")
    return 0
