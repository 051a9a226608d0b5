from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from attnres import hf
from attnres.errors import UsageError
from attnres.hf.causal import refuse_other_than_causal
from tests.hf.small import small_model


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("mixtral", torch.bfloat16), pytest.param("qwen3_next", torch.float32, marks=pytest.mark.slow)],
)
def test_causal_models_pass(kind, dtype):
    """Rounding of a mixture of experts, and a state that is not of attention, are not taken for sight ahead."""
    refuse_other_than_causal(small_model(kind).to(dtype).eval(), Path("folder"))


def test_models_that_see_ahead_are_refused():
    for name in ("AutoModelForMaskedLM", "AutoModelForCausalLM"):
        model = small_model("bert", name).eval()
        if name == "AutoModelForMaskedLM":
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


def test_models_without_a_head_of_tokens_are_refused():
    with pytest.raises(UsageError, match="has no logits of a next token"):
        refuse_other_than_causal(small_model("llama", "AutoModel", pad_token_id=0).eval(), Path("folder"))
