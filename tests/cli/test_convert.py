from __future__ import annotations

import pytest
import torch

from attnres import hf
from attnres.cli import main
from attnres.hf.convert import convert
from tests.hf.models import make_model, make_tokens

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture
def plain(tmp_path):
    make_model("llama").save_pretrained(tmp_path / "plain")
    (tmp_path / "plain" / "tokenizer.json").write_text("{}")
    return tmp_path / "plain"


def test_convert(plain, tmp_path, capsys):
    target = tmp_path / "attached"
    options = ("--connection", "block:block_size=3,eps=1e-5")
    assert main(["convert", str(plain), str(target), *options]) == 0
    said = capsys.readouterr().out
    assert "576 parameters in 18 tensors added to" in said and "differ by at most" in said
    assert {f.name for f in target.iterdir()} == {*(f.name for f in plain.iterdir()), "modeling_attnres.py"}
    assert sorted(f.name for f in tmp_path.iterdir()) == ["attached", "plain"]
    model, tokens = hf.load(target), make_tokens()
    assert (hf.connection_of(model).block_size, hf.connection_of(model).options.eps) == (3, 1e-5)
    torch.testing.assert_close(model(tokens).logits, make_model("llama")(tokens).logits, rtol=1e-4, atol=1e-5)

    assert main(["convert", str(plain), str(target)]) == 2
    assert f"attnres: {target} exists; give a new folder" in capsys.readouterr().err
    assert main(["convert", str(plain), str(tmp_path / "other"), "--connection", "mhc"]) == 2
    assert "the logits would differ by" in capsys.readouterr().err
    assert sorted(f.name for f in tmp_path.iterdir()) == ["attached", "plain"]


def test_bfloat16_stays_and_lossy_is_allowed(plain, tmp_path):
    make_model("llama").to(torch.bfloat16).save_pretrained(plain)
    done = convert(plain, tmp_path / "a", "mhc", lossy=True)
    assert done.difference > 1e-3
    done = convert(plain, tmp_path / "b", "full")
    assert done.difference < 1e-5
    model = hf.load(tmp_path / "b", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.model.norm.weight, make_model("llama").to(torch.bfloat16).model.norm.weight)
