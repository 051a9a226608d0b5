"""The page in a real browser: every connection, every depth, every width, models of transformers, saved files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("starlette", reason="the extra look is not installed")

from selenium.webdriver.common.keys import Keys

from attnres.data import load_tokenizer
from attnres.look.subject import open_subjects
from tests.look.pages import Page, address
from tests.look.runs import serving


@pytest.fixture
def deep(opened, odd):
    """The page of a microscope on a deep run."""
    page = Page(opened.browser, address(odd))
    yield page
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def resize(page: Page, width: int, height: int = 900) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    # The page is drawn anew in the next frame, before its callbacks.
    page.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]));")


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1060])
def test_nothing_overflows_or_overlaps_where_there_is_much_to_show(deep, width):
    resize(deep, width)
    assert deep.browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert deep.browser.execute_script(OVERLAPS) == []
    assert deep.browser.execute_script(OUTSIDE) == []


OVERLAPS = """
const boxes = [...document.querySelectorAll("svg.depth text")].filter((text) => text.textContent)
  .map((text) => [text.textContent, text.getBoundingClientRect()]);
const found = [];
boxes.forEach(([a, x], i) => boxes.slice(i + 1).forEach(([b, y]) => {
  const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left);
  const high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
  if (wide > 2 && high > 4) found.push([a, b, wide, high]);
}));
return found;
"""

OUTSIDE = """
const room = document.querySelector("svg.depth").getBoundingClientRect();
return [...document.querySelectorAll("svg.depth text")].filter((text) => {
  const box = text.getBoundingClientRect();
  return text.textContent && (box.left < room.left - 1 || box.right > room.right + 1 || box.bottom > room.bottom + 1);
}).map((text) => text.textContent);
"""


@pytest.mark.slow
def test_models_of_transformers(opened, saved_models):
    import attnres.hf

    with serving(open_subjects(saved_models)) as client:
        page = Page(opened.browser, address(client))
        page.type("a llama 🙂")
        assert page.find(".about").text == "residual · llama, 4 layers of width 32, as it is"
        page.choose("Model", 1)
        model = attnres.hf.load(saved_models[1]).eval()
        tokens = torch.tensor([load_tokenizer(str(saved_models[1])).encode("a llama 🙂")])
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:])
        before = page.loss()
        assert before == pytest.approx(float(loss), abs=1e-5)
        assert [piece.text for piece in page.all(".token.piece")] == ["F0", "9F", "99", "82"]
        page.press(Keys.ARROW_RIGHT)
        page.find("select[name=where]").send_keys("all sites")  # one alone may hardly read it
        after = page.change("Mute")
        page.click("Copy as Python")
        names: dict = {}
        exec(page.until(lambda: page.find(".tool-box pre").text), names)
        assert after == pytest.approx(float(names["loss"]), abs=1e-5) and after != before
        page.find("#continue").click()
        page.until(lambda: page.all(".token.drawn"))
        page.until(lambda: page.find("#continue").text == "Continue the text")
        page.find("#measure").click()
        page.until(lambda: page.all("svg.depth .beside"))  # of the site that the page chose
        page.settled()
        page.browser.get("about:blank")


def downloads(page: Page, folder: Path, *buttons: str) -> list[Path]:
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def finished() -> list[Path]:  # beside them may lie what Chromium still writes, under names of its own
        return sorted(file for file in folder.iterdir() if file.suffix in (".html", ".svg", ".png"))

    for count, button in enumerate(buttons, 1):
        page.click(button)
        page.until(lambda count=count: len(finished()) == count)
    return finished()


def values(page: Page) -> list[str]:
    texts = page.browser.execute_script(
        "return [...document.querySelectorAll('svg.depth .value')].map((t) => t.textContent)"
    )
    return list(texts)


CHANGED = "return [...document.querySelectorAll('svg.depth .changed')].map((text) => text.textContent)"


def test_a_saved_page_has_the_numbers_of_the_live_one(opened, tmp_path):
    """At a token that was not chosen, beside a weight that is 100,000 times larger."""
    opened.choose("Model", 1)
    opened.press(Keys.ARROW_UP, Keys.ARROW_RIGHT)
    opened.find("input[aria-label=weight]").clear()
    opened.find("input[aria-label=weight]").send_keys("1e5")
    opened.change("Pin")
    opened.press(Keys.ARROW_DOWN)
    html, svg = downloads(opened, tmp_path, "Save page", "SVG")
    opened.find(".strip").send_keys(Keys.HOME)
    opened.settled()
    live, n = values(opened), 5
    saved = Page(opened.browser, html.as_uri())
    saved.find(".strip").send_keys(Keys.HOME)
    assert values(saved) == live[: 2 * n]  # weight and weight x |v|
    changed = "changed: weight of layer 0 attention = 1e+5 in layer 1 MLP"
    assert saved.browser.execute_script(CHANGED) == [changed] and f">{changed}</text>" in svg.read_text()
    opened.asked()  # the file itself


@pytest.mark.slow
def test_saved_files_open_from_disk_without_a_request(deep, tmp_path):
    """63 tokens of 48 sublayers, what was measured and a second side included."""
    deep.type("the quick brown fox jumps over the lazy dog, and then it sleeps")
    assert len(deep.all(".strip .token")) == 63
    deep.press(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_RIGHT)
    html, png, svg = downloads(deep, tmp_path, "Save page", "PNG", "SVG")
    assert html.stat().st_size < 2_000_000
    assert png.read_bytes()[:4] == b"\x89PNG" and svg.read_text().startswith("<svg")
    sentence, loss = deep.sentence(), deep.loss()
    deep.asked()
    saved = Page(deep.browser, html.as_uri())
    assert (saved.sentence(), saved.loss()) == (sentence, loss) and not saved.find("#text").is_displayed()
    saved.find(".strip").send_keys(Keys.HOME)
    saved.press(Keys.ARROW_DOWN)
    assert saved.sentence().startswith("“t” (token 0): layer 23 MLP reads")
    asked = deep.asked()
    assert asked and all(url.startswith(("file:", "data:", "blob:", "about:")) for url in asked)
    saved.open(svg.as_uri())
    assert saved.browser.execute_script("return document.querySelectorAll('path.arc').length") > 40
    assert all(url.startswith(("file:", "data:", "blob:", "about:")) for url in deep.asked())
    deep.browser.get("about:blank")
