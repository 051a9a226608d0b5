"""A checkpoint with a connection, made on disk from a plain one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils.hub import CHAT_TEMPLATE_DIR

from attnres.connections import canonical_connection
from attnres.errors import UsageError
from attnres.files import added_folder
from attnres.hf.attach import attach, connection_of, examine
from attnres.hf.checkpoint import load, load_plain
from attnres.hf.classes import of_connection
from attnres.hf.folder import read_config
from attnres.hf.layer import run_whole
from attnres.hf.record import RECORD
from attnres.ops import widen

TOLERANCE = 1e-5
"""Largest difference of two logits in float32, in units of the largest logit, that counts as the same."""

TOKENS = 32
"""Or half as many as the model has positions."""


@dataclass(frozen=True)
class Conversion:
    """What `convert` did."""

    connection: str
    """With its options."""
    parameters: int
    """How many parameters the plain model has."""
    added: int
    """Parameters of the connection."""
    tensors: tuple[str, ...]
    """Names of the connection's tensors."""
    difference: float
    """Largest difference of a logit to the checkpoint's, in units of the largest logit."""


def convert(
    plain: str | Path,
    target: str | Path,
    connection: str | None = None,
    lossy: bool = False,
    step: Callable[[str], object] = lambda text: None,
) -> Conversion:
    """Write a folder that loads by itself, with the weights of `plain` and a connection.

    Before `target` appears it is loaded and must give its logits on random tokens in float32, unless lossy.
    Tokenizer and other files are copied.

    Args:
        plain: folder of a plain Hugging Face checkpoint.
        target: a folder that does not exist yet; it appears whole or not at all.
        connection: as for `attach`; "block" if None.
        lossy: write the model although its logits differ.
        step: is told what happens next.

    Raises:
        UsageError: a checkpoint or connection that does not fit, logits that differ, or that are not finite in `plain`;
            or `target` is there, another command is making it, or has made it meanwhile.
    """
    plain, target = Path(plain), Path(target)
    if RECORD in read_config(plain):
        raise UsageError(f"{plain} has a connection already; give the plain checkpoint")
    canonical_connection(connection or "block")  # refused before the weights are read
    with added_folder(target) as partial:
        step("reading the checkpoint")
        model = load_plain(plain, dtype="auto")
        examine(model)
        expected = _logits(model)
        if not expected.isfinite().all():
            raise UsageError(f"{plain}: its own logits are not finite; give a copy without NaN and inf")
        step("attaching the connection")
        attach(model, connection or "block")
        step("writing")
        model.save_pretrained(partial)
        _copy_other_files(plain, partial)
        names = tuple(name for name, _ in model.named_parameters() if of_connection(name))
        added = sum(p.numel() for p in connection_of(model).parameters())
        parameters = sum(p.numel() for p in model.parameters()) - added
        attached: str = model.config.attnres["connection"]
        del model
        step("checking that the logits agree")
        difference = _difference(_logits(load(partial, dtype="auto")), expected)
        if not lossy and not difference <= TOLERANCE:
            raise UsageError(
                f"the logits would differ by {difference:.1e} of the largest: {attached} is not "
                "the plain residual at the start; choose block or full, or give --lossy"
            )
    return Conversion(attached, parameters, added, names, difference)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    largest = expected.abs().max().item() or 1.0  # a head may begin at zero
    return (found - expected).abs().max().item() / largest


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    """Compute the logits of a few random tokens or pixels, or what else comes first where a model has no such head, in
    float32: bfloat16 would hide a difference."""
    inputs = _random_inputs(model)
    dtypes = [(tensor, tensor.dtype) for tensor in [*model.parameters(), *model.buffers()]]
    for tensor, dtype in dtypes:
        tensor.data = widen(tensor.data) if dtype.is_floating_point else tensor.data
    logits = run_whole(model.eval(), inputs)[0]
    for tensor, dtype in dtypes:
        tensor.data = tensor.data.to(dtype)
    return logits


def _random_inputs(model: Any) -> torch.Tensor:
    config, generator = model.config, torch.Generator().manual_seed(0)
    if model.main_input_name == "pixel_values":
        side = config.image_size
        height, width = (side, side) if isinstance(side, int) else side
        return torch.randn(1, config.num_channels, height, width, generator=generator)
    text = config.get_text_config()
    time = min(TOKENS, ((getattr(text, "max_position_embeddings", None) or 2 * TOKENS) + 1) // 2)
    return torch.randint(text.vocab_size, (1, time), generator=generator)


def _copy_other_files(plain: Path, target: Path) -> None:
    for file in plain.iterdir():
        weights = file.suffix in (".safetensors", ".bin") or file.name.endswith(".index.json")
        if file.is_file() and not weights and not (target / file.name).exists():
            shutil.copy2(file, target)
    if (plain / CHAT_TEMPLATE_DIR).is_dir():  # other folders may hold weights in other forms
        shutil.copytree(plain / CHAT_TEMPLATE_DIR, target / CHAT_TEMPLATE_DIR)
