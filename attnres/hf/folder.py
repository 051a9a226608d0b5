"""A checkpoint's folder: its config.json, the tensors in its safetensors files, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attnres.errors import UsageError


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises UsageError where that cannot be done."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: give the folder of a transformers checkpoint ({error})") from None


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a checkpoint. Raises UsageError where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder}: there are no .safetensors files; save the model with save_pretrained")
    return files


def refuse_names(
    wrong: str,
    missing: Iterable[str],
    surplus: Iterable[str],
    reshaped: Iterable[tuple[str, Sequence[int], Sequence[int]]],
) -> None:
    """Raise UsageError with every name listed, if any is. reshaped: name, the shape found, the shape expected."""
    differences = {
        "missing": list(missing),
        "surplus": list(surplus),
        "of another shape": [f"{name} is {list(found)}, not {list(expected)}" for name, found, expected in reshaped],
    }
    if any(differences.values()):
        said = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in differences.items() if names)
        raise UsageError(f"{wrong}; {said}")
