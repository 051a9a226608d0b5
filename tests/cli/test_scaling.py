from __future__ import annotations

import io
import shutil
from contextlib import redirect_stdout

import pytest

from attnres.analysis.powerlaw import Point, fit_power_laws
from attnres.cli import main
from attnres.lab.experiments.scaling import parse_size
from attnres.lab.laws import final_points, scaling_table
from attnres.lab.runs import read_record
from attnres.model import TransformerConfig
from attnres.model.flops import training_flops
from attnres.texttable import TextTable
from tests.cli.conftest import run_jobs_here

SIZES = ["1x16", "2x16", "1x32"]
SMALL = ["--sizes", *SIZES, "--tokens-per-parameter", "0.02", "--seeds", "1"]
LEVEL = {1: 2.9, 2: 3.4, 4: 2.5, 5: 3.3, 8: 2.6}
"""Losses by compute whose line falls a little, and may as well rise."""
SMALL += [*("--model.context", "16", "--batch-size", "1", "--validation-tokens", "32")]


@pytest.fixture(scope="module")
def sweep(corpus, tmp_path_factory):
    """Where a finished sweep of six runs is, its options, and what the command said."""
    out, said = tmp_path_factory.mktemp("scaling"), io.StringIO()
    options = [*SMALL, *corpus, "--out", str(out / "runs"), "--record", str(out / "record.json")]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setattr("attnres.train.sweep.run_jobs", run_jobs_here)
        patch.setattr("attnres.lab.page.drawn", lambda picture: b"no figure")
        assert main(["scaling", "residual", "full", *options]) == 0
    return out, options, said.getvalue()


def test_a_sweep_leaves_points_and_a_table(sweep):
    out, _, said = sweep
    record = read_record(out / "record.json", "scaling")
    points = final_points(record)
    assert {arm: [point.size for point in of] for arm, of in points.items()} == dict.fromkeys(
        ("residual", "full"), SIZES
    )
    for run in record.runs:
        size, own = parse_size(run.at), run.measured
        longer = TransformerConfig(dim=size.dim, layers=size.layers, heads=size.heads, connection=run.arm)
        assert own["tokens"] == pytest.approx(0.02 * own["parameters"], abs=16) and own["tokens"] == 16 * run.steps
        assert own["flops_per_token"] < training_flops(longer)
        assert run.curve[-1] == (run.steps, run.loss)
    assert "advantage over" in said and "L = A C^-a" in said
    assert [figure.name for figure in (out / "runs" / "figures").iterdir()] == ["scaling.png"]
    assert "Does it last with scale?" in (out / "runs" / "results.html").read_text()


def test_what_is_recorded_is_kept_by_the_calls_that_follow(sweep, tmp_path, no_page, monkeypatch):
    """Another baseline, then step times when asked for, which the next call without the question keeps."""
    shutil.copytree(sweep[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "record.json"
    options = [*sweep[1][:-4], "--out", str(tmp_path / "runs"), "--record", str(file)]
    monkeypatch.setattr("attnres.train.sweep.run_jobs", None)  # nothing is trained again
    monkeypatch.setattr("attnres.lab.steptime.ROUNDS", 1)
    trained = read_record(file, "scaling")
    assert main(["scaling", "full", "residual", *options]) == 0
    written = read_record(file, "scaling")
    assert written.arms == ("full", "residual") and written.runs == trained.runs and not written.found
    assert main(["scaling", "residual", "full", *options, "--time-steps"]) == 0
    timed = read_record(file, "scaling")
    assert timed.runs == trained.runs and timed.found["step_times"]["machine"]["threads"] == 1
    assert [list(of) for of in timed.found["step_times"]["seconds"].values()] == [["residual", "full"]] * 3
    assert main(["scaling", "residual", "full", *options]) == 0
    assert read_record(file, "scaling").found == timed.found


def test_the_papers_curves_from_a_file(tmp_path, capsys):
    assert main(["fit", "results/paper-scaling.csv", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "1.891" in told and "0.0580" in told and "1.25x" in told
    assert (tmp_path / "figures" / "scaling-fit.png").read_bytes().startswith(b"\x89PNG")


def law_of(points: dict[str, list[Point]]) -> TextTable:
    return scaling_table(points, *fit_power_laws(points), "FLOPs", {})


def test_an_advantage_outside_of_what_was_measured_is_marked():
    near, far = ([Point(c, 2 * c**-0.1) for c in computes] for computes in ((1, 2, 4), (100, 200, 400)))
    assert "Extrapolated" not in law_of({"a": near, "b": near}).note
    table = law_of({"a": near, "b": far})
    assert "Extrapolated for b, measured from 100 to 400." in table.note
    better = [Point(c, 1.5 * c**-0.1) for c in (1, 2, 4)]
    table = law_of({"a": near, "b": better})
    assert table.note.endswith(" a is extrapolated to what it would need for b."), "17 times its largest compute"


def test_points_that_support_no_factor_are_fitted_and_told(tmp_path, capsys):
    path = tmp_path / "level.csv"
    lines = [f"{arm},{c},{by * loss}" for arm, by in (("a", 1), ("b", 0.9)) for c, loss in LEVEL.items()]
    path.write_text("\n".join(["arm,compute,loss", *lines]))
    assert main(["fit", str(path), "--out", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "No compute advantage is given: the 95% interval of a's exponent is not all above 0." in told
    assert "e+" not in told and "x [" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "2x16", "2x32"], "sizes: give at least three"),
        (["--sizes", "2x16", "2x32", "2x17"], "a multiple of 16"),
        (["--tokens-per-parameter", "0"], "tokens_per_parameter must be positive"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys, tmp_path):
    assert main(["scaling", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
