"""An arm looks the same in every figure and page."""

from __future__ import annotations

import matplotlib as mpl

from attnres import connection_names
from attnres.report.axes import INK, STYLE, line_styles
from attnres.report.page import payload
from attnres.report.style import ARM_COLOURS, ARM_DASHES, CONNECTION_STYLES, arm_styles
from tests.report.sample import report


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


def test_crowded_figures_keep_arms_apart_as_long_as_styles_last():
    most = len(ARM_COLOURS) * len(ARM_DASHES)
    assert len(set(arm_styles([f"arm {index}" for index in range(most)]).values())) == most
    assert len(arm_styles([f"arm {index}" for index in range(most + 9)])) == most + 9
    crowd = arm_styles([*(f"block:eps={index}" for index in range(12)), "full", "block"])
    assert (crowd["full"], crowd["block"]) == (arm_styles(["full"])["full"], arm_styles(["block"])["block"])


def test_the_page_and_the_figures_agree():
    data = report()
    with mpl.rc_context(STYLE):
        drawn = line_styles([arm.name for arm in data.arms])
    for arm in payload(data)["arms"]:
        assert drawn[arm["name"]]["color"] == arm["colour"].replace("currentColor", INK)
