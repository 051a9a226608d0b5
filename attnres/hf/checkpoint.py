"""Attached models on disk: what `save_pretrained` writes, read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnres.errors import UsageError, first_line
from attnres.hf import classes
from attnres.hf.classes import PREFIX, plain_class, refuse_differences
from attnres.hf.folder import read_config
from attnres.hf.record import RECORD, recorded_connection


def load(path: str | Path, trust_remote_code: bool = False, **kwargs: Any) -> Any:
    """Load the attached model that `save_pretrained` wrote to a folder.

    `AutoModelForCausalLM.from_pretrained` loads such a folder, too. This function also raises an error that names any
    missing or additional tensor.

    Args:
        path: the folder.
        trust_remote_code: run the Python file of a custom connection (FILE.py:CLASS in config.json). Without it this
            process must have run the file already.
        **kwargs: those of `from_pretrained`: dtype, device_map and so on. The connection stays in float32.

    Raises:
        UsageError: the folder is not that of an attached model, or its tensors do not fit its config; they are named.
            Or config, output_loading_info or ignore_mismatched_sizes was given.
    """
    if other := sorted(kwargs.keys() & {"config", "output_loading_info", "ignore_mismatched_sizes"}):
        raise UsageError(f"load takes a folder as it is; for {', '.join(other)} use the Auto class's from_pretrained")
    kwargs.pop("local_files_only", None)  # as always
    folder = Path(path)
    entries = read_config(folder)
    if RECORD not in entries:
        raise UsageError(
            f"{folder} is a plain checkpoint; attach a connection to it, or run: attnres convert {folder} DST"
        )
    if trust_remote_code:
        recorded_connection(entries, trusted=True)  # runs its file
    return _loaded(getattr(classes, PREFIX + _model_class(entries, folder).__name__), folder, **kwargs)


def load_plain(folder: Path, **kwargs: Any) -> Any:
    """The model of a local folder without its connection. Every tensor of the plain model must be there and fit."""
    entries = read_config(folder)
    cls, kind = _model_class(entries, folder), str(entries.get("model_type"))
    # exaone has llama's class: by its own configuration alone its tensors have one name in loading and in saving.
    own = kind in CONFIG_MAPPING and cls in classes.auto_classes(CONFIG_MAPPING[kind]).values()
    return _loaded(cls, folder, CONFIG_MAPPING[kind] if own else None, **kwargs)


def _loaded(cls: Any, folder: Path, config_class: Any = None, **kwargs: Any) -> Any:
    with _refusals_of(folder):
        if config_class is not None:
            kwargs["config"] = config_class.from_pretrained(folder, local_files_only=True)
        model, info = cls.from_pretrained(
            folder, output_loading_info=True, local_files_only=True, ignore_mismatched_sizes=True, **kwargs
        )
    refuse_differences(info, folder)
    return model


@contextmanager
def _refusals_of(folder: Path) -> Iterator[None]:
    """Raise UsageError for what transformers raises on a config.json or weights that make no model."""
    try:
        yield
    except Exception as error:  # a configuration and layers check their entries in many kinds, if at all
        if isinstance(error, UsageError | MemoryError):
            raise
        raise UsageError(f"{folder}: cannot be loaded: {first_line(error)}") from None


def _model_class(config: Mapping[str, Any], folder: Path) -> Any:
    """The plain model's class, which may be an attached model's too."""
    if {"config", "corpus"} <= config.keys():
        raise UsageError(f"{folder} is a run of attnres train; give the folder of a transformers checkpoint")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    cls = plain_class(name.removeprefix(PREFIX)) if isinstance(name, str) else None
    if not hasattr(cls, "from_pretrained"):
        named = repr(name) if name else "none"
        raise UsageError(
            f"{folder / 'config.json'}: architectures must name a class of transformers {transformers.__version__} "
            f"or one that is registered there, not {named}"
        )
    return cls
