"""Parameters of any module with a connection, grouped for an optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnres import DepthAttention, make_connection, param_groups


class Two(nn.Module):
    """Two stacks of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = make_connection("block", 4, 2, block_size=1, query="input")
        self.wide = make_connection("block", 8, 2, block_size=1, query="input")
        self.join = nn.Linear(4, 8)


def test_every_parameter_is_in_one_group_with_the_rates_of_its_kind():
    model = Two()
    groups = param_groups(model, lr=1e-3, weight_decay=0.1)
    rate = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters())) == len(rate)
    for connection in (model.narrow, model.wide):
        maps = {id(p) for p in connection.query_map}
        for parameter in connection.parameters():
            assert rate[id(parameter)] == (1e-2 / connection.dim if id(parameter) in maps else 1e-2, 0.0)
    assert rate[id(model.join.weight)] == (1e-3, 0.1) and rate[id(model.join.bias)] == (1e-3, 0.0)
    torch.optim.AdamW(groups)


@pytest.mark.parametrize(("options", "decay"), [({}, 0.01), ({"weight_decay": 0.1}, 0.1)])
def test_the_optimizers_own_decay_reaches_the_matrices_and_nothing_else(options, decay):
    """The first group is the weights', whose rate transformers' Trainer logs."""
    optimizer = torch.optim.AdamW(param_groups(Two(), lr=1e-3), **options)
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {"decayed": decay, "not decayed": 0.0, "connection": 0.0, "channel maps": 0.0}
    assert optimizer.param_groups[0]["name"] == "decayed" and optimizer.param_groups[0]["lr"] == 1e-3


def test_a_rate_for_the_connection_alone_and_nothing_that_is_frozen():
    model = nn.ModuleList([make_connection("block", 4, 2, query="input"), nn.Linear(4, 4), nn.Linear(4, 4)])
    model[2].requires_grad_(False)
    groups = {group["name"]: group for group in param_groups(model, lr=1e-3, query_lr=4e-3)}
    assert {name: group["lr"] for name, group in groups.items()} == {
        **{"decayed": 1e-3, "not decayed": 1e-3},
        **{"connection": 4e-3, "channel maps": 1e-3},
    }
    assert groups["decayed"]["params"] == [model[1].weight] and groups["not decayed"]["params"] == [model[1].bias]


def test_a_read_of_ones_own_loop_is_grouped_too():
    model = nn.Sequential(DepthAttention(4), nn.Linear(4, 4))
    groups = {group["name"]: group for group in param_groups(model, lr=1e-3)}
    assert groups["connection"]["params"] == list(model[0].parameters()) and groups["connection"]["lr"] == 1e-2
