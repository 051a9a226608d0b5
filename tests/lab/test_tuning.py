"""The rule by which an arm gets its learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from attnres.lab.tuning import beyond, choose


@dataclass
class Run:
    factor: float
    loss: float
    done: bool = True


@pytest.mark.parametrize(
    ("losses", "following"),
    [
        ({0.25: 3.0, 0.5: 2.0, 1.0: 3.0}, None),
        ({0.25: 1.0, 0.5: 2.0, 1.0: 3.0}, 0.125),
        ({0.25: 3.0, 0.5: 2.0, 1.0: 1.0}, 2.0),
        ({0.25: 1.0, 0.5: 2.0, 1.0: math.inf}, 0.125),
        ({0.25: math.inf, 0.5: math.inf}, None),
        ({0.1: 1.0, 0.2: 2.0, 0.8: 3.0, 1.6: 4.0}, 0.05),
        ({0.1: 4.0, 0.2: 3.0, 0.8: 2.0, 1.6: 1.0}, 3.2),
        ({1.0: 1.0}, None),
    ],
)
def test_a_grid_goes_on_where_its_best_lies_at_an_edge(losses, following):
    runs = [Run(factor, loss, math.isfinite(loss)) for factor, loss in losses.items()]
    assert beyond(runs) == following


def test_the_mean_over_tuning_seeds_decides():
    runs = [Run(0.5, 1.0), Run(0.5, 4.0), Run(1.0, 2.0), Run(1.0, 2.5), Run(2.0, 0.1), Run(2.0, 0.1, done=False)]
    assert choose(runs) == 1.0
