"""docs/TRANSFORMERS.md's table of what attaches is results/models.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("transformers")

from attnres.hf.survey import Outcome

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "models.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "TRANSFORMERS.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## What attaches\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_the_table_has_every_type_with_its_outcome(outcome):
    expected = [row["model_type"] for row in RECORD["rows"] if row["outcome"] == outcome]
    line = re.search(rf"^\| {outcome} \| (\d+) \| (.*) \|$", SECTION, re.MULTILINE)
    assert (line is not None) == bool(expected)
    if line is not None:
        assert int(line[1]) == len(expected) and line[2].split() == expected


def test_versions_and_date_are_the_record_s():
    versions = RECORD["versions"]
    assert f"transformers {versions['transformers']}, torch {versions['torch'].partition('+')[0]}" in SECTION
    assert RECORD["date"] in SECTION and f"`{RECORD['connection']}`" in SECTION


def test_every_type_that_attaches_computes_the_plain_model():
    assert all(row["difference"] <= 1e-5 for row in RECORD["rows"] if row["outcome"] == "attaches")
    assert not [row for row in RECORD["rows"] if row["outcome"] == "failed"]
    assert all(
        "\n" not in row["why"] and (row["why"] == "") == (row["outcome"] == "attaches") for row in RECORD["rows"]
    )
