"""The page in a real browser: models beside each other, tabs, links, saved files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from attnres.look.subject import open_subjects
from tests.look.pages import TEXT, Keys, Page, address, mean_loss
from tests.look.runs import serving

MODEL, PROMPT, UNCHANGED = 1, 2, 3
"""What is put beside, in the order of the list."""


def test_two_models_beside_each_other(opened, runs):
    opened.choose("Put beside it", MODEL)
    opened.until(lambda: opened.all(".between .cells"))
    one, other = mean_loss(runs[0]), mean_loss(runs[1])
    assert f"mean loss {one:.3f} → {other:.3f}" in opened.find(".between").text
    assert len(opened.all(".between .token")) == len(TEXT)
    opened.all(".between .token")[3].click()
    opened.settled()
    assert all(part.text.startswith("“ ”") or "(token 3)" in part.text for part in opened.all(".sentence"))
    opened.all(".side .head button")[1].click()
    assert len(opened.all(".side")) == 1 and not opened.find(".between").is_displayed()


def test_a_link_restores_everything_in_another_tab(opened):
    opened.choose("Model", 1)
    opened.press(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_RIGHT)
    opened.find(".strip").send_keys(Keys.ARROW_LEFT)
    loss = opened.change("Mute")
    shown = opened.sentence(), opened.find(".changes").text, loss
    browser, where = opened.browser, opened.browser.current_url
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        other = Page(browser, where)
        assert (other.sentence(), other.find(".changes").text, other.loss()) == shown
        browser.refresh()
        other.settled()
        assert (other.sentence(), other.find(".changes").text, other.loss()) == shown
        other.type("another text")
    finally:
        browser.close()
        browser.switch_to.window(first)
    assert (opened.sentence(), opened.loss()) == (shown[0], shown[2])


@pytest.mark.slow
def test_other_tokens_are_compared_over_the_bytes_that_both_predict(opened, runs, saved_models, tmp_path):
    """A first token of three bytes is given; to the model of bytes two of them are not."""
    shutil.copytree(saved_models[0], tmp_path / "merged")
    file = tmp_path / "merged" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    unused = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    merged = dict(zip(("sh", "sho"), map(vocabulary.pop, unused), strict=True))
    tokenizer["model"] |= {"vocab": vocabulary | merged, "merges": [["s", "h"], ["sh", "o"]]}
    file.write_text(json.dumps(tokenizer))
    text = "shop, shore"
    with serving(open_subjects([runs[0], tmp_path / "merged"])) as client:
        seen = [client.one("look", view={"model": model, "text": text}) for model in (0, 1)]
        assert [len(picture["tokens"]) for picture in seen] == [len(text), len(text) - 4]
        behind = [sum(picture["loss"][first:]) / (len(text) - 3) for picture, first in zip(seen, (3, 1), strict=True)]
        page = Page(opened.browser, address(client))
        page.type(text)
        page.choose("Put beside it", MODEL)
        page.until(lambda: page.all(".between p"))
        told = page.find(".between p").text
        assert told.startswith(f"mean loss {behind[0]:.3f} → {behind[1]:.3f} nats per byte of the last 8 bytes, which ")
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
