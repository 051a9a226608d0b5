"""Draw the pictures of docs/look.md with headless Chromium, from the two runs that `attnres look` trains first:

    rm -r runs/look
    attnres look --no-browser --port 8765 --token pictures-of-look
    python docs/figures/look.py "http://127.0.0.1:8765/?token=pictures-of-look"

The second command trains them, and goes on while the third, in another terminal, runs.
"""

from __future__ import annotations

import io
import shutil
import sys
import time
from base64 import b64decode
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

HERE = Path(__file__).parent
TEXT = '''\
import os

def open_file(path, mode="r"):
    """Open a file and return its lines."""
    with open(path, mode) as file:
        return file.readlines()
'''
TAKE_BACK = "\u00d7"
PLAIN = "#tooltip, header, .writing, main > .bar, .keys, .side > .head { display: none !important; }"
ANIMATED = """
.key, .tool-box :is([aria-label='Change the selected site'], span, label:nth-child(2), legend),
.tool-box > .tools:not([role=group]) > button { display: none !important; }
.depth-room { max-height: 15rem; overflow: hidden; }
.depth-room + .depth-room { display: none; }
.tool-box { margin: .3rem 0; min-height: 8rem; }
.sentence { min-height: 4.3rem; }
.pressed { background: #0072b2 !important; color: #fff !important; }
"""


class Page:
    """The page of the microscope in a browser."""

    def __init__(self, address: str, width: int, height: int, scale: float, style: str) -> None:
        options = webdriver.ChromeOptions()
        for flag in ("--headless", "--no-sandbox", "--hide-scrollbars", f"--force-device-scale-factor={scale}"):
            options.add_argument(flag)
        options.binary_location = shutil.which("chromium") or ""
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.set_window_size(width, height)
        self.driver.get(address)
        WebDriverWait(self.driver, 60).until(lambda driver: driver.find_elements(By.CSS_SELECTOR, ".side"))
        self.script(
            "document.head.append(Object.assign(document.createElement('style'), {textContent: arguments[0]}))", style
        )
        self.script(
            "const box = document.getElementById('text'); box.value = arguments[0];"
            "box.dispatchEvent(new Event('input'))",
            TEXT,
        )
        self.settled()

    def script(self, code: str, *arguments):
        return self.driver.execute_script(code, *arguments)

    def settled(self) -> None:
        time.sleep(0.3)  # until what was clicked has asked
        WebDriverWait(self.driver, 60).until(
            lambda _: self.script("return !document.querySelector('.side[aria-busy=true]')")
        )

    def press(self, text: str) -> None:
        self.script(
            "[...document.querySelectorAll('button')].find((one) => one.textContent === arguments[0]).click()", text
        )
        self.settled()

    def hold(self, text: str) -> None:
        """Show one button as pressed, or none."""
        self.script(
            "for (const one of document.querySelectorAll('button'))"
            "one.classList.toggle('pressed', one.textContent === arguments[0])",
            text,
        )

    def choose(self, name: str, value: str) -> None:
        self.script(
            "const list = document.querySelector(arguments[0]); list.value = arguments[1];"
            "list.dispatchEvent(new Event('change'))",
            name,
            value,
        )
        self.settled()

    def token(self, position: int) -> None:
        self.script("document.querySelectorAll('.strip .token')[arguments[0]].click()", position)
        self.settled()

    def row(self, row: int, x: float) -> None:
        """Click where a row of the picture is: left of the lines is the site, right of them a source."""
        chart = self.driver.find_element(By.CSS_SELECTOR, "svg.depth")
        self.script(
            "const area = arguments[0].getBoundingClientRect(), labels = [...arguments[0].querySelectorAll('.label')];"
            "const at = labels[arguments[1]].getBoundingClientRect();"
            "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true,"
            "  clientX: area.left + arguments[2] * area.width, clientY: at.top + at.height / 2}))",
            chart,
            row,
            x,
        )
        self.settled()

    def picture(self, first: str, last: str, right: float = 0, bottom: float = 0) -> Image.Image:
        """From the top of one element to the end of another, or to so many pixels of it."""
        boxes = [self.driver.find_element(By.CSS_SELECTOR, name).rect for name in (first, last)]
        left, top = min(box["x"] for box in boxes), boxes[0]["y"]
        end = boxes[1]["y"] + (bottom or boxes[1]["height"])
        wide = right or max(box["x"] + box["width"] for box in boxes) - left
        clip = {"x": left - 6, "y": top - 4, "width": wide + 12, "height": end - top + 8, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        return Image.open(io.BytesIO(b64decode(shot["data"]))).convert("RGB")


def animate(address: str) -> None:
    """Mute layer 2 attention after the word `with`: the model no longer expects a space."""
    page = Page(address, 560, 1400, 1.5, PLAIN + ANIMATED)
    frames = []

    def frame(seconds: float) -> None:
        frames.append((page.picture(".strip", ".tool-box"), seconds))

    page.token(TEXT.index("with") + 3)
    page.row(6, 0.05)  # layer 2 MLP, as a site
    frame(2.0)
    page.row(5, 0.8)  # layer 2 attention, as a source
    frame(1.4)
    page.choose("select[name=where]", "all")
    frame(1.2)
    page.hold("Mute")
    frame(0.8)
    page.press("Mute")
    frame(0.8)
    page.hold("")
    frame(3.0)
    page.hold(TAKE_BACK)
    frame(0.8)
    page.driver.quit()
    height = max(image.height for image, _ in frames)
    images = []
    for image, _ in frames:
        whole = Image.new("RGB", (image.width, height), "white")
        whole.paste(image)
        images.append(whole)
    both = Image.new("RGB", (images[0].width, 2 * height))
    both.paste(images[0])
    both.paste(images[-1], (0, height))
    palette = both.quantize(96)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    duration = [int(1000 * seconds) for _, seconds in frames]
    more = images[1:]
    images[0].save(HERE / "look.gif", save_all=True, append_images=more, loop=0, optimize=True, duration=duration)


def save(image: Image.Image, name: str) -> None:
    image.quantize(128, dither=Image.Dither.NONE).save(HERE / f"{name}.png", optimize=True)


def depth_pictures(address: str) -> None:
    """Layer 3 MLP, which reads much of an embedding that adds little, and what the readout would miss."""
    page = Page(address, 720, 1080, 1.5, PLAIN + ".key { display: none; }")
    page.row(8, 0.05)
    page.choose("select[aria-label^='Beside']", "size")
    save(page.picture("svg.depth", "svg.depth", right=420, bottom=228), "look-sink")
    page.row(33, 0.05)
    page.press("Measure removal")
    save(page.picture("svg.depth", "svg.depth", right=420, bottom=498), "look-removal")
    page.driver.quit()


def beside(address: str) -> None:
    """The plain residual next to Block, on the same text."""
    page = Page(address, 580, 1080, 1.5, PLAIN)
    page.choose("select[aria-label^='Put beside']", "model")
    save(page.picture(".between", ".between > .losses"), "look-beside")
    page.driver.quit()


if __name__ == "__main__":
    animate(sys.argv[1])
    depth_pictures(sys.argv[1])
    beside(sys.argv[1])
