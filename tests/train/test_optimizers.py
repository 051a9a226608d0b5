import math

import pytest
import torch

from attnres.errors import UsageError
from attnres.model import Transformer, TransformerConfig, parameter_roles
from attnres.train.config import OptimizerConfig
from attnres.train.optimizers import make_optimizers, schedule, set_learning_rate

CONNECTIONS = ["block", "highway", "mhc"]


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


@pytest.mark.parametrize("connection", CONNECTIONS)
@pytest.mark.parametrize("hidden", ["muon", "adamw"])
def test_the_role_decides(connection, hidden):
    net = model(connection)
    optimizers = make_optimizers(net, OptimizerConfig(hidden=hidden, weight_decay=0.1))
    roles = parameter_roles(net)
    for name, parameter in net.named_parameters():
        kind, decay = group_of(optimizers, parameter)
        assert issubclass(kind, torch.optim.Muon) == (hidden == "muon" and roles[name] == "matrix"), name
        assert decay == (0.1 if roles[name] in ("matrix", "head") else 0.0), name


def test_two_dimensional_parameters_of_the_connection_are_not_muons():
    net = model("highway")
    optimizers = make_optimizers(net, OptimizerConfig())
    square = [p for n, p in net.named_parameters() if n.startswith("connection") and p.ndim == 2]
    assert square
    assert all(group_of(optimizers, p) == (torch.optim.AdamW, 0.0) for p in square)


def test_tied_model_has_no_head_to_decay():
    net = model(tied=True)
    optimizers = make_optimizers(net, OptimizerConfig(hidden="muon"))
    assert sum(len(g["params"]) for o in optimizers for g in o.param_groups) == len(list(net.parameters()))


def test_muon_step_has_the_size_of_an_adamw_step():
    """match_rms_adamw: an orthogonal update of rms 0.2 lr, whatever the shape."""
    net = model()
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    optimizers = make_optimizers(net, OptimizerConfig(lr=1.0, weight_decay=0.0))
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizers[0].step()
    for name, role in parameter_roles(net).items():
        if role == "matrix":
            moved = net.get_parameter(name) - before[name]
            assert 0.1 < moved.square().mean().sqrt() < 0.3, name


def test_schedule():
    config = OptimizerConfig(warmup=0.1, decay=0.2)
    shares = [schedule(config, step, 100) for step in range(100)]
    assert shares[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert shares[10:80] == [1.0] * 70
    assert shares[80:] == pytest.approx([(100 - step) / 20 for step in range(80, 100)])
    assert all(share > 0 for share in shares)


@pytest.mark.parametrize("hidden", ["muon", "adamw"])
def test_each_role_has_its_learning_rate(hidden):
    net = model(tied=False)
    optimizers = make_optimizers(net, OptimizerConfig(hidden=hidden, lr=0.5, adamw_lr=0.25))
    set_learning_rate(optimizers, 0.1)
    rate = {p: g["lr"] for o in optimizers for g in o.param_groups for p in g["params"]}
    for name, role in parameter_roles(net).items():
        assert rate[net.get_parameter(name)] == pytest.approx(0.05 if role == "matrix" else 0.025), name


@pytest.mark.parametrize(
    ("connection", "maps"), [("block:query=input", "query_map"), ("block", None), ("highway", None)]
)
def test_maps_over_channels_have_a_smaller_rate(connection, maps):
    net = model(connection)
    groups = [g for o in make_optimizers(net, OptimizerConfig(adamw_lr=0.25)) for g in o.param_groups]
    chosen = {p: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    for name, parameter in net.connection.named_parameters():
        assert chosen[parameter] == (0.25 / 16 if name.split(".")[0] == maps else 0.25, 0.0), name
    assert ((0.25 / 16, 0.0) in chosen.values()) == (maps is not None)
    assert all(g["params"] for g in groups)


@pytest.mark.parametrize(("connection", "maps"), [("block:query=input", "query_map"), ("x0", None)])
def test_the_connection_may_learn_at_a_rate_of_its_own(connection, maps):
    net = model(connection)
    optimizers = make_optimizers(net, OptimizerConfig(adamw_lr=0.25, connection_rate=8))
    rate = {p: g["lr"] for o in optimizers for g in o.param_groups for p in g["params"]}
    for name, parameter in net.connection.named_parameters():
        assert rate[parameter] == (2.0 / 16 if name.split(".")[0] == maps else 2.0), name
    assert rate[net.embedding.weight] == rate[net.norm.weight] == 0.25


@pytest.mark.parametrize("warmup, decay", [(0.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("steps", [1, 3])
def test_schedule_at_its_edges(warmup, decay, steps):
    rates = [schedule(OptimizerConfig(warmup=warmup, decay=decay), s, steps) for s in range(steps)]
    assert all(0 < rate <= 1 and math.isfinite(rate) for rate in rates)


@pytest.mark.parametrize("bad", [{"lr": math.nan}, {"adamw_lr": math.inf}, {"warmup": 0.6, "decay": 0.6}])
def test_bad_options(bad):
    with pytest.raises(UsageError):
        OptimizerConfig(**bad)
