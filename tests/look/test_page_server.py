"""The page in a real browser: a server that goes and comes back, a run that trains, a stranger's address."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("starlette", reason="the extra look is not installed")

from selenium.webdriver.common.keys import Keys

from attnres.look.messages import Progress
from attnres.look.subject import open_subjects
from tests.look.pages import TEXT, Page, address, mean_loss
from tests.look.runs import serving


@pytest.fixture
def page(browser):
    """The browser without a page; afterwards it leaves the server alone."""
    browser.set_window_size(1400, 1000)
    yield Page(browser)
    browser.get("about:blank")
    browser.get_log("browser")


def test_a_wrong_token_and_a_hostile_name_are_said(page, client):
    page.open(address(client, token="wrong"))
    assert "the token is missing or wrong" in page.find("body").text
    page.open(address(client, host="evil.localhost"))  # a name that leads here, as one that was rebound does
    assert "this address is not the microscope's" in page.find("body").text
    assert not page.all("script")
    page.open(address(client, host="localhost"))
    page.settled()
    assert page.all("svg.depth .bar")


@pytest.mark.slow
def test_a_killed_server_is_said_and_its_return_goes_on(page, runs):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(serving(open_subjects(runs)))
        page.open(address(client))
        page.settled()
        page.choose("Model", 1)
        page.press(Keys.ARROW_UP, Keys.ARROW_RIGHT)
        page.change("Mute")
        stack.close()
        sentence = page.sentence()
        page.write(TEXT)
        page.until(lambda: page.find("#banner").is_displayed())
        assert "The server does not answer" in page.find("#banner").text and page.sentence() == sentence
        assert not page.find("#continue").is_displayed()
        stack.enter_context(serving(open_subjects(runs), port=client.port))
        page.until(lambda: not page.find("#banner").is_displayed())
        page.settled()
        assert len(page.all(".strip .token")) == len(TEXT) and len(page.all(".changes li:not(.none)")) == 1
        page.click("Undo")
        page.until(lambda: page.loss() == pytest.approx(mean_loss(runs[1]), abs=1e-5))


class Given:
    """A preparation that says how far it is until it may end."""

    def __init__(self, subjects) -> None:
        self.subjects = subjects
        self.may_end = threading.Event()

    async def follow(self):
        while not self.may_end.is_set():
            yield Progress("training steps", 3, 12)
            await asyncio.sleep(0.05)


def test_where_there_is_nothing_yet_the_page_waits_for_the_training(page, runs):
    given = Given(open_subjects(runs[:1]))
    with serving([], given) as client:
        page.open(address(client))
        page.until(lambda: page.all(".preparing p"))
        page.until(lambda: page.find(".preparing p").text == "training steps: 3 of 12")
        assert not page.find("#text").is_displayed()
        given.may_end.set()
        page.settled()
        assert page.find("#text").is_displayed() and page.loss() > 0
        page.browser.get("about:blank")


def test_a_checkpoint_that_comes_is_shown_and_steps_are_walked_through(page, runs, tmp_path):
    run = tmp_path / "going"
    shutil.copytree(runs[1], run)
    (run / "summary.json").unlink()
    *_, last = sorted((run / "checkpoints").iterdir())
    held = last.rename(tmp_path / last.name)
    with serving(open_subjects([run])) as client:
        page.open(address(client))
        page.settled()
        page.until(lambda: page.all(".training svg"))
        assert "training, step 6 of 6" in page.find(".training summary").text
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
