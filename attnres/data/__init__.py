"""Text to tokens: corpora, tokenizers, the order of training and the fixed validation set."""

from typing import TYPE_CHECKING

from attnres.lazy import on_first_use

if TYPE_CHECKING:
    from attnres.data.corpus import Corpus, check_length, in_bits, open_corpus
    from attnres.data.dataconfig import DataConfig
    from attnres.data.sampler import Sampler, validation_batches, validation_bytes_per_token
    from attnres.data.tokenizer import StreamDecoder, Tokenizer, load_tokenizer, tokenizer_from_json

__all__ = [
    "Corpus",
    "DataConfig",
    "Sampler",
    "StreamDecoder",
    "Tokenizer",
    "check_length",
    "in_bits",
    "load_tokenizer",
    "open_corpus",
    "tokenizer_from_json",
    "validation_batches",
    "validation_bytes_per_token",
]

__getattr__ = on_first_use(__name__)
