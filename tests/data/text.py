"""Small texts, a tokenizer trained on them, and what a corpus of bytes made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tokenizers

TEXT = "def depth(x):\n    return sum(x)  # é€😀\n" * 20


def library_tokenizer(special_tokens: list[str] | None = None) -> tokenizers.Tokenizer:
    """Byte-level BPE with more than 256 ids."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special_tokens or [],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def write_documents(folder: Path, count: int = 40) -> list[str]:
    """Files of different text and length. Returns their texts in sorted order."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"document {i}: " + f"{i * i} é " * (5 + i % 7) for i in range(count)]
    for i, text in enumerate(texts):
        (folder / f"{i:03}.txt").write_text(text, encoding="utf-8")
    return texts


def documents_of(tokens: np.ndarray) -> list[str]:
    return [text.decode() for text in tokens.tobytes().split(b"\0")[:-1]]
