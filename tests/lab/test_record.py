"""Records of one run, which lie in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attnres.errors import UsageError
from attnres.lab.dynamics.record import DynamicsRecord, Profiles
from attnres.lab.probes.record import ProbesRecord
from attnres.lab.record import Given, Stored, read_record, write_record

RESULTS = Path(__file__).parents[2] / "results"


def test_a_record_of_a_run_that_is_missing_says_what_writes_it(tmp_path):
    with pytest.raises(UsageError, match="run `attnres dynamics` first"):
        read_record(tmp_path / "missing.json", Profiles)


def test_a_record_of_another_kind_is_refused(tmp_path):
    write_record(tmp_path / "run.json", Sample(whole=3, pairs=(), maybe=None))
    with pytest.raises(UsageError, match="not a record of dynamics of a run"):
        read_record(tmp_path / "run.json", Profiles)


@dataclass(frozen=True, kw_only=True)
class Sample(Stored):
    kind: ClassVar = "sample"
    written_by: ClassVar = "nothing"

    whole: int
    pairs: tuple[tuple[float, float], ...]
    maybe: str | None
    note: str = ""
    rates: tuple[Given, ...] = ()
    config: Mapping[str, Any] | None = None
    loss: float = math.nan


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "sample.json"
    sample = Sample(whole=3, pairs=((0, 1.23456789), (1, math.inf)), maybe=None)
    write_record(path, sample)
    entries = {"kind": "sample", "whole": 3, "pairs": [[0, 1.234568], [1, None]], "maybe": None}
    assert json.loads(path.read_text()) == entries, "7 digits, no number as null, no defaults"
    again = read_record(path, Sample)
    assert again.pairs[0] == (0, 1.234568) and math.isnan(again.pairs[1][1]) and math.isnan(again.loss)


def test_options_are_written_as_they_are(tmp_path):
    """Or the command that wrote the record would not find itself in it."""
    options = {"rates": (0.70710678, 1 / 3), "config": {"optimizer": {"lr": 0.0014142136}}}
    write_record(tmp_path / "sample.json", Sample(whole=3, pairs=((0.70710678, 1.0),), maybe=None, **options))
    again = read_record(tmp_path / "sample.json", Sample)
    assert {"rates": again.rates, "config": again.config} == options and again.pairs == ((0.7071068, 1.0),)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"pairs": [[1, "x"]]}, r"'x' under 'pairs\[0\]\[1\]'"),
        ({"whole": 1.5}, "1.5 under 'whole'"),
        ({"maybe": 1}, "1 under 'maybe'"),
    ],
)
def test_values_of_another_type_are_named(entries, message, tmp_path):
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"kind": "sample", "whole": 3, "pairs": [], "maybe": None} | entries))
    with pytest.raises(UsageError, match=f"a damaged record of sample, with {message}"):
        read_record(path, Sample)


@pytest.mark.parametrize(
    ("name", "cls", "within"),
    [
        ("dynamics", DynamicsRecord, ("arms", 0, "runs")),
        ("probes", ProbesRecord, ("runs",)),
    ],
)
def test_a_record_that_has_a_run_twice_is_refused(name, cls, within, tmp_path):
    """One put together from two: what is of one seed would count as of two, whatever else its entries say."""
    record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    entries: Any = record
    for step in within:
        entries = entries[step]
    entries.append(entries[0] | {name: 2.5 for name in ("loss", "step_seconds") if name in entries[0]})
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UsageError, match=rf"damaged record of .* 2 times under '{within[-1]}'"):
        read_record(tmp_path / "record.json", cls)
