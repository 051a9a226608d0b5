"""What ruff does not see: long lines in the code of other languages, and the version's places."""

from __future__ import annotations

from pathlib import Path

from attnres.version import __version__

PACKAGE = Path(__file__).parents[2] / "attnres"


def test_lines_of_code_are_at_most_120_long():
    for path in (path for path in PACKAGE.rglob("*") if path.suffix in (".cpp", ".h", ".js", ".css")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == [], path.name


def test_the_version_is_the_changelogs_newest_and_readmes():
    heading = (PACKAGE.parent / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()[2]
    version, _, unreleased = __version__.partition(".dev")
    assert heading == f"## {version} (unreleased)" if unreleased else heading.startswith(f"## {version} ")
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    assert unreleased or f"\nVersion {version} " in readme
