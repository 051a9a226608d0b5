"""A real browser, for the tests of pages."""

from __future__ import annotations

import json
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1300,1000"
)

OF_THE_BROWSER = ("chrome://", "chrome-untrusted://")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from urllib3.exceptions import ReadTimeoutError

    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium or chromedriver is not installed")
    try:
        driver = _start(webdriver, tmp_path_factory.mktemp("chromium"))
    except ReadTimeoutError:  # seen on a crowded machine: it hung at its start
        driver = _start(webdriver, tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


def _start(webdriver, profile):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def asked_for(browser) -> list[str]:
    """What pages have asked for since this was last called.

    Chromium's own first page, which a slow machine may still be loading, is none of them.
    """
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [one["request"]["url"] for one in sent if not one["documentURL"].startswith(OF_THE_BROWSER)]
