"""Write a report as a page, pictures and files, each of them whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from attnres.analysis.comparison import finding
from attnres.analysis.profile import DepthProfile
from attnres.report.charts import Line, Lines, Matrix, Plot, band, over_depth
from attnres.report.comparison import result_tables, sink_table
from attnres.report.data import ArmReport, ReportData
from attnres.report.depth_matrix import NOTE
from attnres.report.draw import drawn
from attnres.report.page import Section, page, write_page

PAGE = "report.html"
CONTEXT = 48
"""Characters of text shown on either side of a chosen token."""
HOW = (
    "How to read this page: a transformer with L sublayers has L + 1 sites where depth is read (the last is the "
    "readout) and L + 1 sources (the embedding, then each sublayer's output); a connection is the rule that says how "
    "much of each source each site reads. Layers count from 0. Hover over, tap or use the arrow keys in any chart for "
    "its numbers."
)
MATRICES = (
    "Row: the site that reads. Column: the source that it reads. Colour: the source's weight over the mean of "
    "its row, so that the plain residual is grey throughout. A site sees earlier sources only: the upper right is "
    "empty. Axes count layers; emb is the embedding and out the readout."
)
ALONG = (
    "Means over the tokens that are read: all but the last, which is predicted. Output: of each source. Gradient: of "
    "the summed loss, at each source. Input: what each site reads. Share: the size of a weight over the sum of the "
    "sizes in its row."
)

FORMS: dict[str, Callable[[ReportData], bytes]] = {
    ".html": lambda data: report_page(data).encode(),
    ".png": lambda data: drawn(pictures(data)["depth_matrices"]),
    ".svg": lambda data: drawn(pictures(data)["depth_matrices"], "svg"),
}
"""What one file can hold, by its suffix."""


def write_report(data: ReportData, folder: Path | str) -> Path:
    """Write `folder`/report.html, which needs no other file, and `folder`/figures/*.png. Returns the page's path."""
    return write_page(Path(folder) / PAGE, report_page(data), pictures(data))


def report_page(data: ReportData) -> str:
    """The page: results, curves, depth, and where they come from, as far as the data has them."""
    figures = pictures(data)
    sinks = sink_table([(arm.name, profile) for arm, profile in data.profiled])
    parts = [
        Section(name="results", title="Results", tables=result_tables(data.results, data.unit)),
        *_of(figures, "loss_curves", title="Loss curves", text=_seeds(data)),
        *_of(figures, "depth_matrices", title="What each site reads", text=MATRICES),
        *_of(figures, "depth_profiles", title="Along the depth", text=ALONG, tables=[sinks]),
        Section(name="provenance", title="Where this comes from", facts=data.provenance),
    ]
    told = [part for part in parts if part.tables or part.pictures or part.facts]
    return page(data.title, told, data.subtitle, finding(data.results, data.unit), HOW)


def _of(figures: Mapping[str, Plot], name: str, **parts: object) -> list[Section]:
    return [Section(name=name, pictures=[figures[name]], **parts)] if name in figures else []  # type: ignore[arg-type]


def _seeds(data: ReportData) -> str:
    seeds = max(len(arm.curves) for arm in data.arms)
    return (
        f"Line: mean of up to {seeds} seeds. Band: from the lowest to the highest seed." if seeds > 1 else "One seed."
    )


def pictures(data: ReportData) -> dict[str, Plot]:
    """The pictures that the data has something to show in, by the names of their files."""
    curves, matrices, profiles = "loss_curves", "depth_matrices", "depth_profiles"
    made: dict[str, Plot] = {}
    if data.trained:
        made[curves] = Plot(name=curves, alt="loss curves", charts=_curves(data), note=_seeds(data))
    if data.profiled:
        tokens = [_token(data, index) for index in range(len(data.tokens))]
        views: list[Mapping[str, object]] = [{"whole": "mean over tokens"}, *tokens] if tokens else []
        charts = [
            Matrix(title=arm.name, names=of.names, views=[of.mean_matrix, *of.token_matrices], note=arm.description)
            for arm, of in data.profiled
        ]
        made[matrices] = Plot(name=matrices, alt="depth matrices", charts=charts, note=NOTE, views=views)
        made[profiles] = Plot(name=profiles, alt="magnitudes and shares over depth", charts=_profiles(data), columns=3)
    return made


def _curves(data: ReportData) -> list[Lines]:
    baseline = data.trained[0]
    curves = {arm.name: losses_by_step(arm) for arm in data.trained}
    differences = {arm.name: losses_by_step(arm, baseline) for arm in data.trained[1:]}
    last = max((steps[-1] for steps, _ in curves.values() if len(steps)), default=0.0)

    def lines(of: Mapping[str, tuple[np.ndarray, np.ndarray]], first: float) -> list[Line]:
        return [band(name, losses[:, steps >= first], steps[steps >= first]) for name, (steps, losses) in of.items()]

    charts = [
        Lines(title=f"{data.curve_label} ({data.unit})", x_label="step", lines=lines(curves, -np.inf)),
        Lines(title="second half", x_label="step", lines=lines(curves, last / 2)),
    ]
    if paired := {name: of for name, of in differences.items() if len(of[0])}:
        apart = lines(paired, last / 10)  # the first steps differ by chance and by much
        zero = Line(name=baseline.name, x=apart[0].x, y=np.zeros(len(apart[0].x)))
        title = f"difference to {baseline.name}, paired by seed"
        charts.append(Lines(title=title, x_label="step", lines=[zero, *apart], zero=True))
    return charts


def losses_by_step(arm: ArmReport, baseline: ArmReport | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The steps that all seeds of an arm have, and the losses there, [seed, step].

    With a baseline they are differences to its loss of the same seed, for the seeds that both have: runs of one seed
    read the same batches, so what the batches do to the loss cancels.
    """

    def by_seed(of: ArmReport) -> dict[int, dict[int, float]]:
        return {each.seed: dict(zip(each.steps, each.losses, strict=True)) for each in of.curves if len(each.steps)}

    own, base = by_seed(arm), by_seed(baseline or arm)
    pairs = [(own[seed], base[seed]) for seed in own if seed in base]
    steps = sorted(set.intersection(*(one.keys() & other.keys() for one, other in pairs))) if pairs else []
    losses = [[one[step] - (other[step] if baseline else 0.0) for step in steps] for one, other in pairs]
    return np.array(steps, float), np.array(losses, float).reshape(len(pairs), len(steps))


def _profiles(data: ReportData) -> list[Lines]:
    deepest = max((profile for _, profile in data.profiled), key=lambda profile: len(profile.names))
    limit = deepest.entropy_limit
    uniform = Line(name="uniform: log(l + 1)", x=range(len(limit)), y=limit, as_="guide")

    def chart(title: str, kind: str, read: Callable[[DepthProfile], np.ndarray], log: bool = False) -> Lines:
        lines = [Line(name=arm.name, x=range(len(read(of))), y=read(of)) for arm, of in data.profiled]
        names = deepest.site_names if kind == "site" else deepest.source_names
        return over_depth(title, kind, names, [uniform, *lines] if title.startswith("entropy") else lines, log)

    return [
        chart("output magnitude (RMS of each source)", "source", lambda of: of.output_rms, log=True),
        chart("gradient magnitude (RMS at each source)", "source", lambda of: of.gradient_rms, log=True),
        chart("input magnitude (RMS of what each site reads)", "site", lambda of: of.input_rms, log=True),
        chart("entropy of depth weights (nats; grey: uniform)", "site", lambda of: of.entropy),
        chart("share of the embedding", "site", lambda of: of.embedding_share),
        chart("share of each source, mean over its sites", "source", lambda of: of.source_share),
    ]


def _token(data: ReportData, index: int) -> dict[str, object]:
    text = data.tokens[index]
    return {
        "position": next(profile.positions[index] for _, profile in data.profiled),
        "before": text.before[-CONTEXT:],
        "token": text.token[:CONTEXT],
        "after": text.after[:CONTEXT],
    }
