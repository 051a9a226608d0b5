"""What a person does on the page of a microscope, and sees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("starlette", reason="the extra look is not installed")

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains as ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys as Keys
from selenium.webdriver.support.ui import Select as Select
from selenium.webdriver.support.ui import WebDriverWait

from attnres import load_run
from tests.browser import asked_for
from tests.look.runs import TOKEN, Client

TEXT = "the brown dog jumps"


def address(client: Client, token: str = TOKEN) -> str:
    """Where the page of a microscope is."""
    return f"http://127.0.0.1:{client.port}/?token={token}"


class Page:
    """The page in a browser."""

    def __init__(self, browser, where: str = "") -> None:
        self.browser = browser
        if where:
            self.open(where)
            self.settled()

    def open(self, where: str) -> None:
        self.browser.get("about:blank")  # so that the same page with another fragment is loaded anew
        self.browser.get(where)

    def find(self, selector: str):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def until(self, condition, seconds: float = 60.0):
        gone = (StaleElementReferenceException,)  # drawn anew while it was read
        return WebDriverWait(self.browser, seconds, 0.03, gone).until(lambda _: condition())

    def settled(self) -> None:
        """Wait for the answers to what was asked."""
        self.until(lambda: self.all(".side"))
        self.until(lambda: not self.all(".side[aria-busy=true]"))

    def units(self) -> list[str]:
        """What stands in small letters in the picture of depth: units of columns, their feet, ticks."""
        return self.browser.execute_script(
            "return [...document.querySelectorAll('svg.depth .unit')].map((text) => text.textContent)"
        )

    def write(self, text: str) -> None:
        """Put a text in place of what is there."""
        self.browser.execute_script(
            "const box = document.getElementById('text'); box.value = arguments[0];"
            "box.dispatchEvent(new Event('input'));",
            text,
        )

    def type(self, text: str) -> None:
        """Put a text in place of what is there and wait for its picture."""
        self.write(text)
        self.settled()

    def choose(self, label: str, index: int) -> None:
        """Choose from the first list whose accessible name begins so."""
        Select(self.find(f"select[aria-label^='{label}']")).select_by_index(index)
        self.settled()

    def press(self, *keys: str) -> None:
        self.find("svg.depth").send_keys(*keys)

    def click(self, text: str) -> None:
        """Click the button whose text begins so."""
        self.browser.find_element(By.XPATH, f"//button[starts-with(., '{text}')]").click()

    def change(self, text: str) -> float:
        """Click a tool and wait for what becomes of it; the mean loss."""
        self.click(text)
        self.settled()
        return self.loss()

    def loss(self, side: int = 0) -> float:
        return float(self.all(".losses[data-loss]")[side].get_attribute("data-loss"))

    def tooltip(self) -> str:
        return self.find("#tooltip").text

    def sentence(self) -> str:
        return self.find(".sentence").text

    def asked(self) -> list[str]:
        """All addresses that were asked for since this was last called."""
        return asked_for(self.browser)


def mean_loss(folder: Path, text: str = TEXT) -> float:
    run = load_run(folder)
    tokens = torch.tensor([run.tokenizer.encode(text)])
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(run.model(tokens)[0, :-1], tokens[0, 1:]))
