"""The page's text and JSON, the figures and the files, without a browser."""

from __future__ import annotations

import dataclasses
import json
import math
from html import escape
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest
import torch

from attnres.analysis.comparison import Comparison, compare_arms, finding
from attnres.data.tokenizer import ByteTokenizer
from attnres.report.comparison import result_tables, sink_table
from attnres.report.data import ArmReport, LossCurve, TokenText
from attnres.report.page import json_for_script
from attnres.report.runs import token_texts
from attnres.report.style import depth_colours
from attnres.report.write import losses_by_step, write_report
from attnres.report.write import report_page as page
from tests.report.sample import ATTACK, curves, profile, report, results


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


def test_writes_the_page_and_the_figures(tmp_path):
    path = write_report(report(), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.html"
    names = sorted(file.relative_to(path.parent).as_posix() for file in path.parent.rglob("*") if file.is_file())
    assert names == [
        "figures/depth_matrices.png",
        "figures/depth_profiles.png",
        "figures/loss_curves.png",
        "report.html",
    ]
    for figure in path.parent.glob("figures/*.png"):
        pixels = matplotlib.image.imread(figure)
        assert min(pixels.shape[:2]) > 300 and pixels.std() > 0.02


def test_no_text_can_become_markup():
    plain = [tag for tag, _ in Elements(page(report(unit="any other than nats per byte"))).tags]
    arms = [dataclasses.replace(arm, name=ATTACK, description=ATTACK) for arm in report().arms]
    hostile = report(
        title=ATTACK,
        subtitle=ATTACK,
        arms=arms,
        unit=ATTACK,
        provenance={ATTACK: ATTACK, "corpus": "sha256 12ab"},
        tokens=[TokenText(ATTACK, ATTACK, ATTACK)] * 2,
        curve_label=ATTACK,
    )
    html = page(hostile)
    assert [tag for tag, _ in Elements(html).tags] == plain
    token = embedded(html)[1]["views"][1]
    assert token["token"].startswith("</script><script>alert(1)</script>")
    html.encode()  # no lone surrogate is left
    for character in "\x00\x1b\u2028\u202e":
        assert character not in html


def test_the_script_in_json_cannot_be_left():
    text = json_for_script({"text": "</script><!--<script>&\u2028\u2029\ud800"})
    assert not set("<>&\u2028\u2029\ud800") & set(text)
    assert json.loads(text)["text"] == "</script><!--<script>&\u2028\u2029\ud800"


def test_whatever_is_missing_or_odd_the_report_is_written(tmp_path, recwarn):
    """Numbers that are none, names that matplotlib takes for mathematics or has no letters for."""
    broken = profile()
    for field in dataclasses.fields(broken):
        if isinstance(getattr(broken, field.name), np.ndarray):
            getattr(broken, field.name)[...] = math.nan
    arms = [
        ArmReport("残差"),
        ArmReport("diverged", "", [LossCurve(0, [1, 2], [math.nan, math.inf])], broken),
        ArmReport(r"$\frac{$", "", [LossCurve(0, [], []), *curves(seeds=1)], profile()),
    ]
    rows = [Comparison("残差", 0), Comparison("diverged", 1, math.nan, math.nan, math.nan)]
    path = write_report(report(arms=arms, results=rows, unit="$x^$"), tmp_path)
    html = path.read_text()
    assert '<td class="number">\N{EN DASH}</td>' in html and "not finite" in html
    curves_of, matrices, _ = embedded(html)
    assert not [str(warned.message) for warned in recwarn]
    assert curves_of["charts"][0]["lines"][0]["y"] == [None, None]
    assert matrices["charts"][0]["views"][0][0] == [None]


def test_the_page_leads_with_the_finding_and_shows_each_seed():
    html = page(report())
    assert html.index(escape(finding(results(), "nats per byte"))) < html.index("<table>")
    columns = "".join(f'<th scope="col">seed {seed}</th>' for seed in range(3))
    cells = "".join(f'<td class="number">{value:+.4f}</td>' for value in results()[2].differences.values())
    assert columns in html and f'<tr><th scope="row">arm2</th>{cells}</tr>' in html
    assert "Holm-corrected" in html and "[1.08, 1.10]" in html


def test_costs_of_a_single_seed_are_withheld():
    done = {"validation_loss": 2.0, "peak_memory_bytes": 1, "step_seconds": 1.0}
    (table,) = result_tables(compare_arms({"a": {0: done}, "b": {0: done}}, "a"), "nats per byte")
    assert "step time" not in table.columns
    assert [row[table.columns.index("peak memory")] for row in table.rows] == ["1.00x", "withheld"]


def test_a_connection_that_cannot_choose_has_no_sinks():
    even = dataclasses.replace(profile(), mean_share=np.tril(np.ones((7, 7))) / np.arange(1, 8)[:, None])
    assert sink_table([("residual", even)]).rows == (("residual", "none", "", ""),)
    broken = dataclasses.replace(even, mean_share=np.full((7, 7), np.nan))
    assert sink_table([("full", broken)]).rows == (("full", "weights are not finite", "", ""),)


def test_curves_are_of_the_steps_that_all_seeds_have_and_differences_paired_by_seed():
    """A seed that ended early would let the others' level pass for a change."""
    baseline = ArmReport(
        "a", curves=[LossCurve(0, [1, 2, 3], [5.0, 4.0, 3.0]), LossCurve(1, [1], [9.0]), LossCurve(3, [], [])]
    )
    steps, losses = losses_by_step(baseline)
    assert steps.tolist() == [1] and losses.tolist() == [[5.0], [9.0]]
    arm = ArmReport("b", curves=[LossCurve(2, [1], [0.0]), LossCurve(0, [2, 3, 4], [3.5, 2.0, 0.0])])
    steps, losses = losses_by_step(arm, baseline)
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
    texts = [(of.before, of.token, of.after) for of in token_texts(ids, (0, 2, 3, 7, 9), tokenizer)]
    assert texts == [
        ("", "a", " жы€b"),
        ("a ", "ж [1 of 2]", "ы€b"),
        ("a ", "ж [2 of 2]", "ы€b"),
        ("a жы", "€ [2 of 3]", "b"),
        ("a жы€", "b", ""),
    ]
    (cut,) = token_texts(ids[:, :7], (6,), tokenizer)
    assert (cut.before, cut.token, cut.after) == ("a жы", "\ufffd", "")
