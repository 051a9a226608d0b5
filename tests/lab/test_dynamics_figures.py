"""The pictures of dynamics, from records alone."""

from __future__ import annotations

import numpy as np
import pytest

from attnres.lab.depth_pictures import pictures
from attnres.report.charts import payload
from tests.lab.test_dynamics_claims import lost, made_up, made_up_runs


def test_every_picture_is_made_where_runs_or_all_of_an_arm_diverged():
    runs = made_up_runs(2)
    for left in ([*runs[:2], lost(runs[2]), runs[3]], [*runs[:2], *map(lost, runs[2:])]):
        made = pictures(made_up(left))
        assert len(made) == 3 and all(payload(one)["charts"] for one in made)


def test_lines_are_means_over_seeds():
    runs = made_up_runs(3)
    line = pictures(made_up(runs))[0].charts[0].lines[0]
    expected = np.mean([run["measured"]["moments"][-1]["input_rms"] for run in runs[:3]], 0)
    assert line.name == "residual" and line.seeds == 3 and line.y == pytest.approx(expected)
