"""The measured numbers of the documents: where each is stored, how it is written, and whether a page has it right.

results/cited.toml gives each number a name. A line of prose with measured numbers ends with their names, in the order
of the numbers: `<!-- numbers: demo-block step-block -->`. Tables between `<!-- table: NAME -->` and `<!-- end -->` are
generated from the same records. Numbers are only looked up, never computed, so every machine writes the same text.

    python docs/_site/cited.py            looks them up, writes numbers.json and the tables, lists faulty lines
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from attnres.errors import UsageError
from attnres.files import write_text
from attnres.lab.page import record_hash

CITED, NUMBERS = "cited.toml", "numbers.json"

NUMBER = re.compile(  # no part of a name (H100, AVX-512, 1F1B) or of a version (2.13.0); 1.04x is one
    r"(?<![\w.])(?<![A-Za-z]-)[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?!\.?\d)(?![A-WYZa-wyz])"
)
NAMES = re.compile(r"<!-- numbers: ([^>]*?) -->\s*$")
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
NO_PROSE = re.compile(  # code, formulas, links, comments, dates, commits, sizes of models, arXiv's names
    r"`[^`]*`|(\$\$?)[^$]+\1|!?\[[^\]]*\]\([^)]*\)|<!--.*?-->"
    r"|\b\d{4}-\d\d-\d\d\b|\b(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b|\b\d+x\d+\b"
    r"|\b\d{4}\.\d{5}\b"
)


@dataclass(frozen=True)
class Cited:
    """What the documents cite: results/cited.toml, the records in its folder and the pages in the parent folder."""

    results: Path

    @property
    def root(self) -> Path:
        return self.results.resolve().parent

    @cached_property
    def source(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._text(CITED))
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{self.results / CITED}: {error}") from None

    @cached_property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """For each name: the stored value, the text that pages must have, and where the value is stored."""
        found = {}
        for name, spec in self.source["numbers"].items():
            values = self._values(name, spec)
            value = values[0] if len(values) == 1 else values
            place = [spec[key] for key in ("record", "section", "table", "row", "column") if key in spec]
            found[name] = {"value": value, "text": written(values, spec), "from": ": ".join(map(str, place))}
        return found

    def numbers_json(self) -> str:
        return json.dumps(self.numbers, indent=1, ensure_ascii=False) + "\n"

    def with_tables(self, page: str) -> str:
        """The page, with its tables generated again from the records."""
        return TABLE.sub(lambda found: f"{found[1]}\n{self._table(found[2])}\n\n{found[3]}", page)

    def write(self) -> None:
        """Write numbers.json and the tables of the pages."""
        write_text(self.results / NUMBERS, self.numbers_json())
        for name in self.source["pages"]:
            write_text(self.root / name, self.with_tables(self._page(name)))

    def faults(self) -> list[str]:
        """List what is wrong in the pages, one line per fault."""
        again, named, phrases = "run python docs/_site/cited.py", set(), set()
        path = self.results / NUMBERS
        faults = [f"{path}: not what the records say; {again}"] * (_read(path) != self.numbers_json())
        for name in self.source["pages"]:
            page = self._page(name)
            if self.with_tables(page) != page:
                faults.append(f"{name}: a table is not what the records say; {again}")
            for place, line in prose(page):
                names = [one for found in NAMES.findall(line) for one in found.split()]
                rest = self._without_phrases(line, phrases)
                unknown = [one for one in names if one not in self.numbers]
                named.update(names)
                shown = NUMBER.findall(rest)
                cited = [one for of in names if of not in unknown for one in NUMBER.findall(self.numbers[of]["text"])]
                if unknown or shown != cited:
                    told = f"has {', '.join(shown) or 'none'}; the names it ends with give {', '.join(cited) or 'none'}"
                    faults.append(f"{name}:{place}: {told}{''.join(f'; {one} is no name' for one in unknown)}")
        faults += [f"{CITED}: no page cites {name}" for name in self.numbers if name not in named]
        faults += [f"{CITED}: no page has {phrase!r}" for phrase in self.source["elsewhere"] if phrase not in phrases]
        return faults + self._stale_tables()

    def _without_phrases(self, line: str, met: set[str]) -> str:
        """The prose of a line without the phrases of [elsewhere], whose numbers are not ours; adds those to met."""
        rest = NO_PROSE.sub(" ", line)
        for phrase in sorted(self.source["elsewhere"], key=len, reverse=True):
            form = re.escape(phrase).replace(r"\#", r"\d[\d,]*")
            rest, count = re.subn(rf"(?<!\d)(?<!\d[.,]){form}(?!\w)(?![.,]\d)", " ", rest)
            if count:
                met.add(phrase)
        return rest

    def _stale_tables(self) -> list[str]:
        """List the records that have changed since results/tables.md was generated."""
        name = self.source["tables"]
        told = re.findall(r"^- sha256 of results/(\S+): (\w+)$", self._page(name), re.MULTILINE)
        now = {record: record_hash(_read(self.results / record)) for record, _ in told}
        stale = [record for record, then in told if now[record] != then]
        return [f"{name}: results/{record} is another; run attnres report --tables > {name}" for record in stale]

    def _table(self, name: str) -> str:
        if name not in self.source.get("table", {}):
            raise UsageError(f"{CITED}: there is no table {name!r}")
        of = self.source["table"][name]
        shared = {key: value for key, value in of.items() if key not in ("head", "rows", "columns")}
        lines = [[of["head"], *(column["head"] for column in of["columns"])]]
        for row, label in of["rows"].items():
            specs = [{"row": "{row}", **shared, **column} for column in of["columns"]]
            cells = [{key: _filled(value, row) for key, value in spec.items()} for spec in specs]
            lines.append([label, *(written(self._values(name, spec), spec) for spec in cells)])
        head, *rows = (f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
        return "\n".join([head, "|" + "---|" * len(lines[0]), *rows])

    def _values(self, name: str, spec: Mapping[str, Any]) -> list[Any]:
        """The stored values of one citation, from the record of a benchmark or from the cells of results/tables.md."""
        columns = [spec["column"]] if isinstance(spec["column"], str) else spec["column"]
        if "record" in spec:
            rows = json.loads(self._text(spec["record"]))["rows"]
            cells = [{**row, **row["details"]} for row in rows if row["what"].startswith(spec["row"])]
        else:
            cells = [row for line, row in self._rows(spec) if line.startswith(f"| {spec['row']} |")]
        if not cells and spec.get("optional"):
            return []
        if len(cells) != 1 or not all(column in cells[0] for column in columns):
            raise UsageError(f"{CITED}: {name}: {len(cells)} rows fit {dict(spec)}, and one must, with its columns")
        return [cells[0][column] for column in columns if cells[0][column] != ""]

    def _rows(self, spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
        """The rows of a table of results/tables.md: each line, and its cells by column."""
        _, _, section = self._page(self.source["tables"]).partition(f"\n## {spec['section']}\n")
        _, _, rest = section.partition("\n## ")[0].partition(f"\n### {spec['table']}\n")
        lines = [line for line in rest.partition("\n#")[0].splitlines() if line.startswith("|")]
        columns = [cell.strip() for cell in lines[0].strip("|").split("|")] if lines else []
        for line in lines[2:]:
            yield line, dict(zip(columns, (cell.strip() for cell in line.strip("|").split("|")), strict=True))

    def _page(self, name: str) -> str:
        return _read(self.root / name)

    def _text(self, name: str) -> str:
        if not (self.results / name).is_file():
            raise UsageError(f"{self.results / name}: there is no such file")
        return _read(self.results / name)


def _filled(value: Any, row: str) -> Any:
    return value.replace("{row}", row) if isinstance(value, str) else value


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def written(values: list[Any], spec: Mapping[str, Any]) -> str:
    """The stored values as pages show them: each number is scaled, rounded half up, and signed as `spec` says.

    With `must_be`, "at least" or "at most", the values are a measured number and its goal: say whether it is missed.
    """

    def number(found: re.Match[str]) -> str:
        value = Decimal(found[0].replace(",", "")) * Decimal(str(spec.get("scale", 1)))
        value = value.quantize(Decimal(1).scaleb(-spec["digits"]), ROUND_HALF_UP)
        sign = "+" if found[0].startswith("+") and spec.get("sign", True) else ""
        return f"{value if spec.get('sign', True) else abs(value):{sign}f}"

    if "must_be" in spec:
        shown = written(values[:1], {key: value for key, value in spec.items() if key != "must_be"})
        measured, must = (Decimal(NUMBER.findall(str(text))[0]) for text in (shown, values[1]))
        return "**missed**" * (measured < must if spec["must_be"] == "at least" else measured > must)
    texts = map(str, values)
    if "digits" in spec:
        texts = (NUMBER.sub(number, text) for text in texts)
    if "pick" in spec:
        texts = (NUMBER.findall(text)[spec["pick"]] for text in texts)
    return " ± ".join(texts) + spec.get("unit", "") * bool(values)


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page, numbered, without code, headings, pictures and generated tables."""
    for made in (CODE, TABLE):
        page = made.sub(lambda found: "\n" * found[0].count("\n"), page)
    for place, line in enumerate(page.splitlines(), 1):
        if not line.startswith(("#", "    ", "![")):
            yield place, line


if __name__ == "__main__":
    cited = Cited(Path(__file__).parents[2] / "results")
    cited.write()
    faults = cited.faults()
    print(*faults, f"{len(cited.numbers)} numbers, {len(faults)} faults", sep="\n")
    sys.exit(bool(faults))
