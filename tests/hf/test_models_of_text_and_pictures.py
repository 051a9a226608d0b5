"""Models whose decoder of text is a part: its configuration, its outputs and its name are not the whole model's."""

from __future__ import annotations

import pytest
import torch

import attnres.hf
from attnres.analysis import explain, trace
from tests.depth import randomise
from tests.hf.models import assert_near
from tests.hf.small import small_model, spread_weights

KINDS = ["gemma3", "llava", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gemma4", "got_ocr2"))]


def attached(kind):
    auto = "AutoModelForImageTextToText" if kind == "llava" else "AutoModelForCausalLM"
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
    assert float(told.rest.abs().max()) < 1e-4 * max(1.0, abs(logit))

    tokens = torch.tensor([[5, 5, *ids], [*ids, 8, 8]])
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    matrix = attnres.hf.mixing_matrix(model, tokens, attention_mask=mask)
    plain = attnres.hf.mixing_matrix(model, tokens)
    assert_near(plain, attnres.mixing_matrix(model, tokens))
    assert_near(matrix[1], plain[1])  # its mask leaves nothing out
    assert (matrix[0, 2:] - plain[0, 2:]).abs().max() > 1e-4
    assert_near(attnres.hf.mixing_matrix(model, tokens[1:, :6])[0], traced.weights)
