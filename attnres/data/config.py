"""Where the text comes from, as one typed record."""

from __future__ import annotations

from dataclasses import dataclass

from attnres.errors import UsageError


@dataclass(frozen=True)
class DataConfig:
    """The corpus and its tokenizer. With nothing set: the embedded corpus, byte by byte."""

    paths: tuple[str, ...] = ()
    """Files, folders or globs to read as text (.jsonl: a document in each line). Empty: the Python standard library."""
    dataset: str | None = None
    """A name or local folder for `datasets.load_dataset` instead of paths (extra: hf)."""
    dataset_config: str | None = None
    """The dataset's configuration, where it has several."""
    dataset_split: str = "train"
    """The split of the dataset."""
    dataset_column: str = "text"
    """The column of the dataset that holds the text; in .jsonl files of `paths` the field."""
    tokenizer: str = "bytes"
    """`bytes`, or a tokenizer.json file or a hub name for `tokenizers` (extra: hf)."""
    validation_fraction: float = 0.05
    """Share of the documents (by their tokens) held out for validation."""
    cache: str | None = None
    """Folder for the memory-mapped tokens; a folder of the user's cache when not given."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_fraction < 1:
            raise UsageError(f"validation_fraction must lie between 0 and 1, not {self.validation_fraction}")
        if self.paths and self.dataset:
            raise UsageError("give either paths or a dataset, not both")
