"""An arm looks the same in every figure and page."""

from __future__ import annotations

import json
import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from attnres import connection_names
from attnres.report.draw import plain_log_ticks, png
from attnres.report.html import script
from attnres.report.style import (
    CONNECTION_STYLES,
    MOST_TIMES,
    SIGNED_COLOURS,
    arm_styles,
)


def test_an_arm_looks_the_same_in_any_company():
    arms = [*CONNECTION_STYLES, "block:block_size=8", "full:query=input,heads=4"]
    together = arm_styles(arms)
    assert {arm: arm_styles([arm])[arm] for arm in arms} == together == arm_styles(arms[::-1])


def test_options_keep_the_connections_colour_and_change_its_dashes():
    styles = arm_styles(["full:query=input", "full", "block:block_size=8", "block:block_size=16", "block"])
    assert styles["full"].colour == styles["full:query=input"].colour != styles["block"].colour
    assert styles["block:block_size=8"].colour == styles["block:block_size=16"].colour == styles["block"].colour
    assert len(set(styles.values())) == len(styles)


def test_listed_connections_exist_and_differ():
    assert set(CONNECTION_STYLES) <= set(connection_names())
    assert len(set(CONNECTION_STYLES.values())) == len(CONNECTION_STYLES)


def test_the_charts_have_the_colours_of_the_figures():
    charts = script("report/charts/cells.js")
    colours = json.loads(re.search(r"const SIGNED = (\[.*?\]),\s*\];", charts, re.DOTALL)[1] + "]")
    assert np.abs(np.array(colours) / 255 - mpl.colormaps[SIGNED_COLOURS](np.linspace(0, 1, 17))[:, :3]).max() < 0.003
    assert f"MOST_TIMES = {MOST_TIMES}" in charts


@pytest.mark.parametrize("decades", [0.02, 0.7, 4, 20])
def test_a_logarithmic_axis_has_some_numbers_and_not_too_many(decades):
    figure = Figure(figsize=(3.5, 3.2))
    axes = figure.subplots()
    axes.plot([10**-decades, 1])
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    png(figure)
    low, high = axes.get_ylim()
    assert 2 <= sum(low <= label.get_position()[1] <= high for label in axes.get_yticklabels()) <= 12
