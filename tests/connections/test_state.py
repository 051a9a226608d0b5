"""A connection loads its own state and refuses that of any other."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from attnres import Connection, UsageError, make_connection
from attnres.connections import option_defaults
from tests.depth import DIM, SITES


class Rated(Connection):
    """A rule of somebody's own, with a buffer, whose options leave the names of its parameters as they are."""

    def __init__(self, dim, sublayers, rate=1.0, map=torch.sigmoid):
        super().__init__(dim, sublayers)
        self.rate, self.map = rate, map
        self.register_buffer("mask", torch.ones(dim))


def test_the_state_of_another_connection_or_option_is_refused():
    """Their parameters have the same names and shapes, and would be loaded silently."""
    block, full = (make_connection(name, DIM, SITES) for name in ("block", "full"))
    with pytest.raises(UsageError, match=r"that of Block.*, and this is Full"):
        full.load_state_dict(block.state_dict())
    for name, other in (("block", "block:block_size=2"), ("hc", "hc:eps=0.5"), ("delta", "delta:block_size=3")):
        inside = nn.ModuleList([make_connection(name, DIM, SITES)])  # a model holds it
        with pytest.raises(UsageError, match=f"the state is that of .*{other.partition(':')[2]}.*, and this"):
            inside.load_state_dict(nn.ModuleList([make_connection(other, DIM, SITES)]).state_dict())
        inside.load_state_dict(nn.ModuleList([make_connection(name, DIM, SITES)]).state_dict())
    with pytest.raises(UsageError, match=r"is that of Rated\(.*rate=0\.5\), and this is Rated\(.*rate=2\.0"):
        Rated(DIM, SITES, 2.0).load_state_dict(Rated(DIM, SITES, rate=0.5, map=torch.tanh).state_dict())
    full.load_state_dict(dict(block.state_dict()), strict=True)  # plain tensors do not say whose they are


def test_every_option_is_signed_and_shown():
    connection = make_connection("block:query=input,eps=0.5", DIM, SITES)
    for of in (connection, copy.deepcopy(connection), pickle.loads(pickle.dumps(connection))):
        said = of.extra_repr().split(", ")
        options = option_defaults(type(connection)) | {"query": "input", "eps": 0.5, "block_size": 1}
        del options["blocks"]
        assert sorted(said) == sorted(f"{k}={v}" for k, v in {"dim": DIM, "sublayers": SITES, **options}.items())
