"""Small random models of every architecture that attach is promised for, with weights of a trained model's scale."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from tests.data.text import library_tokenizer
from tests.hf.small import VOCABULARY, small_model, spread_weights

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen3": {},
    "qwen3_moe": {},
    "gemma3_text": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "olmo2": {},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "deepseek_v3": {"n_group": 2, "first_k_dense_replace": 1},
    "kimi_linear": {
        "linear_attn_config": {"num_heads": 2, "head_dim": 8, "kda_layers": [1, 2, 3], "full_attn_layers": [4]},
    },
}


def make_model(name: str, **overrides: Any):
    """A copy of one model per architecture and overrides."""
    key = (name, tuple(sorted(overrides.items())))
    if key not in _made:
        _made[key] = small_model(name, **{**CONFIGS[name], **overrides})
        spread_weights(_made[key])
    return copy.deepcopy(_made[key])


_made: dict[Any, Any] = {}


def recompute(model: Any, options: dict[str, Any] | None = None) -> None:
    """Let a model recompute activations, by the name that its version of transformers has for it."""
    name = "activation_checkpointing_enable"
    getattr(model, name if hasattr(model, name) else "gradient_checkpointing_enable")(options)


def make_tokens(batch: int = 2, time: int = 11) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(5))


def attached(name: str = "llama", **overrides: Any) -> Any:
    """A model with blocks of three sublayers, so that one ends inside a layer, and random queries."""
    import attnres.hf
    from tests.depth import randomise

    model = attnres.hf.attach(make_model(name, **overrides), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    return model


def assert_near(found: Any, expected: Any, share: float = 1e-4) -> None:
    """Equal but for rounding, measured by the largest number of each tensor; also of dicts and lists of them."""
    if isinstance(expected, torch.Tensor):
        largest = expected.abs().max().item()
        torch.testing.assert_close(found, expected, rtol=0, atol=share * largest)
        return
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = found.values(), expected.values()
    for mine, theirs in zip(found, expected, strict=True):
        assert_near(mine, theirs, share)


def generate(model: Any, tokens: torch.Tensor, count: int = 5, **options: Any) -> Any:
    """A greedy continuation of that many tokens, with the logits of each step."""
    with torch.no_grad():
        return model.generate(
            tokens, max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None,
            return_dict_in_generate=True, output_logits=True, **options,
        )  # fmt: skip


def assert_decodes_as_whole(model: Any, tokens: torch.Tensor, padding: int = 0, **options: Any) -> None:
    """The logits of `generate`, step by step with a cache, are those of one pass over the text that it made.

    Texts are not compared: rounding may turn one draw, and then all that follow.
    """
    made = generate(model, tokens, **options)
    with torch.no_grad():
        whole = model(made.sequences[:, padding:], use_cache=False).logits[:, tokens.shape[1] - padding - 1 : -1]
    assert_near(torch.stack(made.logits, 1).to(whole.dtype), whole)  # generate gives float32


TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def save_attached(folder: Path, **overrides: Any) -> Any:
    """A small attached llama with random queries, saved to a folder with a tokenizer of bytes that can chat."""
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    import attnres.hf
    from tests.depth import randomise

    sizes = {"vocab_size": 280, "num_hidden_layers": 2, "max_position_embeddings": 512, "pad_token_id": 0}
    model = attnres.hf.attach(
        make_model("llama", **{**sizes, "bos_token_id": None, "eos_token_id": 0, **overrides}), "block", block_size=2
    )
    randomise(attnres.hf.connection_of(model))
    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0, repetition_penalty=1.25)
    model.save_pretrained(folder)
    tokenizer = library_tokenizer(special_tokens=["<|endoftext|>"])
    special = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE, **special).save_pretrained(folder)
    return model
