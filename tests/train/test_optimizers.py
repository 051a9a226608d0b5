import pytest
import torch

from attnres.model import Transformer, TransformerConfig, parameter_roles
from attnres.train.optimizers import make_optimizers, schedule, set_learning_rate
from attnres.train.runconfig import OptimizerConfig


def model(connection="block", **fields):
    return Transformer(TransformerConfig(dim=16, layers=2, heads=2, context=16, connection=connection, **fields))


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize(
    ("connection", "hidden", "backbone"),
    [
        ("highway", "muon", "lab"),
        ("mhc", "adamw", "lab"),
        ("block:query=input", "muon", "lab"),
        ("residual", "muon", "qwen3_moe"),
    ],
)
def test_the_role_decides(connection, hidden, backbone):
    """The optimizer, the decay and the rate; every parameter has one of each."""
    if backbone != "lab":
        pytest.importorskip("transformers")
    options = {"backbone": backbone, "backbone_options": EXPERTS if backbone == "qwen3_moe" else {}}
    net = model(connection, tied=hidden == "muon", **options)
    rates = {"matrix": 0.5, "connection": 2.0, "channel map": 2.0 / 16}
    config = OptimizerConfig(hidden=hidden, lr=0.5, adamw_lr=0.25, connection_rate=8, weight_decay=0.1)
    optimizers, roles = make_optimizers(net, config), parameter_roles(net)
    set_learning_rate(optimizers, 0.1)
    groups = [(isinstance(o, torch.optim.Muon), group) for o in optimizers for group in o.param_groups]
    found = [(p, (muon, g["weight_decay"], g["lr"])) for muon, g in groups for p in g["params"]]
    assert len(found) == len(dict(found)) == len(list(net.parameters())) and all(g["params"] for _, g in groups)
    for name, parameter in net.named_parameters():
        role = roles[name]
        decay = 0.1 if role in ("matrix", "head", "experts") else 0.0
        rate = pytest.approx(0.1 * rates.get(role, 0.25))
        assert dict(found)[parameter] == (hidden == "muon" and role == "matrix", decay, rate), name
    assert ("channel map" in roles.values()) == (connection == "block:query=input")
    assert ("experts" in roles.values()) == (backbone == "qwen3_moe")


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
