"""One token at batch 1 after a short prompt, over the plain residual's: our own model, and a llama of Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from attnres.bench.measure import CPU, RatioRow, Run, Setting, milliseconds, take_turns
from attnres.bench.step import build_model
from attnres.errors import install_command

PROMPT = 32
ATTACHED = {"block": ("Block S=8", {"block_size": 8}), "full": ("Full", {})}
VOCABULARY = 1024


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of the model."""

    dim: int
    layers: int

    def __str__(self) -> str:
        return f"d {self.dim}, {self.layers} layers"


FULL, QUICK = DecoderSizes(512, 12), DecoderSizes(64, 1)
ATTACHED_FULL, ATTACHED_QUICK = DecoderSizes(512, 24), DecoderSizes(64, 4)


def measure(setting: Setting) -> list[RatioRow]:
    sizes = QUICK if setting.quick else FULL
    steps = {name: decode_step(name, sizes) for name in ("residual", "block")}
    medians = take_turns(steps, 20 * setting.rounds, setting.progress, "decode step")
    what = f"decode step at batch 1, Block over residual, {sizes}"
    ratio = medians["block"] / medians["residual"]
    return [RatioRow(what, setting.where, "1.06", "1.02", ratio, milliseconds(medians)), *_attached(setting)]


def decode_step(name: str, sizes: DecoderSizes, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Run:
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


def _attached(setting: Setting) -> list[RatioRow]:
    sizes = ATTACHED_QUICK if setting.quick else ATTACHED_FULL
    rows = {
        name: RatioRow(f"attached decode step at batch 1, {what} over plain, {sizes}", setting.where, "1.08", "1.05")
        for name, (what, _) in ATTACHED.items()
    }
    first, *_ = rows.values()
    if find_spec("transformers") is None:
        first.details = {"Transformers": f"not installed: {install_command('hf')}"}
        return list(rows.values())
    import attnres.hf

    models = {"plain": _llama(sizes)}
    for name, (_, options) in ATTACHED.items():
        models[name] = attnres.hf.attach(_llama(sizes), name, **options)
    steps = {name: _attached_step(model) for name, model in models.items()}
    medians = take_turns(steps, 20 * setting.rounds, setting.progress, "attached decode step")
    for name, row in rows.items():
        row.ratio = medians[name] / medians["plain"]
    first.details = milliseconds(medians)
    return list(rows.values())


def _llama(sizes: DecoderSizes) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    width: dict[str, Any] = {"hidden_size": sizes.dim, "intermediate_size": 4 * sizes.dim, "vocab_size": VOCABULARY}
    config = LlamaConfig(**width, num_hidden_layers=sizes.layers, num_attention_heads=sizes.dim // 64)
    return LlamaForCausalLM(config).eval()


def _attached_step(model: Any) -> Run:
    from transformers import DynamicCache

    from attnres.model.backbones.borrowed import cache_name

    prompt, cache = torch.randint(VOCABULARY, (1, PROMPT)), DynamicCache(config=model.config)
    kept = {cache_name(model): cache}

    @torch.no_grad()
    def step() -> None:
        model(prompt[:, -1:], **kept, use_cache=True)
        cache.crop(-1)

    with torch.no_grad():
        model(prompt, **kept, use_cache=True)
    assert cache.get_seq_length() == PROMPT, "the model keeps its cache elsewhere"
    return step
