"""What people do with a transformers model goes on working when a connection is attached."""

from __future__ import annotations

import copy
import json
import warnings
import zlib

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnres.hf
from attnres import UsageError
from tests.depth import randomise
from tests.hf.models import make_model, make_tokens


def attached(name="llama", **options):
    model = attnres.hf.attach(make_model(name), "block", **{"block_size": 3, **options})
    randomise(attnres.hf.connection_of(model))
    return model


def generate(model, tokens, **options):
    return model.generate(
        tokens, **{"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    )


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2"])
def test_static_cache(name):
    model, tokens = attached(name), make_tokens()
    assert torch.equal(generate(model, tokens, cache_implementation="static"), generate(model, tokens))
    assert torch.equal(generate(model, tokens, use_cache=False), generate(model, tokens))


@pytest.mark.parametrize("name", ["llama", "gpt2", "kimi_linear"])
def test_left_padding(name):
    model, tokens = attached(name), make_tokens(1, 7)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), tokens], 1)
    mask = (padded != 0).long()
    expected = generate(model, tokens)[:, 7:]
    assert torch.equal(generate(model, padded, attention_mask=mask)[:, 11:], expected)


def test_beams_and_sampling():
    model, plain, tokens = attached(), make_model("llama"), make_tokens()
    lossless = attnres.hf.attach(make_model("llama"), "full")
    assert torch.equal(generate(lossless, tokens, num_beams=3), generate(plain, tokens, num_beams=3))
    cached = generate(model, tokens, num_beams=3)
    assert torch.equal(generate(model, tokens, num_beams=3, use_cache=False), cached)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(name, reentrant):
    model, tokens = attached(name).train(), make_tokens()

    def gradients():
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reentrant checkpointing speaks of inputs without a gradient
            model(tokens, labels=tokens).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    recomputed = []
    layer = model.get_decoder().get_submodule("h.0" if name == "gpt2" else "layers.0")
    layer.mlp.register_forward_pre_hook(lambda *_: recomputed.append(1))
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    found = gradients()
    assert len(recomputed) == 2
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-6, msg=parameter)
    assert any("query" in parameter for parameter in found)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_compile(name):
    torch._dynamo.reset()
    model, tokens = attnres.hf.attach(make_model(name, num_hidden_layers=2), "block", block_size=3), make_tokens()
    randomise(attnres.hf.connection_of(model))
    model.train()

    def step(run):
        model.zero_grad()
        logits = run(tokens, use_cache=False).logits  # gpt2's own loss logs, which is a graph break
        logits.square().mean().backward()
        return {"logits": logits} | {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected, found = step(model), step(torch.compile(model, fullgraph=True, backend="aot_eager"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():  # of magnitudes from 1e-4 to 80
        atol = 2e-5 * tensor.abs().max().item()
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=atol, msg=name)


def test_bfloat16():
    model, tokens = attached(), make_tokens()
    exact = model(tokens).logits
    model.to(torch.bfloat16)
    assert {p.dtype for p in attnres.hf.connection_of(model).parameters()} == {torch.float32}
    rounded = model(tokens, output_hidden_states=True)
    assert rounded.logits.dtype == torch.bfloat16
    assert all(state.dtype == torch.bfloat16 for state in rounded.hidden_states)
    error = (rounded.logits.float() - exact).norm() / exact.norm()
    assert error < 0.05
    fresh = attnres.hf.attach(make_model("llama").to(torch.bfloat16), "full")
    assert {p.dtype for p in attnres.hf.connection_of(fresh).parameters()} == {torch.float32}
    fresh.train()(tokens, labels=tokens).loss.backward()
    assert attnres.hf.connection_of(fresh).query[3].grad.norm() > 0


def test_hidden_states_are_what_the_layers_read():
    model, tokens = attached(), make_tokens()
    model.set_attn_implementation("eager")  # the others return no attention weights
    read = []
    for layer in model.model.layers:
        layer.input_layernorm.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    with torch.no_grad():
        outputs = model(tokens, output_hidden_states=True, output_attentions=True)
        tupled = model(tokens, output_hidden_states=True, return_dict=False)
        base = model.model(tokens, output_hidden_states=True, return_dict=False)
    assert len(outputs.hidden_states) == 5 and len(outputs.attentions) == 4
    for state, other, third, expected in zip(outputs.hidden_states, tupled[-1], base[-1], read[:4], strict=False):
        for found in (state, other, third):
            torch.testing.assert_close(found, expected)
    torch.testing.assert_close(model.lm_head(outputs.hidden_states[-1]), outputs.logits)


def test_router_logits():
    plain, tokens = make_model("qwen3_moe"), make_tokens()
    expected = plain(tokens, output_router_logits=True, labels=tokens)
    found = attnres.hf.attach(plain, "full")(tokens, output_router_logits=True, labels=tokens)
    torch.testing.assert_close(found.aux_loss, expected.aux_loss, rtol=1e-4, atol=1e-5)
    assert len(found.router_logits) == 4


def test_trainer_with_a_learning_rate_for_queries(tmp_path, caplog):
    from transformers import Trainer, TrainingArguments

    model = attnres.hf.attach(make_model("llama"), "block", block_size=3)
    before = [q.detach().clone() for q in attnres.hf.connection_of(model).query]
    data = [{"input_ids": row, "labels": row} for row in make_tokens(8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, save_steps=2, report_to=[],
        disable_tqdm=True, use_cpu=True, activation_checkpointing=True, logging_steps=1, dataloader_pin_memory=False,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(attnres.hf.param_groups(model, 1e-4, query_lr=1e-2, weight_decay=0.1))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None)).train()
    model.eval()
    moved = [(q - old).abs().max() for q, old in zip(attnres.hf.connection_of(model).query, before, strict=True)]
    assert moved[0] == 0 and min(moved[1:]) > 5e-3  # site 0 has one source
    resumed = attnres.hf.load(tmp_path / "checkpoint-2").eval()
    torch.testing.assert_close(resumed(make_tokens()).logits, model(make_tokens()).logits)
    caplog.clear()
    again = attnres.hf.attach(make_model("llama"), "block", block_size=3)
    optimizer = torch.optim.AdamW(attnres.hf.param_groups(again, 1e-4, query_lr=1e-2, weight_decay=0.1))
    trainer = Trainer(again, arguments, train_dataset=data, optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    warned = caplog.text  # files keep tensors alone
    assert "taken for that of Block(dim=32, sites=8" in warned and "block_size=3" in warned and "config.json" in warned


def test_device_map(tmp_path):
    model, tokens = attached(), make_tokens()
    expected = model(tokens, output_hidden_states=True)
    model.save_pretrained(tmp_path)
    device_map = {
        "model.embed_tokens": "cpu",
        "model.layers": "cpu",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    mapped = attnres.hf.load(tmp_path, device_map=device_map)
    torch.testing.assert_close(mapped(tokens).logits, expected.logits)
    from accelerate import dispatch_model

    device_map = {
        name: "cpu" for name in ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", "model.connection")
    }
    dispatched = dispatch_model(
        model, {**device_map, **{f"model.layers.{i}": "cpu" for i in range(4)}}, main_device="cpu", force_hooks=True
    )
    found = dispatched(tokens, output_hidden_states=True)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.hidden_states, expected.hidden_states)


def test_attach_after_dispatch():
    from accelerate import dispatch_model

    model, tokens = make_model("llama"), make_tokens()
    expected = model(tokens).logits
    names = [
        "model.embed_tokens",
        "model.norm",
        "model.rotary_emb",
        "lm_head",
        *(f"model.layers.{i}" for i in range(4)),
    ]
    model = dispatch_model(model, dict.fromkeys(names, "cpu"), main_device="cpu", force_hooks=True)
    attnres.hf.attach(model, "full")
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-4, atol=1e-5)
    randomise(attnres.hf.connection_of(model))
    assert not torch.allclose(model(tokens).logits, expected, rtol=1e-3)


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
    for _ in range(2):
        optimizer.zero_grad()
        tuned(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    assert tuned.get_base_model().model.connection.query[5].norm() > 0
    end = tuned(tokens).logits
    assert not torch.allclose(start, end)
    assert torch.equal(generate(tuned, tokens, use_cache=False), generate(tuned, tokens))
    assert attnres.hf.mixing_matrix(tuned, tokens).shape[-1] == 9
    assert {g["name"] for g in attnres.hf.param_groups(tuned, 1e-3)} == {"connection", "decayed"}
    with pytest.warns(UserWarning, match="Could not find a config file in an attached model that was not saved"):
        tuned.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        again = PeftModel.from_pretrained(attnres.hf.attach(make_model("llama"), "block", block_size=3), tmp_path)
        torch.testing.assert_close(again(tokens).logits, end)
        with pytest.raises(UsageError, match="the state is that of block_size=3, and this connection is block_size=2"):
            PeftModel.from_pretrained(attnres.hf.attach(make_model("llama"), "block", block_size=2), tmp_path)


def mean_of(states):
    return {name: sum(state[name] for state in states) / len(states) for name in states[0]}


def moving_mean(states):
    return {name: 0.9999 * old + (1 - 0.9999) * states[1][name] for name, old in states[0].items()}


@pytest.mark.parametrize("average", [mean_of, moving_mean])
def test_states_averaged_by_hand_load_and_others_are_still_refused(average):
    states = [attached().state_dict() for _ in range(3)]
    averaged = average(states)
    for _ in range(3):
        averaged = moving_mean([averaged, states[1]])
    attached().load_state_dict(averaged)
    with pytest.raises(UsageError, match="the state is that of block_size=3, and this connection is block_size=2"):
        attnres.hf.attach(make_model("llama"), "block", block_size=2).load_state_dict(averaged)


def test_a_moving_mean_kept_in_a_copy_loads():
    model = attached()
    mean = copy.deepcopy(model)
    with torch.no_grad():
        for _ in range(200):
            for kept, new in zip(mean.state_dict().values(), model.state_dict().values(), strict=True):
                kept.copy_(0.9999 * kept + (1 - 0.9999) * new)
    attached().load_state_dict(mean.state_dict())


@pytest.mark.parametrize("assign", [False, True])
def test_a_model_that_was_emptied_and_filled_says_whose_its_state_is(assign):
    good = attached().state_dict()
    model = attached().to("meta")
    model = model if assign else model.to_empty(device="cpu")
    if not assign:
        attnres.hf.connection_of(model).made_as.fill_(7)  # what the memory held
    model.load_state_dict(good, assign=assign)
    assert not attnres.hf.connection_of(model).made_as.is_meta
    attached().load_state_dict(model.state_dict())
    assert all(torch.equal(mine, good[name]) for name, mine in model.state_dict().items())


@pytest.fixture
def saved(tmp_path):
    model = attached()
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe", "kimi_linear"])
@pytest.mark.parametrize("size", ["5GB", "20KB"])
def test_save_and_load(name, size, tmp_path):
    model, tokens = attached(name, heads=2), make_tokens()
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert json.loads((tmp_path / "config.json").read_text())["attnres"] == {
        "connection": "block:block_size=3,heads=2,total=true",
        "plain": name,
        "checksum": f"{zlib.crc32(b'block:block_size=3,heads=2,total=true'):08x}",
    }
    again = attnres.hf.load(tmp_path)
    assert type(again).__name__ == type(model).__name__ and not again.training
    assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("total", [True, False])
def test_a_folder_from_before_the_name_carried_the_options(total, tmp_path):
    model, tokens = attached(heads=2, total=total), make_tokens()
    model.save_pretrained(tmp_path)
    options = {"total": total, "block_size": 3, "heads": 2}
    mark_as_before(tmp_path, {"connection": "block", "options": options})
    again = attnres.hf.load(tmp_path)
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert again.config.attnres == model.config.attnres


def edit_tensors(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def edit_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def mark_as_before(folder, record):
    """Give a llama's folder the form from before it loaded by itself: the plain model's, with a record."""

    def change(config):
        for entry in ("auto_map", "transformers_weights"):
            del config[entry]
        config.update(model_type="llama", architectures=["LlamaForCausalLM"], attnres=record)

    edit_config(folder, change)
    (folder / "modeling_attnres.py").unlink()


def rename(old, new):
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({new: tensors.pop(old)}))


def written(connection, **others):
    """Write a connection into config.json, as by hand."""
    return lambda config: config["attnres"].update(connection=connection, **others)


def truncate(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


QUERY = "model.connection.query.5"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename(QUERY, "model.connection.query.55"), f"missing: {QUERY}; surplus: model.connection.query.55"),
        (rename(QUERY, "model.elsewhere"), "surplus: model.elsewhere"),
        (rename("model.layers.1.mlp.up_proj.weight", "model.x"), "missing: model.layers.1.mlp.up_proj.weight"),
        (lambda f: edit_tensors(f, lambda t: t.update({QUERY: torch.zeros(3)})), rf"{QUERY} is \[3\], not \[32\]"),
        (lambda f: edit_tensors(f, lambda t: t.update({"model.norm.weight": torch.zeros(3)})), "shape: model.norm"),
        (truncate, "cannot be loaded"),
        (lambda f: (f / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
        (lambda f: edit_config(f, lambda c: c.pop("attnres")), "plain checkpoint"),
        (lambda f: edit_config(f, lambda c: c.update(attnres=3)), "must hold the connection"),
        (lambda f: edit_config(f, written("block:block_size=9", checksum=None)), "9 is more"),
        (lambda f: edit_config(f, written("block:block_size=2,total=true")), "is not the connection that"),
        (lambda f: edit_config(f, lambda c: c["attnres"].update(connection="no")), "unknown connection"),
        (lambda f: edit_config(f, lambda c: c.update(num_hidden_layers=3)), "surplus: .*model.layers.3"),
        (lambda f: edit_config(f, lambda c: c.update(architectures=["NoSuchModel"])), "must name a class"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line(saved, damage, message):
    _, folder = saved
    damage(folder)
    with pytest.raises(UsageError, match=message) as refused:
        attnres.hf.load(folder)
    assert "\n" not in str(refused.value)


def test_the_options_of_a_folder_may_stand_in_another_order(saved):
    model, folder = saved

    def reverse(config):
        name, _, options = config["attnres"]["connection"].partition(":")
        turned = ",".join(reversed(options.split(",")))
        assert turned != options
        config["attnres"]["connection"] = f"{name}:{turned}"

    edit_config(folder, reverse)
    again = attnres.hf.load(folder)
    assert torch.equal(again(make_tokens()).logits, model(make_tokens()).logits)
