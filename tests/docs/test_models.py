"""docs/TRANSFORMERS.md's table of what attaches is results/models.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "models.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "TRANSFORMERS.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## What attaches\n")[2].partition("\n## ")[0]


def test_the_table_has_every_type_with_its_outcome():
    shown = {
        line[0]: (int(line[1]), line[2].split())
        for line in re.findall(r"^\| ([^|]+) \| (\d+) \| (.*) \|$", SECTION, re.M)
    }
    types: dict[str, list[str]] = {}
    for row in RECORD["rows"]:
        types.setdefault(row["outcome"], []).append(row["model_type"])
    assert shown == {outcome: (len(of), of) for outcome, of in types.items()}


def test_every_type_that_attaches_computes_the_plain_model():
    assert all(row["difference"] <= 1e-5 for row in RECORD["rows"] if row["outcome"] == "attaches")
    assert not [row for row in RECORD["rows"] if row["outcome"] == "failed"]
