from __future__ import annotations

import pytest
import torch

from attnres import Transformer, TransformerConfig, UsageError
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


# The stream alone, finished blocks, outputs, streams, and both sums of an open block.
@pytest.mark.parametrize(
    "connection", ["residual", "block:block_size=2", "delta", "hc", "rms-block", "haares:reads=qkv"]
)
def test_greedy_equals_the_full_forward(connection, monkeypatch):
    """Token by token with caches, the prompt in chunks; which of two equally likely tokens is drawn is rounding's."""
    monkeypatch.setattr(decode_module, "PREFILL_CHUNK", 4)
    model, tokens = small_model(connection), [5, 17, 3, 42, 8, 11, 30]
    drawn = list(generate(model, tokens, 5, temperature=0))
    with torch.no_grad():
        logits = model(torch.tensor([tokens + drawn]))[0, len(tokens) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(drawn)[:, None])[:, 0]
    assert len(drawn) == 5 and (chosen >= logits.max(-1).values - 1e-3).all()
    assert logits.std() > 0.05


@pytest.mark.parametrize("chunk", [1, 3])
def test_logits_do_not_depend_on_how_the_prompt_is_cut(chunk):
    model = small_model("block", block_size=2)
    tokens = torch.randint(61, (2, 10))
    caches = model.new_caches(2)
    with torch.no_grad():
        pieces = [model(tokens[:, i : i + chunk], caches) for i in range(0, 10, chunk)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), rtol=1e-4, atol=1e-5)


def test_generation_stops_where_the_context_ends():
    model = small_model("full")
    assert len(list(generate(model, [1] * 30, 100))) == 3  # two more fit, and one is drawn after the last
    assert len(list(generate(model, [1] * 32, 100))) == 1


def test_a_seed_repeats_and_another_differs():
    model = small_model("residual")
    prompts = (3, [1, 2]), (3, torch.tensor([1, 2])), (4, [1, 2])
    first, again, other = (list(generate(model, prompt, 20, seed=seed)) for seed, prompt in prompts)
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


def test_bad_input_is_an_error():
    for prompt, top_p, message in (([1] * 33, None, "33 tokens; the model takes 1 to 32"), ([1], 0.0, "top_p above 0")):
        with pytest.raises(UsageError, match=message):
            next(generate(small_model("residual"), prompt, 4, top_p=top_p))
