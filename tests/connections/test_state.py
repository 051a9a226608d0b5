"""A connection loads its own state and refuses that of any other."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from attnres import Connection, UsageError, connection_names, make_connection
from attnres.connections import option_defaults
from attnres.connections.block import Block
from attnres.connections.rms_residual import RMSResidual
from tests.depth import DIM, SITES

every_connection = pytest.mark.parametrize("name", connection_names())


def test_the_state_of_another_rule_is_refused():
    block, full = (make_connection(name, DIM, SITES) for name in ("block", "full"))
    with pytest.raises(UsageError, match="the state is that of Block, and this connection is Full"):
        full.load_state_dict(block.state_dict())
    with pytest.raises(UsageError, match="the state is that of block_size=4, and this connection is block_size=2"):
        nn.ModuleList([make_connection("block:block_size=2", DIM, SITES)]).load_state_dict(
            nn.ModuleList([block]).state_dict()
        )
    full.load_state_dict(make_connection("delta", DIM, SITES).state_dict(), strict=False)  # torch says what is missing
    full.load_state_dict(dict(block.state_dict()), strict=True)  # plain tensors do not say whose they are


def test_repr_says_every_option():
    text = repr(make_connection("block:query=input,eps=0.5,weighting=sigmoid", DIM, SITES))
    for part in ("block_size=4", "query=input", "mixing=keys", "eps=0.5", "weighting=sigmoid", "value_norm=False"):
        assert part in text


@every_connection
def test_no_option_is_left_out_of_what_a_state_is_signed_with(name):
    connection = make_connection(name, DIM, SITES)
    for of in (connection, copy.deepcopy(connection), pickle.loads(pickle.dumps(connection))):
        said = of.extra_repr().split(", ")
        options = option_defaults(type(connection))
        assert sorted(said) == sorted(f"{k}={v}" for k, v in {"dim": DIM, "sites": SITES, **options}.items())


class Rated(Connection):
    def __init__(self, dim, sites, rate=1.0, map=torch.sigmoid):
        super().__init__(dim, sites)
        self.rate, self.map = rate, map


def test_a_state_made_with_another_option_is_refused():
    """By rules that say nothing of their options, too, and whatever leaves the names of parameters as they are."""
    for name, other in (("delta", "delta:block_size=3"), ("hc", "hc:eps=0.5"), ("rms-residual", "rms-residual:eps=1")):
        state = make_connection(other, DIM, SITES).state_dict()
        with pytest.raises(UsageError, match=f"state is that of {other.partition(':')[2]}"):
            make_connection(name, DIM, SITES).load_state_dict(state)
    with pytest.raises(UsageError, match=r"is that of rate=0\.5, and this connection is rate=2\.0; make the"):
        Rated(DIM, SITES, 2.0).load_state_dict(Rated(DIM, SITES, rate=0.5).state_dict())
    Rated(DIM, SITES, map=torch.tanh).load_state_dict(Rated(DIM, SITES, map=lambda x: x).state_dict())


def test_a_rule_with_a_buffer_refuses_the_state_of_another_option():
    class Masked(Rated):
        def __init__(self, dim: int, sites: int, rate: float = 1.0) -> None:
            super().__init__(dim, sites, rate)
            self.register_buffer("mask", torch.ones(dim))

    state = Masked(DIM, SITES, rate=0.5).state_dict()
    Masked(DIM, SITES, rate=0.5).load_state_dict(state)
    with pytest.raises(UsageError, match=r"is that of rate=0\.5, and this connection is rate=2\.0; make the"):
        nn.Sequential(Masked(DIM, SITES, rate=2.0)).load_state_dict(nn.Sequential(Masked(DIM, SITES, 0.5)).state_dict())


def test_options_are_checked_and_signed_alike_however_it_is_made():
    made, named = RMSResidual(DIM, SITES, eps=1, gate=True), make_connection("rms-residual:eps=1,gate=true", DIM, SITES)
    named.load_state_dict(made.state_dict())
    for options in ({"eps": -1.0}, {"eps": "1"}, {"total": "false"}, {"total": 1}):
        (option,) = options
        with pytest.raises(UsageError, match=f"^{option} must be "):
            Block(DIM, SITES, **options)
    assert Rated(DIM, SITES, rate=-1).anew().rate == -1


def test_a_state_from_before_an_option_was_signed_loads():
    connection = make_connection("delta", DIM, SITES)
    state = connection.state_dict()
    state._metadata[""]["connection"] = f"Delta(dim={DIM}, sites={SITES})"
    make_connection("delta:block_size=3", DIM, SITES).load_state_dict(state)
