"""The pictures of how runs trained, and the pictures and the table of what their depth does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnres.analysis.profile import SEEN, DepthProfile
from attnres.report.charts import Line, Lines, Matrix, Plot, band, over_depth
from attnres.texttable import TextTable

Curves = Mapping[int, Sequence[tuple[float, float]]]
"""seed -> (step, validation loss in nats per byte)"""

NOTE = "Weight of each source in what each site reads, mean over tokens."
BANDS = "Line: mean over seeds. Band: from the lowest to the highest seed."
MATRICES = (
    "Of one run of each. Row: the site that reads. Column: the source that it reads. Colour: the source's weight over "
    "the mean of its row, so that the plain residual is grey throughout. A site sees earlier sources only: the upper "
    "right is empty. Axes count layers; emb is the embedding and out the readout."
)
ALONG = (
    "Means over the tokens that are read: all but the last, which is predicted. Gradient: of the summed loss. Share: "
    "the size of a weight over the sum of the sizes in its row."
)


def loss_curves(curves: Mapping[str, Curves]) -> list[Plot]:
    """The curves of every arm, the baseline first, and their differences to the baseline's; none without a curve."""
    trained = {arm: by_seed for arm, by_seed in curves.items() if any(map(len, by_seed.values()))}
    if not trained:
        return []
    baseline = next(iter(trained))
    losses = {arm: losses_by_step(by_seed) for arm, by_seed in trained.items()}
    others = {arm: losses_by_step(of, trained[baseline]) for arm, of in trained.items() if arm != baseline}
    last = max((steps[-1] for steps, _ in losses.values() if len(steps)), default=0.0)

    def lines(of: Mapping[str, tuple[np.ndarray, np.ndarray]], first: float) -> list[Line]:
        return [band(name, losses[:, steps >= first], steps[steps >= first]) for name, (steps, losses) in of.items()]

    charts = [
        Lines(title="validation loss (nats per byte)", x_label="step", lines=lines(losses, -np.inf)),
        Lines(title="second half", x_label="step", lines=lines(losses, last / 2)),
    ]
    if paired := {name: of for name, of in others.items() if len(of[0])}:
        apart = lines(paired, last / 10)  # the first steps differ by chance and by much
        zero = Line(name=baseline, x=apart[0].x, y=np.zeros(len(apart[0].x)))
        title = f"difference to {baseline}, paired by seed"
        charts.append(Lines(title=title, x_label="step", lines=[zero, *apart], zero=True))
    note = BANDS if any(len(by_seed) > 1 for by_seed in trained.values()) else "One seed."
    return [Plot(name="comparison-losses", alt="loss curves", charts=charts, note=note)]


def losses_by_step(curves: Curves, baseline: Curves | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The steps that all seeds of an arm have, and the losses there, [seed, step].

    With a baseline they are differences to its loss of the same seed, for the seeds that both have: runs of one seed
    read the same batches, so what the batches do to the loss cancels.
    """
    own, base = ({seed: dict(of) for seed, of in each.items() if len(of)} for each in (curves, baseline or curves))
    pairs = [(own[seed], base[seed]) for seed in own if seed in base]
    steps = sorted(set.intersection(*(one.keys() & other.keys() for one, other in pairs))) if pairs else []
    losses = [[one[step] - (other[step] if baseline else 0.0) for step in steps] for one, other in pairs]
    return np.array(steps, float), np.array(losses, float).reshape(len(pairs), len(steps))


def depth_pictures(profiles: Mapping[str, DepthProfile]) -> list[Plot]:
    """The depth matrices of every arm, and numbers along the depth; none without a profile."""
    if not profiles:
        return []
    matrices = [Matrix(title=arm, names=of.names, values=of.mean_matrix) for arm, of in profiles.items()]
    read = ("input_rms", "output_rms", "gradient_rms", "entropy", "embedding_share", "source_share")
    arms = {arm: [{name: getattr(of, name) for name in read}] for arm, of in profiles.items()}
    along = along_depth(arms, next(iter(profiles.values())).names)
    return [
        Plot(name="comparison-matrices", alt="depth matrices", charts=matrices, note=NOTE, how=MATRICES),
        Plot(name="comparison-depth", alt="magnitudes and shares over depth", charts=along, how=ALONG, columns=3),
    ]


def along_depth(arms: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str]) -> list[Lines]:
    """What depth does over its sites and sources. arms: what `DepthProfile` says of each seed; names: sublayers'."""

    def lines(name: str) -> list[Line]:
        return [band(arm, np.array([of[name] for of in seeds], float)) for arm, seeds in arms.items()]

    limit = np.log(np.arange(1, len(names) + 2))
    uniform = Line(name="uniform: log(l + 1)", x=range(len(limit)), y=limit, as_="guide")
    return [
        over_depth("h: RMS of what each site reads", "site", names, lines("input_rms"), log=True),
        over_depth("y: RMS of each source", "source", names, lines("output_rms"), log=True),
        over_depth("gradient RMS at each source", "source", names, lines("gradient_rms"), log=True),
        over_depth("entropy of depth weights (nats)", "site", names, [uniform, *lines("entropy")]),
        over_depth("share of the embedding", "site", names, lines("embedding_share")),
        over_depth("share of each source, mean over its sites", "source", names, lines("source_share")),
    ]


def sink_table(profiles: Mapping[str, DepthProfile]) -> TextTable:
    """The strongest depth sinks of each arm."""
    rows = []
    for arm, profile in profiles.items():
        sinks = [f"{name} {excess:.1f}x ({share:.0%})" for name, share, excess in profile.sinks(3)]
        nothing = "none" if np.isfinite(profile.source_share).all() else "weights are not finite"
        rows.append((arm, *(sinks or [nothing]), *[""] * (3 - max(1, len(sinks)))))
    note = (
        "Share of the weight of the sites that can see the source, over an equal share, and the share itself; of the "
        f"sources that at least {SEEN:.0%} of the sites can see: the few sites behind the last ones read them anyhow."
    )
    return TextTable("Strongest depth sinks", ("connection", "strongest", "second", "third"), tuple(rows), note)
