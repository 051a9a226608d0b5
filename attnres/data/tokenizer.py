"""Tokenizers: bytes, and any of the `tokenizers` library.

A tokenizer goes into a run folder as JSON (`to_json`, `tokenizer_from_json`), so that generation needs nothing else.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from attnres.errors import UsageError, first_line, install_command

CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
"""What may name the `eos_token`: the first that does counts."""
END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
    "</s>",
    "<eos>",
    "[EOS]",
    "[SEP]",
    "<|bos|>",  # nanochat, which has no other between documents
)
"""What separates documents where no `eos_token` is named: the first that the vocabulary knows."""


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest little-endian unsigned type that holds every id."""
    return np.dtype("u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


class ByteTokenizer:
    """UTF-8, one token per byte. A zero byte separates documents, and is rare in text."""

    vocab_size = 256
    """All ids are below it."""
    separator = (0,)
    """The ids that follow every document of a corpus."""
    end = 0
    """The id that ends a text, if there is one of its own for that."""

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of the text; with `special`, those too that the tokenizer adds, such as one for the beginning."""
        return list(_utf8(text))

    def spans(self, text: str, special: bool = False) -> list[tuple[int, int]]:
        """Tell which characters each id of `encode` covers, start and stop; parts of one character share it.

        A special token covers none: (0, 0).
        """
        return [(at, at + 1) for at, character in enumerate(text) for _ in _utf8(character)]

    def piece(self, token: int) -> bytes:
        """The text of one id by itself, which may be a part of a character."""
        return bytes([token])

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of many texts at once, as arrays of `token_dtype`."""
        return [np.frombuffer(_utf8(text), dtype=np.uint8) for text in texts]

    def count_lost(self, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> int:
        """Count the texts that do not come back from their ids: with unknown characters, spaces or case changed."""
        return 0

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids. Never fails on ids below vocab_size: what is no valid UTF-8 becomes U+FFFD."""
        # A model with room for more draws ids that no text has: what stands for no character.
        of_each = (bytes([token]) if token < 256 else "\N{REPLACEMENT CHARACTER}".encode() for token in ids)
        return b"".join(of_each).decode("utf-8", errors="replace")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "bytes"}


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")  # a lone surrogate, as from a broken terminal, becomes "?"


def byte_characters() -> list[str]:
    """The character of each byte in a byte-level vocabulary: printable ones for themselves (GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_OF = {character: byte for byte, character in enumerate(byte_characters())}


class LibraryTokenizer:
    """A `tokenizers.Tokenizer`. Its truncation and padding, which many files carry, are switched off.

    end: what separates documents; where it is not given or not in the vocabulary, the first of `END_TOKENS` that is,
    or else the tokens of a newline. The names of special tokens become these tokens in text, too, which chats are
    written with; `decode` leaves them out.
    """

    def __init__(self, tokenizer: Any, end: str | None = None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer, self._end_name = tokenizer, end
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        ends = (tokenizer.token_to_id(name) for name in (end, *END_TOKENS) if name)
        self.end: int | None = next((token for token in ends if token is not None), None)
        self.separator = tuple(self.encode("\n")) if self.end is None else (self.end,)

    def encode(self, text: str, special: bool = False) -> list[int]:
        return self._tokenizer.encode(_utf8(text).decode(), add_special_tokens=special).ids

    def spans(self, text: str, special: bool = False) -> list[tuple[int, int]]:
        return self._tokenizer.encode(_utf8(text).decode(), add_special_tokens=special).offsets

    def piece(self, token: int) -> bytes:
        written = self._tokenizer.id_to_token(token) or ""
        if re.fullmatch("<0x[0-9A-F]{2}>", written):  # sentencepiece's bytes
            return bytes([int(written[3:5], 16)])
        if self._is_byte_level and all(character in BYTE_OF for character in written):
            return bytes(BYTE_OF[character] for character in written)
        return written.replace("\u2581", " ").encode()

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self._tokenizer.to_str())["decoder"])

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)  # uses all cores
        return [np.array(encoding.ids, dtype=token_dtype(self.vocab_size)) for encoding in encodings]

    def count_lost(self, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> int:
        decoded = self._tokenizer.decode_batch([ids.tolist() for ids in encoded], skip_special_tokens=False)
        # Many tokenizers add a space before the first word.
        return sum(text.lstrip(" ") != again.lstrip(" ") for text, again in zip(texts, decoded, strict=True))

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids])

    def to_json(self) -> dict[str, Any]:
        named = {} if self._end_name is None else {"end": self._end_name}
        return {"kind": "tokenizers", "tokenizer": json.loads(self._tokenizer.to_str()), **named}


Tokenizer: TypeAlias = ByteTokenizer | LibraryTokenizer


def separator_name(tokenizer: Tokenizer) -> str:
    """What follows every document of a corpus, for humans."""
    if tokenizer.end is None:
        return "a newline (the tokenizer has no end-of-text token)"
    name = tokenizer.piece(tokenizer.end).decode()
    return "a zero byte" if name == "\0" else name


class StreamDecoder:
    """Text as its ids arrive, never cutting a character: "".join of all the returns equals `decode` of all the ids.

    It decodes a short window of ids again at every step: how ids join (spaces, bytes of one character) depends on it.
    The library's own DecodeStream cannot give back an unfinished end, and raises on some sequences of invalid bytes.

    before: the ids that the first one goes on from, whose text is not given out.
    """

    BEFORE = 8
    """Ids before the first that its text may depend on: one word's last, and what of it belongs together."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = list(before[-self.BEFORE :])  # then the ids of the last text given out: the context of the next
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """The text that this id completes; often empty."""
        self._pending.append(token)
        text = self.finish()
        if not text or text.endswith("\ufffd"):
            return ""
        self._shown, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """What is left at the end: an incomplete character, as U+FFFD."""
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._pending)[len(before) :]


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer.

    Args:
        name: `bytes`, a tokenizer.json file (or the folder that holds one), or a name on the hub.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    if name == "bytes":
        return ByteTokenizer()
    path = Path(name).expanduser()
    if path.is_dir():
        path /= "tokenizer.json"
    if path.is_file():
        return tokenizer_from_file(path)
    import_tokenizers()
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=["tokenizer.json", *CONFIGS]))
        return tokenizer_from_file(folder / "tokenizer.json")
    except Exception as error:
        raise UsageError(
            f"cannot load the tokenizer {name!r}: no such file, and the hub answers: {first_line(error)}"
        ) from error


def tokenizer_from_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json, and from the `CONFIGS` next to it what ends a text. Raises UsageError."""
    configs = [config for config in map(path.with_name, CONFIGS) if config.is_file()]
    ends = (json.loads(config.read_text(encoding="utf-8")).get("eos_token") for config in configs)
    end = next((end for end in ends if end), None)
    try:
        tokenizer = import_tokenizers().Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"{path} is not a tokenizer.json: {first_line(error)}") from None
    return LibraryTokenizer(tokenizer, end["content"] if isinstance(end, dict) else end)


def tokenizer_from_json(record: Mapping[str, Any]) -> Tokenizer:
    """Make the tokenizer whose `to_json` this is, as a run has it: it puts no special tokens around a text.

    Training does not, so whatever reads the run must not either; a Llama's tokenizer.json would put <s> in front.
    """
    if record["kind"] == "bytes":
        return ByteTokenizer()
    library = {**record["tokenizer"], "post_processor": _without_special(record["tokenizer"].get("post_processor"))}
    return LibraryTokenizer(import_tokenizers().Tokenizer.from_str(json.dumps(library)), record.get("end"))


def _without_special(post: dict[str, Any] | None) -> dict[str, Any] | None:
    """Of a tokenizer.json's post-processors the one that adds no tokens: it says which characters a token covers."""
    parts = [] if post is None else post["processors"] if post["type"] == "Sequence" else [post]
    return next((part for part in parts if part["type"] == "ByteLevel"), None)


def import_tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UsageError(f"this tokenizer needs the tokenizers library: {install_command('hf')}") from None
    return tokenizers
