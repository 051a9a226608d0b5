"""Sublayers of transformers on shards: what is gathered, for how long and in what, and the gradients of it."""

import copy
import dataclasses

import pytest
import torch
from torch.distributed.tensor import DTensor

from attnres.model import Transformer, TransformerConfig
from attnres.parallel.build import materialise, skeleton
from attnres.parallel.layout import Layout
from tests.train.many import make_trainer

VECTORS = ("norm.weight", "dt_bias", "A_log")


@pytest.fixture
def make_kimi_config(make_config):
    pytest.importorskip("transformers")
    from tests.model.test_backbones import config_of  # not where each rank would import it, too

    def make(**fields):
        model = dataclasses.asdict(config_of("kimi_linear", "block", vocab_size=256))
        return make_config(batch_size=4, accumulate=2, model=model, **fields)

    return make


def look_at_sublayers(_group, config, layout):
    """The sublayers' parameters at rest, when their sublayer begins, and when it has ended: {name: (dtype, cut)}."""
    trainer = make_trainer(config, layout)
    at_rest, within, after = {}, {}, {}

    def look(into, site):
        for name, p in trainer.model.sublayers[site].named_parameters():
            into[f"{site}.{name}"] = p.dtype, isinstance(p, DTensor) and p.placements[-1].is_shard()

    for site, sublayer in enumerate(trainer.model.sublayers):
        look(at_rest, site)
        sublayer.register_forward_pre_hook(lambda *_, site=site: look(within, site))
        sublayer.register_forward_hook(lambda *_, site=site: look(after, site))
    trainer.train_step()
    return at_rest, within, after


@pytest.mark.slow
def test_what_is_no_vector_is_whole_while_its_sublayer_runs(make_kimi_config, pair):
    """Stacked experts, convolutions and router gates too; vectors stay whole, in float32, for the step."""
    config = make_kimi_config(precision="bfloat16")
    for at_rest, within, after in pair.run(look_at_sublayers, config, Layout(shard=2), ranks=2):
        vectors = {name for name in at_rest if name.endswith(VECTORS)}
        assert {"0.block.conv1d.weight", "3.block.gate.weight", "3.block.experts.down_proj"} <= at_rest.keys() - vectors
        assert set(at_rest.values()) == {(torch.float32, True)}
        assert {name for name, (_, cut) in after.items() if not cut} == vectors
        gathered = torch.bfloat16
        assert within == {name: (torch.float32 if name in vectors else gathered, False) for name in at_rest}


DRAWN = """
import torch
from torch import nn
from attnres.connections import Connection

class Drawn(Connection):
    def __init__(self, dim, sites):
        super().__init__(dim, sites)
        self.a = nn.ParameterList(1 + 0.1 * torch.randn(1) for _ in range(sites))

    def weigh(self, values, site):
        return self.a[site] if site < self.sites else ()

    def gather(self, values, weights, site):
        return values[0]

    def scatter(self, values, weights, site, h, y):
        return ((values[0] + weights * y).to(values[0].dtype),)
"""


def test_a_rule_whose_start_is_drawn_starts_alike_wherever_it_is_made(tmp_path):
    """From the seed alone, and not from what was drawn before it or is made elsewhere."""
    (tmp_path / "rule.py").write_text(DRAWN)
    config = TransformerConfig(vocab_size=32, dim=16, layers=2, heads=2, connection=f"{tmp_path / 'rule.py'}:Drawn")
    one, again, other = Transformer(config, 0), Transformer(config, 0), Transformer(config, 1)
    whole = skeleton(Transformer, config)
    part = copy.deepcopy(whole)
    materialise(whole, [part], 0, torch.device("cpu"))
    expected = one.state_dict()
    for made in (again, part):
        assert all(torch.equal(expected[name], tensor) for name, tensor in made.state_dict().items())
    assert len({number.item() for number in one.connection.a}) == 4
    assert not torch.equal(one.connection.a[0], other.connection.a[0])
