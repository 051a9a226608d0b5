"""Reports made of numbers alone: no model is needed to test a page."""

from __future__ import annotations

import numpy as np

from attnres.analysis import DepthProfile, sublayer_names
from attnres.report.page import Section, page
from attnres.report.write import Curves, depth_pictures, loss_curves

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


def curves(seeds: int = 3, steps: int = 40, offset: float = 0.0) -> Curves:
    random = np.random.default_rng(7)
    return {
        seed: [(step, float(5 / np.sqrt(step) + offset + 0.1 * random.random())) for step in range(1, steps + 1)]
        for seed in range(seeds)
    }


def token(before: str, token: str, after: str) -> dict[str, object]:
    return {"position": 2, "before": before, "token": token, "after": after}


TOKENS = [token("def ", "main", "():"), token("import ", "os", "\n")]
CURVES = {f"arm{i}": curves(offset=-0.1 * i) for i in range(3)}
PROFILES = {f"arm{i}": profile(signed=i == 2, seed=i) for i in range(3)}


def report(curves=CURVES, profiles=PROFILES, tokens=TOKENS, title="Side by side", facts=None) -> str:
    """A page with a section for each picture."""
    pictures = [*loss_curves(curves), *depth_pictures(profiles, tokens, dict.fromkeys(profiles, title))]
    sections = [Section(name=picture.name, title=title, pictures=[picture]) for picture in pictures]
    return page(title, [*sections, Section(name="facts", title="Facts", facts=facts or {"corpus": "12ab"})])
