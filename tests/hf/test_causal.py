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
