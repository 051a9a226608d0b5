"""Bytes and the tokenizers library: round trips, streams, JSON, and what goes wrong."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from attnres.data import StreamDecoder, load_tokenizer, tokenizer_from_json
from tests.data.text import TEXT, library_tokenizer

BYTES = load_tokenizer("bytes")
LIBRARY = tokenizer_from_json({"kind": "tokenizers", "tokenizer": json.loads(library_tokenizer().to_str())})
both = pytest.mark.parametrize("tokenizer", [BYTES, LIBRARY], ids=["bytes", "library"])


def stream(tokenizer, ids, before=()) -> list[str]:
    decoder = StreamDecoder(tokenizer, before)
    return [*map(decoder.feed, ids), decoder.finish()]


@both
@given(text=st.text())
def test_round_trip_and_stream(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.decode(ids) == text == "".join(stream(tokenizer, ids))
    assert tokenizer.encode_documents([text, "x"])[0].tolist() == ids


@given(ids=st.lists(st.integers(0, LIBRARY.vocab_size - 1)))
def test_any_library_ids_stream_as_they_decode(ids):
    assert "".join(stream(LIBRARY, ids)) == LIBRARY.decode(ids)


@both
def test_stream_never_cuts_a_character(tokenizer):
    text = "aé€😀z"
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)
    cut = tokenizer.encode("😀")[:-1]
    assert len(cut) > 0 and "".join(stream(tokenizer, cut)[:-1]) == ""
    assert set(stream(tokenizer, cut)[-1]) == {"\ufffd"}


@pytest.mark.parametrize("at", [1, 2, 21])
def test_a_stream_goes_on_from_the_ids_before_it(at):
    """The first word behind a prompt has its space, and the rest of a word has none."""
    ids = [0, 1, 2, 0] * 6
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁one": 0, "▁two": 1, "s": 2}, unk_token="s"))
    library.decoder = tokenizers.decoders.Metaspace()
    for tokenizer in (tokenizer_from_json({"kind": "tokenizers", "tokenizer": json.loads(library.to_str())}), LIBRARY):
        text = tokenizer.decode(ids[:at]) + "".join(stream(tokenizer, ids[at:], ids[:at]))
        assert text == tokenizer.decode(ids)
    pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece({"the": 0, "cat": 1, "##s": 2}, unk_token="the"))
    pieces.decoder = tokenizers.decoders.WordPiece()
    words = tokenizer_from_json({"kind": "tokenizers", "tokenizer": json.loads(pieces.to_str())})
    assert "".join(stream(words, [2, 0], [0, 1])) == "s the" and "".join(stream(words, [1], [0])) == " cat"


@both
def test_json(tokenizer):
    record = json.loads(json.dumps(tokenizer.to_json()))
    again = tokenizer_from_json(record)
    assert again.to_json() == record and again.encode(TEXT) == tokenizer.encode(TEXT)
    assert (again.vocab_size, again.separator) == (tokenizer.vocab_size, tokenizer.separator)


def test_truncation_and_padding_of_the_file_are_off(tmp_path):
    library = library_tokenizer()
    library.enable_truncation(3)
    library.enable_padding(length=1000)
    library.save(str(tmp_path / "tokenizer.json"))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(str(name)).encode(TEXT) == LIBRARY.encode(TEXT)
    assert LIBRARY.decode(LIBRARY.encode(TEXT)) == TEXT


def test_separator_is_what_the_tokenizer_ends_a_text_with(tmp_path):
    assert BYTES.separator == (0,)
    assert LIBRARY.separator == tuple(LIBRARY.encode("\n"))
    for name in ("<|endoftext|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|bos|>"):  # GPT-2, DeepSeek, nanochat
        library = library_tokenizer(special_tokens=["<|im_end|>", name])
        library.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(str(tmp_path))
        assert tokenizer.separator == (library.token_to_id(name),)
        assert tokenizer.decode([*tokenizer.separator, *tokenizer.encode("a")]) == "a"
        assert "end" not in tokenizer.to_json()
    for end in ("<|im_end|>", {"content": "<|im_end|>"}):  # the file beside it knows better
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        tokenizer = load_tokenizer(str(tmp_path))
        again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
        assert tokenizer.end == again.end == library.token_to_id("<|im_end|>")
    library = library_tokenizer(special_tokens=["<|im_end|>", "<|endoftext|>", "<|done|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|done|>"}}))
    for config, end in ({"eos_token": "<|im_end|>"}, "<|im_end|>"), ({"eos_token": None}, "<|done|>"), ({}, "<|done|>"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert load_tokenizer(str(tmp_path)).end == library.token_to_id(end)
