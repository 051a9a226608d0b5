"""The figures, and the numbers in them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from attnres.report.draw import drawn
from attnres.report.style import depth_colours
from attnres.report.write import depth_pictures, loss_curves, losses_by_step, sink_table
from tests.report.sample import curves, profile


def test_whatever_is_missing_or_odd_is_drawn(recwarn):
    """Numbers that are none, names that matplotlib takes for mathematics or has no letters for."""
    broken = profile()
    for field in dataclasses.fields(broken):
        if isinstance(getattr(broken, field.name), np.ndarray):
            getattr(broken, field.name)[...] = math.nan
    losses = {"残差": {}, "diverged": {0: [(1, math.nan), (2, math.inf)]}, r"$\frac{$": {7: [], **curves(seeds=1)}}
    profiles = {"diverged": broken, r"$\frac{$": profile()}
    for picture in (*loss_curves(losses), *depth_pictures(profiles)):
        assert drawn(picture).startswith(b"\x89PNG")
    assert not [str(warned.message) for warned in recwarn]


def test_a_connection_that_cannot_choose_has_no_sinks():
    even = dataclasses.replace(profile(), mean_share=np.tril(np.ones((7, 7))) / np.arange(1, 8)[:, None])
    assert sink_table({"residual": even}).rows == (("residual", "none", "", ""),)
    broken = dataclasses.replace(even, mean_share=np.full((7, 7), np.nan))
    assert sink_table({"full": broken}).rows == (("full", "weights are not finite", "", ""),)


def test_curves_are_of_the_steps_that_all_seeds_have_and_differences_paired_by_seed():
    """A seed that ended early would let the others' level pass for a change."""
    baseline = {0: [(1, 5.0), (2, 4.0), (3, 3.0)], 1: [(1, 9.0)], 3: []}
    steps, losses = losses_by_step(baseline)
    assert steps.tolist() == [1] and losses.tolist() == [[5.0], [9.0]]
    steps, losses = losses_by_step({2: [(1, 0.0)], 0: [(2, 3.5), (3, 2.0), (4, 0.0)]}, baseline)
    assert steps.tolist() == [2, 3] and losses.tolist() == [[-0.5, -1.0]]


def test_depth_colours_are_weights_over_the_mean_of_their_row():
    plain = depth_colours(np.tril(np.ones((5, 5))))
    assert np.all(plain[np.tril_indices(5)] == 0.5)
    rows = np.array([[3.0, 0, 0], [0.0, 1, 0], [-0.5, 0.5, 8]])
    places = depth_colours(rows)
    assert places[0, 0] == 0.5
    assert list(places[1, :2]) == [0, 0.5 + 1 / 6]  # nothing, and twice the mean of the row
    assert list(places[2]) == pytest.approx([-1, 1 / 12, 0.5 + 5 / 18])
    assert np.isnan(depth_colours(np.full((3, 3), math.nan))).any()
