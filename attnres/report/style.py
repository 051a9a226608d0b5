"""What the page and the figures share: colours, scales, ticks, and how numbers and texts are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np

# Okabe and Ito's colours, which colour-blind readers tell apart, without yellow, which vanishes on white. All of these
# stand out on a dark page too. None is the colour of the text.
ARM_COLOURS = (None, "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
ARM_DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3), (12, 3), (8, 2, 2, 2, 2, 2))
CONNECTION_STYLES = {  # the places of its colour and its dashes; relatives share a colour. Others get one by their name
    **{"residual": (0, 0), "postnorm": (0, 1), "rezero": (0, 2), "rms-residual": (0, 3)},
    **{"block": (1, 0), "window": (1, 1), "haares": (1, 2)},
    **{"full": (2, 0), "rms-full": (2, 1)},
    **{"x0": (3, 0), "denseformer": (3, 1), "interlayer": (3, 2)},
    **{"hc": (5, 3), "identity-hc": (5, 4), "mhc": (5, 0), "mhc-lite": (5, 1), "kromhc": (5, 2)},
    **{"rms-block": (4, 0), "highway": (6, 0), "delta": (6, 1)},
}
SIGNED_COLOURS = "coolwarm"  # the middle of coolwarm is grey: it can be told from paper
NEGATIVE_COLOUR = "#E69F00"  # of a depth weight
MOST_TIMES = 4


@dataclass(frozen=True)
class ArmStyle:
    """How an arm's lines look; the colour None is that of the text."""

    colour: str | None
    dashes: tuple[int, ...]


def arm_styles(arms: Sequence[str]) -> dict[str, ArmStyle]:
    """The style of each arm of one figure or page, all different for up to 42 arms.

    It follows from the arm's name alone, so that a connection looks the same everywhere: the colour from the
    connection, the dashes from its options. Only where two arms of one figure would look alike does the later one take
    the next style that is free.
    """
    owners: dict[ArmStyle, str] = {}
    for arm in arms:
        owners.setdefault(_wishes(arm)[0], arm)
    styles = {arm: style for style, arm in owners.items()}
    for arm in arms:
        if arm not in styles:
            wishes = _wishes(arm)
            styles[arm] = next((style for style in wishes if style not in styles.values()), wishes[0])
    return styles


def _wishes(arm: str) -> list[ArmStyle]:
    """All styles in the order in which the arm would have them: its own, its colour's others, other colours."""
    connection, _, options = arm.partition(":")
    # crc32 and not hash(), which Python salts anew in every process.
    colour, dashes = CONNECTION_STYLES.get(connection, (crc32(connection.encode()) % len(ARM_COLOURS), 0))
    if options:  # never the dashes of the connection without options
        dashes += 1 + crc32(options.encode()) % (len(ARM_DASHES) - 1)
    return [ArmStyle(*style) for style in product(_from(ARM_COLOURS, colour), _from(ARM_DASHES, dashes))]


def _from(choices: Sequence[Any], start: int) -> list[Any]:
    """All of the choices, beginning with one and going round."""
    start %= len(choices)
    return [*choices[start:], *choices[:start]]


def depth_colours(matrix: np.ndarray) -> np.ndarray:
    """[site, source] from 0 to 1 of a depth matrix: where on SIGNED_COLOURS each weight is, -1 for a negative one.

    What counts is the weight over the mean size of its row, so that all rules have one scale and the plain residual is
    the neutral 0.5. 0 stands for no weight, 1 for MOST_TIMES the mean and more. The same is in charts/cells.js.
    """
    sizes = np.tril(np.abs(matrix))
    means = np.nansum(sizes, -1, keepdims=True) / np.arange(1, len(matrix) + 1)[:, None]
    times = matrix / np.where(means > 0, means, 1.0)
    above = 0.5 + (np.minimum(times, MOST_TIMES) - 1) / (2 * (MOST_TIMES - 1))
    return np.where(times < 0, -1.0, np.where(times < 1, times / 2, above))


def depth_ticks(names: Sequence[str], most: int = 9) -> list[tuple[int, str]]:
    """(index, label) of a few of the names on a depth axis: "layer 3 MLP" becomes "3", at its first sublayer."""
    ticks = []
    for index, name in enumerate(names):
        words = name.split()
        label = words[1] if len(words) > 1 else {"embedding": "emb", "readout": "out"}.get(name, name)
        if not ticks or ticks[-1][1] != label:
            ticks.append((index, label))
    layers = [tick for tick in ticks if tick[1] not in ("emb", "out")]
    ends = [tick for tick in ticks if tick not in layers]
    stride = max(1, -(-len(layers) // most))
    kept = [tick for tick in layers[::stride] if all(abs(tick[0] - end[0]) > len(names) / 12 for end in ends)]
    return sorted(kept + ends)
