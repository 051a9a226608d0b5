"""The page in a real browser: a server that ends, a run that trains, a wrong token."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from attnres.look.subject import open_subjects
from tests.look.pages import TEXT, Keys, Page, address
from tests.look.runs import serving


@pytest.fixture
def page(browser):
    """The browser without a page; afterwards it leaves the server alone."""
    browser.set_window_size(1400, 1000)
    yield Page(browser)
    browser.get("about:blank")
    browser.get_log("browser")


def test_a_wrong_token_is_said(page, client):
    page.open(address(client, token="wrong"))
    assert "the token is missing or wrong" in page.find("body").text


def test_a_server_that_ended_is_said_and_what_is_seen_stays(page, runs):
    with contextlib.ExitStack() as stack:
        page.open(address(stack.enter_context(serving(open_subjects(runs[:1])))))
        page.settled()
        stack.close()
        sentence = page.sentence()
        page.write(TEXT)
        page.until(lambda: page.find("#banner").is_displayed())
        assert "The server does not answer" in page.find("#banner").text and page.sentence() == sentence


def test_a_checkpoint_that_comes_is_shown_and_steps_are_walked_through(page, runs, tmp_path):
    run = tmp_path / "going"
    shutil.copytree(runs[1], run)
    (run / "summary.json").unlink()
    *_, last = sorted((run / "checkpoints").iterdir())
    held = last.rename(tmp_path / last.name)
    with serving(open_subjects([run])) as client:
        page.open(address(client))
        page.settled()
        before = page.loss()
        held.rename(last)
        page.until(lambda: "6 (newest)" in page.find(".steps").text)
        page.settled()
        page.until(lambda: page.loss() != before)
        newest = page.loss()
        page.find(".steps input").send_keys(Keys.ARROW_LEFT)
        page.until(lambda: page.loss() == before)
        page.find(".steps input").send_keys(Keys.ARROW_RIGHT)
        page.until(lambda: page.loss() == newest)
        page.browser.get("about:blank")
