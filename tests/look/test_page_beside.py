"""The page in a real browser: models and prompts beside each other, tabs, links."""

from __future__ import annotations

import json
import shutil

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
