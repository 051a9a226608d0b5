"""What the scaling sweep counts, against a real model and by hand."""

from __future__ import annotations

import pytest

from attnres.lab.scaling.fit import final_points
from attnres.lab.scaling.plan import parse_size
from attnres.lab.scaling.record import ScalingRecord
from attnres.model import Transformer, TransformerConfig
from tests.lab.sample import parsed


def test_a_sizes_parameters_are_those_of_its_matrices():
    size = parse_size("3x32")
    model = Transformer(TransformerConfig(dim=size.dim, layers=size.layers, heads=2, context=8, vocab_size=16))
    matrices = [p for p in model.sublayers.parameters() if p.ndim == 2]
    # the MLP's width is rounded, so that its three matrices are only about as large as 8 dim^2
    assert size.parameters == pytest.approx(sum(p.numel() for p in matrices), rel=0.1)


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
