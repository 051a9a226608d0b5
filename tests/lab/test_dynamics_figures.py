"""The figures of dynamics, from records alone."""

from __future__ import annotations

import numpy as np
import pytest

from attnres.lab import depth_figures as figures
from attnres.lab.experiments.dynamics import EXPERIMENT
from tests.lab.test_dynamics_claims import lost, made_up, made_up_runs


@pytest.mark.parametrize("name", ["depth", "training", "weights", "ranks", "matrices"])
def test_every_figure_is_drawn_where_runs_or_all_of_an_arm_diverged(name):
    runs = made_up_runs(2)
    drawn = getattr(figures, name)(made_up([*runs[:2], lost(runs[2]), runs[3]]))
    without = getattr(figures, name)(made_up([*runs[:2], *map(lost, runs[2:])]))
    assert len(without.axes) <= len(drawn.axes) and drawn.axes[0].has_data() and without.axes[0].has_data()


def test_without_any_run_there_is_no_figure():
    made = made_up([lost(run) for run in made_up_runs(2)], matrices=False)
    assert [picture.draw(made, narrow) for picture in EXPERIMENT.pictures for narrow in (False, True)] == [None] * 10


def test_lines_are_means_over_seeds():
    runs = made_up_runs(3)
    axes = figures.depth(made_up(runs)).axes[0]
    line = next(line for line in axes.get_lines() if line.get_label() == "residual")
    expected = np.mean([run["measured"]["moments"][-1]["input_rms"] for run in runs[:3]], 0)
    assert np.asarray(line.get_ydata()) == pytest.approx(expected)
