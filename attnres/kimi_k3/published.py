"""Kimi K3 checkpoints in the form in which the model was published: its names, its shards, its MXFP4 experts.

The text model's tensors have the prefix `language_model.`; those of the vision tower and its projector are skipped.
All others must be there, and no more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from attnres.errors import UsageError
from attnres.files import added_folder, write_json, write_text
from attnres.hf.folder import refuse_names, weight_files

PREFIX = "language_model."
OTHER_MODALITIES = ("vision_tower.", "mm_projector.")
_SITE = re.compile(r"^model\.connection\.(query|gain)\.(\d+)$")
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Part:
    """How one of our tensors is stored: as pieces that follow each other along their first dimension."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    """The shape of each piece."""

    def join(self, pieces: list[Tensor], shape: torch.Size) -> Tensor:
        return torch.cat(pieces).reshape(shape)

    def split(self, tensor: Tensor) -> dict[str, Tensor]:
        rows = tensor.reshape(-1, *self.shape[1:]).split(self.shape[0])
        return {name: piece.contiguous() for name, piece in zip(self.names, rows, strict=True)}


def parts(model: PreTrainedModel) -> dict[str, Part]:
    """Say for each name of the model's state dict how the published form, without its prefix, stores it."""
    return {name: _part(name, tensor, model.config) for name, tensor in model.state_dict().items()}


def _part(name: str, tensor: Tensor, config: Any) -> Part:
    shape = tuple(tensor.shape)
    if site := _SITE.match(name):
        number, half = divmod(int(site[2]), 2)
        of_layer = f"layers.{number}.{('self_attention_res', 'mlp_res')[half]}"
        head = of_layer if number < config.num_hidden_layers else "output_attn_res"
        return (
            Part((f"model.{head}_proj.weight",), (1, *shape))
            if site[1] == "query"
            else Part((f"model.{head}_norm.weight",), shape)
        )
    if (layer := _LAYER.match(name)) and config.mlp_layer_types[int(layer[1])] == "sparse":
        name = name.replace(".mlp.", ".block_sparse_moe.")
    name = name.replace(".forget_gate.", ".")
    if name.endswith(".conv1d.weight"):
        head = name.removesuffix("conv1d.weight")
        return Part(tuple(f"{head}{c}_conv1d.weight" for c in "qkv"), (shape[0] // 3, *shape[1:]))
    if ".experts." in name:
        head, leaf = name.rsplit(".", 1)
        own = ("w1", "w3") if leaf == "gate_up_proj" else ("w2",)
        names = tuple(f"{head}.{expert}.{w}.weight" for expert in range(shape[0]) for w in own)
        return Part(names, (shape[1] // len(own), shape[2]))
    return Part((name,), shape)


def fill(model: PreTrainedModel, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Give a model on the meta device the weights of a folder, in that dtype or that of the stored embedding."""
    stored, layout = _Stored(folder), parts(model)
    stored.check(layout)
    dtype = dtype or stored.read("model.embed_tokens.weight").dtype
    wide = re.compile("|".join(model._keep_in_fp32_modules_strict or ()))
    tensors = {}
    for name, empty in model.state_dict().items():
        part = layout[name]
        pieces = [stored.read(piece)[: part.shape[0]] for piece in part.names]  # A_log is padded with unused heads
        tensors[name] = part.join(pieces, empty.shape).to(torch.float32 if wide.search(name) else dtype)
    model.load_state_dict(tensors, assign=True)


def save(
    model: PreTrainedModel,
    folder: str | Path,
    max_shard_size: int | str = "5GB",
    files: Mapping[str, str] | None = None,
) -> None:
    """Write a new folder with a checkpoint in the published form, experts unquantised. It appears whole, or not at all.

    files: further files to put there, name to text, such as a tokenizer's.

    Raises:
        UsageError: the folder is there, another command is making it, or the form has no place for the model.
    """
    content = model.config.published()
    tensors: dict[str, Tensor] = {}
    weights = model.state_dict()
    for name, part in parts(model).items():
        tensors |= {PREFIX + piece: tensor for piece, tensor in part.split(weights[name]).items()}
    plan = split_torch_state_dict_into_shards(tensors, max_shard_size=max_shard_size)
    dtype = str(model.dtype).removeprefix("torch.")
    with added_folder(Path(folder)) as partial:
        for file, names in plan.filename_to_tensors.items():
            save_file({name: tensors[name] for name in names}, partial / file, metadata={"format": "pt"})
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            write_json(partial / "model.safetensors.index.json", index)
        write_json(partial / "config.json", {**content, "dtype": dtype})
        for file, text in (files or {}).items():
            write_text(partial / file, text)


class _Stored:
    """The tensors of a folder by their names without prefix, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in weight_files(folder):
            try:
                file = safe_open(path, "pt")
            except SafetensorError as error:
                raise UsageError(f"{path}: cannot be read ({error}); fetch it again") from None
            for stored in file.keys():  # noqa: SIM118
                name = stored.removeprefix(PREFIX)
                if not name.startswith(OTHER_MODALITIES):
                    self.files[name] = file, stored
                    self.shapes[name] = tuple(file.get_slice(stored).get_shape())

    def check(self, layout: dict[str, Part]) -> None:
        expected = {name: part.shape for part in layout.values() for name in part.names}
        found: dict[str, tuple[int, ...]] = dict(self._whole_shapes())
        refuse_names(
            f"{self.folder}: its tensors are not those of its config.json",
            missing=[name for name in expected if name not in found],
            surplus=[name for name in found if name not in expected],
            reshaped=[
                (name, found[name], shape)
                for name, shape in expected.items()
                if name in found and not _fits(name, found[name], shape)
            ],
        )

    def _whole_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The shapes, a packed tensor and its scales as the one tensor that they stand for."""
        for name, shape in self.shapes.items():
            whole, _, kind = name.rpartition("_")
            if kind == "packed" and self.shapes.get(f"{whole}_scale") == (shape[0], shape[1] * 2 // GROUP):
                yield whole, (shape[0], shape[1] * 2)
            elif kind != "scale" or f"{whole}_packed" not in self.shapes:
                yield name, shape

    def read(self, name: str) -> Tensor:
        if name in self.files:
            file, stored = self.files[name]
            return file.get_tensor(stored)
        return unpack(self.read(f"{name}_packed"), self.read(f"{name}_scale"))


def _fits(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    padded = name.endswith("A_log") and len(found) == 1 and found[0] >= math.prod(expected)
    return padded or found == expected


GROUP = 32
"""Weights of MXFP4 that share a scale."""

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)])  # by code: a sign, 2 bits, 1 bit
_BIAS = 127


def unpack(packed: Tensor, scale: Tensor) -> Tensor:
    """Weights [rows, columns] of MXFP4 as compressed-tensors packs it, in bfloat16, exactly.

    packed: uint8 [rows, columns / 2]; of a byte's two codes the lower comes first.
    scale: uint8 [rows, columns / 32], the exponent of two of each group, plus 127 (E8M0).
    Source: OCP Microscaling Formats 1.0.
    """
    codes = torch.stack([packed & 0xF, packed >> 4], -1).flatten(-2)
    values = _VALUES.to(packed.device)[codes.int()].unflatten(-1, (-1, GROUP))
    return torch.ldexp(values, scale.int()[..., None] - _BIAS).flatten(-2).bfloat16()
