"""Our tokenizers as llama.cpp writes them down: byte-level BPE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnres.data import Tokenizer
from attnres.data.tokenizer import byte_characters
from attnres.errors import UsageError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""llama.cpp's kinds of token."""

# How a text is cut before BPE joins bytes, as tokenizer.json says it and as llama.cpp calls it.
_GPT2 = "gpt-2"
_EXPRESSIONS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+": "qwen2",
}


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file holds of a tokenizer."""

    tokens: list[str]
    """By id; bytes are written as the characters of `byte_characters`."""
    types: list[int]
    merges: list[str]
    """Pairs of tokens to join, in order."""
    splitting: str
    """llama.cpp's name of the expression that cuts a text first."""
    end: int | None
    begin: int | None = None
    """What stands in front of every text, as the tokenizer of a published model may have it; a run's has nothing."""


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """Translate a tokenizer for a model of `size` ids. Raises UsageError for one that llama.cpp would run otherwise."""
    record = tokenizer.to_json()
    if record["kind"] == "bytes":
        types = [CONTROL if token == tokenizer.end else NORMAL for token in range(256)]
        made = Vocabulary(byte_characters(), types, [], _GPT2, tokenizer.end)
    else:
        made = _from_library(record["tokenizer"], tokenizer.end)
    zero = byte_characters()[0]
    made.merges.extend([] if made.merges else [f"{zero} {zero}"])  # llama.cpp wants some: no text has two zero bytes
    missing = range(len(made.tokens), size)
    made.tokens.extend(f"[PAD{token}]" for token in missing)
    made.types.extend(UNUSED for _ in missing)
    return made


def _from_library(record: dict[str, Any], end: int | None) -> Vocabulary:
    model = record["model"]
    if model["type"] != "BPE" or record.get("normalizer") is not None:
        raise UsageError(
            f"llama.cpp is given byte-level BPE without a normalizer only, and this tokenizer is {model['type']}"
            f"{'' if record.get('normalizer') is None else ' with one'}; train on bytes or on such a BPE"
        )
    for option in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UsageError(f"llama.cpp's BPE has no {option}, and this tokenizer's is {model[option]!r}; train anew")
    splitting = _splitting(record.get("pre_tokenizer"))
    _check_joining(model)
    ids = dict(model["vocab"])
    kinds = dict.fromkeys(ids.values(), NORMAL)
    for added in record.get("added_tokens", []):
        if flags := [flag for flag in ("lstrip", "rstrip", "single_word") if added.get(flag)]:
            raise UsageError(f"llama.cpp would find the added token {added['content']!r} without its {flags[0]}")
        ids[added["content"]] = added["id"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    names = {token: name for name, token in ids.items()}
    count = 1 + max(names)
    tokens = [names.get(token, f"[PAD{token}]") for token in range(count)]
    types = [kinds.get(token, UNUSED) for token in range(count)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return Vocabulary(tokens, types, merges, splitting, end, _begin(record.get("post_processor")))


def _begin(post: Any) -> int | None:
    """The token that a tokenizer.json's post-processor puts in front of a text."""
    parts = [] if post is None else post["processors"] if post["type"] == "Sequence" else [post]
    match [part for part in parts if part["type"] != "ByteLevel"]:
        case []:
            return None
        case [{"single": [{"SpecialToken": {"id": name}}, {"Sequence": _}], "special_tokens": tokens}]:
            return tokens[name]["ids"][0]
    raise UsageError(
        "llama.cpp adds at most one token before a text and none after it, but this tokenizer adds others; "
        "remove them from its post_processor"
    )


def _check_joining(model: dict[str, Any]) -> None:
    """Raise UsageError where llama.cpp would join the bytes of a text to other tokens."""
    if model.get("dropout"):
        raise UsageError("llama.cpp has no dropout of merges, and this tokenizer draws at random; take its dropout out")
    if (unknown := model.get("unk_token")) and (missing := set(byte_characters()) - set(model["vocab"])):
        raise UsageError(
            f"llama.cpp leaves out the {len(missing)} bytes for which this tokenizer has no token but {unknown!r}; "
            "train with ByteLevel's initial alphabet"
        )


def _splitting(pre: dict[str, Any] | None) -> str:
    steps: list[dict[str, Any]] = [] if pre is None else pre.get("pretokenizers", [pre])
    last = steps[-1] if steps else {"type": None}
    if last["type"] == "ByteLevel" and not last.get("add_prefix_space"):
        if len(steps) == 1 and last.get("use_regex", True):
            return _GPT2
        if len(steps) == 2 and steps[0]["type"] == "Split" and not last.get("use_regex", True):
            known = _EXPRESSIONS.get(steps[0]["pattern"].get("Regex", ""))
            if known and steps[0].get("behavior") == "Isolated" and not steps[0].get("invert"):
                return known
    raise UsageError(
        "llama.cpp would cut texts otherwise than this tokenizer's pre_tokenizer; train with ByteLevel(add_prefix_space"
        "=False) alone, or with the expression of Llama 3 or Qwen 2, isolated, before it"
    )
