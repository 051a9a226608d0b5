"""A checkpoint's folder: its config.json, the tensors in its safetensors files, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnres.errors import UsageError


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises UsageError where there is none, or it is damaged."""
    try:
        entries = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder}: there is no config.json; give the folder of a transformers checkpoint") from None
    except ValueError as error:
        raise UsageError(f"{folder / 'config.json'}: not valid JSON ({error}); fetch it again") from None
    if not isinstance(entries, dict):
        raise UsageError(f"{folder / 'config.json'}: not a JSON object; fetch it again")
    return entries


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a checkpoint. Raises UsageError where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder}: there are no .safetensors files; save the model with save_pretrained")
    return files


def read_tensors(files: Iterable[Path], wanted: Callable[[str], Any]) -> dict[str, Tensor]:
    """Read the tensors whose names are `wanted`, and no others. Raises UsageError on a damaged file."""
    tensors = {}
    for file in files:
        try:
            with safe_open(file, "pt") as stored:
                names = [name for name in stored.keys() if wanted(name)]  # noqa: SIM118
                tensors.update((name, stored.get_tensor(name)) for name in names)
        except SafetensorError as error:
            raise UsageError(f"{file}: cannot be read ({error}); fetch it again") from None
    return tensors


def refuse_differences(shapes: Mapping[str, Sequence[int]], tensors: Mapping[str, Tensor], wrong: str) -> None:
    """Raise UsageError, beginning with `wrong`, if the tensors are not those named in `shapes`, of these shapes."""
    refuse_names(
        wrong,
        missing=[name for name in shapes if name not in tensors],
        surplus=[name for name in tensors if name not in shapes],
        reshaped=[
            (name, tensors[name].shape, shape)
            for name, shape in shapes.items()
            if name in tensors and list(tensors[name].shape) != list(shape)
        ],
    )


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
