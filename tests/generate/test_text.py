"""Where a text ends, and that it streams whole."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import tokenizers

from attnres import UsageError
from attnres.data.tokenizer import ByteTokenizer, StreamDecoder, tokenizer_from_json
from attnres.generate import Continuation


def continued(
    monkeypatch, drawn: str, tokens: int = 100, stops: tuple[str, ...] = ()
) -> tuple[list[str], Continuation]:
    """The pieces of the text of a model that would draw these characters."""
    monkeypatch.setattr("attnres.generate.text.generate", lambda *_, **__: iter(drawn.encode()))
    text = Continuation(cast(Any, None), ByteTokenizer(), "prompt", tokens, stops)
    return list(text), text


@pytest.mark.parametrize(
    ("drawn", "tokens", "stops", "expected", "end"),
    [
        ("abc", 3, (), "abc", "tokens"),
        ("abc", 100, (), "abc", "context"),
        ("ab\0cd", 100, (), "ab", "end of text"),
        ("ab STOP cd", 100, ("STOP",), "ab ", "stop"),
        ("ab STO", 6, ("STOP",), "ab STO", "tokens"),
        ("ab STO\0P", 100, ("STOP",), "ab STO", "end of text"),
        ("ababc", 100, ("abc", "bc"), "ab", "stop"),
        ("é漢", 5, ("漢字",), "é漢", "tokens"),
    ],
)
def test_where_a_text_ends(drawn, tokens, stops, expected, end, monkeypatch):
    pieces, text = continued(monkeypatch, drawn, tokens, stops)
    assert ("".join(pieces), text.end) == (expected, end)


def test_ids_that_no_text_has_are_no_character():
    """A model with room for more ids than its tokenizer has draws them, too."""
    tokenizer = ByteTokenizer()
    stream = StreamDecoder(tokenizer)
    assert tokenizer.decode([104, 700, 105]) == "h\ufffdi" == "".join(map(stream.feed, [104, 700, 105]))


def test_pieces_come_as_soon_as_they_are_certain(monkeypatch):
    assert continued(monkeypatch, "abcd", 4, ("cx",))[0][:4] == ["a", "b", "", "cd"]


def test_a_text_goes_on_where_the_prompt_ends(monkeypatch):
    """With a tokenizer of words, whose text of the first token depends on what stands before it."""
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁one": 0, "▁two": 1}, unk_token="▁one"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.decoder = tokenizers.decoders.Metaspace()
    words = tokenizer_from_json({"kind": "tokenizers", "tokenizer": json.loads(library.to_str())})
    monkeypatch.setattr("attnres.generate.text.generate", lambda *_, **__: iter([0, 1]))
    assert "".join(Continuation(cast(Any, None), words, "one two", 2)) == " one two"


def test_an_empty_stop_is_refused():
    with pytest.raises(UsageError, match="a stop is empty"):
        Continuation(cast(Any, None), ByteTokenizer(), "prompt", 1, ("a", ""))
