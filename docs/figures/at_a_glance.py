"""Draws at-a-glance.svg: what a sublayer reads with the plain residual, Full AttnRes and Block AttnRes.

    python docs/figures/at_a_glance.py

The weights are invented. The arcs above are the framed row of the matrix below.
"""

from __future__ import annotations

import math
from pathlib import Path

LAYERS = 6
"""Sublayers, numbered from 1. Source 0 is the embedding; reader LAYERS + 1 is the head."""
READER = 5
"""Whose arcs are drawn."""
BLOCK = 2
COLUMN, LEFT, ROW, CELL = 250, 10, 55, 26
BOX = 112
STYLE = """
svg { background: #fff }
text { font: 18px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 22px; font-weight: 600 }
.small { font-size: 17px; fill: #59636e } .line, .arc { stroke: #59636e; fill: none } .head { fill: #59636e }
.frame { fill: none; stroke: #1f2328; stroke-width: 3 } .cell { stroke: #8c959f; stroke-opacity: .4 }
.arc, .tip { stroke: #0072B2 } .tip { fill: #0072B2 } .bracket { stroke: #D55E00; fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117 }
text { fill: #e6edf3 } .small { fill: #9198a1 } .line { stroke: #9198a1 } .head { fill: #9198a1 }
.frame { stroke: #e6edf3 } .arc, .tip { stroke: #56B4E9 } .tip { fill: #56B4E9 } .bracket { stroke: #E69F00 } }
"""


def main() -> None:
    parts = [
        *_column(0, "Plain residual", "memory per token: d", _plain()),
        *_column(1, "Full AttnRes", "memory per token: L d", _full()),
        *_column(2, "Block AttnRes", "memory per token: N d", _block()),
        *_scale(),
    ]
    size = f'viewBox="0 0 {3 * COLUMN + 2 * LEFT} 805"'
    label = "What a sublayer reads: one sum, all earlier outputs, or the sums of blocks"
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
    ]
    Path(__file__).with_name("at-a-glance.svg").write_text(
        "\n".join([*picture, *parts, "</svg>", ""]), encoding="utf-8"
    )


def _plain() -> list[list[float]]:
    return [[1.0] * (reader + 1) for reader in range(LAYERS + 1)]


def _full() -> list[list[float]]:
    """Each reader's own weights: one source that it looks for, the latest, and the embedding."""
    sought = [0, 0, 1, 0, 2, 1, 3]
    return [
        _softmax(
            [
                1.9 * (source == sought[reader]) + 1.2 * (source == reader) + 0.5 * (source == 0)
                for source in range(reader + 1)
            ]
        )
        for reader in range(LAYERS + 1)
    ]


def _block() -> list[list[float]]:
    """Weights over the embedding, the sums of whole blocks and the open block's sum; each output has its sum's."""
    rows = []
    for reader in range(LAYERS + 1):
        sources = [0] + [1 + source // BLOCK for source in range(reader)]  # the sum that an output is in
        scores = [0.9, 0.2, 1.3, 0.6][: sources[-1] + 1]
        if reader % 2:
            scores = scores[::-1]
        weights = _softmax(scores)
        rows.append([weights[source] for source in sources])
    return rows


def _softmax(scores: list[float]) -> list[float]:
    total = sum(map(math.exp, scores))
    return [math.exp(score) / total for score in scores]


def _column(index: int, title: str, memory: str, weights: list[list[float]]) -> list[str]:
    left, middle = LEFT + index * COLUMN, LEFT + (index + 0.5) * COLUMN
    return [
        f'<text class="title" x="{middle}" y="28" text-anchor="middle">{title}</text>',
        f'<text class="small" x="{middle}" y="54" text-anchor="middle">{memory}</text>',
        *_boxes(left + BOX / 2 + (14, 14, 36)[index]),
        *(_stream, _arcs_from_outputs, _arcs_from_sums)[index](left + BOX + (14, 14, 36)[index]),
        *_matrix(left + 46, 520, weights),
    ]


def _y(source: int) -> float:
    """The height of an output; depth grows upwards, as in the papers."""
    return 450 - source * ROW


def _boxes(x: float) -> list[str]:
    parts = []
    for source in range(LAYERS + 1):
        name, colour = ("attention", "#0072B2") if source % 2 else ("MLP", "#D55E00")
        if source == 0:
            name, colour = "embedding", "#009E73"
        place = f'x="{x - BOX / 2}" y="{_y(source) - 17}" width="{BOX}" height="34" rx="6"'
        parts.append(f'<rect {place} fill="{colour}" fill-opacity=".16" stroke="{colour}"/>')
        parts.append(f'<text x="{x}" y="{_y(source) + 6}" text-anchor="middle">{name}</text>')
    return parts


def _stream(side: float) -> list[str]:
    """The sum to the right of the boxes, whose right side is at `side`: each reads it and adds to it."""
    x = side + 38
    top = _y(LAYERS) - 36
    parts = [f'<path class="line" stroke-width="3" d="M{side} {_y(0)} H{x} V{top}"/>']
    parts.append(f'<polygon class="head" points="{x},{top - 8} {x - 7},{top + 3} {x + 7},{top + 3}"/>')
    for source in range(1, LAYERS + 1):
        y = _y(source) - 7
        parts.append(
            f'<path class="line" stroke-width="1.5" d="M{side} {y} H{x - 9} M{x - 5} {y} h10 M{x} {y - 5} v10"/>'
        )
        parts.append(f'<circle class="line" cx="{x}" cy="{y}" r="9" stroke-width="1.5"/>')
        parts.append(f'<path class="line" stroke-width="1.5" d="M{x} {y + 19} H{side + 8}"/>')
        parts.append(f'<polygon class="head" points="{side + 1},{y + 19} {side + 10},{y + 13} {side + 10},{y + 25}"/>')
    words = ("one", "sum")
    return parts + [
        f'<text class="small" x="{x + 16}" y="{_y(3) + 20 * i}">{word}</text>' for i, word in enumerate(words)
    ]


def _arcs_from_outputs(side: float) -> list[str]:
    weights = _full()[READER - 1]
    return _arcs(side, [(side + 4, _y(source), weight) for source, weight in enumerate(weights)])


def _arcs_from_sums(side: float) -> list[str]:
    weights = _block()[READER - 1]
    parts, sources = [], [(side + 4, _y(0), weights[0])]
    for first in range(1, READER, BLOCK):
        top, bottom = _y(first + BLOCK - 1) - 17, _y(first) + 17
        parts.append(f'<path class="bracket" d="M{side + 5} {top} h9 V{bottom} h-9"/>')
        parts.append(
            f'<text class="small" x="{side - BOX - 8}" y="{(top + bottom) / 2 + 6}" text-anchor="end">sum</text>'
        )
        sources.append((side + 16, (top + bottom) / 2, weights[first]))
    return parts + _arcs(side, sources)


def _arcs(side: float, sources: list[tuple[float, float, float]]) -> list[str]:
    """One arc for each (x, y, weight), as wide as its weight, into the reader's box."""
    end, parts = _y(READER), []
    for x, y, weight in sources:
        bend = side + 30 + 0.2 * (y - end)
        path = f"M{x} {y} C{bend} {y} {bend} {end} {side + 9} {end}"
        parts.append(f'<path class="arc" stroke-width="{1 + 12 * weight:.1f}" stroke-opacity=".75" d="{path}"/>')
    parts.append(f'<polygon class="tip" points="{side + 2},{end} {side + 12},{end - 7} {side + 12},{end + 7}"/>')
    words = ("softmax", "over depth")
    return parts + [
        f'<text class="small" x="{side + 10}" y="{end - 42 + 20 * i}">{word}</text>' for i, word in enumerate(words)
    ]


def _matrix(left: float, top: float, weights: list[list[float]]) -> list[str]:
    """Row: who reads. Column: what. The colour is the weight over the row's mean: the plain residual is neutral."""
    parts, side = [], CELL * (LAYERS + 1)
    for reader, row in enumerate(weights):
        for source, weight in enumerate(row):
            place = f'x="{left + source * CELL}" y="{top + reader * CELL}" width="{CELL}" height="{CELL}"'
            parts.append(f'<rect class="cell" {place} fill="{_colour(weight * len(row) / sum(row))}"/>')
    frame = f'x="{left}" y="{top + (READER - 1) * CELL}" width="{READER * CELL}" height="{CELL}"'
    middle, turned = left + side / 2, f"translate({left - 12} {top + side / 2}) rotate(-90)"
    return [
        *parts,
        f'<rect class="frame" {frame}/>',
        f'<text class="small" x="{middle}" y="{top + side + 22}" text-anchor="middle">what is read</text>',
        f'<text class="small" transform="{turned}" text-anchor="middle">who reads</text>',
    ]


def _colour(ratio: float) -> str:
    """Blue below the mean, grey at it, red above; the scale is logarithmic and ends at a factor of three."""
    place = max(-1.0, min(1.0, math.log(ratio) / math.log(3)))
    middle, end = (221, 221, 221), ((180, 4, 38) if place > 0 else (59, 76, 192))
    return "#" + "".join(f"{round(m + abs(place) * (e - m)):02x}" for m, e in zip(middle, end, strict=True))


def _scale() -> list[str]:
    left, top, width, steps = LEFT + 0.5 * COLUMN, 758, 2 * COLUMN, 60
    parts = []
    for step in range(steps):
        place = f'x="{left + step * width / steps:.1f}" y="{top}" width="{width / steps + 0.5:.1f}" height="14"'
        parts.append(f'<rect {place} fill="{_colour(3 ** (2 * step / (steps - 1) - 1))}"/>')
    texts = {0.0: "a third of", 0.5: "the mean weight of its row", 1.0: "three times"}
    for at, text in texts.items():
        parts.append(f'<text class="small" x="{left + at * width}" y="{top + 36}" text-anchor="middle">{text}</text>')
    return parts


if __name__ == "__main__":
    main()
