"""The page in a real browser: what a reader sees and does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnres.report.html import script
from attnres.report.style import depth_colours
from tests.browser import asked_for
from tests.report.sample import ATTACK, CURVES, PROFILES, profile, report, token

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CURVED, ALONG = 'section[aria-labelledby="comparison-losses"]', 'section[aria-labelledby="comparison-depth"]'
CHARTS, CELLS = f"{CURVED} figure svg", ".depth .cells"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of all kinds: name -> address."""
    hostile = report(title=ATTACK, facts={ATTACK: ATTACK}, tokens=[token(ATTACK, "x", ATTACK), token("", ATTACK, "")])
    broken = profile()
    for name in ("mean_matrix", "mean_share", "token_matrices", "output_rms", "gradient_rms", "entropy"):
        getattr(broken, name)[...] = math.nan
    narrow = profile()
    narrow.input_rms[...] = np.linspace(1.25, 1.6, 7)
    close = {"a": [(1, 1.7), (2, 1.715), (3, 1.73)], "b": [(1, 1.7003), (2, 1.7154), (3, 1.7304)]}
    made = {
        "usual": report(),
        "close": report({arm: {0: curve} for arm, curve in close.items()}, dict.fromkeys(close, narrow)),
        "hostile": hostile,
        "inspected": report({}, {"full": profile(positions=())}, []),
        "bare": report({"a": {}, "b": {0: [(1, math.nan)]}}, {}),
        "diverged": report({"a": {0: [(5, 2.0)]}, **CURVES}, {"a": broken, **PROFILES}),
        "many": report({}, {f"arm {i}": profile(seed=i) for i in range(20)}),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, html in made.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
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
    cells = browser.find_elements(By.CSS_SELECTOR, CELLS)[arm]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells)
    width, n = cells.rect["width"], 7
    x, y = (source + 0.5) / n * width - width / 2, (site + 0.5) / n * width - width / 2
    ActionChains(browser, duration=10).move_to_element_with_offset(cells, round(x), round(y)).perform()
    return browser.find_element(By.ID, "tooltip").text


def pixels(browser) -> list[str]:
    return [image.get_attribute("href") for image in browser.find_elements(By.CSS_SELECTOR, CELLS)]


def shown(number: float) -> str:
    """A number as the tooltip gives it."""
    return f"{float(f'{number:.3g}'):g}"


def test_matrices_are_read_by_pointer_and_keys_and_change_with_what_is_chosen(opened):
    weight = profile(seed=1).mean_matrix[5, 3]
    assert hover_cell(opened, arm=1, site=5, source=3) == f"layer 2 MLP reads {shown(weight)} of layer 1 attention"
    assert hover_cell(opened, arm=0, site=0, source=6) == ""  # nothing above the diagonal
    chart, tooltip = opened.find_element(By.CSS_SELECTOR, ".depth svg"), opened.find_element(By.ID, "tooltip")
    chart.send_keys(Keys.ARROW_DOWN)
    assert tooltip.text == f"readout reads {shown(profile(seed=0).mean_matrix[6, 0])} of embedding"
    chart.send_keys(Keys.ARROW_UP, Keys.ARROW_RIGHT)
    assert tooltip.text.startswith("layer 2 MLP reads") and tooltip.text.endswith("of layer 0 attention")

    mean = pixels(opened)
    first, second, _ = opened.find_elements(By.CSS_SELECTOR, ".views button")
    second.click()
    assert second.get_attribute("aria-pressed") == "true" and first.get_attribute("aria-pressed") == "false"
    assert all(a != b for a, b in zip(mean, pixels(opened), strict=True))
    weight = profile(seed=1).token_matrices[0, 5, 3]
    assert f"reads {shown(weight)} of" in hover_cell(opened, arm=1, site=5, source=3)
    first.click()
    assert pixels(opened) == mean


def test_depth_matrices_have_the_scale_of_the_figures(browser):
    """The page computes its own, report/style.py that of the figures."""
    browser.get("about:blank")
    module = script("report/charts/cells.js").removesuffix("})();\n")
    browser.execute_script(f"{module}window.scale = report_charts_cells.DEPTH;}})();")
    generator = np.random.default_rng(0)
    for low, power in ((0.0, 1), (-1.0, 1), (0.0, 9), (1.0, 0)):
        matrix = np.tril(generator.uniform(low, 1, (9, 9)) ** power)
        matrix[4] = 0
        rows = [row[: site + 1] for site, row in enumerate(matrix.tolist())]
        made = browser.execute_script("return scale.of(arguments[0])", rows)
        assert np.concatenate(made) == pytest.approx(depth_colours(matrix)[np.tril_indices(9)])


def test_curves_are_read_hidden_and_scaled(opened):
    def lines(panel: str) -> int:
        return len(opened.find_elements(By.CSS_SELECTOR, f"{panel} figure svg path"))

    chart = opened.find_element(By.CSS_SELECTOR, CHARTS)
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(opened, duration=10).move_to_element(chart).perform()
    told = opened.find_element(By.ID, "tooltip").text.split("\n")
    assert told[0].startswith("step ") and sorted(line.split(":")[0] for line in told[1:]) == ["arm0", "arm1", "arm2"]
    before = lines(CURVED), lines(ALONG)
    legend, other = opened.find_elements(By.CSS_SELECTOR, ".legend")
    legend.find_elements(By.TAG_NAME, "button")[1].send_keys(Keys.ENTER)
    assert (lines(CURVED), lines(ALONG)) == (before[0] - 3, before[1] - 6)
    assert other.find_elements(By.TAG_NAME, "button")[1].get_attribute("aria-pressed") == "false"
    captions = opened.find_element(By.CSS_SELECTOR, f"{ALONG} .charts").text
    opened.find_element(By.CLASS_NAME, "log").click()
    assert "log" in captions and "log" not in opened.find_element(By.CSS_SELECTOR, f"{ALONG} .charts").text


def axis_of(browser, panel: str, index: int) -> np.ndarray:
    """[(height, number)] of what stands at the ticks of a chart's vertical axis."""
    found = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])[arguments[1]].querySelectorAll('text[text-anchor=end]')]"
        ".map((label) => [Number(label.getAttribute('y')), Number(label.textContent)])",
        f"{panel} figure svg",
        index,
    )
    return np.array(found)


@pytest.mark.parametrize("opened", ["close"], indirect=True)
def test_narrow_axes_have_true_numbers_and_small_differences_are_not_rounded_away(opened):
    for panel, index, scale in ((CURVED, 0, np.asarray), (ALONG, 2, np.log)):
        heights, numbers = axis_of(opened, panel, index).T
        assert len(numbers) >= 3 == len(np.unique(numbers[:3]))
        slope, offset = np.polyfit(heights, scale(numbers), 1)
        np.testing.assert_allclose(slope * heights + offset, scale(numbers), atol=abs(slope) / 10)
    difference = opened.find_elements(By.CSS_SELECTOR, CHARTS)[2]
    difference.send_keys(Keys.ARROW_RIGHT)
    assert opened.find_element(By.ID, "tooltip").text.split("\n") == ["step 1", "b: 0.0003", "a: 0"]


def on_a_phone(browser) -> None:
    """Load the page anew as a phone shows it; nothing may stand out of its width."""
    phone = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        browser.refresh()
        assert browser.execute_script("return innerWidth") == 400
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
        right = "return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right)"
        assert max(browser.execute_script(right)) <= 400
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("opened", ["hostile"], indirect=True)
def test_hostile_text_is_shown_as_text(opened):
    text = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;[U+2028]␀␛[31m\ufffd[U+202E]"
    assert opened.find_element(By.TAG_NAME, "h1").text == text
    assert text in opened.find_element(By.TAG_NAME, "dl").text
    assert opened.find_elements(By.TAG_NAME, "mark")[1].text == text
    assert len(opened.find_elements(By.TAG_NAME, "script")) == 2 and not opened.find_elements(By.TAG_NAME, "img")
    on_a_phone(opened)
