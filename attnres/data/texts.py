"""Which text a configuration means: a package's Python sources, the standard library's, files, or a dataset."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres.data.dataconfig import DataConfig
from attnres.data.documents import (
    Counts,
    DatasetRows,
    Documents,
    TextFiles,
    describe_counts,
    expand,
    shorten,
    walk,
)
from attnres.errors import UsageError

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class KnownText:
    """The .py files of an installed package, sorted by the parts of their paths, without empty ones, with LF line ends.

    Published losses are of these bytes and this split, so known_texts.json has both.
    """

    package: str
    version: str
    bytes: int
    sha256: str
    """The hash of the files one after the other, a zero byte behind each."""
    left_out: list[str]
    """Paths of files that differ between builds of the version."""
    families: list[list[int]]
    """The numbers of files that share half of their lines or more, such as generated variants. A family is held out
    whole or not at all: otherwise training text would have most of a validation text in it."""


# Compared file by file for torch 2.13.0: wheels for Linux (x86-64 without a GPU, aarch64 with one), macOS and Windows,
# Python 3.11 to 3.13. Both packages are under the BSD-3-Clause licence; what torch vendors (torch/_vendor,
# torch/_inductor/kernel/vendored_templates) is under that or Apache-2.0. The text is read where pip has put it.
KNOWN = {
    record["package"]: KnownText(**record)
    for record in json.loads(Path(__file__).with_name("known_texts.json").read_text(encoding="utf-8"))
}


def open_documents(config: DataConfig, cache: Path) -> Documents:
    """The documents of the configuration. Raises UsageError where there are none; reads no text yet."""
    if config.dataset in KNOWN:
        return PackageText(KNOWN[config.dataset])
    if config.dataset == "stdlib":
        label = f"Python {platform.python_version()} standard library"
        return TextFiles(label, dict.fromkeys(_standard_library(), False), config.dataset_column)
    if config.dataset:
        return DatasetRows(config, cache)
    files = {
        file: named for file, named in expand(config.paths).items() if cache.resolve() not in file.resolve().parents
    }
    return TextFiles(shorten(config.paths), files, config.dataset_column)


class PackageText(Documents):
    """A text of known bytes. Once its tokens are in the cache, the package need not be installed any more."""

    def __init__(self, known: KnownText) -> None:
        self.known = known
        self.families = known.families

    def identity(self) -> list[Any]:
        return ["package", self.known.package, self.known.version, self.known.sha256]

    def read(self) -> Iterator[str | None]:
        """Raises UsageError where another version is installed, or, at the end, where a file is not as it was."""
        root, sha = self._root(), hashlib.sha256()
        files = {path.relative_to(root).parts: path for path in root.rglob("*.py")}
        for parts in sorted(files):
            content = files[parts].read_bytes().replace(b"\r\n", b"\n")
            if content and "/".join(parts) not in self.known.left_out:
                sha.update(content + b"\0")
                yield content.decode("utf-8", errors="replace")
        if sha.hexdigest() != self.known.sha256:
            raise self._wrong(f"the .py files in {root} have changed", "--force-reinstall --no-deps ")

    def describe(self, counts: Counts) -> str:
        return f"Python sources of {self.known.package} {self.known.version}, {describe_counts(counts, 'file')}"

    def _root(self) -> Path:
        package = self.known.package
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed = "none"
        spec = importlib.util.find_spec(package)
        if installed.partition("+")[0] != self.known.version or not spec or not spec.submodule_search_locations:
            raise self._wrong(f"installed is {installed}")
        return Path(spec.submodule_search_locations[0])

    def _wrong(self, what: str, options: str = "") -> UsageError:
        pin = f"{self.known.package}=={self.known.version}"
        others = ", ".join(f"--data.dataset {name}" for name in (*KNOWN, "stdlib") if name != self.known.package)
        return UsageError(
            f"{what}, but this text is the source code of {pin}: pip install {options}{pin}, or choose another "
            f"text: {others} or --data.paths"
        )


def _standard_library() -> list[Path]:
    """Its .py files without tests, and without what describes the machine it was built on, in sorted order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        path
        for path in walk(root, lambda name: name in SKIPPED_FOLDERS or name.startswith("config-"))
        if path.suffix == ".py" and not path.name.startswith("_sysconfigdata")
    ]
