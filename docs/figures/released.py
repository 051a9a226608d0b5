"""Draws released.svg: the depth matrices of the rules of released models, each trained here, on one scale.

    python -m docs.figures.released runs/released

docs/released.md has the commands that train the models. A matrix is the mean over the tokens of a few validation
sequences. Where a rule normalises what a sublayer returns, the source is the normalised output.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from attnres import load_run, mixing_matrix
from attnres.connections import Sublayer
from attnres.data import open_corpus
from attnres.report.runs import validation_tokens
from attnres.report.style import MOST_TIMES, NEGATIVE_COLOUR, SIGNED_COLOURS, depth_colours
from paper.figures import STYLE, save

RULES = {  # the folder's name, and what the panel is called
    "residual": "most models",
    "depth-scaled": "Beam",
    "muse-gate": "Muse Spark",
    "block": "Kimi K3",
    "inkling": "Inkling-2",
    "mhc": "DeepSeek-V4",
    "identity-hc": "Hunyuan V4",
    "gated-residual": "Qwen4",
    "altup": "Gemma 3n",
}


@torch.no_grad()
def matrix_of(folder: Path) -> np.ndarray:
    run = load_run(folder)
    tokens = validation_tokens(open_corpus(run.config.data), run.config)[:, :-1]
    connection, embedding, sublayers = run.model.unrolled(tokens)
    sizes = [torch.ones_like(embedding[..., 0])]

    def measured(sublayer: Sublayer) -> Sublayer:
        def call(*reads: torch.Tensor) -> torch.Tensor:
            y = sublayer(*reads)
            sizes.append(y.square().mean(-1).sqrt())
            return y

        return call

    matrix = mixing_matrix(connection, embedding, list(map(measured, sublayers)))
    if getattr(connection, "norm", False):
        matrix = matrix * torch.stack(sizes, -1)[..., None, :]
    return matrix.mean((0, 1)).numpy()


def main(runs: Path) -> None:
    colours = mpl.colormaps[SIGNED_COLOURS].with_extremes(under=NEGATIVE_COLOUR)
    with mpl.rc_context({**STYLE, "axes.titlesize": 12, "axes.titleweight": "bold"}):
        figure = Figure(figsize=(6, 7))
        panels, negative = figure.subplots(3, 3), False
        for axes, (name, title) in zip(panels.flat, RULES.items(), strict=True):
            values = np.tril(np.ones((33, 33))) if name == "residual" else matrix_of(runs / name)
            shown = np.ma.masked_where(np.triu(np.ones_like(values), 1) > 0, depth_colours(values))
            image = axes.imshow(shown, cmap=colours, vmin=0, vmax=1, interpolation="none")
            negative |= bool((shown < 0).any())
            axes.set_title(title)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        panels[1, 0].set_ylabel("who reads: the first sublayer at the top, the head below")
        panels[2, 1].set_xlabel("what: the embedding on the left, then each sublayer's output")
        bar = figure.colorbar(image, ax=panels, orientation="horizontal", shrink=0.8, aspect=30, pad=0.02)
        lowest = "0 (orange: below)" if negative else "0"
        bar.set_ticks([0, 0.5, 1], labels=[lowest, "the row's mean", f"≥ {MOST_TIMES} times"])
        save(figure, "released", "docs/figures")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
