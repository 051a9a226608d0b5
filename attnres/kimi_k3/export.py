"""Export a Kimi K3 model with its tokenizer: what is read, and the published form that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnres.data import Tokenizer, load_tokenizer
from attnres.data.tokenizer import END_TOKENS, byte_characters, import_tokenizers
from attnres.errors import UsageError
from attnres.files import RUN, folder_kind
from attnres.kimi_k3.model import KimiK3ForCausalLM, load
from attnres.kimi_k3.published import save
from attnres.kimi_k3.trained import from_transformer
from attnres.train import load_run


def open_model(folder: Path, best: bool = False) -> tuple[KimiK3ForCausalLM, Tokenizer | None]:
    """Open a run of the backbone kimi_k3, or a Kimi K3 checkpoint: the model and its tokenizer.

    Raises UsageError where it is neither.
    """
    kind = folder_kind(folder)
    if kind in ("", RUN):
        run = load_run(folder, best)
        return from_transformer(run.model, run.tokenizer.end), run.tokenizer
    if kind != "kimi_k3":
        raise UsageError(
            f"{folder} is a model of type {kind}: llama.cpp has attention over depth in Kimi K3 alone; give a run with "
            "--model.backbone kimi_k3 or a Kimi K3 checkpoint (for plain models llama.cpp has a converter of its own)"
        )
    tokenizer = load_tokenizer(str(folder)) if (folder / "tokenizer.json").is_file() else None
    return load(folder), tokenizer


def own_template(folder: Path) -> str | None:
    """The Jinja that a checkpoint's folder has for turning messages into a prompt; of several the one named default."""
    if folder_kind(folder) == RUN or not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    template = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True).chat_template
    return template.get("default") if isinstance(template, dict) else template


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
