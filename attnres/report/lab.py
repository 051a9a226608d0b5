"""The results page: the lab's records as tables and figures in one file that needs no other."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from attnres.analysis.powerlaw import Point, fit_power_laws
from attnres.files import write_bytes
from attnres.lab.dynamics_tables import dynamics_tables
from attnres.lab.prune import prune_tables
from attnres.lab.record import Record
from attnres.lab.scaling import diverged, final_points
from attnres.lab.tables import TextTable, ablation_tables, scaling_table
from attnres.report import lab_dynamics, lab_figures
from attnres.report.axes import STYLE, png
from attnres.report.style import visible


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its file, and what it shows for those who do not see it."""

    name: str
    alt: str
    draw: Callable[[Record], Figure | None]


@dataclass(frozen=True)
class Experiment:
    """How a record of one kind is shown."""

    title: str
    question: str
    tables: Callable[[Record], Sequence[TextTable]]
    pictures: Sequence[Picture]


EXPERIMENTS = {
    "ablation": Experiment(
        "Which residual rule?",
        "The paper's Table 4: every rule with its own learning rate, on the same seeds as the baseline. Negative "
        "differences are better. Runs that diverged are counted and left out of the means.",
        ablation_tables,
        [
            Picture("ablation", "difference to the baseline of every arm, beside the paper's", lab_figures.ablation),
            Picture("tuning", "loss of every arm at each learning rate of the grid", lab_figures.tuning),
        ],
    ),
    "scaling": Experiment(
        "Does it last with scale?",
        "Loss against training compute for several sizes, tokens in proportion to parameters, fitted in log space. The "
        "compute advantage is how many times the compute the baseline needs for the same loss.",
        lambda record: [scaling_table(*fit_power_laws(final_points(record)), "FLOPs", diverged(record))],
        [Picture("scaling", "losses with fits, compute advantage, loss against size", lab_figures.scaling)],
    ),
    "dynamics": Experiment(
        "What does depth do?",
        "Magnitudes, gradients, updates and depth weights over depth and over training, and the ranks of the depth "
        "mixing matrix, with the paper's claims tested over paired seeds.",
        dynamics_tables,
        [
            Picture("dynamics-depth", "magnitudes over depth at the last step", lab_dynamics.dynamics_depth),
            Picture("dynamics-weights", "depth weights of every connection", lab_dynamics.dynamics_weights),
            Picture("dynamics-training", "magnitudes and entropy over training", lab_dynamics.dynamics_training),
            Picture("dynamics-ranks", "ranks of the depth mixing matrix", lab_dynamics.dynamics_ranks),
            Picture("dynamics-matrices", "depth mixing matrices", lab_dynamics.dynamics_matrices),
        ],
    ),
    "prune": Experiment(
        "What is a sublayer worth?",
        "Each sublayer left out in turn: the validation loss that this adds.",
        prune_tables,
        [Picture("prune", "loss added by leaving out each sublayer", lab_dynamics.prune)],
    ),
}


def write_results(records: Mapping[str, Record], folder: Path) -> Path:
    """Write folder/results.html and folder/figures/*.png from the records by kind. Returns the page's path."""
    shown = {kind: experiment for kind, experiment in EXPERIMENTS.items() if kind in records}
    images = {kind: drawn(experiment, records[kind]) for kind, experiment in shown.items()}
    page = _page([_section(experiment, records[kind], images[kind]) for kind, experiment in shown.items()])
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, image in (pair for of_kind in images.values() for pair in of_kind.items()):
        write_bytes(folder / "figures" / f"{name}.png", image)
    path = folder / "results.html"
    write_bytes(path, page.encode())
    return path


def write_fit(curves: Mapping[str, Sequence[Point]], unit: str, folder: Path) -> Path:
    """Write folder/figures/scaling-fit.png from points that are no record's. Returns its path."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    path = folder / "figures" / "scaling-fit.png"
    with mpl.rc_context(STYLE):
        write_bytes(path, png(lab_figures.scaling_fit(curves, unit)))
    return path


def drawn(experiment: Experiment, record: Record) -> dict[str, bytes]:
    """Name -> PNG, of the pictures that the record has something to show in."""
    with mpl.rc_context(STYLE):
        figures = {picture.name: picture.draw(record) for picture in experiment.pictures}
        return {name: png(figure) for name, figure in figures.items() if figure is not None}


def _page(sections: Sequence[str]) -> str:
    style = files("attnres.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(sections) or "<p>No records were found.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>attnres: results</title>\n<style>\n{style}\n"
        "figure img { max-width: 100%; height: auto; background: #fff; }\n</style>\n</head>\n<body>\n"
        "<header>\n<h1>What should carry information through depth?</h1>\n"
        '<p class="subtitle">Every number and picture on this page is drawn from recorded runs.</p>\n</header>\n'
        f"{body}\n</body>\n</html>\n"
    )


def _section(experiment: Experiment, record: Record, images: Mapping[str, bytes]) -> str:
    parts = [f"<section>\n<h2>{_text(experiment.title)}</h2>", f"<p>{_text(experiment.question)}</p>"]
    for picture in experiment.pictures:
        if picture.name not in images:
            continue
        data = base64.b64encode(images[picture.name]).decode()
        parts.append(f'<figure><img alt="{_text(picture.alt)}" src="data:image/png;base64,{data}"></figure>')
    parts += [_html_table(table) for table in experiment.tables(record)]
    parts += ["<h3>Where this comes from</h3>", _provenance(record), "</section>"]
    return "\n".join(parts)


def _html_table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in table.columns)
    rows = []
    for name, *cells in table.rows:
        numbers = "".join(f'<td class="number">{_text(cell)}</td>' for cell in cells)
        rows.append(f'<tr><th scope="row">{_text(name)}</th>{numbers}</tr>')
    return (
        f'<h3>{_text(table.title)}</h3>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>\n<p>{_text(table.note)}</p>"
    )


def _provenance(record: Record) -> str:
    entries = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in origin(record).items())
    return f"<dl>\n{entries}\n</dl>"


def origin(record: Record) -> dict[str, str]:
    """What was run, when and on what."""
    return {
        "command": record["command"],
        "date": record["date"],
        "commit": ", ".join(map(str, record.get("commits") or [record["versions"].get("commit")])),
        "computing": f"{record['hours']:.1f} hours of one thread",
        "machine": ", ".join(f"{name} {value}" for name, value in record["machine"].items()),
        "corpus": f"{record['corpus'].get('description')}, sha256 {record['corpus'].get('sha256')}",
    }


def _text(text: str) -> str:
    return escape(visible(text))
