"""Every measured number in the prose names where it is stored, and is what is stored there."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from attnres import UsageError
from attnres.lab.page import record_hash

ROOT = Path(__file__).parents[2]
NUMBERS = runpy.run_path(str(ROOT / "docs" / "_site" / "cited.py"))
Cited, written = NUMBERS["Cited"], NUMBERS["written"]

CITED = """
pages = ["README.md"]
tables = "results/tables.md"
[numbers]
step = { record = "bench.json", row = "step, block", column = "ratio", digits = 2 }
gain = { section = "A", table = "B", row = "block | 16x32", column = "difference", digits = 3 }
[table.steps]
record = "bench.json"
head = "rule"
rows = { "step, block" = "`block`" }
columns = [
    { head = "ms", column = "block, ms", digits = 1 },
    { head = "share", column = "ratio", scale = 100, digits = 0, unit = "%" },
]
[elsewhere]
"# layers" = "a setting"
"""
README = """\
# attnres 1.5

With 16 layers a step of torch 2.13.0 takes 1.04x and ends at -0.050 ± 0.004. <!-- numbers: step gain -->

<!-- table: steps -->
<!-- end -->
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A page with two numbers, one of a record and one of the tables, and a table."""
    monkeypatch.chdir(tmp_path)
    rows = [{"what": "step, block, d 64", "ratio": 1.0418, "details": {"block, ms": 12.34}}]
    files = {"bench.json": json.dumps({"rows": rows}), "cited.toml": CITED, "lab.json": "{}"}
    for folder, texts in {"results": files, ".": {"README.md": README}, "docs": {}}.items():
        Path(folder).mkdir(exist_ok=True)
        for name, text in texts.items():
            Path(folder, name).write_text(text, encoding="utf-8")
    table = "| rule | size | difference |\n|---|---|---|\n| block | 16x32 | -0.0496 ± 0.0035 |\n"
    tables = f"# Tables\n\n## A\n\n### B\n\n{table}\n- sha256 of results/lab.json: {record_hash('{}')}\n"
    Path("results/tables.md").write_text(tables, encoding="utf-8")
    Cited(tmp_path / "results").write()
    return tmp_path


def change(path: str, old: str, new: str) -> list[str]:
    """The faults that are found once a file has new for old."""
    text = Path(path).read_text(encoding="utf-8")
    assert old in text
    Path(path).write_text(text.replace(old, new), encoding="utf-8")
    return Cited(Path("results")).faults()


def test_the_documents_numbers_are_the_records():
    assert Cited(ROOT / "results").faults() == []


def test_every_record_has_its_section_of_tables():
    tables = (ROOT / "results" / "tables.md").read_text(encoding="utf-8")
    told = re.findall(r"^- sha256 of results/(\S+): ", tables, re.M)
    records = [path.name for path in (ROOT / "results").glob("*.json") if '"kind"' in path.read_text()[:100]]
    assert sorted(told) == sorted(records)


def test_what_is_right_has_no_fault_and_is_looked_up(project):
    assert Cited(Path("results")).faults() == []
    numbers = json.loads(Path("results/numbers.json").read_text(encoding="utf-8"))
    assert numbers["step"] == {"value": 1.0418, "text": "1.04", "from": "bench.json: step, block: ratio"}
    assert numbers["gain"]["text"] == "-0.050 ± 0.004"
    assert "| `block` | 12.3 | 104% |" in Path("README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "old", "new", "told"),
    [
        ("README.md", "1.04x", "1.05x", "README.md:3: has 1.05, -0.050, 0.004"),
        ("README.md", "1.04x", "more", "README.md:3"),
        ("README.md", "16 layers", "16.5 layers", "README.md:3: has 16.5"),
        ("README.md", "layers a", "layers 7% of a", "README.md:3: has 7"),
        ("README.md", "-0.050", "0.050", "README.md:3"),
        ("README.md", "step gain", "step gone", "gone is no name"),
        ("README.md", "12.3", "12.4", "README.md: a table"),
        ("README.md", "16 layers", "layers", "no page has '# layers'"),
        (
            "results/cited.toml",
            "gain =",
            'same = { record = "bench.json", row = "step", column = "what" }\ngain =',
            "no page cites same",
        ),
        ("results/bench.json", "1.0418", "1.0481", "numbers.json: not what the records say"),
        ("results/bench.json", "12.34", "13.34", "README.md: a table"),
        ("results/lab.json", "{}", "[]", "results/lab.json is another"),
        ("results/tables.md", "0.0035", "0.0055", "numbers.json"),
    ],
)
def test_a_fault_is_found(project, path, old, new, told):
    assert any(told in fault for fault in change(path, old, new))


def test_a_place_that_holds_no_number_is_an_error(project):
    with pytest.raises(UsageError, match="step: 0 rows fit"):
        change("results/cited.toml", "step, block", "step, full")


MOST, LEAST = {"digits": 2, "must_be": "at most"}, {"digits": 2, "must_be": "at least"}


@pytest.mark.parametrize(
    ("values", "spec", "text"),
    [
        ([0.0285], {"digits": 3}, "0.029"),
        (["1.14x [1.045, 1.24]"], {"digits": 2}, "1.14x [1.05, 1.24]"),
        (["+0.0024 ± 0.0009"], {"digits": 3, "pick": 0, "sign": False}, "0.002"),
        ([28.84], {"digits": 0, "unit": "x"}, "29x"),
        (["not measured"], {}, "not measured"),
        ([1.0303, "1.03"], MOST, ""),
        ([1.2170, "1.15"], MOST, "**missed**"),
        ([37.5, "20x"], LEAST, ""),
        ([2.9, "3x"], LEAST, "**missed**"),
    ],
)
def test_how_a_number_is_written(values, spec, text):
    """Rounded half up in decimals, whatever the machine; of one with its goal, whether it is missed."""
    assert written(values, spec) == text
