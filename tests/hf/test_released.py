"""Models of transformers as they are: what their head reads, what their sites read, each tool."""

from __future__ import annotations

import pytest
import torch

import attnres
import attnres.hf
from attnres.analysis import Mute, Off, Patch, Scale, depth_profile, explain, intervene
from attnres.analysis import trace as traced
from attnres.analysis.interventions import Intervened
from attnres.analysis.tracing import readout_parts
from attnres.model.backbones.borrowed import cache_name
from tests.depth import trace
from tests.hf.small import VOCABULARY, small_inputs, small_model

QWEN4 = {
    **{f"indexer_{name}": size for name, size in {"n_heads": 2, "kv_heads": 1, "head_dim": 8, "budget": 8}.items()},
    "indexer_compress_ratio": 2,
    "linear_num_key_heads": 2,
}
PLE = {"ple_layer_ids": [1, 3], "ple_embed_dim": 16, "ngram_vocab_size_base": 50, "heads_per_ngram": 2}
GEMMA3N = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
MUSE_SPARK = {  # the whole, of which tokens alone are given
    "text_config": {
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 16, "moe_hidden_size": 16},
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "bos_token_id": 1, "eos_token_id": 2},
    },
    "vision_config": {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2},
    "audio_config": {"hidden_sizes": [4] * 4, "depths": [1] * 4, "out_hidden_size": 32},
    **{"image_token_id": 0, "video_token_id": 1, "audio_token_id": 2, "projector_hidden_size": 16},
    "out_hidden_size": 16,
}
RELEASED = {
    "beam": ("beam", {}),
    "deepseek_v4": ("deepseek_v4", {}),
    "gemma3n_text": ("gemma3n_text", GEMMA3N | {"activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]}),
    "hy_v4": ("hy_v4", {}),
    "inkling2_text": ("inkling2_text", {"n_layers_per_attn_res_block": 1}),
    "qwen4_exp_text": ("qwen4_exp_text", QWEN4),
    "qwen4_exp_text-ple": ("qwen4_exp_text", QWEN4 | PLE),
    "muse_spark": ("muse_spark", MUSE_SPARK),
    "llama": ("llama", {}),
    "gemma3_text": ("gemma3_text", {}),
}


SLOW = {"gemma3_text", "hy_v4", "qwen4_exp_text"}  # another of each kind is quick
EACH = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RELEASED]


@pytest.fixture(scope="module", params=EACH)
def model(request):
    """A small model with every parameter disturbed, so that nothing is zero, one or equal between streams."""
    model_type, options = RELEASED[request.param]
    whole = model_type == "muse_spark"
    model = small_model(model_type, "AutoModelForImageTextToText" if whole else "AutoModelForCausalLM", **options)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


@torch.no_grad()
def test_a_released_model_is_its_connection(model):
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


TEXT = [3, 9, 4, 17, 5, 8, 11, 6]


@torch.no_grad()
def test_a_released_model_is_traced_and_changed(model):
    """Its own code runs with what the connection reads in place: without changes as ever, with them as the
    connection says, also behind a cache; afterwards it is as before."""
    tokens = torch.tensor([TEXT])
    before, names = model(tokens).logits, list(model.state_dict())
    connection, embedding, sublayers = attnres.hf.unroll(model, tokens)
    plain = traced(model, TEXT)
    torch.testing.assert_close(plain.logits, before[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(plain.weights, attnres.mixing_matrix(model, tokens)[0], rtol=1e-4, atol=1e-4)

    last = connection.sublayers
    changes = [Mute(0, sites=[2]), Scale(last, by=3.0, sites=[last]), Off(1, tokens=[2])]
    changed = traced(model, TEXT, changes).logits
    norm, head = readout_parts(model)
    by_hand = head(norm(Intervened(connection, changes)(embedding, sublayers)))
    torch.testing.assert_close(changed, by_hand[0], rtol=1e-4, atol=1e-4)
    assert (changed - before[0]).abs().max() > 1e-3
    with intervene(model, *changes):
        torch.testing.assert_close(model(tokens, use_cache=False).logits[0], changed, rtol=1e-4, atol=1e-4)
        with pytest.raises(attnres.UsageError, match="under changes"):
            attnres.mixing_matrix(model, tokens)
        if any(getattr(layer, "ple", None) for layer in model.get_decoder().layers):
            with pytest.raises(attnres.UsageError, match="use_cache=False"):
                model(tokens)
        else:
            start, name = model(tokens[:, :5], use_cache=True), cache_name(model)
            end = model(tokens[:, 5:], **{name: start[name]}).logits
            torch.testing.assert_close(torch.cat([start.logits, end], 1)[0], changed, rtol=1e-3, atol=1e-3)
    other = tuple(reversed(TEXT))
    patched = traced(model, TEXT, [Patch(i, prompt=other) for i in range(last + 1)]).logits
    torch.testing.assert_close(patched, model(torch.tensor([other])).logits[0], rtol=1e-3, atol=1e-3)
    assert torch.equal(model(tokens).logits, before) and list(model.state_dict()) == names

    explained = explain(model, plain, position=4, target=7)
    torch.testing.assert_close(explained.logits[-1], before[0, 4], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model", ["gemma3n_text", "inkling2_text"], indirect=True)
def test_the_depth_profile_of_a_released_model(model):
    profile = depth_profile(model, torch.tensor([TEXT]), positions=[2])
    tokens = torch.tensor([TEXT[:-1]])
    matrix = attnres.mixing_matrix(model, tokens)[0]
    torch.testing.assert_close(torch.from_numpy(profile.mean_matrix).float(), matrix.mean(0), rtol=1e-4, atol=1e-4)
    assert len(profile.names) == len(profile.gradient_rms) - 1 and profile.gradient_rms.min() > 0
