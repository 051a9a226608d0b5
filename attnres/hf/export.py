"""A Kimi K3 model for others, with its tokenizer: a file of any of llama.cpp's types, or the published form."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from attnres.data import Tokenizer
from attnres.data.tokenizer import END_TOKENS, byte_characters, import_tokenizers
from attnres.hf.gguf import TYPES, write_gguf
from attnres.hf.k3 import KimiK3ForCausalLM
from attnres.hf.k3.published import save_into
from attnres.hf.llamacpp import quantize


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
    """Write into an empty folder the published form, and what tells transformers the tokenizer and the template."""
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
    save_into(folder, model, files=files)


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
