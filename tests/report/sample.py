"""Reports made of numbers alone: no model is needed to test a page."""

from __future__ import annotations

import numpy as np

from attnres.analysis import DepthProfile, sublayer_names
from attnres.analysis.comparison import Comparison, compare_arms
from attnres.report.data import ArmReport, LossCurve, ReportData, TokenText

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\u2028\x00\x1b[31m\ufffd\u202e"


def profile(
    sublayers: int = 6, signed: bool = False, positions: tuple[int, ...] = (2, 5), seed: int = 0
) -> DepthProfile:
    random = np.random.default_rng(seed)
    n = sublayers + 1
    matrices = np.tril(random.uniform(-1 if signed else 0.01, 1, (1 + len(positions), n, n)))
    share = np.abs(matrices) / np.abs(matrices).sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(share[0] * np.log(share[0]), -1)
    return DepthProfile(
        names=sublayer_names(sublayers),
        positions=positions,
        mean_matrix=matrices[0],
        mean_share=share[0],
        token_matrices=matrices[1:],
        output_rms=random.uniform(0.5, 50, n),
        input_rms=random.uniform(0.5, 5, n),
        gradient_rms=random.uniform(1e-4, 1e-2, n),
        entropy=entropy,
    )


def curves(seeds: int = 3, steps: int = 40, offset: float = 0.0) -> list[LossCurve]:
    random = np.random.default_rng(7)
    return [
        LossCurve(
            seed, range(1, steps + 1), (5 / np.sqrt(np.arange(1, steps + 1)) + offset + 0.1 * random.random()).tolist()
        )
        for seed in range(seeds)
    ]


def results() -> list[Comparison]:
    noise = (0.01, -0.02, 0.005)

    def summary(arm: int, seed: int) -> dict[str, float]:
        loss = 1.7 - 0.1 * arm + noise[seed] * (1 + arm / 5)
        return {"validation_loss": loss, "step_seconds": 1 + (arm + seed) / 10, "peak_memory_bytes": 100 + arm}

    arms = {f"arm{arm}": {seed: summary(arm, seed) for seed in range(3)} for arm in range(3)}
    return compare_arms(arms, "arm0")


def report(**changes) -> ReportData:
    made = [
        ArmReport(
            name=f"arm{i}",
            description=f"number {i}",
            curves=curves(offset=-0.1 * i),
            profile=profile(signed=i == 2, seed=i),
        )
        for i in range(3)
    ]
    values = {
        "title": "Side by side",
        "subtitle": "three arms",
        "arms": made,
        "results": results(),
        "provenance": {"command": "attnres compare", "corpus": "sha256 12ab"},
        "tokens": [TokenText("def ", "main", "():"), TokenText("import ", "os", "\n")],
        "unit": "nats per byte",
    }
    return ReportData(**{**values, **changes})
