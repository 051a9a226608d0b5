"""transformers' own ways to generate, with an attached model: each draws the tokens of plain greedy generation."""

from __future__ import annotations

import pytest
import torch

from tests.hf.models import attached, generate, make_tokens

COUNT = 12


def text() -> torch.Tensor:
    """Repeats itself, so that looking the prompt up finds something."""
    return make_tokens(1, 5).repeat(1, 3)


@pytest.fixture
def model():
    return attached("qwen3")


@pytest.mark.parametrize(
    "ways",
    [
        lambda model: {"prompt_lookup_num_tokens": 3},
        lambda model: {"assistant_model": attached("llama", num_hidden_layers=2)},
        lambda model: {"assistant_model": model},
    ],
    ids=["the prompt's own words", "an attached draft", "itself as the draft"],
)
def test_drafted_tokens_are_those_of_plain_generation(ways, model, monkeypatch):
    expected, calls = generate(model, text(), COUNT).sequences, []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(generate(model, text(), COUNT, **ways(model)).sequences, expected)
    if ways(model).get("assistant_model") is not model:  # whose calls are counted, too
        assert len(calls) <= COUNT


@pytest.mark.slow
def test_a_static_cache_is_compiled():
    """Into one graph without a break, as `generate` does by itself on a GPU."""
    model = attached("qwen3")
    expected = generate(model, text(), COUNT).sequences
    torch.compiler.reset()
    model.forward = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    assert torch.equal(generate(model, text(), COUNT, cache_implementation="static").sequences, expected)
