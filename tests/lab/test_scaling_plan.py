"""What the scaling sweep counts, against a real model and by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres.errors import UsageError
from attnres.lab.arms import arm_folder
from attnres.lab.scaling.fit import final_points
from attnres.lab.scaling.plan import Options, parse_size, planned
from attnres.lab.scaling.plan import plan as make_plan
from attnres.lab.scaling.record import ScalingRecord
from attnres.model import Transformer, TransformerConfig
from attnres.train import RunConfig
from tests.lab.sample import parsed


def test_a_sizes_parameters_are_those_of_its_matrices():
    size = parse_size("3x32")
    model = Transformer(TransformerConfig(dim=size.dim, layers=size.layers, heads=2, context=8, vocab_size=16))
    matrices = [p for p in model.sublayers.parameters() if p.ndim == 2]
    # the MLP's width is rounded, so that its three matrices are only about as large as 8 dim^2
    assert size.parameters == pytest.approx(sum(p.numel() for p in matrices), rel=0.1)


@pytest.mark.parametrize("shape", [{"hidden": 256}, {"kv_heads": 1}])
def test_of_another_shape_they_are_counted(shape):
    options = Options(sizes=("2x16", "2x32", "3x32"), config=RunConfig(model=TransformerConfig(**shape)))
    plan = make_plan(options, Path("runs"))
    for size in plan.sizes:
        config = planned(plan, "full", size, 0).job.config
        model = Transformer(config.model)
        expected = sum(p.numel() for p in model.sublayers.parameters()) + size.dim  # and the norm behind them
        assert size.parameters == expected
        assert config.steps == pytest.approx(0.4 * size.parameters / config.tokens_per_step, abs=1)


def test_heads_have_16_channels_unless_their_number_is_given():
    assert [parse_size(text).heads for text in ("3x32", "3x64@2")] == [2, 4]
    assert [parse_size(text, heads=1).heads for text in ("3x24", "3x64")] == [1, 1]
    with pytest.raises(UsageError, match="dim a multiple of 6"):
        parse_size("3x32", heads=3)
    plan = make_plan(Options(sizes=("1x8", "1x16", "1x24"), heads=1), Path("runs"))
    assert {planned(plan, "full", size, 0).job.config.model.heads for size in plan.sizes} == {1}
    with pytest.raises(UsageError, match="heads must be"):
        make_plan(Options(heads=0), Path("runs"))


def test_points_are_the_finished_runs_in_operations():
    run = {"arm": "full", "size": "3x32", "seed": 0, "flops_per_token": 100.0, "tokens": 7, "loss": 2.0}
    run |= {"parameters": 1, "steps": 1}
    record = {
        "arms": ["full"],
        "tokens_per_parameter": 1.0,
        "runs": [{**run, "status": "done"}, {**run, "seed": 1, "status": "diverged"}],
    }
    ((point,),) = final_points(parsed(ScalingRecord, record)).values()
    assert (point.compute, point.loss, point.size, point.seed) == (700.0, 2.0, "3x32", 0)


def test_no_folder_of_an_arm_hides_and_no_two_are_one(tmp_path):
    arms = ["rule.py:Rule", "./rule.py:Rule", "../rule.py:Rule", "/rule.py:Rule", "../../rule.py:Rule"]
    names = [arm_folder(tmp_path, arm).name for arm in arms]
    assert len(set(names)) == len(arms) and not any(name.startswith(".") for name in names)
