"""Decode one token at batch 1 after a short prompt, relative to the plain residual: our own model and a Qwen3."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from attnres.bench.measure import CPU, RatioRow, Run, Setting, medians, milliseconds, over, take_turns, threads
from attnres.bench.step import build_model
from attnres.errors import install_command
from attnres.model import Transformer

PROMPT = 32
ATTACHED = {"block": "1.03", "full": "-"}
"""What is attached, and what its ratio must be."""
VOCABULARY = 1024


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of the model."""

    dim: int
    layers: int

    def __str__(self) -> str:
        return f"d {self.dim}, {self.layers} layers"


OURS, OF_ATTACHED = DecoderSizes(512, 12), DecoderSizes(512, 16)


def measure(setting: Setting) -> list[RatioRow]:
    models = {name: build_model(name, OURS.dim, OURS.layers) for name in ("residual", "block")}
    steps = {name: step_of(model) for name, model in models.items()}
    seconds = take_turns(steps, 20 * setting.rounds, setting.progress, "decode step")
    bandwidth = _bytes(models["block"]) / _bytes(models["residual"])
    row = over(seconds, "block", "residual", f"decode, {OURS}: Block", setting.where, "1.02", bandwidth)
    row.details = milliseconds(medians(seconds))
    return [row, *_attached(OF_ATTACHED, setting)]


def _bytes(model: nn.Module) -> int:
    """The bytes of weights that a token reads."""
    return sum(parameter.nbytes for parameter in model.parameters())


def decode_step(name: str, sizes: DecoderSizes, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Run:
    return step_of(build_model(name, sizes.dim, sizes.layers), device, dtype)


def step_of(model: Transformer, device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Run:
    model.to(device, dtype)
    caches = model.new_caches(batch=1)
    prompt = torch.randint(0, 256, (1, PROMPT), device=device)
    token = torch.randint(0, 256, (1, 1), device=device)
    with torch.inference_mode():
        model(prompt, caches)

    @torch.inference_mode()
    def step() -> None:
        for cache in caches:
            cache.length = PROMPT
        model(token, caches)

    return step


def _attached(sizes: DecoderSizes, setting: Setting) -> list[RatioRow]:
    """On one thread, on which small models decode fastest."""
    whats = {name: f"decode, Qwen3 of {sizes}, 1 thread: {name.title()}" for name in ATTACHED}
    if find_spec("transformers") is None:
        missing: dict[str, float | str] = {"Transformers": f"not installed: {install_command('hf')}"}
        return [RatioRow(whats[name], setting.where, must, details=missing) for name, must in ATTACHED.items()]
    import attnres.hf

    models = {"plain": _qwen3(sizes)}
    for name in ATTACHED:
        models[name] = attnres.hf.attach(_qwen3(sizes), name)
    with threads(1):
        steps = {name: _attached_step(model) for name, model in models.items()}
        seconds = take_turns(steps, 20 * setting.rounds, setting.progress, "attached decode step")
    plain = _bytes(models["plain"])
    rows = [
        over(seconds, name, "plain", whats[name], setting.where, must, _bytes(models[name]) / plain)
        for name, must in ATTACHED.items()
    ]
    rows[0].details = milliseconds(medians(seconds))
    return rows


def _qwen3(sizes: DecoderSizes) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width: dict[str, Any] = {"hidden_size": sizes.dim, "intermediate_size": 4 * sizes.dim, "vocab_size": VOCABULARY}
    heads: dict[str, Any] = {
        "num_attention_heads": sizes.dim // 64,
        "num_key_value_heads": sizes.dim // 64,
        "head_dim": 64,
    }
    return Qwen3ForCausalLM(Qwen3Config(**width, **heads, num_hidden_layers=sizes.layers)).eval()


def _attached_step(model: Any) -> Run:
    from transformers import DynamicCache

    from attnres.model.backbones.borrowed import cache_name

    prompt, cache = torch.randint(VOCABULARY, (1, PROMPT)), DynamicCache(config=model.config)
    kept = {cache_name(model): cache}

    @torch.no_grad()
    def step() -> None:
        model(prompt[:, -1:], **kept, use_cache=True)
        cache.crop(-1)  # the token is taken back: each step reads as many keys

    with torch.no_grad():
        model(prompt, **kept, use_cache=True)
    assert cache.get_seq_length() == PROMPT, "the model keeps its cache elsewhere"
    return step
