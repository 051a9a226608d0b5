"""The page in a real browser: what a reader sees and does."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from attnres.report import ArmReport, Curve, ReportData, TokenText
from attnres.report.page import page
from tests.browser import asked_for
from tests.report.sample import ATTACK, curves, profile, report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of all kinds: name -> address."""
    hostile = report(
        title=ATTACK, provenance={ATTACK: ATTACK}, tokens=[TokenText(ATTACK, "x", ATTACK), TokenText("", ATTACK, "")]
    )
    broken = profile()
    for name in ("mean_matrix", "mean_share", "token_matrices", "output_rms", "gradient_rms", "entropy"):
        getattr(broken, name)[...] = math.nan
    narrow = profile()
    narrow.input_rms[...] = np.linspace(1.25, 1.6, 7)
    made = {
        "usual": report(),
        "close": report(
            arms=[
                ArmReport(name, curves=[Curve(0, [1, 2, 3], losses)], profile=narrow)
                for name, losses in (("a", [1.7, 1.715, 1.73]), ("b", [1.7003, 1.7154, 1.7304]))
            ]
        ),
        "hostile": hostile,
        "inspected": ReportData("one", "run", [ArmReport("full", profile=profile(positions=()))]),
        "bare": ReportData("", "", [ArmReport("a"), ArmReport("b", curves=[Curve(0, [1], [math.nan])])]),
        "diverged": report(arms=[ArmReport("a", curves=[Curve(0, [5], [2.0])], profile=broken), *report().arms]),
        "many": report(arms=[ArmReport(f"arm {i}", curves=curves(), profile=profile(seed=i)) for i in range(20)]),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, data in made.items():
        (folder / f"{name}.html").write_text(page(data), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in made}


@pytest.fixture
def opened(browser, pages, request):
    """The page, loaded anew; afterwards the console must be empty and nothing outside the file asked for."""
    browser.set_window_size(1300, 1000)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(pages[getattr(request, "param", "usual")])
    yield browser
    assert browser.get_log("browser") == []
    asked = asked_for(browser)
    assert asked and all(address.startswith(("file:", "data:")) for address in asked)


def hover_cell(browser, arm: int, site: int, source: int) -> str:
    """Move the pointer to the middle of a cell; the tooltip's text."""
    cells = browser.find_elements(By.CSS_SELECTOR, "#matrix-charts .cells")[arm]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells)
    width, n = cells.rect["width"], 7
    x, y = (source + 0.5) / n * width - width / 2, (site + 0.5) / n * width - width / 2
    ActionChains(browser, duration=10).move_to_element_with_offset(cells, round(x), round(y)).perform()
    return browser.find_element(By.ID, "tooltip").text


def pixels(browser) -> list[str]:
    return [image.get_attribute("href") for image in browser.find_elements(By.CSS_SELECTOR, "#matrix-charts .cells")]


def test_hovering_a_cell_names_the_site_the_source_and_the_weight(opened):
    weight = profile(seed=1).mean_matrix[5, 3]
    assert (
        hover_cell(opened, arm=1, site=5, source=3)
        == f"layer 2 MLP reads {float(f'{weight:.3g}'):g} of layer 1 attention"
    )
    weight = profile(seed=0).mean_matrix[6, 0]
    assert hover_cell(opened, arm=0, site=6, source=0) == f"readout reads {float(f'{weight:.3g}'):g} of embedding"
    assert hover_cell(opened, arm=0, site=0, source=6) == ""  # nothing above the diagonal


def test_choosing_a_token_changes_the_matrices(opened):
    mean = pixels(opened)
    first, second, _ = opened.find_elements(By.CSS_SELECTOR, "#token-choice button")
    assert "import os⏎" in opened.find_element(By.ID, "token-choice").text
    second.click()
    assert second.get_attribute("aria-pressed") == "true" and first.get_attribute("aria-pressed") == "false"
    token = pixels(opened)
    assert all(a != b for a, b in zip(mean, token, strict=True))
    weight = profile(seed=1).token_matrices[0, 5, 3]
    assert f"reads {float(f'{weight:.3g}'):g} of" in hover_cell(opened, arm=1, site=5, source=3)
    first.click()
    assert pixels(opened) == mean


def test_rows_can_be_normalised(opened):
    opened.find_element(By.ID, "normalise").click()
    share = profile(seed=2, signed=True).mean_share[4, 1]
    assert f"reads {float(f'{share:.3g}'):g} of" in hover_cell(opened, arm=2, site=4, source=1)


def test_arrow_keys_read_out_cells(opened):
    chart = opened.find_elements(By.CSS_SELECTOR, "#matrix-charts svg")[0]
    chart.send_keys(Keys.ARROW_DOWN)
    tooltip = opened.find_element(By.ID, "tooltip")
    assert tooltip.text.startswith("readout reads") and tooltip.text.endswith("of embedding")
    chart.send_keys(Keys.ARROW_UP, Keys.ARROW_RIGHT)
    assert tooltip.text.startswith("layer 2 MLP reads") and tooltip.text.endswith("of layer 0 attention")


def test_hovering_a_curve_gives_step_and_losses(opened):
    chart = opened.find_element(By.CSS_SELECTOR, "#curve-charts svg")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(opened, duration=10).move_to_element(chart).perform()
    lines = opened.find_element(By.ID, "tooltip").text.split("\n")
    assert lines[0].startswith("step ")
    assert sorted(line.split(":")[0] for line in lines[1:]) == ["arm0", "arm1", "arm2"]


def axis_of(browser, panel: str, index: int) -> np.ndarray:
    """[(height, number)] of what stands at the ticks of a chart's vertical axis."""
    found = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])[arguments[1]].querySelectorAll('text[text-anchor=end]')]"
        ".map((label) => [Number(label.getAttribute('y')), Number(label.textContent)])",
        f"#{panel} svg",
        index,
    )
    return np.array(found)


@pytest.mark.parametrize("opened", ["close"], indirect=True)
def test_narrow_axes_have_numbers_that_are_true_to_their_places(opened):
    for panel, index, scale in (("curve-charts", 0, np.asarray), ("profile-charts", 2, np.log)):
        heights, numbers = axis_of(opened, panel, index).T
        assert len(numbers) >= 3 == len(np.unique(numbers[:3]))
        slope, offset = np.polyfit(heights, scale(numbers), 1)
        np.testing.assert_allclose(slope * heights + offset, scale(numbers), atol=abs(slope) / 10)


@pytest.mark.parametrize("opened", ["close"], indirect=True)
def test_small_differences_are_not_rounded_away(opened):
    curves, _, difference = opened.find_elements(By.CSS_SELECTOR, "#curve-charts svg")
    tooltip = opened.find_element(By.ID, "tooltip")
    difference.send_keys(Keys.ARROW_RIGHT)
    assert tooltip.text.split("\n") == ["step 1", "b: 0.0003", "a: 0"]
    curves.send_keys(Keys.ARROW_RIGHT)
    curves.send_keys(Keys.ARROW_RIGHT)
    assert tooltip.text.split("\n") == ["step 2", "a: 1.715", "b: 1.715"]


def test_toggles_hide_arms_and_change_the_scale(opened):
    def lines(panel: str) -> int:
        return len(opened.find_elements(By.CSS_SELECTOR, f"#{panel} svg path"))

    before = lines("curve-charts"), lines("profile-charts")
    legend, profiles_legend = opened.find_elements(By.CSS_SELECTOR, ".legend")
    button = legend.find_elements(By.TAG_NAME, "button")[1]
    button.send_keys(Keys.ENTER)
    assert (lines("curve-charts"), lines("profile-charts")) == (before[0] - 3, before[1] - 6)
    assert profiles_legend.find_elements(By.TAG_NAME, "button")[1].get_attribute("aria-pressed") == "false"
    for other in legend.find_elements(By.TAG_NAME, "button"):
        if other.get_attribute("aria-pressed") == "true":
            other.click()
    assert lines("profile-charts") == 0
    button.click()
    captions = opened.find_element(By.ID, "profile-charts").text
    opened.find_element(By.ID, "log").click()
    assert "log" in captions and "log" not in opened.find_element(By.ID, "profile-charts").text


@pytest.mark.parametrize("opened", ["hostile"], indirect=True)
def test_hostile_text_is_shown_as_text(opened):
    shown = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;[U+2028]␀␛[31m\ufffd[U+202E]"
    assert opened.find_element(By.TAG_NAME, "h1").text == shown
    assert shown in opened.find_element(By.TAG_NAME, "dl").text
    assert opened.find_elements(By.TAG_NAME, "mark")[1].text == shown[:48]
    assert len(opened.find_elements(By.TAG_NAME, "script")) == 2 and not opened.find_elements(By.TAG_NAME, "img")


@pytest.mark.parametrize("opened", ["inspected", "bare", "diverged", "many"], indirect=True)
def test_whatever_is_missing_the_page_draws_the_rest(opened):
    """The console's silence is checked when the page is left."""
    data = json.loads(opened.find_element(By.ID, "data").get_attribute("textContent"))
    profiles = sum("profile" in arm for arm in data["arms"])
    assert len(opened.find_elements(By.CSS_SELECTOR, "#matrix-charts .cells")) == profiles
    assert len(opened.find_elements(By.CSS_SELECTOR, "#profile-charts svg")) == (6 if profiles else 0)
    curves = any("curve" in arm for arm in data["arms"])
    assert bool(opened.find_elements(By.CSS_SELECTOR, "#curve-charts svg")) == curves


@pytest.mark.parametrize("opened", ["usual", "hostile", "many"], indirect=True)
def test_nothing_overflows_on_a_phone(opened):
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        opened.refresh()
        assert opened.execute_script("return innerWidth") == 400
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 400
        widths = opened.execute_script(
            "return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right)"
        )
        assert max(widths) <= 400
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
