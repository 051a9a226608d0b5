"""The page of results in a real browser, and the charts that the microscope draws by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnres.lab.page import write_results
from attnres.report.html import script
from attnres.report.style import depth_colours
from tests.browser import asked_for
from tests.lab.sample import ablation, scaling

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\u2028\x00\x1b[31m\ufffd\u202e"


def test_the_page_is_whole_on_a_phone_and_asks_for_nothing(browser, tmp_path):
    records = {"ablation": ablation(), "hostile": replace(scaling(), command=ATTACK)}
    page = write_results(records, tmp_path)
    for log in ("browser", "performance"):
        browser.get_log(log)
    phone = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        browser.get(page.as_uri())
        assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [400, 400]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    loaded = "return [...document.images].map((image) => image.complete && image.naturalWidth > 400)"
    assert browser.execute_script(loaded) == [True, True]
    text = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;[U+2028]␀␛[31m\ufffd[U+202E]"
    assert text in browser.find_elements(By.TAG_NAME, "dl")[1].text and not browser.find_elements(By.TAG_NAME, "script")
    assert browser.get_log("browser") == []
    asked = asked_for(browser)
    assert asked and all(address.startswith(("file:", "data:")) for address in asked)


def run(browser, module: str, code: str, *arguments: object):
    """What a line of JavaScript returns that has the module's exports by their names."""
    browser.get("about:blank")
    exported = module.removesuffix(".js").replace("/", "_")
    browser.execute_script(f"{script(module).removesuffix('})();' + chr(10))}window.made = {exported};}})();")
    return browser.execute_script(code, *arguments)


def test_depth_matrices_have_the_scale_of_the_figures(browser):
    """The page computes its own, report/style.py that of the figures."""
    generator = np.random.default_rng(0)
    for low, power in ((0.0, 1), (-1.0, 1), (0.0, 9), (1.0, 0)):
        matrix = np.tril(generator.uniform(low, 1, (9, 9)) ** power)
        matrix[4] = 0
        rows = [row[: site + 1] for site, row in enumerate(matrix.tolist())]
        made = run(browser, "report/charts/cells.js", "return made.DEPTH.of(arguments[0])", rows)
        assert np.concatenate(made) == pytest.approx(depth_colours(matrix)[np.tril_indices(9)])


def test_a_narrow_axis_has_true_numbers(browser):
    draw = "made.lineChart(document.body, [{name: 'a', colour: 'red', dashes: '', x: [1, 2], y: [1.7, 1.7004]}], {})"
    labels = "[...document.querySelectorAll('text[text-anchor=end]')].map((it) => [it.getAttribute('y'), it.innerHTML])"
    heights, numbers = np.array(run(browser, "report/charts/lines.js", f"{draw}; return {labels}"), float).T
    assert len(numbers) >= 3 and len(np.unique(numbers)) == len(numbers)
    slope, offset = np.polyfit(heights, numbers, 1)
    np.testing.assert_allclose(slope * heights + offset, numbers, atol=abs(slope) / 10)
