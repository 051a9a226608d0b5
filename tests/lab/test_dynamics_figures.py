"""The figures of dynamics, from records alone."""

from __future__ import annotations

import numpy as np
import pytest

from attnres.lab.dynamics import figures
from attnres.lab.dynamics.experiment import EXPERIMENT
from attnres.lab.dynamics.record import DynamicsRecord
from tests.lab.sample import parsed
from tests.lab.test_dynamics_claims import made_up_record


@pytest.mark.parametrize("name", ["depth", "training", "weights", "ranks", "matrices"])
def test_every_figure_is_drawn_where_runs_or_all_of_an_arm_diverged(name):
    """And where the record does not say how deep the model is."""
    record, diverged = made_up_record(2) | {"config": {}}, {"status": "diverged", "error": "loss is nan"}
    record["arms"][1]["runs"][0] = {"seed": 0, **diverged}
    drawn = getattr(figures, name)(parsed(DynamicsRecord, record))
    record["arms"][1] |= {"runs": [{"seed": 0, **diverged}], "mean_matrix": None}
    without = getattr(figures, name)(parsed(DynamicsRecord, record))
    assert len(without.axes) <= len(drawn.axes) and drawn.axes[0].has_data() and without.axes[0].has_data()


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


@pytest.mark.parametrize(
    "place", [("runs", 1, "moments", 0, "gradient_rms"), ("runs", 1, "source_share"), ("mean_matrix", 3)], ids=str
)
def test_a_record_with_a_number_cut_out_is_damaged(place):
    """Its lines would be drawn a sublayer too early."""
    record = made_up_record(2)
    parsed(DynamicsRecord, record)
    numbers = record["arms"][1]
    for step in place:
        numbers = numbers[step]
    del numbers[0]
    with pytest.raises(ValueError, match=r"missing or too many"):
        parsed(DynamicsRecord, record)
