"""What people do with a transformers model goes on working when a connection is attached."""

from __future__ import annotations

import warnings

import pytest
import torch

import attnres.hf
from attnres import UsageError
from tests.hf.models import assert_decodes_as_whole, assert_near, attached, generate, make_model, make_tokens


@pytest.mark.parametrize("name", ["gemma3_text", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_static_cache(name):
    assert_decodes_as_whole(attached(name), make_tokens(), cache_implementation="static")


@pytest.mark.parametrize("name", ["llama", "kimi_linear"])
def test_left_padding(name):
    tokens = make_tokens(1, 7)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), tokens], 1)
    assert_decodes_as_whole(attached(name), padded, padding=4, attention_mask=(padded != 0).long())


def test_beams_carry_their_caches():
    """The score of each beam is the mean log-probability that one pass gives to its tokens."""
    model, tokens = attached(), make_tokens()
    made = generate(model, tokens, num_beams=3, output_scores=True)
    with torch.no_grad():
        log_p = model(made.sequences, use_cache=False).logits.log_softmax(-1)[:, tokens.shape[1] - 1 : -1]
    drawn = log_p.gather(-1, made.sequences[:, tokens.shape[1] :, None])
    torch.testing.assert_close(made.sequences_scores, drawn.mean((1, 2)), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_compile():
    torch._dynamo.reset()
    model, tokens = attached(num_hidden_layers=2).train(), make_tokens()

    def step(run):
        model.zero_grad()
        logits = run(tokens, use_cache=False).logits
        logits.square().mean().backward()
        return {"logits": logits} | {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = step(model)
    assert_near(step(torch.compile(model, fullgraph=True, backend="aot_eager")), expected)


def test_bfloat16():
    model, tokens = attached(), make_tokens()
    exact = model(tokens).logits
    model.to(torch.bfloat16)
    assert {p.dtype for p in attnres.hf.connection_of(model).parameters()} == {torch.float32}
    rounded = model(tokens, output_hidden_states=True)
    assert rounded.logits.dtype == torch.bfloat16
    assert all(state.dtype == torch.bfloat16 for state in rounded.hidden_states)
    error = (rounded.logits.float() - exact).norm() / exact.norm()
    assert error < 0.1  # a rounding of 0.004 in each of 24 products and eight mixtures; one wrong mixture is 1
    fresh = attnres.hf.attach(make_model("llama").to(torch.bfloat16), "full")
    assert {p.dtype for p in attnres.hf.connection_of(fresh).parameters()} == {torch.float32}
    fresh.train()(tokens, labels=tokens).loss.backward()
    assert attnres.hf.connection_of(fresh).query[3].grad.norm() > 0


@pytest.mark.parametrize("connection", ["block", "x0", "denseformer", "hc", "mhc"])
def test_trainers_weight_decay_leaves_the_connection_out(connection):
    from transformers import Trainer
    from transformers.trainer_pt_utils import get_parameter_names

    model = attnres.hf.attach(make_model("llama"), connection)
    for decayed in Trainer.get_decay_parameter_names(None, model), get_parameter_names(model, [torch.nn.LayerNorm]):
        assert "model.layers.0.mlp.up_proj.weight" in decayed
        assert not any("connection" in name for name in decayed)


def test_peft_lora_with_trained_queries(tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    tokens = make_tokens()
    model = attnres.hf.attach(make_model("llama"), "block", block_size=3)
    config = LoraConfig(
        r=2, target_modules=["q_proj", "up_proj"], modules_to_save=["connection"], task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by a name that is going away
        tuned = get_peft_model(model, config)
    start = tuned(tokens).logits
    trained = {n for n, p in tuned.named_parameters() if p.requires_grad}
    assert any("query" in n for n in trained) and any("lora_A" in n for n in trained)
    optimizer = torch.optim.SGD((p for p in tuned.parameters() if p.requires_grad), 0.5)
    tuned(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    tuned.eval()
    assert tuned.get_base_model().model.connection.query[5].norm() > 0
    end = tuned(tokens).logits
    assert not torch.allclose(start, end)
    assert_decodes_as_whole(tuned, tokens)
    assert attnres.hf.mixing_matrix(tuned, tokens).shape[-1] == 9
    assert {g["name"] for g in attnres.hf.param_groups(tuned, 1e-3)} == {"connection", "decayed"}
    with pytest.warns(UserWarning, match="Could not find a config file in an attached model that was not saved"):
        tuned.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        again = PeftModel.from_pretrained(attnres.hf.attach(make_model("llama"), "block", block_size=3), tmp_path)
        assert_near(again(tokens).logits, end)
        with pytest.raises(UsageError, match=r"that of Block.*block_size=3.*, and this is Block.*block_size=2"):
            PeftModel.from_pretrained(attnres.hf.attach(make_model("llama"), "block", block_size=2), tmp_path)
