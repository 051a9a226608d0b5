"""What an attached model costs over its plain twin, and what converting a checkpoint costs.

The model is a random llama. The conversion runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import attnres.hf
from attnres.bench.measure import Row, Run, Setting, milliseconds, take_turns
from attnres.bench.memory import resident_peak
from attnres.hf.convert import convert
from attnres.model.backbones.borrowed import cache_name

OPTIONS: dict[str, dict[str, Any]] = {"full": {}, "block": {"block_size": 8}}
NAMES = {"full": "Full", "block": "Block S=8"}
BATCH, VOCABULARY, PROMPT, PREFILL = 4, 1024, 64, 256


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model, of a training step's sequences, of the model converted and of the one that decodes."""

    dim: int
    layers: int
    time: int
    decoded: int
    converted_dim: int
    decoder_dim: int
    decoder_layers: int


FULL, QUICK = Sizes(256, 12, 256, 32, 1024, 512, 24), Sizes(64, 4, 8, 2, 64, 64, 4)


def measure(setting: Setting) -> list[Row]:
    sizes = QUICK if setting.quick else FULL
    models = {"plain": llama(sizes.dim, sizes.layers)}
    for name, options in OPTIONS.items():
        models[name] = attnres.hf.attach(llama(sizes.dim, sizes.layers), name, **options)
    decoders = {"plain": llama(sizes.decoder_dim, sizes.decoder_layers)}
    for name, options in OPTIONS.items():
        decoders[name] = attnres.hf.attach(llama(sizes.decoder_dim, sizes.decoder_layers), name, **options)
    size = f"d {sizes.decoder_dim}, {sizes.decoder_layers} layers"
    train = f"training step of transformers' llama, {{}} over plain, d {sizes.dim}, {sizes.layers} layers"
    return [
        *_overheads(train, {name: train_step(m, sizes.time) for name, m in models.items()}, 1, "1.08", setting),
        *_overheads(
            "decode step of that model at batch 1, {} over plain",
            {name: decode_steps(m, sizes.decoded) for name, m in models.items()},
            sizes.decoded,
            "1.10",
            setting,
        ),
        *_overheads(
            f"decode step at batch 1, {{}} over plain, {size}",
            {name: decode_steps(m, sizes.decoded) for name, m in decoders.items()},
            sizes.decoded,
            "1.05",
            setting,
            must="1.08",
        ),
        *_overheads(
            f"prefill of {PREFILL} tokens, {{}} over plain, {size}",
            {name: prefill(m) for name, m in decoders.items()},
            1,
            "-",
            setting,
            must="1.05",
        ),
        _conversion(sizes, setting),
    ]


def _overheads(what: str, runs: dict[str, Run], steps: int, aim: str, setting: Setting, must: str = "-") -> list[Row]:
    taken = take_turns(runs, setting.rounds, setting.progress, what.partition(",")[0])
    medians = {name: seconds / steps for name, seconds in taken.items()}
    rows = [
        Row(what.format(words), setting.where, must, aim, medians[name] / medians["plain"])
        for name, words in NAMES.items()
    ]
    rows[0].details = milliseconds(medians)
    return rows


def llama(dim: int, layers: int, vocabulary: int = VOCABULARY) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": dim, "intermediate_size": 4 * dim, "num_hidden_layers": layers}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=vocabulary, num_attention_heads=dim // 64))


def train_step(model: Any, time: int) -> Callable[[], None]:
    """Forward, backward and AdamW."""
    tokens = torch.randint(VOCABULARY, (BATCH, time))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        model.train()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def decode_steps(model: Any, count: int) -> Callable[[], None]:
    """`count` tokens, one after the other, each time after the same prompt."""
    from transformers import DynamicCache

    prompt, cache = torch.randint(VOCABULARY, (1, PROMPT)), DynamicCache(config=model.config)
    kept = {cache_name(model): cache}
    with torch.no_grad():
        model.eval()(prompt, **kept, use_cache=True)

    @torch.no_grad()
    def step() -> None:
        model.eval()
        for _ in range(count):
            model(prompt[:, -1:], **kept, use_cache=True)
        cache.crop(-count)

    return step


def prefill(model: Any) -> Callable[[], None]:
    """A prompt, read at once into a new cache."""
    prompt = torch.randint(VOCABULARY, (1, PREFILL))

    @torch.no_grad()
    def step() -> None:
        model.eval()(prompt, use_cache=True)

    return step


def _conversion(sizes: Sizes, setting: Setting) -> Row:
    setting.progress("converting a checkpoint")
    with tempfile.TemporaryDirectory() as folder:
        plain, attached = Path(folder) / "plain", Path(folder) / "attached"
        llama(sizes.converted_dim, sizes.layers).save_pretrained(plain)
        start = time.perf_counter()
        shutil.copytree(plain, Path(folder) / "copy")
        copied = time.perf_counter() - start
        command = [sys.executable, "-m", __name__, str(plain), str(attached)]
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        converted = time.perf_counter() - start
        size = (plain / "model.safetensors").stat().st_size
    details: dict[str, float | str] = {
        "file, MB": size / 1e6,
        "copy, s": copied,
        "convert, s": converted,
        "convert, peak MB": float(done.stdout) / 1e6,
    }
    what = f"converting a checkpoint, over copying it, d {sizes.converted_dim}, {sizes.layers} layers"
    return Row(what, setting.where, "-", "-", converted / copied, details)


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2])
    print(resident_peak())
