import pytest
import torch

from attnres.model import Transformer, TransformerConfig, parameter_roles
from attnres.train.optimizers import make_optimizers, schedule, set_learning_rate
from attnres.train.runconfig import OptimizerConfig


def model(connection="block", **fields):
    return Transformer(TransformerConfig(dim=16, layers=2, heads=2, context=16, connection=connection, **fields))


def group_of(optimizers, parameter):
    found = [
        (type(optimizer), group["weight_decay"])
        for optimizer in optimizers
        for group in optimizer.param_groups
        if any(parameter is member for member in group["params"])
    ]
    assert len(found) == 1, "every parameter belongs to exactly one optimizer"
    return found[0]


@pytest.mark.parametrize(("connection", "hidden"), [("highway", "muon"), ("mhc", "adamw"), ("block", "muon")])
def test_the_role_decides(connection, hidden):
    net = model(connection, tied=connection == "block")
    optimizers = make_optimizers(net, OptimizerConfig(hidden=hidden, weight_decay=0.1))
    roles = parameter_roles(net)
    for name, parameter in net.named_parameters():
        kind, decay = group_of(optimizers, parameter)
        assert issubclass(kind, torch.optim.Muon) == (hidden == "muon" and roles[name] == "matrix"), name
        assert decay == (0.1 if roles[name] in ("matrix", "head") else 0.0), name


def test_schedule():
    config = OptimizerConfig(warmup=0.1, decay=0.2)
    shares = [schedule(config, step, 100) for step in range(100)]
    assert shares[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert shares[10:80] == [1.0] * 70
    assert shares[80:] == pytest.approx([(100 - step) / 20 for step in range(80, 100)])
    for warmup, decay in ((0.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 0.0)):
        shares += [
            schedule(OptimizerConfig(warmup=warmup, decay=decay), s, steps) for steps in (1, 3) for s in range(steps)
        ]
    assert all(0 < share <= 1 for share in shares)


def test_each_role_has_its_learning_rate():
    net = model(tied=False)
    optimizers = make_optimizers(net, OptimizerConfig(hidden="adamw", lr=0.5, adamw_lr=0.25))
    set_learning_rate(optimizers, 0.1)
    rate = {p: g["lr"] for o in optimizers for g in o.param_groups for p in g["params"]}
    for name, role in parameter_roles(net).items():
        assert rate[net.get_parameter(name)] == pytest.approx(0.05 if role == "matrix" else 0.025), name


@pytest.mark.parametrize(("connection", "maps"), [("block:query=input", "query_map"), ("highway", None)])
def test_the_connection_has_a_rate_of_its_own_and_its_maps_over_channels_a_smaller_one(connection, maps):
    net = model(connection)
    optimizers = make_optimizers(net, OptimizerConfig(adamw_lr=0.25, connection_rate=8))
    groups = [g for o in optimizers for g in o.param_groups]
    chosen = {p: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    for name, parameter in net.connection.named_parameters():
        assert chosen[parameter] == (2.0 / 16 if name.split(".")[0] == maps else 2.0, 0.0), name
    assert chosen[net.embedding.weight][0] == chosen[net.norm.weight][0] == 0.25
    assert all(g["params"] for g in groups)
