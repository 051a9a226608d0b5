"""Models of transformers as they are, unrolled over depth: what their head reads, and the matrix of what sites read."""

from __future__ import annotations

import pytest
import torch

import attnres
import attnres.hf
from tests.depth import trace
from tests.hf.small import small_inputs, small_model

INDEXER = {"n_heads": 2, "kv_heads": 1, "head_dim": 8, "budget": 8, "compress_ratio": 2}
RELEASED = {
    "beam": ("AutoModelForCausalLM", {}),
    "deepseek_v4": ("AutoModelForCausalLM", {}),
    "hy_v4": ("AutoModelForCausalLM", {}),
    "inkling2_text": ("AutoModelForCausalLM", {"n_layers_per_attn_res_block": 1}),
    "muse_spark_text": ("AutoModel", {}),
    "qwen4_exp_text": (
        "AutoModelForCausalLM",
        {f"indexer_{name}": size for name, size in INDEXER.items()} | {"linear_num_key_heads": 2},
    ),
    "llama": ("AutoModelForCausalLM", {}),
    "gemma3_text": ("AutoModelForCausalLM", {}),
}


@pytest.mark.parametrize("model_type", RELEASED)
@torch.no_grad()
def test_a_released_model_is_its_connection(model_type):
    auto_class, options = RELEASED[model_type]
    model = small_model(model_type, auto_class, **options)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():  # so that nothing is zero, one or equal between streams
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    tokens = small_inputs(model)
    connection, embedding, sublayers = attnres.hf.unroll(model, tokens)
    expected = model.get_decoder()(tokens, use_cache=False).last_hidden_state
    norm = attnres.hf.final_norm(model)
    torch.testing.assert_close(norm(connection(embedding, sublayers)), expected, rtol=1e-5, atol=1e-5)
    sources, inputs = trace(connection, embedding, sublayers)
    inputs = [sum(h) / len(h) if isinstance(h, tuple) else h for h in inputs]  # of several reads M is the mean
    matrix = attnres.mixing_matrix(model, tokens, per_channel=True)
    rebuilt = torch.einsum("btlid,ibtd->lbtd", matrix, torch.stack(sources))
    torch.testing.assert_close(rebuilt, torch.stack(inputs), rtol=1e-4, atol=1e-4)
