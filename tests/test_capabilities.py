"""What README promises, in its order, each at the smallest size: nothing of it is lost without a test that says so.

ELSEWHERE names the tests of what needs several processes, a GPU or a program that may not be here.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnres
from attnres import Transformer, TransformerConfig, UsageError, connection_names, make_connection, mixing_matrix
from attnres.analysis import Mute, intervene
from attnres.analysis.dynamics import depth_profile
from attnres.analysis.powerlaw import fit_power_laws, read_points
from attnres.analysis.rank import semiseparable_rank
from attnres.cli import command_names, main
from attnres.connections import check as checks
from attnres.data import DataConfig
from attnres.ops import depth_attention
from attnres.train import Interrupted, OptimizerConfig, RunConfig, load_run, train
from tests.cli.conftest import TINY, corpus, no_page, trained_here  # noqa: F401
from tests.depth import DIM, SITES, make_sublayers, randomised

ROOT = Path(__file__).parent.parent

ELSEWHERE = {
    "every connection and option, compiled, split and in pipelines": "connections/test_every_connection.py::test_",
    "two-phase reads": "ops/test_two_phases.py::test_equals_site_by_site",
    "groups for an optimizer": "connections/test_groups.py::test_",
    "ablate, its record and its page": "cli/test_ablate.py::test_the_record_holds_every_run",
    "scaling, its points and its table": "cli/test_scaling.py::test_a_sweep_leaves_points",
    "dynamics, from runs to its page": "lab/test_dynamics.py::test_from_runs_to_record",
    "a crash at any write goes on to the same bits": "train/test_checkpoint.py::test_crash_at_many_writes",
    "FSDP2, replicas and pipelines train as one process": "train/test_distributed.py::test_every_layout_trains",
    "every connection's gradients through a pipeline": "parallel/test_pipeline.py::test_every_gradient_is_that_of_one",
    "the cross-stage cache sends each block once": "parallel/test_pipeline_wire.py::test_",
    "torchtitan's own trainer": "torchtitan/test_layouts.py::test_every_layout_trains_as_one_process",
    "K3 in llama.cpp gives the same logits": "kimi_k3/test_gguf.py::test_llama_cpp_computes_the_same",
    "Kimi Linear as in the paper": "recipes/test_recipes.py::test_the_papers_48b",
    "lm-eval's tasks, beside a twin": "cli/test_eval.py::test_a_run_beside_its_twin",
    "the page of look in a browser": "look/test_page.py::test_",
    "PEFT, and an adapter of another connection": "hf/test_transformers_features.py::test_peft_lora",
    "generate and the cache of transformers": "hf/test_attach.py::test_",
    "attached models in vLLM": "engines/test_vllm.py::test_vllm_draws_what_transformers_draws",
    "K3 in MLX-LM gives the same logits": "kimi_k3/test_mlx.py::test_mlx_computes_the_same",
    "engines that load by themselves": "hf/test_engine_contract.py::test_",
    "a GPU's kernels": "ops/test_triton.py::test_",
}


def test_what_is_held_elsewhere_is_there():
    for what, place in ELSEWHERE.items():
        file, _, name = place.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name.startswith(name) for node in tree.body), what


# --- a model of one's own


def test_depth_attention_in_place_of_the_residual_stream():
    sublayers = [nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 64)) for _ in range(8)]
    queries = [torch.zeros(64, requires_grad=True) for _ in range(9)]
    sources = [torch.randn(2, 10, 64)]
    for sublayer, query in zip(sublayers, queries, strict=False):
        sources.append(sublayer(depth_attention(sources, query)))
    h = depth_attention(sources, queries[-1])
    torch.testing.assert_close(h, torch.stack(sources).mean(0), rtol=1e-4, atol=1e-5)  # a query of zero is the mean
    h.square().sum().backward()
    assert all(query.grad is not None for query in queries)


def test_every_connection_has_its_matrix():
    for name in connection_names():
        matrix = mixing_matrix(randomised(name), torch.randn(2, 3, DIM), make_sublayers())
        assert matrix.shape == (2, 3, SITES + 1, SITES + 1) and not matrix.triu(1).any()


def test_semiseparable_ranks_and_depth_sinks():
    sublayers, x = make_sublayers(), torch.randn(1, 4, DIM)
    ranks = {name: semiseparable_rank(mixing_matrix(randomised(name), x, sublayers).detach().numpy()).max()
             for name in ("residual", "full")}  # fmt: skip
    assert ranks["residual"] == 1 < ranks["full"]
    model = Transformer(TransformerConfig(vocab_size=32, dim=16, layers=2, heads=1, context=8, connection="full"))
    assert depth_profile(model, torch.arange(8)[None]).mean_matrix.shape == (5, 5)


def test_what_depth_reads_can_be_changed():
    model = Transformer(TransformerConfig(vocab_size=32, dim=16, layers=2, heads=1, context=8, connection="block"))
    tokens = torch.arange(8)[None]
    before = model(tokens)
    with intervene(model, Mute(1)):
        assert not torch.allclose(model(tokens), before)
    assert torch.equal(model(tokens), before)


# --- a model of transformers


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> tuple[Path, Tensor]:
    """A saved checkpoint, and its logits of eight tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    model, folder = transformers.LlamaForCausalLM(config).eval(), tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return folder, model(torch.arange(8)[None]).logits


def test_attach_and_convert_lose_nothing_and_load_as_what_they_are(llama, tmp_path, capsys):
    import transformers

    import attnres.hf

    plain, logits = llama
    attached = attnres.hf.attach(transformers.LlamaForCausalLM.from_pretrained(plain), "block", block_size=2)
    assert main(["convert", str(plain), str(tmp_path / "new"), "--connection", "block:block_size=2"]) == 0
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    for model in (attached.eval(), loaded, attnres.hf.load(tmp_path / "new")):
        torch.testing.assert_close(model(torch.arange(8)[None]).logits, logits, rtol=1e-4, atol=1e-5)
    assert attnres.hf.mixing_matrix(attached, torch.arange(8)[None]).shape[-2:] == (5, 5)


def test_no_checkpoint_becomes_another_model_without_a_word(llama, tmp_path):
    import transformers

    import attnres.hf

    attnres.hf.attach(transformers.LlamaForCausalLM.from_pretrained(llama[0]), "block").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="this is no plain llama"):
        transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    full = make_connection("full", DIM, 4)
    with pytest.raises(UsageError, match="the state is that of Block"):
        full.load_state_dict(make_connection("block", DIM, 4).state_dict())


# --- runs


@pytest.fixture(scope="module")
def config(corpus) -> RunConfig:  # noqa: F811
    model = TransformerConfig(dim=16, layers=2, heads=1, context=32, connection="block:block_size=2")
    data = DataConfig(paths=(corpus[1],), cache=corpus[3])
    return RunConfig(
        model=model, data=data, steps=4, batch_size=2, evaluate_every=2, save_every=2, validation_tokens=64, keep=9
    )


@pytest.fixture(scope="module")
def run(config, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(config, folder)
    return folder


def test_a_run_that_was_stopped_goes_on_bit_equal(config, run, tmp_path):
    def stop(event):
        if event["kind"] == "train" and event["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop)
    train(config, tmp_path / "run")
    again, straight = load_run(tmp_path / "run").model.state_dict(), load_run(run).model.state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in straight.items())


def test_a_run_begins_with_anothers_weights(config, run, tmp_path):
    other = dataclasses.replace(config.model, connection="full")
    begun = dataclasses.replace(config, start_from=str(run), model=other, steps=1)
    assert train(begun, tmp_path / "more")["steps"] == 1


def test_kimi_linear_with_muon_and_wsd(config, tmp_path):
    pytest.importorskip("transformers")
    recipe = attnres.train.load_recipe(ROOT / "recipes" / "kimi_linear.py").model
    kda, mla = recipe.backbone_options["layer_types"][2:4]
    options = {**recipe.backbone_options, "layer_types": (kda, mla)}
    model = dataclasses.replace(recipe, dim=32, layers=2, context=32, backbone_options=options)
    optimizer = OptimizerConfig(lr=1e-2, adamw_lr=3e-3)
    assert train(dataclasses.replace(config, model=model, optimizer=optimizer, steps=1), tmp_path / "run")["steps"] == 1


def test_another_runs_folder_is_left_alone(config, run):
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    with pytest.raises(UsageError, match="holds a run of another configuration: seed is 0 there and 7 here"):
        train(dataclasses.replace(config, seed=7), run)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before


# --- commands


def said(capsys, *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_generate(run, capsys):
    assert said(capsys, "generate", run, "--prompt", "def f", "--tokens", 4).startswith("def f")


def test_train_and_compare_leave_records_and_pages(
    tmp_path,
    corpus,  # noqa: F811
    trained_here,  # noqa: F811
    capsys,
):
    assert "done" in said(capsys, "train", tmp_path / "run", *TINY, *corpus)
    said(capsys, "compare", "residual", "block", "--seeds", 1, "--out", tmp_path / "compare", *TINY, *corpus)
    assert (tmp_path / "compare" / "results.html").is_file() and (tmp_path / "compare" / "comparison.json").is_file()


def test_check_of_a_rule_of_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from attnres.connections.rules.residual import Residual\nclass Mine(Residual): pass\n"
    )
    monkeypatch.setattr(checks, "CHECKS", checks.CHECKS[:4])
    assert "keeps the protocol" in said(capsys, "check", "mine.py:Mine")


def test_cost_has_the_traffic_table_and_both_sums_of_the_pipeline(capsys):
    told = said(capsys, "cost", "--pipeline", 4, "--virtual", 2)
    assert "(N/S + 5)d" in told and "formula, in all" in told and "as sent, in all" in told


def test_fit_of_points_of_ones_own(tmp_path, capsys):
    said(capsys, "fit", ROOT / "results" / "paper-scaling.csv", "--out", tmp_path)
    fits, advantages = fit_power_laws(read_points(ROOT / "results" / "paper-scaling.csv"))
    assert fits and advantages


def test_report_draws_the_committed_records(capsys):
    """The tables that results/tables.md has; tests/docs looks its numbers up."""
    kept = (ROOT / "results" / "tables.md").read_text(encoding="utf-8")
    table = said(capsys, "report", ROOT / "results" / "scaling.json", "--tables").partition("\n### ")[2]
    assert table.partition("\n\n")[2].partition("\n\n")[0] in kept


def test_export_for_llama_cpp(corpus, tmp_path, capsys):  # noqa: F811
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    config = attnres.train.load_recipe(ROOT / "recipes" / "kimi_k3.py")
    data = dataclasses.replace(config.data, paths=(corpus[1],), cache=corpus[3])
    model = dataclasses.replace(config.model, context=32)
    train(dataclasses.replace(config, model=model, data=data, steps=1, batch_size=1, validation_tokens=64),
          tmp_path / "k3")  # fmt: skip
    said(capsys, "export", tmp_path / "k3", "--gguf", tmp_path / "k3.gguf", "--checkpoint", tmp_path / "published")
    assert (tmp_path / "k3.gguf").read_bytes().startswith(b"GGUF")
    assert (tmp_path / "published" / "config.json").is_file()


def test_every_command_is_told_of_in_the_overview(capsys):
    promised = {"compare", "train", "generate", "look", "eval", "convert", "export", "check", "bench", "cost"}
    assert promised | {"ablate", "scaling", "dynamics", "report", "fit"} <= set(command_names())
    assert all(f"  {name}" in said(capsys, "--help") for name in command_names())
