"""Every recipe is built on the meta device; the paper's are counted, and the small Kimi Linear is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnres import make_connection
from attnres.model import count_parameters
from attnres.model.backbones.borrowed import runnable_kernels, transformers_config
from attnres.train import load_recipe, load_run, train

transformers = pytest.importorskip("transformers")

RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = {"194m": 194, "241m": 241, "296m": 296, "436m": 436, "528m": 528}
"""Millions of activated parameters, embedding left out: 2603.15031, Table 2."""


@pytest.mark.parametrize("size", PAPER)
def test_the_papers_scaling_sizes(size):
    config = load_recipe(RECIPES / "scaling" / f"{size}.py")
    counts = count_parameters(config.model)
    assert 0.98 < counts.active_without_embedding / (PAPER[size] * 1e6) < 0.995
    sites = config.model.sublayers
    blocks = -(-sites // make_connection(config.model.connection, 1, sites).block_size)
    assert blocks in (7, 8, 9)  # about eight
    tokens = config.steps * config.batch_size * config.accumulate * config.model.context
    assert tokens == pytest.approx({"194m": 38.7e9, "528m": 119e9}.get(size, tokens), rel=1e-3)


def test_the_papers_48b():
    config = load_recipe(RECIPES / "kimi_linear_48b.py").model
    counts = count_parameters(config)
    assert counts.connection == (2 * 27 + 1) * 2 * 2304 == 253_440
    with torch.device("meta"), runnable_kernels():
        theirs = transformers.KimiLinearForCausalLM(transformers_config(config))
    assert counts.total == sum(p.numel() for p in theirs.parameters()) + 253_440 == 49_122_928_512
    idle = 26 * (256 - 8) * 3 * 2304 * 1024
    assert counts.active == counts.total - idle == 3_484_706_688
    assert counts.active_without_embedding == counts.active - 2 * 163_840 * 2304
    assert count_parameters(replace(config, connection="residual")).connection == 0

    connection = make_connection(config.connection, dim=32, sublayers=config.sublayers)
    values = connection.run(connection.start(torch.randn(1, 32)), [torch.tanh] * 54)
    assert len(values) == 10  # at the readout: the embedding and nine blocks


def test_the_small_kimi_linear_trains(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(12):
        (corpus / f"{number}.txt").write_text(f"{number} depth is what we mix. " * 20)
    recipe = load_recipe(RECIPES / "kimi_linear.py")
    options = {**recipe.model.backbone_options, "layer_types": recipe.model.backbone_options["layer_types"][:4]}
    config = replace(
        recipe,
        model=replace(recipe.model, layers=4, context=32, backbone_options=options),
        data=replace(recipe.data, paths=(str(corpus),), cache=str(tmp_path / "cache"), validation_fraction=0.2),
        steps=6,
        validation_tokens=128,
    )
    folder = tmp_path / "run"
    summary = train(config, folder)
    assert summary["validation_loss"] < 5.0  # from log 256 = 5.55
    run = load_run(folder)
    assert run.config.model == config.model and run.step == 6
    with torch.no_grad():
        tokens = torch.arange(20)[None]
        assert bool(run.model(tokens).isfinite().all())
