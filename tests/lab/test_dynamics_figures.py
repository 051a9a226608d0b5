"""The figures of dynamics and pruning, from records alone."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from attnres.lab.dynamics import figures
from attnres.lab.dynamics.experiment import EXPERIMENT
from attnres.lab.dynamics.record import DynamicsRecord
from attnres.lab.prune.figures import costs
from attnres.lab.prune.record import PruneRecord
from attnres.report.axes import STYLE, png
from tests.lab.sample import parsed
from tests.lab.test_dynamics_claims import made_up_record
from tests.lab.test_prune import record_of

DYNAMICS = ("depth", "training", "weights", "ranks", "matrices")


def pixels(figure) -> bytes:
    with mpl.rc_context(STYLE):
        image = png(figure)
    assert image.startswith(b"\x89PNG") and len(image) > 10_000
    return image


@pytest.mark.parametrize("name", DYNAMICS)
def test_every_figure_of_dynamics_is_drawn(name):
    record = made_up_record(2)
    # One run diverged: the arm is drawn from the other one.
    record["arms"][1]["runs"][0] = {"seed": 0, "status": "diverged", "error": "loss is nan"}
    pixels(getattr(figures, name)(parsed(DynamicsRecord, record)))


def test_the_depth_is_that_of_the_numbers():
    record = made_up_record(2)
    record["config"] = {}
    pixels(figures.depth(parsed(DynamicsRecord, record)))


@pytest.mark.parametrize("name", DYNAMICS)
def test_an_arm_without_runs_is_left_out(name):
    record = made_up_record(2)
    record["arms"][1]["runs"] = [{"seed": 0, "status": "diverged", "error": "loss is nan"}]
    record["arms"][1]["mean_matrix"] = None
    pixels(getattr(figures, name)(parsed(DynamicsRecord, record)))


def test_without_any_run_there_is_no_figure():
    record = made_up_record(2)
    for arm in record["arms"]:
        arm |= {"runs": [{"seed": 0, "status": "diverged", "error": "loss is nan"}], "mean_matrix": None}
    made = parsed(DynamicsRecord, record)
    assert [picture.draw(made, narrow) for picture in EXPERIMENT.pictures for narrow in (False, True)] == [None] * 10


def test_lines_are_means_over_seeds():
    record = made_up_record(3)
    axes = figures.depth(parsed(DynamicsRecord, record)).axes[0]
    line = next(line for line in axes.get_lines() if line.get_label() == "residual")
    expected = np.mean([run["moments"][-1]["input_rms"] for run in record["arms"][0]["runs"]], 0)
    assert np.asarray(line.get_ydata()) == pytest.approx(expected)


def test_pruning_shows_attention_and_mlp_apart_and_the_cost_sorted():
    record = record_of({"residual": 0.02, "block": 0.2}, seeds=2)
    record["runs"].append({"arm": "x0", "seed": 0, "status": "unfinished"})
    figure = costs(parsed(PruneRecord, record))
    attention, mlp, ordered = figure.axes
    added = np.mean([run["added"] for run in record["runs"] if run["arm"] == "block"], 0)
    for axes, expected in ((attention, added[::2]), (mlp, added[1::2])):
        line = next(line for line in axes.get_lines() if line.get_label() == "block")
        assert np.asarray(line.get_ydata()) == pytest.approx(expected)
    falling = np.asarray(next(line for line in ordered.get_lines() if line.get_label() == "block").get_ydata())
    assert np.all(np.diff(falling) <= 0)
    lowest = min(min(run["added"]) for run in record["runs"] if run["status"] == "done")
    assert min(2 * lowest, 0) - 0.001 < ordered.get_ylim()[0] < min(lowest, 0)  # no empty decades below zero
    assert pixels(figure) != pixels(costs(parsed(PruneRecord, record_of({"residual": 0.02, "block": 0.9}, seeds=2))))


@pytest.mark.parametrize(
    "place",
    [
        *(("runs", 1, "moments", 0, name) for name in ("output_rms", "input_rms", "gradient_rms", "entropy")),
        *(("runs", 1, "moments", -1, "update"), ("runs", 1, "source_share"), ("runs", 1, "embedding_share")),
        *(("runs", 1, "moments"), ("mean_matrix",), ("mean_matrix", 3)),
    ],
    ids=str,
)
def test_a_record_with_a_number_cut_out_is_damaged(place):
    record = made_up_record(2)
    parsed(DynamicsRecord, record)
    numbers = record["arms"][1]
    for step in place:
        numbers = numbers[step]
    del numbers[0]
    with pytest.raises(ValueError, match=r"with numbers of .* missing or too many"):
        parsed(DynamicsRecord, record)
