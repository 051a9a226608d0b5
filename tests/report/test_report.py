"""The page's text and JSON, and the figures, without a browser."""

from __future__ import annotations

import dataclasses
import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from attnres.analysis import DepthProfile
from attnres.data.tokenizer import ByteTokenizer
from attnres.lab.runs import to_json
from attnres.report.comparison import sink_table
from attnres.report.draw import drawn
from attnres.report.page import json_for_script
from attnres.report.runs import token_views
from attnres.report.style import depth_colours
from attnres.report.write import depth_pictures, loss_curves, losses_by_step
from tests.report.sample import ATTACK, CURVES, PROFILES, curves, profile, report, token


class Elements(HTMLParser):
    """Counts start tags and keeps the text of the JSON script, as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.json = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1] == ("script", {"type": "application/json", "id": "data"}):
            self.json += data


def embedded(html: str) -> dict:
    def no_literal(name: str):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(Elements(html).json, parse_constant=no_literal)


def test_no_text_can_become_markup():
    plain = [tag for tag, _ in Elements(report()).tags]
    names = [f"{ATTACK}{i}" for i in range(3)]
    curves, profiles = (dict(zip(names, of.values(), strict=True)) for of in (CURVES, PROFILES))
    html = report(curves, profiles, [token(ATTACK, ATTACK, ATTACK)] * 2, ATTACK, {ATTACK: ATTACK})
    assert [tag for tag, _ in Elements(html).tags] == plain
    assert embedded(html)[1]["views"][1]["token"].startswith("</script><script>alert(1)</script>")
    html.encode()  # no lone surrogate is left
    for character in "\x00\x1b\u2028\u202e":
        assert character not in html


def test_the_script_in_json_cannot_be_left():
    text = json_for_script({"text": "</script><!--<script>&\u2028\u2029\ud800"})
    assert not set("<>&\u2028\u2029\ud800") & set(text)
    assert json.loads(text)["text"] == "</script><!--<script>&\u2028\u2029\ud800"


def test_whatever_is_missing_or_odd_is_drawn(recwarn):
    """Numbers that are none, names that matplotlib takes for mathematics or has no letters for."""
    broken = profile()
    for field in dataclasses.fields(broken):
        if isinstance(getattr(broken, field.name), np.ndarray):
            getattr(broken, field.name)[...] = math.nan
    losses = {"残差": {}, "diverged": {0: [(1, math.nan), (2, math.inf)]}, r"$\frac{$": {7: [], **curves(seeds=1)}}
    profiles = {"diverged": broken, r"$\frac{$": profile()}
    of_losses, matrices, _ = embedded(report(losses, profiles))
    assert of_losses["charts"][0]["lines"][0]["y"] == [None, None]
    assert matrices["charts"][0]["views"][0][0] == [None]
    for picture in (*loss_curves(losses), *depth_pictures(profiles, [])):
        assert drawn(picture).startswith(b"\x89PNG")
    assert not [str(warned.message) for warned in recwarn]


def test_a_profile_is_kept_in_a_record():
    written = profile()
    written.entropy[0] = math.nan
    read = DepthProfile.from_json(json.loads(json.dumps(to_json({**written.to_json(), "seed": 0}))))
    for field in dataclasses.fields(read):
        np.testing.assert_array_equal(getattr(read, field.name), getattr(written, field.name))


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


def test_a_byte_of_a_character_is_shown_as_a_part_of_it():
    tokenizer = ByteTokenizer()
    ids = torch.tensor([tokenizer.encode("a жы€b")])
    texts = [(of["before"], of["token"], of["after"]) for of in token_views(ids, (0, 2, 3, 7, 9), tokenizer)]
    assert texts == [
        ("", "a", " жы€b"),
        ("a ", "ж [1 of 2]", "ы€b"),
        ("a ", "ж [2 of 2]", "ы€b"),
        ("a жы", "€ [2 of 3]", "b"),
        ("a жы€", "b", ""),
    ]
    (cut,) = token_views(ids[:, :7], (6,), tokenizer)
    assert (cut["before"], cut["token"], cut["after"]) == ("a жы", "\ufffd", "")
