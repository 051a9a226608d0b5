"""Edits of a saved folder, as by hand or by damage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file


def keys(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as stored:
        return set(stored.keys())


def edit_tensors(folder: Path, change: Callable[[dict], Any]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def edit_config(folder: Path, change: Callable[[dict], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def rename(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({new: tensors.pop(old)}))


def run_elsewhere(code: str, *arguments: object) -> None:
    """Run code in a new Python, which has imported nothing."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
