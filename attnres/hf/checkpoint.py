"""Attached models on disk: what `save_pretrained` writes, read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from attnres.connections import canonical_connection
from attnres.errors import UsageError, first_line, install_command
from attnres.hf.attach import CONNECTION, attach_as_written, connection_of, decoder_of
from attnres.hf.folder import read_config, read_tensors, refuse_differences, refuse_names, weight_files
from attnres.model.backbones.borrowed import runnable_kernels

RECORD = "attnres"
"""The entry of config.json that holds the connection: {"connection": "block:block_size=8,total=true"}."""


def load(path: str | Path, **kwargs: Any) -> Any:
    """Load the attached model that `save_pretrained` wrote to a folder.

    Args:
        path: the folder.
        **kwargs: those of `from_pretrained`: dtype, device_map and so on. The connection stays in float32.

    Raises:
        UsageError: a folder that is not of an attached model or does not fit its config; the tensors are named.
    """
    folder = Path(path)
    config = read_config(folder)
    record = config.get(RECORD)
    if record is None:
        raise UsageError(
            f"{folder} is a plain checkpoint; attach a connection to it, or run: attnres convert {folder} DST"
        )
    connection = _recorded(record, folder / "config.json")
    model = load_plain(folder, **kwargs)
    attach_as_written(model, connection)
    _fill(model, folder)
    return model


def _recorded(record: Any, file: Path) -> str:
    """The connection of the entry, which used to hold the options beside the name."""
    options = record.get("options", {}) if isinstance(record, dict) else None
    if not isinstance(options, dict) or "connection" not in record:
        raise UsageError(f'{file}: "{RECORD}" must hold the connection, written NAME:OPTION=VALUE,OPTION=VALUE')
    return canonical_connection(record["connection"], **options)


def load_plain(folder: Path, **kwargs: Any) -> Any:
    """The model of a local folder without its connection. Every tensor of the plain model must be there and fit."""
    cls = _model_class(read_config(folder), folder)
    # What the plain model does not know is a warning there, or an error here; the connection's tensors are neither.
    ignored = [*(cls._keys_to_ignore_on_load_unexpected or ()), rf"(^|\.){CONNECTION}\."]
    patient = type(cls.__name__, (cls,), {"__module__": cls.__module__, "_keys_to_ignore_on_load_unexpected": ignored})
    try:
        model, info = patient.from_pretrained(
            folder, output_loading_info=True, local_files_only=True, ignore_mismatched_sizes=True, **kwargs
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"{folder}: cannot be loaded: {first_line(error)}") from None
    model.__class__ = cls
    missing, surplus = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    refuse_names(_wrong(folder), missing, surplus, sorted(info["mismatched_keys"]))
    return model


def _model_class(config: Mapping[str, Any], folder: Path) -> Any:
    try:
        import transformers
    except ImportError:
        raise UsageError(f"this needs the transformers library: {install_command('hf')}") from None
    names = config.get("architectures") or []
    with runnable_kernels():
        cls = getattr(transformers, names[0], None) if names else None  # imports the model's module
    if not hasattr(cls, "from_pretrained"):
        named = f"{names[0]!r}" if names else "none"
        raise UsageError(
            f"{folder / 'config.json'}: architectures must name a class of transformers {transformers.__version__}, "
            f"not {named}"
        )
    return cls


@torch.no_grad()
def _fill(model: Any, folder: Path) -> None:
    """Read the connection's tensors, all of them and no others."""
    connection, decoder = connection_of(model), decoder_of(model)
    (prefix,) = (f"{name}.".lstrip(".") for name, module in model.named_modules() if module is decoder)
    prefix += f"{CONNECTION}."
    stored = read_tensors(weight_files(folder), lambda name: name.startswith(prefix))
    expected = {prefix + name: parameter for name, parameter in connection.named_parameters()}
    refuse_differences({name: parameter.shape for name, parameter in expected.items()}, stored, _wrong(folder))
    for name, parameter in expected.items():
        parameter.copy_(stored[name])


def _wrong(folder: Path) -> str:
    return f"{folder}: its tensors are not those of its config.json"
