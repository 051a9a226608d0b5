from __future__ import annotations

import pytest
import torch

from attnres import Transformer, TransformerConfig, UsageError, connection_names
from attnres.connections import canonical_connection
from attnres.generate import decode as decode_module
from attnres.generate import generate, sample
from tests.depth import randomise


def small_model(connection: str, **options) -> Transformer:
    model = Transformer(
        TransformerConfig(
            vocab_size=61,
            dim=24,
            layers=3,
            heads=4,
            kv_heads=2,
            context=32,
            connection=canonical_connection(connection, **options),
        )
    )
    randomise(model.connection)
    return model


@pytest.mark.parametrize("connection", connection_names())
def test_greedy_equals_the_full_forward_token_for_token(connection, monkeypatch):
    monkeypatch.setattr(decode_module, "PREFILL_CHUNK", 4)
    model = small_model(connection)
    prompt = [5, 17, 3, 42, 8, 11, 30]
    expected = list(prompt)
    with torch.no_grad():
        for _ in range(12):
            expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert list(generate(model, prompt, 12, temperature=0)) == expected[len(prompt) :]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_logits_do_not_depend_on_how_the_prompt_is_cut(chunk):
    model = small_model("block", block_size=2)
    tokens = torch.randint(61, (2, 20))
    caches = model.new_caches(2)
    with torch.no_grad():
        pieces = [model(tokens[:, i : i + chunk], caches, i) for i in range(0, 20, chunk)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens))


def test_generation_stops_where_the_context_ends():
    model = small_model("full")
    assert len(list(generate(model, [1] * 30, 100))) == 3  # two more fit, and one is drawn after the last
    assert len(list(generate(model, [1] * 32, 100))) == 1


def test_a_prompt_may_be_a_tensor():
    model = small_model("residual")
    assert list(generate(model, torch.tensor([1, 2, 3]), 4)) == list(generate(model, [1, 2, 3], 4))


def test_a_seed_repeats_and_another_differs():
    model = small_model("residual")
    first, again, other = (list(generate(model, [1, 2], 20, seed=seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_sampling_follows_the_distribution_it_is_asked_for():
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log().expand(20_000, -1)

    def shares(**options):
        options = {"temperature": 1.0, "top_k": None, "top_p": None, **options}
        drawn = sample(logits, **options, generator=torch.Generator().manual_seed(1))
        return torch.bincount(drawn, minlength=4) / len(drawn)

    def close(actual, *expected):
        torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=0.02)

    close(shares(), 0.5, 0.25, 0.15, 0.1)
    close(shares(top_k=2), 2 / 3, 1 / 3, 0.0, 0.0)
    close(shares(top_p=0.74), 2 / 3, 1 / 3, 0.0, 0.0)
    close(shares(top_p=0.76), 0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0.0)
    close(shares(top_p=0.1), 1.0, 0.0, 0.0, 0.0)
    squared = torch.tensor([0.25, 0.0625, 0.0225, 0.01])
    close(shares(temperature=0.5), *(squared / squared.sum()).tolist())
    close(shares(temperature=0), 1.0, 0.0, 0.0, 0.0)
    close(shares(temperature=1e-300), 1.0, 0.0, 0.0, 0.0)
    close(shares(top_p=1e-300), 1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("top_k", [1, 2])
def test_top_k_keeps_no_more_where_tokens_are_equally_likely(top_k):
    logits = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.bfloat16).expand(1000, -1)
    drawn = sample(logits, 1.0, top_k, None, torch.Generator().manual_seed(0))
    assert len(drawn.unique()) == top_k


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "empty"),
        (None, {}, "list of ids of one text"),
        ("fn main", {}, "list of ids of one text"),
        ([1.5], {}, "list of ids of one text"),
        (torch.tensor([[1, 2]]), {}, "list of ids of one text"),
        ([1] * 33, {}, "33 tokens"),
        ([1, 61], {}, "below the model's vocabulary size, 61"),
        ([-1], {}, "at least 0"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"temperature": float("inf")}, "temperature"),
        ([1], {"seed": 10**20}, "seed"),
        ([1], {"top_k": 0}, "top_k"),
        ([1], {"top_p": 0.0}, "top_p"),
        ([1], {"max_new": 0}, "new tokens"),
    ],
)
def test_bad_input_is_one_line(prompt, options, message):
    options = {"max_new": 4, **options}
    with pytest.raises(UsageError, match=message) as caught:
        next(generate(small_model("residual"), prompt, **options))
    assert "\n" not in str(caught.value)
