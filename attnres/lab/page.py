"""The results page: the lab's records as findings, tables and figures in one file that needs no other."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from PIL import Image  # matplotlib brings it

from attnres.files import write_bytes, write_text
from attnres.lab import experiments
from attnres.lab.experiment import Experiment
from attnres.lab.runs import Record, kind_of, read_record
from attnres.report.axes import DARK_STYLE, STYLE, png
from attnres.report.html import environment, styles

PAGE = "results.html"
TITLE = "attnres: results"

Images = dict[str, dict[str, bytes]]
"""Picture -> variant -> PNG."""

VARIANTS = {  # in the order in which a browser tries them; the last is for everything else, and the one in figures/
    "narrow dark": ("screen and (max-width: 700px) and (prefers-color-scheme: dark)", True, DARK_STYLE),
    "narrow": ("(max-width: 700px)", True, STYLE),
    "dark": ("screen and (prefers-color-scheme: dark)", False, DARK_STYLE),
    "": ("", False, STYLE),
}


def read_records(place: Path) -> dict[str, Record]:
    """The records in a folder, or the one of a file, by the names of their files, in the order of the page.

    EXPERIMENT.json is that experiment's record; files of other names are records of what they say they are, and come
    behind it. What is none of an experiment is passed over.
    """
    files = {path.stem: path for path in (sorted(place.glob("*.json")) if place.is_dir() else [place])}
    kinds = {name: kind_of(path) for name, path in files.items()}
    return {
        name: read_record(files[name], kind)
        for kind, experiment in experiments().items()
        for name in [kind, *(name for name, of in kinds.items() if of == kind and name not in experiments())]
        if name in kinds
    }


def section_title(name: str, record: Record) -> str:
    """What the section of a record is called: as its experiment, and by its file if that has another name."""
    title = experiments()[record.kind].title
    return title if name == record.kind else f"{title} ({name})"


def section_facts(name: str, record: Record) -> dict[str, str]:
    """Where the section's numbers come from."""
    return record.origin if name == record.kind else {"record": f"{name}.json", **record.origin}


def write_results(records: Mapping[str, Any], folder: Path) -> Path:
    """Write folder/results.html and folder/figures/*.png from records by name. Returns the page's path.

    The page comes first: it says whose the figures beside it are.
    """
    known = experiments()
    images = {name: drawn(known[record.kind], record) for name, record in records.items()}
    page = _page([_Section(name, known[record.kind], record, images[name]) for name, record in records.items()])
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    path = folder / PAGE
    write_text(path, page)
    for name, of_one in images.items():
        for picture, variants in of_one.items():
            write_bytes(folder / "figures" / _figure(name, records[name].kind, picture), variants[""])
    return path


def figure_names(kinds: Mapping[str, str]) -> list[str]:
    """The files of all figures that records have, by the records' names and kinds."""
    known = experiments()
    return [_figure(name, kind, picture.name) for name, kind in kinds.items() for picture in known[kind].pictures]


def _figure(name: str, kind: str, picture: str) -> str:
    """The file of a record's picture: of one that is not named as its experiment it begins with its name."""
    return f"{picture}.png" if name == kind else f"{name}-{picture}.png"


def drawn(experiment: Experiment, record: Record) -> Images:
    """The pictures that the record has something to show in."""
    images: Images = {}
    for variant, (_, narrow, style) in VARIANTS.items():
        with mpl.rc_context(style):
            for picture in experiment.pictures:
                figure = picture.draw(record, narrow)
                if figure is not None:
                    images.setdefault(picture.name, {})[variant] = png(figure)
    return images


@dataclass(frozen=True)
class _Section:
    """What the template asks for, of one record."""

    name: str
    experiment: Experiment
    record: Record
    images: Images

    @property
    def title(self) -> str:
        return section_title(self.name, self.record)

    @property
    def facts(self) -> dict[str, str]:
        return section_facts(self.name, self.record)

    @property
    def finding(self) -> str:
        return self.experiment.finding(self.record)

    @property
    def readings(self) -> str:
        """How many claims were read how."""
        counts = Counter(claim.reading for claim in self.experiment.claims(self.record))
        return ", ".join(f"{count} {reading}" for reading, count in sorted(counts.items()))

    @property
    def pictures(self) -> list[dict[str, Any]]:
        return [
            {"alt": picture.alt, "name": picture.name, "images": self.images[picture.name]}
            for picture in self.experiment.pictures
            if picture.name in self.images
        ]


def _embedded(png: bytes) -> str:
    """An address that holds the picture, in 256 colours: a third of the bytes, of which a page has many."""
    reduced = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        reduced, "png", optimize=True
    )
    return "data:image/png;base64," + base64.b64encode(reduced.getvalue()).decode()


def _page(sections: list[_Section]) -> str:
    templates = environment("attnres.lab")
    templates.filters["data"] = _embedded
    style = styles("report/charts/charts.css", "report/page.css")
    media = {variant: query for variant, (query, _, _) in VARIANTS.items() if query}
    return templates.get_template("results.html").render(
        title=TITLE, sections=sections, media=media, style=Markup(style)
    )
