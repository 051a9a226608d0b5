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

from attnres.data.dataconfig import DataConfig
from attnres.data.documents import Documents, dataset_rows, expand, shorten, text_files, walk
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
        return package_text(KNOWN[config.dataset])
    if config.dataset == "stdlib":
        label = f"Python {platform.python_version()} standard library"
        return text_files(label, _standard_library(), config.dataset_column)
    if config.dataset:
        return dataset_rows(config, cache)
    files = [file for file in expand(config.paths) if cache.resolve() not in file.resolve().parents]
    return text_files(shorten(config.paths), files, config.dataset_column)


def package_text(known: KnownText) -> Documents:
    """A text of known bytes. Once its tokens are in the cache, the package need not be installed any more."""
    package, version = known.package, known.version

    def wrong(what: str, options: str = "") -> UsageError:
        pin = f"{package}=={version}"
        others = ", ".join(f"--data.dataset {name}" for name in (*KNOWN, "stdlib") if name != package)
        return UsageError(
            f"{what}, but this text is the source code of {pin}: pip install {options}{pin}, or choose another "
            f"text: {others} or --data.paths"
        )

    def installed_root() -> Path:
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed = "none"
        spec = importlib.util.find_spec(package)
        if installed.partition("+")[0] != version or not spec or not spec.submodule_search_locations:
            raise wrong(f"installed is {installed}")
        return Path(spec.submodule_search_locations[0])

    def read() -> Iterator[str]:
        root, sha = installed_root(), hashlib.sha256()
        files = {path.relative_to(root).parts: path for path in root.rglob("*.py")}
        for parts in sorted(files):
            content = files[parts].read_bytes().replace(b"\r\n", b"\n")
            if content and "/".join(parts) not in known.left_out:
                sha.update(content + b"\0")
                yield content.decode("utf-8", errors="replace")
        if sha.hexdigest() != known.sha256:
            raise wrong(f"the .py files in {root} have changed", "--force-reinstall --no-deps ")

    identity = ["package", package, version, known.sha256]
    return Documents(f"Python sources of {package} {version}", identity, read, known.families)


def _standard_library() -> list[Path]:
    """Its .py files without tests, and without what describes the machine it was built on, in sorted order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        path
        for path in walk(root, lambda name: name in SKIPPED_FOLDERS or name.startswith("config-"))
        if path.suffix == ".py" and not path.name.startswith("_sysconfigdata")
    ]
