"""One token at batch 1 behind a short prompt, Block over residual."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnres.bench.measure import CPU, Row, Run, Setting, milliseconds, take_turns
from attnres.bench.step import build_model

PROMPT = 32


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model."""

    dim: int
    layers: int

    def __str__(self) -> str:
        return f"d {self.dim}, {self.layers} layers"


FULL, QUICK = Sizes(512, 12), Sizes(64, 1)


def measure(setting: Setting) -> list[Row]:
    sizes = QUICK if setting.quick else FULL
    steps = {name: decode_step(name, sizes) for name in ("residual", "block")}
    medians = take_turns(steps, 20 * setting.rounds, setting.progress, "decode step")
    what = f"decode step at batch 1, Block over residual, {sizes}"
    ratio = medians["block"] / medians["residual"]
    return [Row(what, setting.where, "1.06", "1.02", ratio, milliseconds(medians))]


def decode_step(name: str, sizes: Sizes, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Run:
    model = build_model(name, sizes.dim, sizes.layers).to(device, dtype)
    caches = model.new_caches(batch=1)
    prompt = torch.randint(0, 256, (1, PROMPT), device=device)
    token = torch.randint(0, 256, (1, 1), device=device)
    with torch.inference_mode():
        model(prompt, caches)

    @torch.inference_mode()
    def step() -> None:
        for cache in caches:
            cache.length = PROMPT
        model(token, caches, PROMPT)

    return step
