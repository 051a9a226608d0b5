"""Models whose decoder of text is a part: its configuration, its outputs and its name are not the whole model's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import attnres.hf
from attnres.analysis import explain, trace
from attnres.hf.anatomy import decoder_of
from attnres.hf.small import small_model, spread_weights
from tests.depth import randomise

KINDS = ["gemma3", "gemma4", "got_ocr2", "mistral3", "llava", "fuyu"]


def attached(kind):
    auto = "AutoModelForImageTextToText" if kind in ("llava", "mistral3") else "AutoModelForCausalLM"
    model = small_model(kind, auto)
    spread_weights(model)
    attnres.hf.attach(model, "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_what_depth_does_is_told_as_of_text_alone(kind):
    model = attached(kind)
    ids = [3, 9, 4, 40, 12, 9]
    traced = trace(model, ids)
    told = explain(model, traced, 4, 7)
    logit = float(model(torch.tensor([ids])).logits[0, 4, 7].detach())
    assert float(told.rest.abs().max()) < 1e-5 * max(1.0, abs(logit))

    tokens = torch.tensor([[5, 5, *ids], [*ids, 8, 8]])
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    matrix = attnres.hf.mixing_matrix(model, tokens, attention_mask=mask)
    plain = attnres.hf.mixing_matrix(model, tokens)
    torch.testing.assert_close(plain, attnres.mixing_matrix(model, tokens))
    torch.testing.assert_close(matrix[1], plain[1])  # its mask leaves nothing out
    assert (matrix[0, 2:] - plain[0, 2:]).abs().max() > 1e-4
    torch.testing.assert_close(attnres.hf.mixing_matrix(model, tokens[1:, :6])[0], traced.weights, rtol=1e-4, atol=1e-6)
    assert attnres.hf.depth_change(model, model, tokens).largest == 0


@pytest.mark.parametrize("kind", ["opt", "gpt2", "llama", *KINDS[:3]])
def test_a_device_map_of_the_plain_model_serves_its_layers_wherever_they_are(kind, tmp_path):
    model, tokens = attached(kind), torch.tensor([[3, 9, 4, 40, 12, 9]])
    model.save_pretrained(tmp_path / "model")
    decoder = decoder_of(model)
    at = next(name for name, module in model.named_modules() if module is decoder)
    layers = next(name for name, module in decoder.named_children() if isinstance(module, torch.nn.ModuleList))
    own = {
        name.rpartition(".")[0] for name, _ in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    }
    not_by_itself = (f"{at}.{layers}.", f"{at}.connection")
    device_map = {name: "cpu" for name in own if not name.startswith(not_by_itself)}
    device_map |= {f"{at}.{layers}.{index}": "cpu" if index < 3 else "disk" for index in range(4)}
    for load in (attnres.hf.load, type(model).from_pretrained, transformers.AutoModelForCausalLM.from_pretrained):
        loaded: Any = load(tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload")
        assert loaded.hf_device_map[f"{at}.connection"] == "cpu" and loaded.hf_device_map[f"{at}.{layers}.3"] == "disk"
        torch.testing.assert_close(loaded.eval()(tokens).logits, model(tokens).logits)
