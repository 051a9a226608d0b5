from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from attnres import hf
from attnres.errors import UsageError
from attnres.hf.causal import refuse_other_than_causal
from attnres.hf.small import small_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral", "qwen3_moe", "gemma3_text", "qwen3_next"])
def test_causal_models_pass(kind, dtype):
    refuse_other_than_causal(small_model(kind).to(dtype).eval(), Path("folder"))


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_models_that_see_ahead_are_refused(kind, attached):
    for name in ("AutoModelForMaskedLM", "AutoModelForCausalLM")[: 1 + (kind == "bert")]:
        model = small_model(kind, name).eval()
        if attached:
            hf.attach(model, "residual")
        with pytest.raises(UsageError, match=f"folder: .*{type(model).__name__} sees the tokens behind each token"):
            refuse_other_than_causal(model, Path("folder"))
    decoder = small_model("bert", "AutoModelForCausalLM", is_decoder=True).eval()
    refuse_other_than_causal(decoder, Path("folder"))


def test_encoder_decoders_are_refused():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=32, d_ff=64, d_kv=16, num_layers=1, num_heads=2, vocab_size=64)
    with pytest.raises(UsageError, match="folder: T5ForConditionalGeneration is an encoder-decoder"):
        refuse_other_than_causal(T5ForConditionalGeneration(config).eval(), Path("folder"))


@pytest.mark.parametrize("name", ["AutoModelForSequenceClassification", "AutoModel"])
def test_models_without_a_head_of_tokens_are_refused(name):
    with pytest.raises(UsageError, match="has no logits of a next token"):
        refuse_other_than_causal(small_model("llama", name, pad_token_id=0).eval(), Path("folder"))
