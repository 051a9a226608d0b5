"""A Kimi K3 model for others, with its tokenizer: a file of any of llama.cpp's types, or the published form."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from attnres.data import Tokenizer, load_tokenizer, open_corpus, validation_batches
from attnres.data.tokenizer import END_TOKENS, byte_characters, import_tokenizers
from attnres.errors import UsageError
from attnres.files import RUN, folder_kind
from attnres.kimi_k3.gguf import TYPES, write_gguf
from attnres.kimi_k3.llamacpp import opened, quantize
from attnres.kimi_k3.model import KimiK3ForCausalLM, load
from attnres.kimi_k3.published import save
from attnres.kimi_k3.trained import from_transformer
from attnres.texttable import TextTable
from attnres.train import Run, load_run
from attnres.train.folder import RunFolder


def open_model(folder: Path, best: bool = False) -> tuple[Run | None, KimiK3ForCausalLM, Tokenizer | None]:
    """Open a run of the backbone kimi_k3, or a Kimi K3 checkpoint: the run if it is one, the model, its tokenizer.

    Raises UsageError where it is neither.
    """
    kind = folder_kind(folder)
    if kind in ("", RUN):
        run = load_run(folder, best)
        return run, from_transformer(run.model, run.tokenizer.end), run.tokenizer
    if kind != "kimi_k3":
        raise UsageError(
            f"{folder} is a model of type {kind}: llama.cpp has attention over depth in Kimi K3 alone; give a run with "
            "--model.backbone kimi_k3 or a Kimi K3 checkpoint (for plain models llama.cpp has a converter of its own)"
        )
    tokenizer = load_tokenizer(str(folder)) if (folder / "tokenizer.json").is_file() else None
    return None, load(folder), tokenizer


def own_template(folder: Path) -> str | None:
    """The Jinja that a checkpoint's folder has for turning messages into a prompt; of several the one named default."""
    if folder_kind(folder) == RUN or not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    template = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True).chat_template
    return template.get("default") if isinstance(template, dict) else template


def write_file(
    model: KimiK3ForCausalLM, path: Path, kind: str, tokenizer: Tokenizer | None, chat_template: str | None
) -> None:
    """Write a GGUF file of a type that `write_gguf` makes, or llama.cpp of that one's float32.

    Raises:
        UsageError: the gguf library or llama.cpp is missing, or has no place for the model or its tokenizer.
    """
    if kind in TYPES:
        write_gguf(model, path, tokenizer, kind, chat_template=chat_template)
        return
    with tempfile.TemporaryDirectory(dir=path.absolute().parent) as folder:
        whole = Path(folder) / "f32.gguf"
        write_gguf(model, whole, tokenizer, chat_template=chat_template)
        quantize(whole, path, kind)


def write_published(
    model: KimiK3ForCausalLM, folder: Path, tokenizer: Tokenizer | None, chat_template: str | None
) -> None:
    """Write a new folder in the published form, with what tells transformers the tokenizer and the template."""
    files = {}
    if tokenizer is not None:
        record = tokenizer.to_json()
        library = _bytes_for_the_library() if record["kind"] == "bytes" else record["tokenizer"]
        files["tokenizer.json"] = json.dumps(library)
        names = {added["id"]: added["content"] for added in library.get("added_tokens", [])}
        end = names.get(model.config.eos_token_id)
        files["tokenizer_config.json"] = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end})
    if chat_template is not None:
        files["chat_template.jinja"] = chat_template
    save(model, folder, files=files)


def _bytes_for_the_library() -> dict[str, Any]:
    """A tokenizer.json that gives every byte its own id, and 0, the separator of the byte tokenizer, to the end token.

    A zero byte inside a text has no token there.
    """
    library, end = import_tokenizers(), END_TOKENS[0]
    vocabulary = {name: byte for byte, name in enumerate([end, *byte_characters()[1:]])}
    made = library.Tokenizer(library.models.BPE(vocabulary, []))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    made.add_special_tokens([end])
    return json.loads(made.to_str())


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
