"""An attached model whose weights are elsewhere: on several devices, on disk, cut over processes, or nowhere yet."""

from __future__ import annotations

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

import attnres
import attnres.hf
from attnres import analysis
from attnres.analysis import Patch
from tests.depth import randomise
from tests.hf.models import assert_near, attached, make_model, make_tokens

ON_DISK = {
    **dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "lm_head", "model.layers.3"), "cpu"),
    **dict.fromkeys(("model.layers.0", "model.layers.1", "model.layers.2", "model.norm"), "disk"),
}


def attach(model):
    attnres.hf.attach(model, "block:block_size=3")
    randomise(attnres.hf.connection_of(model))
    return model


def offload(model, way, folder):
    if way == "cpu":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        names = [name for name, _ in model.named_modules()]
        connection = {"model.connection": "disk"} if "model.connection" in names else {}
        dispatch_model(model, {**ON_DISK, **connection}, offload_dir=folder)
    return model


@pytest.mark.parametrize(("first", "way"), [("attach", "disk"), ("offload", "cpu")])
def test_offloaded_weights(first, way, tmp_path):
    """accelerate fetches weights when a module's forward is called, and a connection's parts have none."""
    tokens, whole = make_tokens(), attach(make_model("llama"))
    expected, matrix = whole(tokens, output_hidden_states=True), attnres.hf.mixing_matrix(whole, tokens)
    model = make_model("llama")
    model = offload(attach(model), way, tmp_path) if first == "attach" else attach(offload(model, way, tmp_path))
    places = [parameter.device for parameter in model.parameters()]
    found = model(tokens, output_hidden_states=True)
    assert_near(found.logits, expected.logits)
    assert_near(found.hidden_states, expected.hidden_states)
    with torch.no_grad():
        assert_near(model(tokens[:1, :3]).logits, whole(tokens[:1, :3]).logits)  # as in decoding
    for of_attached in (attnres.hf.mixing_matrix, attnres.mixing_matrix):
        assert_near(of_attached(model, tokens), matrix)
    assert [parameter.device for parameter in model.parameters()] == places, "what was fetched is given back"


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def shard(model, mesh):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("way", ["disk", "fsdp2"])
def test_analysis_fetches_the_weights_that_it_reads(way, tmp_path, one_process):
    """What runs a connection, its layers' parts or the final norm by hand, outside of the model's own forward."""
    whole, tokens, changes = attached(), make_tokens(1), [Patch(3, prompt=[9, 8, 7, 6])]
    model = shard(attached(), one_process) if way == "fsdp2" else offload(attached(), way, tmp_path)
    traces = [analysis.trace(each, tokens[0].tolist(), changes) for each in (model, whole)]
    for made in (
        lambda model, traced: vars(traced),
        lambda model, traced: vars(analysis.explain(model, traced, 2, 5, changes)),
        lambda model, traced: {"M": attnres.mixing_matrix(model, tokens)},
        lambda model, traced: {"M": attnres.hf.mixing_matrix(model, tokens)},
    ):
        assert_near(*map(made, (model, whole), traces))
