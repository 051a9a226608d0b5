"""A saved attached model is loaded as what it is by transformers alone, or not at all."""

from __future__ import annotations

import ast
import json

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

import attnres.hf
from attnres import UsageError
from attnres.hf import classes
from attnres.hf.classes import CODE_FILE
from tests.depth import randomise
from tests.hf.folders import edit_config, keys, rename, run_elsewhere
from tests.hf.models import assert_near, attached, make_model, make_tokens
from tests.hf.small import small_inputs, small_model
from tests.hf.test_connections_of_files import ran, write

LOADERS = (AutoModelForCausalLM.from_pretrained, attnres.hf.load)

# In a new process: nothing has imported attnres, which at first is not installed.
ELSEWHERE = """
import os
import sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

path, expected = sys.argv[1], torch.load(sys.argv[2])

def refusal(load, **kwargs):
    try:
        load(path, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

sys.modules["attnres"] = None
absent = refusal(AutoModelForCausalLM.from_pretrained, trust_remote_code=True)
assert absent == "ImportError: this model needs the Python package attnres, which is not installed here", absent
del sys.modules["attnres"]
untrusted = refusal(AutoModelForCausalLM.from_pretrained)
assert untrusted.startswith("ValueError") and "trust_remote_code" in untrusted, untrusted
plain = refusal(LlamaForCausalLM.from_pretrained)
assert plain.startswith("ValueError") and plain.endswith("or behind import attnres.hf"), plain
assert AutoTokenizer.from_pretrained(path)("text").input_ids
assert "attnres" not in sys.modules

# A folder whose connection is in a file, which its own code runs because it is trusted: in a process that has what
# this one has imported.
child = os.fork()
if child == 0:
    config = AutoConfig.from_pretrained(sys.argv[4], trust_remote_code=True)
    AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    AutoModelForCausalLM.from_pretrained(sys.argv[4], trust_remote_code=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0

# Nobody has asked for the class of configuration yet, by which a generic head chooses its base model.
from attnres.hf.classes import AttnResLlamaForSequenceClassification

head = AttnResLlamaForSequenceClassification.from_pretrained(sys.argv[3])
torch.testing.assert_close(head(expected["tokens"]).logits, expected["of the head"], rtol=0, atol=1e-3)
model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
torch.testing.assert_close(model(expected["tokens"]).logits, expected["logits"], rtol=0, atol=1e-3)
"""


@pytest.mark.slow
def test_in_a_process_that_knows_nothing_of_attnres(kept, tmp_path):
    tokens, head = make_tokens(), transformers.LlamaForSequenceClassification(make_model("llama").config).eval()
    attnres.hf.attach(head, "block", block_size=3).save_pretrained(tmp_path / "head")
    expected = {"tokens": tokens, "logits": kept.logits, "of the head": head(tokens).logits.detach()}
    torch.save(expected, tmp_path / "expected")
    rule = write(tmp_path / "mine.py")
    attnres.hf.attach(make_model("llama"), f"{rule}:Rule").save_pretrained(tmp_path / "own")
    rule.with_suffix(".ran").unlink()
    run_elsewhere(ELSEWHERE, kept.folder, tmp_path / "expected", tmp_path / "head", tmp_path / "own")
    assert ran(rule)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "kimi_linear"])
def test_what_is_registered_loads_without_remote_code(name, tmp_path):
    model, tokens = attached(name), make_tokens()
    model.save_pretrained(tmp_path / "attached")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "attached")
    assert_near(again(tokens).logits, model(tokens).logits)
    assert type(again) is type(model) and issubclass(type(again), type(make_model(name)))
    make_model(name).save_pretrained(tmp_path / "plain")
    config = json.loads((tmp_path / "attached" / "config.json").read_text())
    plain = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["model_type"] == "attnres" and plain["model_type"] == config["attnres"]["plain"] == name
    assert config["attnres"]["connection"] == "block:block_size=3,total=true"
    assert config["architectures"] == [f"AttnRes{plain['architectures'][0]}"]
    assert {entry for entry in plain if plain[entry] != config[entry]} == {"model_type", "architectures"}
    # The tensors are those of a plain checkpoint, merged or split as that stores them, and the connection's.
    assert {key for key in keys(tmp_path / "attached") if ".connection." not in f".{key}"} == keys(tmp_path / "plain")


def test_a_model_from_a_folder_whose_tensors_are_renamed(tmp_path):
    """transformers renames tensors of old checkpoints by the class's name, and renames them back where it saves."""
    auto, plain = AutoModelForCausalLM, small_model("mixtral")
    plain.save_pretrained(tmp_path / "plain")
    model = attnres.hf.attach(auto.from_pretrained(tmp_path / "plain").eval(), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path / "attached")
    inputs = small_inputs(model)
    for load in (lambda folder: auto.from_pretrained(folder, trust_remote_code=True), attnres.hf.load):
        assert_near(load(tmp_path / "attached").eval()(inputs).logits, model(inputs).logits)


def test_generic_heads(tmp_path):
    """They let AutoModel choose their base model by the configuration."""
    auto = transformers.AutoModelForSequenceClassification
    model = attnres.hf.attach(auto.from_config(make_model("llama").config).eval(), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    model.config.pad_token_id = 0
    model.save_pretrained(tmp_path)
    own = {f"model.connection.{key}" for key, _ in attnres.hf.connection_of(model).named_parameters()}
    assert {key for key in keys(tmp_path) if key.startswith("model.connection.")} == own
    for load in (auto.from_pretrained, type(model).from_pretrained, attnres.hf.load):
        again = load(tmp_path)
        assert type(again) is type(model) and type(again.base_model) is type(model.base_model)
        assert_near(again.eval()(make_tokens()).logits, model(make_tokens()).logits)
    assert type(model)(model.config).state_dict().keys() == model.state_dict().keys()


def test_a_folder_has_no_tensor_that_says_whose_state_it_is(kept, caplog):
    """vLLM would stop at it, and config.json says it."""
    assert "model.connection._extra_state" in kept.model.state_dict().keys() - keys(kept.folder)
    for load in LOADERS:
        again = load(kept.folder)
        assert "MISSING" not in caplog.text
        for key, tensor in kept.model.state_dict().items():
            assert torch.equal(again.state_dict()[key], tensor), key


@pytest.mark.parametrize("load", LOADERS)
def test_a_model_around_an_attached_base_model_is_saved_as_what_it_is(load, tmp_path):
    whole, tokens = make_model("llama"), make_tokens()
    randomise(attnres.hf.connection_of(attnres.hf.attach(whole.model, "block", block_size=8)))
    whole.save_pretrained(tmp_path)
    assert_near(load(tmp_path)(tokens).logits, whole(tokens).logits)
    with pytest.raises(ValueError, match="this is no plain llama"):
        LlamaForCausalLM.from_pretrained(tmp_path)


def test_sharded_tied_and_in_bfloat16(tmp_path):
    model = attnres.hf.attach(make_model("llama", tie_word_embeddings=True).to(torch.bfloat16), "full")
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    kinds = {name: parameter.dtype for name, parameter in again.named_parameters()}
    assert {dtype for name, dtype in kinds.items() if "connection" not in name} == {torch.bfloat16}
    assert {dtype for name, dtype in kinds.items() if "connection" in name} == {torch.float32}
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter)
    narrow = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16).half()
    assert {p.dtype for p in attnres.hf.connection_of(narrow).parameters()} == {torch.float32}


def test_no_text_of_a_configuration_becomes_code(kept, tmp_path):
    config = AutoConfig.from_pretrained(kept.folder)
    config.architectures = ['Llama"""\nimport this\n"""', "import this"]
    config.auto_map = {"AutoModel": "import this\nmodeling_attnres.import this\n"}
    config.save_pretrained(tmp_path)
    first, second = (ast.dump(ast.parse((folder / CODE_FILE).read_text())) for folder in (kept.folder, tmp_path))
    assert first == second


def test_attaching_forgets_where_the_plain_model_came_from(tmp_path):
    """A trainer that loads its reference policy from there would get the plain model."""
    make_model("llama").save_pretrained(tmp_path)
    plain = LlamaForCausalLM.from_pretrained(tmp_path)
    config = plain.config
    attnres.hf.attach(plain, "full")
    assert plain.config.name_or_path == plain.name_or_path == classes.UNSAVED
    assert plain.config is plain.model.config is plain.model.layers[0].self_attn.config
    assert type(config) is not type(plain.config) and not hasattr(config, "attnres")


QUERY = "model.connection.query.3"


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename(QUERY, "model.connection.query.33"), f"missing: {QUERY}; surplus: model.connection.query.33"),
        (lambda folder: edit_config(folder, lambda c: c["attnres"].pop("connection")), "must hold the connection"),
    ],
)
def test_another_connection_s_tensors_are_refused(load, damage, message, saved):
    damage(saved)
    with pytest.raises(UsageError, match=message):
        load(saved)


@pytest.mark.filterwarnings("ignore:.*does not start as the plain residual")
def test_a_model_whose_text_part_has_a_configuration_of_its_own(tmp_path):
    """And a connection with a buffer, which loading empties."""
    model = attnres.hf.attach(small_model("gemma3", "AutoModelForImageTextToText"), "mhc-lite")
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path)
    tokens = torch.arange(5, 12)[None]
    assert_near(attnres.hf.load(tmp_path)(input_ids=tokens).logits, model(input_ids=tokens).logits)
