"""The pages keep the house style of docs/dev/style.md: short sentences, few decimals, no private phrases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "docs/dev", "docs/reference", "paper")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))

WORDS, DECIMALS, BOLD = 32, 2, 16
PRIVATE = re.compile(
    r"\b(refused?|refuses|by turns|anew|of before|of then|beside|mend(s|ed)?|for want of|in the mean|without a word|"
    r"by the clock|takes? part|one's own|of yours|in one line|so many of|at hand|not decided|"
    r"stands? (in|for|behind|there)|holds? \S+ to|lies in|as it is|behind it)\b",
    re.IGNORECASE,
)
VERSION = re.compile(r"(?:torch|Triton|Python|Transformers)\S* [\d.]+|\d{4}\.\d{5}", re.IGNORECASE)  # and arXiv


def sentences(text: str) -> list[str]:
    """The prose of a page: without code, tables, comments and addresses; code or a formula in a sentence is a word."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?: {4}|\||#).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]+`|(\$\$?)[^$]+\1", "Code", text))
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    ends = r"(?<=[^.][.!?])[*)\"]*\s+"
    return [sentence.strip() for block in blocks for sentence in re.split(ends, " ".join(block.split())) if sentence]


def faults(text: str) -> list[str]:
    found = []
    for sentence in sentences(text):
        decimals = re.findall(r"(?<![\d.])\d+\.\d+(?!\.?\d)", VERSION.sub("", sentence))
        found += [f"{len(sentence.split())} words: {sentence}"] * (len(sentence.split()) > WORDS)
        found += [f"{len(decimals)} decimals: {sentence}"] * (len(decimals) > DECIMALS)
        found += [f"{match[0]!r}: {sentence}" for match in PRIVATE.finditer(sentence)]
        found += [f"bold: {bold}" for bold in re.findall(r"\*\*(.+?)\*\*", sentence) if len(bold.split()) > BOLD]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_keeps_the_house_style(page):
    assert faults(page.read_text(encoding="utf-8")) == []


def test_what_is_found():
    assert faults("A short one. It costs 1.04 and 1.1 with torch 2.13.0.\n\n| refused | 1.1 2.2 3.3 |\n") == []
    text = f"It is refused. {'word ' * 40}.\n\n- It has 1.1, 2.2 and 3.3.\n- **{'bold ' * 17}**"
    assert len(faults(text)) == 4
