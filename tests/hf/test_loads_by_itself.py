"""A saved attached model is loaded as what it is by transformers alone, or not at all."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM

import attnres.hf
from attnres import UsageError, connection_names
from attnres.hf import classes
from attnres.hf.classes import CODE_FILE
from attnres.hf.convert import convert
from attnres.hf.small import small_inputs, small_model
from tests.depth import randomise
from tests.hf.models import CONFIGS, make_model, make_tokens, save_attached
from tests.hf.test_transformers_features import edit_config, edit_tensors, mark_as_before, rename, written

# In a new process: nothing has imported attnres, which at first is not installed.
ELSEWHERE = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

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
model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
assert torch.equal(model(expected["tokens"]).logits, expected["logits"])
"""


def test_in_a_process_that_knows_nothing_of_attnres(tmp_path):
    model, tokens = save_attached(tmp_path / "model"), make_tokens()
    torch.save({"tokens": tokens, "logits": model(tokens).logits.detach()}, tmp_path / "expected")
    run_elsewhere(ELSEWHERE, tmp_path / "model", tmp_path / "expected")


def run_elsewhere(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_what_is_registered_loads_without_remote_code(name, tmp_path):
    model, tokens = attnres.hf.attach(make_model(name), "block", block_size=3), make_tokens()
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path / "attached")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "attached")
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert type(again) is type(model) and issubclass(type(again), type(make_model(name)))
    make_model(name).save_pretrained(tmp_path / "plain")
    config = json.loads((tmp_path / "attached" / "config.json").read_text())
    plain = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["model_type"] == "attnres" and plain["model_type"] == config["attnres"]["plain"] == name
    assert config["architectures"] == [f"AttnRes{plain['architectures'][0]}"]
    assert {entry for entry in plain if plain[entry] != config[entry]} == {"model_type", "architectures"}
    # The tensors are those of a plain checkpoint, merged or split as that stores them, and the connection's.
    assert {key for key in keys(tmp_path / "attached") if ".connection." not in f".{key}"} == keys(tmp_path / "plain")


def test_a_type_whose_models_are_another_type_s(tmp_path):
    """internlm3 has llama's classes, and a configuration of its own."""
    model = attnres.hf.attach(small_model("internlm3"), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path)
    tokens = small_inputs(model)
    for trusted in (False, True):
        again = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=trusted)
        assert type(again.config).__name__ == "AttnResInternLM3Config"
        assert torch.equal(again(tokens).logits, model(tokens).logits)


def keys(folder):
    with safe_open(folder / "model.safetensors", "pt") as stored:
        return set(stored.keys())


@pytest.mark.parametrize("name", sorted({*connection_names()} - {"postnorm", "rezero"}))
def test_every_connection(name, tmp_path):
    """mhc_lite has tables that no checkpoint holds."""
    model, tokens = attnres.hf.attach(make_model("llama", num_hidden_layers=2), name), make_tokens()
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("plain_class", [LlamaForCausalLM, GPT2LMHeadModel])
def test_the_plain_class_refuses(plain_class, tmp_path):
    save_attached(tmp_path)
    with pytest.raises(ValueError, match=r"this is no plain llama: load it with attnres\.hf\.load, or by one of"):
        plain_class.from_pretrained(tmp_path)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_other_heads_load_by_the_auto_class_of_the_plain_model(head, trusted, tmp_path):
    auto = getattr(transformers, f"AutoModelFor{head}")
    model, tokens = attnres.hf.attach(auto.from_config(make_model("llama").config), "full"), make_tokens()
    randomise(attnres.hf.connection_of(model))
    model.config.pad_token_id = 0
    model.save_pretrained(tmp_path)
    again = auto.from_pretrained(tmp_path, trust_remote_code=trusted)
    assert type(again) is type(model)
    torch.testing.assert_close(again.eval()(tokens)[0], model.eval()(tokens)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "auto"),
    [
        ("vit", transformers.AutoModelForImageClassification),
        ("dinov2", transformers.AutoModelForImageClassification),
        ("gpt_neox", AutoModelForCausalLM),
        ("mixtral", AutoModelForCausalLM),
    ],
)
def test_a_model_from_a_folder_whose_tensors_are_renamed(kind, auto, tmp_path):
    """transformers renames tensors of old checkpoints by the class's name, and renames them back where it saves."""
    plain = small_model(kind, auto.__name__)
    plain.save_pretrained(tmp_path / "plain")
    model = attnres.hf.attach(auto.from_pretrained(tmp_path / "plain").eval(), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path / "attached")
    inputs = small_inputs(model)
    expected = model(inputs).logits
    for load in (lambda folder: auto.from_pretrained(folder, trust_remote_code=True), attnres.hf.load):
        assert torch.equal(load(tmp_path / "attached").eval()(inputs).logits, expected)


def test_the_base_model(tmp_path):
    model, tokens = save_attached(tmp_path / "whole"), make_tokens()
    base = AutoModel.from_pretrained(tmp_path / "whole")
    assert type(base) is type(model.model) is classes.AttnResLlamaModel
    assert torch.equal(base(tokens).last_hidden_state, model.model(tokens).last_hidden_state)
    base.save_pretrained(tmp_path / "base")
    assert torch.equal(AutoModel.from_pretrained(tmp_path / "base")(tokens)[0], base(tokens)[0])
    attached = attnres.hf.attach(make_model("llama").model, "full")
    assert type(attached) is classes.AttnResLlamaModel


# Classes of transformers' generic heads, which let AutoModel choose their base model by the configuration.
GENERIC_HEADS = (
    *("LlamaForSequenceClassification", "LlamaForTokenClassification", "LlamaForQuestionAnswering"),
    "Qwen3ForSequenceClassification",
)


def attached_with_head(name):
    plain = make_model(name.partition("For")[0].lower(), num_hidden_layers=2)
    model = attnres.hf.attach(getattr(transformers, name)(plain.config).eval(), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    return model


def logits_of(model, tokens):
    """One tensor, or that of the starts and that of the ends."""
    return [value.detach() for name, value in model(tokens).items() if name.endswith("logits")]


@pytest.mark.parametrize("name", GENERIC_HEADS)
def test_generic_heads(name, tmp_path):
    model, tokens = attached_with_head(name), make_tokens()
    model.save_pretrained(tmp_path)
    connection = f"{model.base_model_prefix}.connection."
    assert {key for key in keys(tmp_path) if key.startswith(connection)} == {
        connection + key for key, _ in attnres.hf.connection_of(model).named_parameters()
    }
    for load in (attnres.hf.load, type(model).from_pretrained):
        again = load(tmp_path)
        assert type(again) is type(model) and type(again.base_model) is type(model.base_model)
        for found, expected in zip(logits_of(again, tokens), logits_of(model, tokens), strict=True):
            assert torch.equal(found, expected)
    assert type(model)(model.config).state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", ["block", "mhc-lite"])
def test_a_folder_has_no_tensor_that_says_whose_state_it_is(name, tmp_path, caplog):
    """vLLM would stop at it, and config.json says it."""
    model = attnres.hf.attach(make_model("llama"), name)
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path)
    assert "model.connection.made_as" in model.state_dict().keys() - keys(tmp_path)
    for load in (attnres.hf.load, type(model).from_pretrained):
        again = load(tmp_path)
        assert torch.equal(again(make_tokens()).logits, model(make_tokens()).logits)
        assert "MISSING" not in caplog.text
        for key, tensor in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], tensor), key


HEAD_ELSEWHERE = """
import sys
import torch
from attnres.hf.classes import AttnResLlamaForSequenceClassification

path, expected = sys.argv[1], torch.load(sys.argv[2])
model = AttnResLlamaForSequenceClassification.from_pretrained(path)
assert torch.equal(model(expected["tokens"]).logits, expected["logits"])
"""


def test_the_class_with_a_generic_head_in_a_new_process(tmp_path):
    """Where nobody has asked for the class of configuration, by which the head chooses its base model."""
    model, tokens = attached_with_head("LlamaForSequenceClassification"), make_tokens()
    model.save_pretrained(tmp_path / "model")
    torch.save({"tokens": tokens, "logits": model(tokens).logits.detach()}, tmp_path / "expected")
    run_elsewhere(HEAD_ELSEWHERE, tmp_path / "model", tmp_path / "expected")


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_is_around_a_base_model_learns_of_its_connection(kind, tmp_path):
    whole, bystander = make_model(kind), make_model(kind)
    twin = type(whole)(whole.config)  # with the very same configuration
    base = attnres.hf.attach(whole.base_model, "block:block_size=3")
    assert base is whole.base_model and base.config is whole.config
    randomise(attnres.hf.connection_of(whole))
    for name, model in {"whole": whole, "base": base, "twin": twin, "bystander": bystander}.items():
        model.save_pretrained(tmp_path / name)
    again, tokens = AutoModelForCausalLM.from_pretrained(tmp_path / "whole"), make_tokens()
    assert again.config.attnres["connection"] == "block:block_size=3,total=true"
    assert torch.equal(again(tokens).logits, whole(tokens).logits)
    assert torch.equal(AutoModel.from_pretrained(tmp_path / "base")(tokens)[0], base(tokens)[0])
    for name in ("twin", "bystander"):
        assert not hasattr(AutoModelForCausalLM.from_pretrained(tmp_path / name).config, "attnres")


def test_a_plain_folder_with_a_connection_s_tensors(tmp_path):
    """As those are that were saved when what is around an attached base model did not learn of it."""
    whole = make_model("llama")
    plain = whole.config
    attnres.hf.attach(whole.model, "block", block_size=8)
    whole.save_pretrained(tmp_path)
    plain.save_pretrained(tmp_path)
    names = r"\(model.connection.gain.0, .*, model.connection.query.8\); attach to the whole model, and save that"
    with pytest.raises(UsageError, match=names):
        attnres.hf.load(tmp_path)


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


def test_the_configuration_round_trips(tmp_path):
    model = save_attached(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(model.config) is classes.AttnResLlamaConfig
    again = type(config).from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)}
    assert config.model_type == model.config.model_type == "llama"
    assert AutoModelForCausalLM.from_config(config).model.connection.block_size == 2
    with pytest.raises(UsageError, match="must hold the connection"):
        classes.AttnResLlamaForCausalLM(classes.AttnResLlamaConfig())


def test_no_text_of_a_configuration_becomes_code(tmp_path):
    config = save_attached(tmp_path / "first").config
    config.architectures = ['Llama"""\nimport this\n"""', "import this"]
    config.auto_map = {"AutoModel": "import this\nmodeling_attnres.import this\n"}
    config.save_pretrained(tmp_path / "second")
    first, second = (ast.dump(ast.parse((tmp_path / name / CODE_FILE).read_text())) for name in ("first", "second"))
    assert first == second


def test_load_takes_a_folder_as_it_is(tmp_path):
    model, tokens = save_attached(tmp_path), make_tokens()
    assert torch.equal(attnres.hf.load(tmp_path, local_files_only=True)(tokens).logits, model(tokens).logits)
    for name, value in (("config", model.config), ("output_loading_info", True), ("ignore_mismatched_sizes", True)):
        with pytest.raises(UsageError, match=f"for {name} use the Auto class"):
            attnres.hf.load(tmp_path, **{name: value})


def test_generation_config_and_tokenizer_are_kept(tmp_path):
    save_attached(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.repetition_penalty == 1.25
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer("as is").input_ids) == "as is" and tokenizer.chat_template


def test_attaching_forgets_where_the_plain_model_came_from(tmp_path):
    """A trainer that loads its reference policy from there would get the plain model."""
    make_model("llama").save_pretrained(tmp_path)
    plain = LlamaForCausalLM.from_pretrained(tmp_path)
    config = plain.config
    attnres.hf.attach(plain, "full")
    assert plain.config.name_or_path == plain.name_or_path == classes.UNSAVED
    assert plain.config is plain.model.config is plain.model.layers[0].self_attn.config
    assert type(config) is not type(plain.config) and not hasattr(config, "attnres")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename("model.connection.query.3", "model.connection.query.33"), "missing: model.connection.query.3; surplus"),
        (lambda f: edit_tensors(f, lambda t: t.pop("model.connection.gain.1")), "missing: model.connection.gain.1"),
        (lambda f: edit_config(f, lambda c: c["attnres"].update(connection="full:heads=2,eps=x")), "eps must be"),
        (lambda f: edit_config(f, lambda c: c["attnres"].pop("connection")), "must hold the connection"),
        (
            lambda f: edit_config(f, written("block:block_size=4,total=true")),
            "is not the connection that these tensors",
        ),
        (lambda f: edit_config(f, lambda c: c["attnres"].update(plain="llama9")), "has no model type 'llama9'"),
    ],
)
def test_a_damaged_folder_is_refused_by_the_auto_class_too(damage, message, tmp_path):
    save_attached(tmp_path)
    damage(tmp_path)
    with pytest.raises(UsageError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_record_without_a_checksum_is_taken_at_its_word(tmp_path):
    """Folders of before have none, and whoever means another connection takes it out."""
    model, tokens = save_attached(tmp_path), make_tokens()
    edit_config(tmp_path, lambda config: config["attnres"].pop("checksum"))
    for load in (AutoModelForCausalLM.from_pretrained, attnres.hf.load):
        assert torch.equal(load(tmp_path)(tokens).logits, model(tokens).logits)
    edit_config(tmp_path, written("block:block_size=4,total=true"))
    other = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert other.model.connection.block_size == 4
    other.save_pretrained(tmp_path / "again")
    assert torch.equal(attnres.hf.load(tmp_path / "again")(tokens).logits, other(tokens).logits)


def test_convert_upgrades_a_folder_of_before(tmp_path):
    model, tokens = save_attached(tmp_path / "old"), make_tokens()
    mark_as_before(tmp_path / "old", {"connection": "block", "options": {"block_size": 2, "total": True}})
    with pytest.raises(UsageError, match="has a connection already; leave out full"):
        convert(tmp_path / "old", tmp_path / "new", "full")
    done = convert(tmp_path / "old", tmp_path / "new")
    assert (done.connection, done.difference, done.upgraded) == ("block:block_size=2,total=true", 0, True)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "new")("a").input_ids
    with pytest.raises(UsageError, match="has a connection already, and loads by itself"):
        convert(tmp_path / "new", tmp_path / "newer")


@pytest.mark.parametrize("connection", ["block", "mhc-lite"])
@pytest.mark.filterwarnings("ignore:.*does not start as the plain residual")
def test_a_model_whose_text_part_has_a_configuration_of_its_own(connection, tmp_path):
    """And a connection with a buffer, which loading empties."""
    model = attnres.hf.attach(small_model("gemma3", "AutoModelForImageTextToText"), connection)
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path)
    tokens = torch.arange(5, 12)[None]
    assert torch.equal(attnres.hf.load(tmp_path)(input_ids=tokens).logits, model(input_ids=tokens).logits)
