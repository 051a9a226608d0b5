from __future__ import annotations

import json

import pytest
import torch
import transformers

from attnres import UsageError, hf
from attnres.cli import main
from attnres.files import added_folder
from attnres.hf.convert import convert
from tests.disk import files_up_to
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


def test_chat_templates_in_their_folder_are_kept(plain, tmp_path):
    templates = plain / "additional_chat_templates"
    templates.mkdir()
    (templates / "tool_use.jinja").write_text("{{ messages }}")
    (plain / "original").mkdir()
    convert(plain, tmp_path / "new", "full")
    assert (tmp_path / "new" / templates.name / "tool_use.jinja").read_text() == "{{ messages }}"
    assert not (tmp_path / "new" / "original").exists()


@pytest.mark.slow
def test_a_model_without_a_head_is_compared_by_what_it_returns(tmp_path):
    base = make_model("llama").model
    base.save_pretrained(tmp_path / "base")
    assert convert(tmp_path / "base", tmp_path / "new", "full").difference < 1e-5
    tokens = make_tokens()
    found = hf.load(tmp_path / "new").eval()(tokens).last_hidden_state
    torch.testing.assert_close(found, base.eval()(tokens).last_hidden_state, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="the logits would differ by"):
        convert(tmp_path / "base", tmp_path / "other", "mhc")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(16, 8)])
def test_a_vision_model_is_compared_on_pixels(tmp_path, size):
    config = transformers.ViTConfig(image_size=size, patch_size=8, **SMALL)
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path / "vit")
    assert convert(tmp_path / "vit", tmp_path / "new").difference < 1e-5
    pixels = torch.randn(2, 3, 16, 16 if size == 16 else 8)
    found = hf.load(tmp_path / "new").eval()(pixels).logits
    torch.testing.assert_close(found, model(pixels).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [1])
def test_few_positions_are_enough(tmp_path, positions):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=positions)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "short")
    assert convert(tmp_path / "short", tmp_path / "new").difference < 1e-5


def test_an_encoder_decoder_is_refused_before_it_runs(tmp_path):
    config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    with pytest.raises(UsageError, match="t5 is an encoder-decoder; attach takes decoders only"):
        convert(tmp_path / "t5", tmp_path / "new")


def test_a_head_that_begins_at_zero_differs_by_nothing(plain, tmp_path):
    model = make_model("llama")
    model.lm_head.weight.data.zero_()
    model.save_pretrained(plain)
    assert convert(plain, tmp_path / "new").difference == 0


def test_a_full_disk_is_one_line(plain, tmp_path, capsys):
    with files_up_to(2**14):
        assert main(["convert", str(plain), str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err.endswith(f"attnres: {tmp_path / 'new'}: File too large\n")
    assert not (tmp_path / "new").exists()


def test_a_target_that_another_command_is_writing_or_has_written_stays(plain, tmp_path):
    (tmp_path / "new.partial").mkdir()  # the user's own
    with added_folder(tmp_path / "new"), pytest.raises(UsageError, match="new: another command is writing it"):
        convert(plain, tmp_path / "new")

    def make_it(text):
        (tmp_path / "late").mkdir(exist_ok=True)
        (tmp_path / "late" / "file").touch()

    with pytest.raises(UsageError, match="late was made by another command meanwhile"):
        convert(plain, tmp_path / "late", step=make_it)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["late", "new", "new.partial", "plain"]
    assert [f.name for f in (tmp_path / "late").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("hidden_act", "nope", "plain: cannot be loaded: nothing is known as 'nope'"),
        ("architectures", [5], "architectures must name a class of transformers"),
    ],
)
def test_a_config_that_makes_no_model_is_one_line(plain, tmp_path, capsys, entry, value, message):
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | {entry: value}))
    assert main(["convert", str(plain), str(tmp_path / "new")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
    assert [f.name for f in tmp_path.iterdir()] == ["plain"]


@pytest.mark.parametrize("number", [float("nan")])
def test_a_checkpoint_that_is_not_finite_itself_is_blamed_and_no_connection(plain, tmp_path, number):
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = number
    model.save_pretrained(plain)
    for lossy in (False, True):
        with pytest.raises(UsageError, match="plain: its own logits are not finite"):
            convert(plain, tmp_path / "new", lossy=lossy)
    assert [f.name for f in tmp_path.iterdir()] == ["plain"]


@pytest.mark.parametrize("connection", ["nope", "block:size=1"])
def test_a_name_that_is_none_is_refused_before_the_weights_are_read(plain, tmp_path, connection):
    told = []
    with pytest.raises(UsageError, match=r"unknown connection|has no option"):
        convert(plain, tmp_path / "new", connection, step=told.append)
    assert told == []
