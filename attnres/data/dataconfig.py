"""Where the text comes from, as one typed record."""

from __future__ import annotations

from dataclasses import dataclass

from attnres.errors import UsageError

DEFAULT_DATASET = "torch"


@dataclass(frozen=True)
class DataConfig:
    """The corpus and its tokenizer. With nothing set: the Python sources of torch, byte by byte."""

    paths: tuple[str, ...] = ()
    """Files, folders or globs to read as text (.jsonl: a document in each line), in place of the dataset. Of a folder
    hidden files are left out, and folders of runs and records in it."""
    dataset: str | None = DEFAULT_DATASET
    """`torch` or `sympy`: the Python sources of that package, known byte for byte; `stdlib`: those of this Python's
    standard library; or a name or local folder for `datasets.load_dataset` (extra: hf). None where paths are given."""
    dataset_config: str | None = None
    """The dataset's configuration, where it has several."""
    dataset_split: str = "train"
    """The split of the dataset."""
    dataset_column: str = "text"
    """The column of the dataset that holds the text; in .jsonl files of `paths` the field."""
    tokenizer: str = "bytes"
    """`bytes`; `bpe:2048` for that many byte pairs learned from the training part; or a tokenizer.json file or a hub
    name. All but bytes need `tokenizers` (extra: hf)."""
    validation_fraction: float = 0.05
    """Share of the documents (by their bytes) held out for validation."""
    cache: str | None = None
    """Folder for the memory-mapped tokens; a folder of the user's cache when not given."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_fraction <= 0.5:
            raise UsageError(f"validation_fraction must be above 0 and at most 0.5, not {self.validation_fraction}")
        if isinstance(self.paths, str):
            raise UsageError(f"paths must be a tuple of files or folders, such as ({self.paths!r},), not a string")
        if self.paths and self.dataset == DEFAULT_DATASET:
            object.__setattr__(
                self, "dataset", None
            )  # so that a run's config.json names what was read and nothing else
        if self.paths and self.dataset:
            raise UsageError("give either paths or a dataset, and not both")
        if not (self.paths or self.dataset):
            raise UsageError("neither paths nor a dataset is given; give one of them")
