"""The page in a real browser: saved files."""

from __future__ import annotations

from pathlib import Path

from tests.look.pages import Keys, Page


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
    """At a token that was not chosen, beside a weight that is 100,000 times larger; and it asks for nothing."""
    opened.choose("Model", 1)
    opened.press(Keys.ARROW_UP, Keys.ARROW_RIGHT)
    opened.find("input[aria-label=weight]").clear()
    opened.find("input[aria-label=weight]").send_keys("1e5")
    opened.change("Pin")
    opened.press(Keys.ARROW_DOWN)
    html, png, svg = downloads(opened, tmp_path, "Save page", "PNG", "SVG")
    assert html.stat().st_size < 2_000_000 and png.read_bytes()[:4] == b"\x89PNG"
    opened.find(".strip").send_keys(Keys.HOME)
    opened.settled()
    live, n = values(opened), 5
    opened.asked()
    saved = Page(opened.browser, html.as_uri())
    saved.find(".strip").send_keys(Keys.HOME)
    assert values(saved) == live[: 2 * n]  # weight and weight x |v|
    changed = "changed: weight of layer 0 attention = 1e+5 in layer 1 MLP"
    assert saved.browser.execute_script(CHANGED) == [changed] and f">{changed}</text>" in svg.read_text()
    asked = opened.asked()
    assert asked and all(url.startswith(("file:", "data:", "blob:", "about:")) for url in asked)
