"""A byte-pair tokenizer that is learned from a corpus's training part and kept in the cache."""

from __future__ import annotations

from pathlib import Path

from attnres.data.cache import Progress, digest
from attnres.data.documents import Documents
from attnres.data.split import split_documents
from attnres.data.tokenizer import END_TOKENS, Tokenizer, import_tokenizers, tokenizer_from_file
from attnres.errors import UsageError
from attnres.files import locked, write_text

BYTE_PAIRS = "bpe:"
FORMAT = 1  # part of the key: raise it when the same text would give another tokenizer
FEWEST = 257  # every byte, and the end of a text


def vocabulary_size(name: str) -> int | None:
    """The N of `bpe:N`, None for other names. Raises UsageError on a number that is none or too small."""
    if not name.startswith(BYTE_PAIRS):
        return None
    size = name.removeprefix(BYTE_PAIRS)
    if not (size.isdecimal() and len(size) < 10 and int(size) > FEWEST):
        raise UsageError(f"tokenizer {name!r}: write bpe:N with N above {FEWEST} (all bytes and the end of a text)")
    return int(size)


def learned_tokenizer(documents: Documents, size: int, fraction: float, root: Path, progress: Progress) -> Tokenizer:
    """Byte-level BPE with `size` ids, from `root` or learned there from the training part.

    The first ids are `<|endoftext|>`, which ends documents, and the 256 bytes; text is cut into words as GPT-2 does.
    All text comes back but `<|endoftext|>` itself, which is the end of a document anywhere.
    """
    file = root / f"{digest([FORMAT, documents.identity, size, fraction])[:32]}.json"
    if not file.is_file():
        root.mkdir(parents=True, exist_ok=True)
        with locked(file.with_suffix(".lock"), taken=lambda: progress("waiting", 0, 0)):
            if not file.is_file():  # another process may have learned it meanwhile
                write_text(file, _learn(documents, size, fraction, progress))
    return tokenizer_from_file(file)


def _learn(documents: Documents, size: int, fraction: float, progress: Progress) -> str:
    """The tokenizer.json."""
    library, split = import_tokenizers(), split_documents(documents, fraction)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_TOKENS[0]],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    progress("learning byte pairs of", 0, 0)
    tokenizer.train_from_iterator((text for text, held in split.texts(documents) if not held), trainer)
    return tokenizer.to_str()
