"""A Kimi K3 model to export, and the GGUF file made of it beside it: what llama.cpp predicts, and what we do.

transformers is imported where it is used: what a config.json refuses needs none of its seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from attnres.data import Tokenizer, load_tokenizer, open_corpus, validation_batches
from attnres.errors import UsageError, first_line
from attnres.files import read_json
from attnres.texttable import TextTable
from attnres.train import Run, load_run
from attnres.train.folder import RunFolder

if TYPE_CHECKING:
    from attnres.hf.k3 import KimiK3ForCausalLM

GGUF_STRING = 8
"""The format's number of that type of an entry."""


def check_exportable(folder: Path) -> None:
    """Raise UsageError where config.json is not that of a run of the backbone kimi_k3 or of a Kimi K3 checkpoint."""
    kind = _model_type(folder)
    if kind not in (None, "kimi_k3"):
        raise UsageError(
            f"{folder} is a model of type {kind}: llama.cpp has attention over depth in Kimi K3 alone; give a run with "
            "--model.backbone kimi_k3 or a Kimi K3 checkpoint (for plain models llama.cpp has a converter of its own)"
        )
    if kind is None and (backbone := RunFolder(folder).config().model.backbone) != "kimi_k3":
        raise UsageError(f"{folder}: backbone {backbone} is not Kimi K3's; train with --model.backbone kimi_k3")


def open_model(folder: Path, best: bool = False) -> tuple[Run | None, KimiK3ForCausalLM, Tokenizer | None]:
    """Open a run of the backbone kimi_k3, or a Kimi K3 checkpoint: the run if it is one, the model, its tokenizer.

    Raises UsageError where it is neither.
    """
    check_exportable(folder)
    from attnres.hf.k3 import KimiK3ForCausalLM, from_transformer

    if _model_type(folder) is None:
        run = load_run(folder, best)
        return run, from_transformer(run.model, run.tokenizer.end), run.tokenizer
    tokenizer = load_tokenizer(str(folder)) if (folder / "tokenizer.json").is_file() else None
    return None, KimiK3ForCausalLM.from_pretrained(folder), tokenizer


def own_template(folder: Path) -> str | None:
    """The Jinja that a checkpoint's folder has for turning messages into a prompt; of several the one named default.

    Raises UsageError where transformers cannot read what is there.
    """
    if _model_type(folder) is None or not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    try:
        template = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True).chat_template
    except Exception as error:  # a tokenizer_config.json may hold anything
        raise UsageError(f"{folder}: the tokenizer's files cannot be read: {first_line(error)}") from None
    return template.get("default") if isinstance(template, dict) else template


def is_exported(file: Path) -> bool:
    """Whether that is a GGUF file that says by its architecture and its name that `write_gguf` made it."""
    with file.open("rb") as opened:
        head = opened.read(1 << 16)  # these entries come first, and weights are gigabytes
    entries = (b"general.architecture", b"kimi-k3"), (b"general.name", b"attnres")
    return head.startswith(b"GGUF") and all(
        key + struct.pack("<IQ", GGUF_STRING, len(value)) + value in head for key, value in entries
    )


def _model_type(folder: Path) -> str | None:
    """What transformers calls the model in the folder; None for a run, and for what is neither."""
    try:
        entries = read_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return entries.get("model_type") if isinstance(entries, dict) else None


@dataclass(frozen=True)
class Agreement:
    """Losses of the same tokens in nats per token."""

    tokens: int
    ours: float
    theirs: float
    largest: float
    """The largest difference of two logits."""


@torch.no_grad()
def compare_exported(
    model: KimiK3ForCausalLM, file: str | Path, batches: Iterable[np.ndarray], threads: int = 1
) -> Agreement:
    """Run texts through the model and through its file in llama.cpp.

    batches: token ids int64 [batch, time + 1], each row a text of its own.
    """
    from attnres.hf.llamacpp import opened

    sequences = [torch.from_numpy(row) for batch in batches for row in batch]
    ours = theirs = largest = 0.0
    with opened(file, context=max(map(len, sequences)), threads=threads) as engine:
        for row in sequences:
            before, after = row[:-1], row[1:]
            engine.forget()
            pair = model(before[None]).logits[0].float(), engine.logits(before.tolist())
            losses = [F.cross_entropy(logits.double(), after, reduction="sum").item() for logits in pair]
            ours, theirs = ours + losses[0], theirs + losses[1]
            largest = max(largest, (pair[0] - pair[1]).abs().max().item())
    tokens = sum(len(row) - 1 for row in sequences)
    return Agreement(tokens, ours / tokens, theirs / tokens, largest)


def validation_text(run: Run, tokens: int) -> Iterable[np.ndarray]:
    """Read so many tokens of the run's validation text, for `compare_exported`.

    Raises UsageError if that text has changed since.
    """
    corpus = open_corpus(run.config.data)
    RunFolder(run.folder).refuse_other_text(corpus, "leave the comparison out")
    return validation_batches(corpus, run.config.model.context, run.config.batch_size, tokens)


def agreement_table(file: Path, found: Agreement) -> TextTable:
    losses = (f"{found.ours:.5f}", f"{found.theirs:.5f}", f"{found.theirs - found.ours:+.5f}")
    columns = ("file", "loss here", "in llama.cpp", "difference", "largest difference of a logit")
    note = f"Nats per token over {found.tokens:,} tokens of the run's validation text."
    return TextTable("The file in llama.cpp", columns, ((file.name, *losses, f"{found.largest:.1e}"),), note)
