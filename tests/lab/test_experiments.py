"""What every experiment passes; and a fifth one, tests/lab/fifth/clip.py, which is one file and nothing else."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import attnres.lab
from attnres.cli import command_names, main
from attnres.lab import experiment_commands, experiments, load_experiment
from attnres.lab.page import read_records, tables_page, write_results
from attnres.lab.runs import read_record, write_record
from tests.cli.conftest import TINY, run_jobs_here

RESULTS = Path(__file__).parents[2] / "results"
V1 = Path(__file__).parents[1] / "data" / "v1"


@pytest.fixture
def toy(monkeypatch):
    place = attnres.lab.experiments_of
    monkeypatch.setattr(place, "__path__", [*place.__path__, str(Path(__file__).parent / "fifth")])
    importlib.invalidate_caches()
    yield load_experiment("clip")
    sys.modules.pop(f"{place.__name__}.clip", None)


@pytest.fixture(params=list(experiments()))
def name(request) -> str:
    return request.param


def record_file(name: str) -> Path:
    """A committed record of the experiment."""
    return (V1 if name == "comparison" else RESULTS) / f"{name}.json"


def recorded(name: str):
    return read_record(record_file(name), name)


def test_a_record_is_written_as_it_was_read(name, tmp_path):
    """The files of results/ lose and gain nothing."""
    write_record(tmp_path / "again.json", recorded(name))
    written, first = (json.loads(path.read_text()) for path in (tmp_path / "again.json", record_file(name)))
    assert written == first


def test_each_has_a_place_of_its_own():
    assert set(experiment_commands()) <= set(command_names())
    assert len({one.position for one in experiments().values()}) == len(experiments()) == len(experiment_commands())


def test_tables_claims_and_a_finding_are_there(name):
    experiment, record = experiments()[name], recorded(name)
    pictures = [picture.name for picture in experiment.pictures(record)]
    assert len(set(pictures)) == len(pictures) and all(of.startswith(name) for of in pictures), "one folder"
    for table in experiment.tables(record):
        assert table.title and table.rows and all(len(row) == len(table.columns) for row in table.rows)
    assert all(claim.claim and claim.reading for claim in experiment.claims(record))
    finding = experiment.finding(record)
    assert finding[0].isupper() and finding.endswith(".") and "\n" not in finding


def test_one_file_is_an_experiment(toy, tmp_path, capsys, corpus_options, monkeypatch, quick_figures):
    """Its command, its runs, its record and where it goes on, its tables, its figure, its section of the page."""
    monkeypatch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)
    assert len(Path(toy.run.__code__.co_filename).read_text().splitlines()) <= 100
    assert "clip" in command_names() and experiments()["toy"] is toy
    assert main(["--help"]) == 0 and "Clip gradients" in capsys.readouterr().out
    assert main(["clip", "--clips", "0", "--out", str(tmp_path)]) == 2
    assert "clips: give at least one positive number" in capsys.readouterr().err

    command = ["clip", *TINY, *corpus_options, "--model.heads", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "8 runs" in shown and "Does it help?" in shown and "clipped by a fair hand" in shown
    record = read_record(tmp_path / "toy.json", "toy")
    assert len(record.runs) == 8 and record.places() == ["clip 0.1", "clip 1"]
    assert main(command) == 0 and "8 of 8 runs are there already" in capsys.readouterr().out
    assert read_record(tmp_path / "toy.json", "toy") == record

    records = read_records(tmp_path)
    assert list(records) == ["toy"] and "| residual | clip 0.1 |" in tables_page(records, tmp_path)
    page = write_results(records, tmp_path / "page").read_text()
    assert 'href="#toy"' in page and "not decided" in page
    assert "Rows(" in (tmp_path / "page" / "figures" / "toy.png").read_text()
