"""Tokenizers: bytes, and any of the `tokenizers` library.

A tokenizer goes into a run folder as JSON (`to_json`, `tokenizer_from_json`), so that generation needs nothing else.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attnres.data.hub import hub_or_cache
from attnres.errors import UsageError, first_line, install_command

# An end-of-text token by any of these names separates documents; the first one that the vocabulary knows is taken.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>", "</s>", "<eos>", "[EOS]", "[SEP]")


class StreamDecoder(Protocol):
    """Text as its ids arrive, never cutting a character: "".join of all the returns equals `decode` of all the ids."""

    def feed(self, token: int) -> str:
        """The text that this id completes; often empty."""
        ...

    def finish(self) -> str:
        """What is left at the end: an incomplete character, as U+FFFD."""
        ...


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int:
        """All ids lie in 0..vocab_size-1."""
        ...

    @property
    def separator(self) -> tuple[int, ...]:
        """The ids that follow every document of a corpus."""
        ...

    @property
    def end(self) -> int | None:
        """The id that ends a text, if there is one of its own for that."""
        ...

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of the text; with `special`, those too that the tokenizer adds, such as one for the beginning."""
        ...

    def spans(self, text: str, special: bool = False) -> list[tuple[int, int]]:
        """Tell which characters each id of `encode` covers, start and stop; parts of one character share it.

        A special token covers none: (0, 0).
        """
        ...

    def piece(self, token: int) -> bytes:
        """What one id stands for by itself, which may be a part of a character."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of many texts at once, as arrays of `dtype`."""
        ...

    def count_lost(self, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> int:
        """Count the texts that do not come back from their ids: with unknown characters, spaces or case changed."""
        ...

    def count_bytes(self, ids: np.ndarray) -> int:
        """Count the UTF-8 bytes of the text that the ids stand for."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids. Never fails on ids below vocab_size: what is no valid UTF-8 becomes U+FFFD."""
        ...

    def stream_decoder(self, before: Sequence[int] = ()) -> StreamDecoder:
        """A decoder of ids one by one. before: the ids that they go on from, whose text is not given out."""
        ...

    def to_json(self) -> dict[str, Any]: ...


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest little-endian unsigned type that holds every id."""
    return np.dtype("u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


class ByteTokenizer:
    """UTF-8, one token per byte. A zero byte separates documents, and seldom stands in text."""

    vocab_size = 256
    separator = (0,)
    end = 0

    def encode(self, text: str, special: bool = False) -> list[int]:
        return list(_utf8(text))

    def spans(self, text: str, special: bool = False) -> list[tuple[int, int]]:
        return [(at, at + 1) for at, character in enumerate(text) for _ in _utf8(character)]

    def piece(self, token: int) -> bytes:
        return bytes([token])

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(_utf8(text), dtype=np.uint8) for text in texts]

    def count_lost(self, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> int:
        return 0

    def count_bytes(self, ids: np.ndarray) -> int:
        return len(ids)

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(_bytes_of, ids)).decode("utf-8", errors="replace")

    def stream_decoder(self, before: Sequence[int] = ()) -> StreamDecoder:
        return _ByteStream()

    def to_json(self) -> dict[str, Any]:
        return {"kind": "bytes"}


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")  # a lone surrogate, as from a broken terminal, becomes "?"


def _bytes_of(token: int) -> bytes:
    """The byte; of an id that a model with room for more draws and no text has, what stands for no character."""
    return bytes([token]) if token < 256 else "\N{REPLACEMENT CHARACTER}".encode()


class _ByteStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(_bytes_of(token))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def _byte_of() -> dict[str, int]:
    """How byte-level tokenizers write bytes: those that can be seen as themselves, the others from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(b): b for b in seen} | {chr(0x100 + n): b for n, b in enumerate(others)}


BYTE_OF = _byte_of()


class LibraryTokenizer:
    """A `tokenizers.Tokenizer`. Its truncation and padding, which many files carry, are switched off.

    The separator is the vocabulary's end-of-text token (`END_TOKENS`), or else the tokens of a newline. The names of
    special tokens become these tokens in text, too, which chats are written with; `decode` leaves them out.
    """

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if not self.vocab_size:
            raise UsageError("the tokenizer has an empty vocabulary; give a trained one")
        ends = [end for end in map(tokenizer.token_to_id, END_TOKENS) if end is not None]
        self.end = ends[0] if ends else None
        self.separator = tuple(ends[:1] or self.encode("\n"))

    def encode(self, text: str, special: bool = False) -> list[int]:
        with _said():
            return self._tokenizer.encode(_utf8(text).decode(), add_special_tokens=special).ids

    def spans(self, text: str, special: bool = False) -> list[tuple[int, int]]:
        return self._tokenizer.encode(_utf8(text).decode(), add_special_tokens=special).offsets

    def piece(self, token: int) -> bytes:
        written = self._tokenizer.id_to_token(token) or ""
        if re.fullmatch("<0x[0-9A-F]{2}>", written):  # sentencepiece's bytes
            return bytes([int(written[3:5], 16)])
        if self._is_byte_level and all(character in BYTE_OF for character in written):
            return bytes(BYTE_OF[character] for character in written)
        return written.replace("▁", " ").encode()

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self._tokenizer.to_str())["decoder"])

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        with _said():
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)  # uses all cores
        return [np.array(encoding.ids, dtype=token_dtype(self.vocab_size)) for encoding in encodings]

    def count_lost(self, texts: Sequence[str], encoded: Sequence[np.ndarray]) -> int:
        decoded = self._tokenizer.decode_batch([ids.tolist() for ids in encoded], skip_special_tokens=False)
        # Many tokenizers add a space before the first word.
        return sum(text.lstrip(" ") != again.lstrip(" ") for text, again in zip(texts, decoded, strict=True))

    def count_bytes(self, ids: np.ndarray) -> int:
        return len(_utf8(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)))

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids])

    def stream_decoder(self, before: Sequence[int] = ()) -> StreamDecoder:
        return _LibraryStream(self, before)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "tokenizers", "tokenizer": json.loads(self._tokenizer.to_str())}


@contextmanager
def _said() -> Iterator[None]:
    """Say in one line what the tokenizer cannot encode, such as an unknown word without a token for those."""
    try:
        yield
    except Exception as error:  # the library has no class of its own
        raise UsageError(f"the tokenizer cannot encode the text: {first_line(error)}") from error


class _LibraryStream:
    """Decodes a short window of ids again at every step: how ids join (spaces, bytes of one character) depends on it.

    The library's own DecodeStream cannot give back an unfinished end, and raises on some sequences of invalid bytes.
    """

    BEFORE = 8
    """Ids before the first that its text may depend on: one word's last, and what of it belongs together."""

    def __init__(self, tokenizer: LibraryTokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = list(before[-self.BEFORE :])  # then the ids of the last text given out: the context of the next
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        self._pending.append(token)
        text = self.finish()
        if not text or text.endswith("\ufffd"):
            return ""
        self._shown, self._pending = self._pending, []
        return text

    def finish(self) -> str:
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
    if path.suffix == ".json":
        raise UsageError(f"there is no tokenizer file {path}; check the path, or leave it out to train on bytes")
    library = import_tokenizers()
    with hub_or_cache() as unreachable:
        try:
            tokenizer = library.Tokenizer.from_pretrained(name)
        except Exception as error:  # the library raises bare Exception
            why = unreachable or first_line(error)
            raise UsageError(f"cannot load the tokenizer {name!r}: no such file, and from the hub: {why}") from None
    return LibraryTokenizer(tokenizer)


def tokenizer_from_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises UsageError where it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError:
        raise UsageError(f"{path} is not a tokenizer.json: it is not UTF-8 text") from None
    return _from_text(text, str(path))


def tokenizer_from_json(record: Mapping[str, Any]) -> Tokenizer:
    """Make the tokenizer whose `to_json` this is. Raises UsageError when the record is none."""
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "tokenizers":
        return _from_text(json.dumps(record.get("tokenizer")), "this record")
    raise UsageError(f"not the record of a tokenizer: its kind is {kind!r}, expected 'bytes' or 'tokenizers'")


def _from_text(text: str, where: str) -> Tokenizer:
    library = import_tokenizers()
    try:
        tokenizer = library.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"{where} is not a tokenizer.json: {first_line(error)}") from None
    return LibraryTokenizer(tokenizer)


def import_tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UsageError(f"this tokenizer needs the tokenizers library: {install_command('hf')}") from None
    return tokenizers
