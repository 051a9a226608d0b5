"""The results page and its figures, from made-up records."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from attnres.cli import main
from attnres.lab import experiments
from attnres.lab.experiments import ablate
from attnres.lab.experiments.scaling import pictures
from attnres.lab.page import read_records, tables_page, write_results
from attnres.lab.runs import to_json, write_record
from tests.lab.sample import ATTACK, ablation, ablation_runs, scaling, scaling_runs


@pytest.fixture
def results(tmp_path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    write_record(folder / "ablation.json", ablation())
    write_record(folder / "scaling.json", scaling())
    return folder


def test_the_page_holds_every_table_and_figure_and_nothing_from_outside(results, tmp_path, capsys):
    out = tmp_path / "report"
    assert main(["report", str(results), "--out", str(out)]) == 0
    page = (out / "results.html").read_text()
    assert page.count('src="data:image/png;base64,iVBOR') == 2 == len(list((out / "figures").glob("*.png")))
    assert ATTACK not in page and "://" not in page
    for name, record in read_records(results).items():
        for table in experiments()[name].tables(record):
            assert all(f">{row[1]}<" in page for row in table.rows)


def test_an_experiment_may_have_several_records(results, tmp_path, capsys, quick_figures):
    """A record of another name has a section behind the experiment's own, which says whose it is."""
    ladder = scaling([run | {"loss": 0.9 * run["loss"]} for run in scaling_runs()])
    write_record(results / "ladder-16.json", replace(ladder, command="attnres scaling --record ladder-16.json"))
    (results / "bench.json").write_text(json.dumps({"kind": "bench", "rows": []}))
    (results / "notes.json").write_text('["none of ours"]')
    records = read_records(results)
    assert list(records) == ["ablation", "scaling", "ladder-16"]
    page = write_results(records, tmp_path).read_text()
    assert page.count("<h2 ") == 3 and "Does it last with scale? (ladder-16)</h2>" in page
    assert 'href="#ladder-16"' in page and "<dt>record</dt><dd>ladder-16.json</dd>" in page
    figures = tmp_path / "figures"
    assert {path.name for path in figures.iterdir()} >= {"scaling.png", "ladder-16-scaling.png"}
    assert (figures / "scaling.png").read_bytes() != (figures / "ladder-16-scaling.png").read_bytes()
    document = tables_page(records, results)
    own, ladders = document.partition("## Does it last with scale? (ladder-16)\n")[::2]
    assert "- record: ladder-16.json\n- command: attnres scaling --record ladder-16.json" in ladders
    assert "record:" not in own and "## Does it last with scale?\n" in own


def test_one_record_is_drawn_from_its_file(results, tmp_path, capsys, quick_figures):
    one = (results / "scaling.json").rename(tmp_path / "mine.json")
    assert main(["report", str(one), "--out", str(tmp_path / "out")]) == 0
    assert f"mine: {tmp_path}" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == {"mine-scaling.png"}
    one.write_text('{"kind": "bench"}')
    assert main(["report", str(one), "--out", str(tmp_path / "out")]) == 2
    assert "mine.json: no record of an experiment" in capsys.readouterr().err


def test_a_damaged_record_of_any_name_is_named(results, capsys):
    (results / "ladder-16.json").write_text(json.dumps(to_json(scaling()))[:-9])
    assert main(["report", str(results)]) == 2
    assert "ladder-16.json: not valid JSON" in capsys.readouterr().err


def test_an_arm_that_one_scale_lacks_is_blank_there_and_shown_at_the_other():
    runs = ablation_runs()
    small = [run for run in runs if run["at"] == "std 0.02" and run["arm"] == "residual"]  # the baseline alone
    record = ablation([*small, *(run for run in runs if run["at"] == "std 1")])  # the small scale was run first
    large, small = ablate.pictures(record)[0].charts
    assert (large.title, small.title) == ("embedding std 1", "embedding std 0.02")
    assert {row.name for row in large.rows} == {"full", "block:heads=2", "highway"} and not small.rows


def test_differences_are_drawn_with_their_errors_and_not_where_no_run_is_done():
    runs = [run | {"loss": 2.0 if run["arm"] == "residual" else 1.9 + 0.06 * run["seed"]} for run in scaling_runs()]
    (picture,) = pictures(scaling([run for run in runs if (run["arm"], run["at"]) != ("full", "0")]))
    chart = picture.charts[1]
    assert chart.ticks == [(0, "0"), (1, "1"), (2, "2")]
    (line,) = chart.lines
    nan = math.nan
    assert list(line.y) == pytest.approx([nan, -0.07, -0.07], nan_ok=True)
    assert list(line.low) == pytest.approx([nan, -0.1, -0.1], nan_ok=True)
    assert list(line.high) == pytest.approx([nan, -0.04, -0.04], nan_ok=True)
