"""Several processes against one: the same losses, gradients and weights, and no more work or talk than is needed."""

import copy
import dataclasses
from functools import partial

import pytest
import torch

from attnres.model import Transformer, TransformerConfig
from attnres.parallel.build import materialise, skeleton
from attnres.parallel.layout import Layout
from tests.train.many import contents, go, own_rule

PIPELINE = Layout(pipeline=2, virtual=2, shard=2)
ZERO_BUBBLE = Layout(pipeline=2, virtual=2, replicate=2, shard=1, schedule="zero-bubble")
LAYOUTS = {
    "replicate 2, shard 2": Layout(replicate=2, shard=2),
    "pipeline 2 x 2, shard 2": PIPELINE,
    "zero bubble 2 x 2, replicate 2": ZERO_BUBBLE,
}
slow = pytest.mark.slow


def assert_trains_as_one_process(config, ranks, layout, folder, run=go, size=4):
    """A step, and the loss and norm behind it.

    An optimizer's moments behind one step are the clipped gradients, of which a share is a quarter or a half. Weights
    are not compared: Adam takes a whole step along a gradient that is zero but for rounding, and Muon takes one of its
    own size through bfloat16, which the next loss hardly feels.
    """
    expected, validation, parameters = go(None, config, None, 1, None, folder / "one", 1)
    muon = config.optimizer.hidden == "muon"
    for losses, measured, counted in ranks.run(run, config, layout, 1, None, folder / "many", 1, ranks=size):
        assert losses[0] == pytest.approx(expected[0], rel=1e-5)
        assert losses[1] == pytest.approx(expected[1], rel=1e-2 if muon else 1e-3)
        assert (measured, counted) == (pytest.approx(validation, rel=1e-3 if muon else 1e-4), parameters)
    one, many = contents(folder / "one", 1), contents(folder / "many", 1)
    assert {name for name in many if not name.startswith("rng/")} == one.keys() - {"rng/cpu"}
    moments = [name for name in one if name.endswith(("/exp_avg", "/momentum_buffer"))]
    largest = max(one[name].abs().max().item() for name in moments)
    for name in moments:
        scale = max(one[name].abs().max().item(), 1e-3 * largest)
        assert ((many[name] - one[name]).abs().max() / scale).item() < 1e-3, name


CASES = [
    ("replicate 2, shard 2", {"optimizer": {"hidden": "muon"}}),
    # Its matrix stands at both ends: one gradient, counted once in the norm that clips and in the size.
    ("pipeline 2 x 2, shard 2", {"model": {"tied": True}, "optimizer": {"clip": 0.1}, "checkpointing": True}),
    ("zero bubble 2 x 2, replicate 2", {"model": {"connection": "denseformer"}}),
]


@pytest.mark.parametrize(("layout", "fields"), CASES, ids=str)
def test_every_layout_trains_as_one_process(make_config, ranks, tmp_path, layout, fields):
    options = {
        **{"batch_size": 4, "accumulate": 4, "validation_tokens": 112, **fields},
        "model": {"layers": 2, **fields.get("model", {})},
        "optimizer": {"hidden": "adamw", **fields.get("optimizer", {})},
    }
    assert_trains_as_one_process(make_config(**options), ranks, LAYOUTS[layout], tmp_path)


def test_a_rule_with_a_buffer_and_with_what_it_keeps_fixed(make_config, pair, tmp_path):
    """Both are in the checkpoint as they were, and one process goes on from it."""
    model = {"layers": 2, "connection": own_rule(tmp_path)}
    config = make_config(batch_size=4, accumulate=2, model=model, optimizer={"hidden": "adamw"})
    assert_trains_as_one_process(config, pair, Layout(shard=2), tmp_path, size=2)
    saved = contents(tmp_path / "many", 1)
    assert torch.equal(saved["connection.scale"], torch.tensor(0.5))
    fixed = [tensor for name, tensor in saved.items() if name.startswith("connection.fixed")]
    assert len(fixed) == 5 and all(torch.equal(tensor, torch.full_like(tensor, 2.0)) for tensor in fixed)
    went_on = go(None, config, None, 1, tmp_path / "many" / "step-00000001")[0]
    assert went_on[0] == pytest.approx(go(None, config, None, 2)[0][1], rel=1e-3)


def go_compiled(group, config, *args):
    """`go` without the machine code, which takes longer; what is compiled, and into which graphs, is the same."""
    whole, torch.compile = torch.compile, partial(torch.compile, backend="aot_eager")
    try:
        return go(group, dataclasses.replace(config, compile=True), *args)
    finally:
        torch.compile = whole


@slow
def test_compiled_sublayers_train_as_in_one_process(make_config, pair, tmp_path):
    config = make_config(batch_size=4, accumulate=2, model={"layers": 1}, optimizer={"hidden": "adamw"})
    config = dataclasses.replace(config, checkpointing=True)
    assert_trains_as_one_process(config, pair, Layout(shard=2), tmp_path, go_compiled, size=2)


def _muon(_group):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from attnres.parallel.muon import ShardedMuon
    from attnres.train.muon import StackedMuon

    torch.manual_seed(0)
    shapes = [(8, 6), (5, 7), (2, 9), (16, 16), (9, 4), (1, 3), (30, 12)]  # fewer rows than processes, uneven, many
    options = {"lr": 0.1, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
    cut = [Replicate(), Shard(0)]
    whole = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    parts = [torch.nn.Parameter(distribute_tensor(w.detach().clone(), mesh, cut)) for w in whole]
    one, many = StackedMuon(whole, **options), ShardedMuon(parts, **options)
    for _ in range(3):
        for w, p in zip(whole, parts, strict=True):
            w.grad = torch.randn(w.shape)
            p.grad = distribute_tensor(w.grad, mesh, cut)
        one.step()
        many.step()
    return [torch.equal(w, p.full_tensor()) for w, p in zip(whole, parts, strict=True)]


def test_muon_on_shards_is_that_of_one_process_bit_for_bit(ranks):
    assert all(all(equal) for equal in ranks.run(_muon, ranks=4))


def test_a_rule_whose_start_is_drawn_starts_alike_wherever_it_is_made(tmp_path):
    """From the seed alone, and not from what was drawn before it or is made elsewhere."""
    config = TransformerConfig(vocab_size=32, dim=16, layers=2, heads=2, connection=own_rule(tmp_path))
    one, again, other = Transformer(config, 0), Transformer(config, 0), Transformer(config, 1)
    whole = skeleton(Transformer, config)
    part = copy.deepcopy(whole)
    materialise(whole, [part], 0, torch.device("cpu"))
    expected = one.state_dict()
    for made in (again, part):
        assert all(torch.equal(expected[name], tensor) for name, tensor in made.state_dict().items())
    drawn = torch.stack([*one.connection.gain, *other.connection.gain])
    assert len(drawn.unique()) == drawn.numel() == 2 * 5 * 16
