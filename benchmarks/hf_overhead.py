"""What an attached model costs against its plain twin, and what converting costs against copying the file.

    OMP_NUM_THREADS=1 python benchmarks/hf_overhead.py --out overhead.json

Times alternate between the two in one process; each figure is the ratio of the medians. The model is a random llama of
12 layers and width 256. Convert runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import attnres.hf

CONNECTIONS: dict[str, dict[str, Any]] = {"full": {}, "block": {"block_size": 8}}
BATCH, TIME, VOCABULARY = 4, 256, 1024
DECODED = 32


def llama(dim: int = 256, layers: int = 12) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": dim, "intermediate_size": 4 * dim, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=dim // 64, num_key_value_heads=dim // 64))


def train_step(model: Any) -> Callable[[], None]:
    """Forward, backward and AdamW."""
    tokens = torch.randint(VOCABULARY, (BATCH, TIME))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        model.train()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def decode_steps(model: Any) -> Callable[[], None]:
    """DECODED tokens, one after the other, after a prompt."""
    from transformers import DynamicCache

    prompt = torch.randint(VOCABULARY, (1, 64))

    @torch.no_grad()
    def step() -> None:
        model.eval()
        cache = DynamicCache(config=model.config)
        model(prompt, past_key_values=cache, use_cache=True)
        start = time.perf_counter()
        for _ in range(DECODED):
            model(prompt[:, -1:], past_key_values=cache, use_cache=True)
        step.seconds = time.perf_counter() - start  # type: ignore[attr-defined]

    return step


def alternate(runs: list[Callable[[], None]], rounds: int, label: str) -> list[float]:
    """Median seconds of each, taken by turns."""
    seconds: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in track(range(rounds), label):
        for run, taken in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            taken.append(getattr(run, "seconds", time.perf_counter() - start))
    return [statistics.median(taken) for taken in seconds]


def overheads(rounds: int) -> dict[str, Any]:
    models = [llama(), *(attnres.hf.attach(llama(), name, **options) for name, options in CONNECTIONS.items())]
    record: dict[str, Any] = {}
    for kind, make in (("training step", train_step), ("decode step", decode_steps)):
        plain, *attached = alternate([make(model) for model in models], rounds, f"{kind}s, by turns")
        unit = DECODED if kind == "decode step" else 1
        record[kind] = {"plain, ms": 1e3 * plain / unit}
        record[kind] |= {name: seconds / plain for name, seconds in zip(CONNECTIONS, attached, strict=True)}
    return record


def conversion(dim: int, layers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "plain", Path(folder) / "attached"
        llama(dim, layers).save_pretrained(source)
        start = time.perf_counter()
        shutil.copytree(source, Path(folder) / "copy")
        copied = time.perf_counter() - start
        command = [sys.executable, "-m", "attnres", "convert", str(source), str(target), "--block-size", "8"]
        peak = f"import resource, subprocess; subprocess.run({command!r}, check=True); "
        peak += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", peak], check=True, capture_output=True, text=True)
        converted = time.perf_counter() - start
        size = (source / "model.safetensors").stat().st_size
    return {
        "file, MB": size / 1e6,
        "copy, s": copied,
        "convert, s": converted,
        "convert, peak MB": int(done.stdout.split()[-1]) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--convert-dim", type=int, default=1024, help="width of the model that is converted")
    parser.add_argument("--convert-layers", type=int, default=12)
    parser.add_argument("--out", type=Path, help="also write the record to this JSON file")
    arguments = parser.parse_args()
    record = {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        **overheads(arguments.rounds),
        "convert": conversion(arguments.convert_dim, arguments.convert_layers),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
