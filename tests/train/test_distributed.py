"""Several processes against one: the same losses, the same weights."""

import dataclasses
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from attnres.parallel.layout import Layout
from tests.model.test_backbones import config_of
from tests.train.many import contents, go, make_trainer, own_rule

LAYOUTS = {
    "shard 4": Layout(shard=4),
    "replicate 2, shard 2": Layout(replicate=2, shard=2),
    "pipeline 4": Layout(pipeline=4, shard=1),
    "zero bubble 4 x 2": Layout(pipeline=4, virtual=2, shard=1, schedule="zero-bubble"),
    "pipeline 2 x 2, shard 2": Layout(pipeline=2, virtual=2, shard=2),
    "pipeline 2 x 2, replicate 2": Layout(pipeline=2, virtual=2, replicate=2, shard=1),
    "zero bubble 2 x 2, shard 2": Layout(pipeline=2, virtual=2, shard=2, schedule="zero-bubble"),
    "zero bubble 2 x 2, replicate 2": Layout(pipeline=2, virtual=2, replicate=2, shard=1, schedule="zero-bubble"),
    "pipeline 2 x 2 without cache, shard 2": Layout(pipeline=2, virtual=2, shard=2, cache="off"),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_trains_as_one_process(make_config, ranks, tmp_path, layout):
    """AdamW alone: what Muon makes of a rounding in bfloat16 is no fair measure."""
    config = make_config(
        batch_size=4, accumulate=4, steps=12, model={"layers": 4}, optimizer={"hidden": "adamw"}, validation_tokens=112
    )
    expected = go(None, config, None, 3, save=tmp_path / "one")
    for losses, validation, parameters in ranks.run(go, config, layout, 3, None, tmp_path / "many", ranks=4):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=2e-6, atol=1e-6)
        assert validation == pytest.approx(expected[1], rel=1e-6)
        assert parameters == expected[2]
    one, many = contents(tmp_path / "one", 3), contents(tmp_path / "many", 3)
    many = {name: tensor for name, tensor in many.items() if not name.startswith("rng/")}  # each process's own
    assert many.keys() == one.keys() - {"rng/cpu"}
    for name, tensor in many.items():
        # Adam brings a gradient that is zero but for rounding to the size of the learning rate, 1e-2.
        if not name.startswith("connection.query.0"):
            torch.testing.assert_close(tensor, one[name], rtol=1e-4, atol=3e-4, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("connection", ["residual", "hc", "denseformer", "rezero", "delta", "full:query=input"])
def test_other_connections_on_shards_of_a_pipeline(make_config, ranks, connection):
    model = {"layers": 4, "connection": connection}
    config = make_config(batch_size=4, accumulate=2, model=model)
    config = dataclasses.replace(
        config, checkpointing=True, optimizer=dataclasses.replace(config.optimizer, hidden="adamw")
    )
    expected = go(None, config, None, 2)
    losses, validation, _ = ranks.run(go, config, Layout(pipeline=2, virtual=2, shard=2), 2, ranks=4)[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=3e-6, atol=1e-6)
    assert validation == pytest.approx(expected[1], rel=2e-6)


@pytest.mark.parametrize("layout", [Layout(shard=2), Layout(pipeline=2, shard=1)], ids=["shard 2", "pipeline 2"])
@pytest.mark.parametrize("backbone", ["llama", "kimi_linear"])
def test_sublayers_of_transformers_train_as_in_one_process(make_config, pair, backbone, layout):
    model = dataclasses.asdict(config_of(backbone, vocab_size=256))
    config = make_config(batch_size=4, accumulate=2, model=model, optimizer={"hidden": "adamw"})
    expected = go(None, config, None, 2)
    losses, validation, _ = pair.run(go, config, layout, 2, ranks=2)[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=5e-6, atol=1e-6)
    assert validation == pytest.approx(expected[1], rel=2e-6)


PAIRS = {
    "shard 2": Layout(shard=2),
    "pipeline 2": Layout(pipeline=2, shard=1),
    "zero bubble 2 x 2": Layout(pipeline=2, virtual=2, shard=1, schedule="zero-bubble"),
}


@pytest.mark.parametrize("layout", PAIRS.values(), ids=PAIRS)
def test_what_a_rule_keeps_fixed_stays_fixed(make_config, pair, tmp_path, layout):
    model = {"layers": 4, "connection": own_rule(tmp_path)}
    config = make_config(batch_size=4, accumulate=2, model=model, optimizer={"hidden": "adamw"})
    expected = go(None, config, None, 2)
    losses, validation, _ = pair.run(go, config, layout, 2, None, tmp_path, ranks=2)[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=5e-6, atol=1e-6)
    assert validation == pytest.approx(expected[1], rel=2e-6)
    fixed = [tensor for name, tensor in contents(tmp_path, 2).items() if name.startswith("connection.fixed")]
    assert len(fixed) == 9 and all(torch.equal(tensor, torch.full_like(tensor, 2.0)) for tensor in fixed)


TIED = {
    "shard 4": Layout(shard=4),
    "pipeline 4": Layout(pipeline=4, shard=1),
    "pipeline 2 x 2, shard 2": Layout(pipeline=2, virtual=2, shard=2),
    "zero bubble 2 x 2, replicate 2": Layout(pipeline=2, virtual=2, replicate=2, shard=1, schedule="zero-bubble"),
}


@pytest.mark.parametrize("layout", TIED.values(), ids=TIED)
def test_a_tied_embedding_is_one_matrix(make_config, ranks, tmp_path, layout):
    """At both ends of a pipeline: one gradient, counted once in the norm and the size, and one in the checkpoint."""
    model = {"layers": 4, "tied": True}
    config = make_config(batch_size=4, accumulate=4, model=model, optimizer={"hidden": "adamw", "clip": 0.1})
    expected = go(None, config, None, 3)
    outcomes = ranks.run(go, config, layout, 3, None, tmp_path, ranks=4)
    for losses, validation, parameters in outcomes:
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=2e-6, atol=1e-6)
        assert (validation, parameters) == (pytest.approx(expected[1], rel=1e-6), expected[2])
    went_on = go(None, config, None, 1, tmp_path / "step-00000003")
    assert went_on[0][0] == pytest.approx(go(None, config, None, 4)[0][3], rel=5e-6)


def go_compiled(group, *args):
    """`go` without the machine code, which takes longer; what is compiled, and into which graphs, is the same."""
    whole, torch.compile = torch.compile, partial(torch.compile, backend="aot_eager")
    try:
        return go(group, *args)
    finally:
        torch.compile = whole


COMPILED = {
    "shard 4": Layout(shard=4),
    "pipeline 2 x 2, shard 2": Layout(pipeline=2, virtual=2, shard=2),
    "zero bubble 2 x 2, replicate 2": Layout(pipeline=2, virtual=2, replicate=2, shard=1, schedule="zero-bubble"),
}


@pytest.mark.parametrize("layout", COMPILED.values(), ids=COMPILED)
def test_compiled_sublayers_train_as_in_one_process(make_config, ranks, layout):
    config = make_config(batch_size=4, accumulate=2, model={"layers": 4}, optimizer={"hidden": "adamw"})
    config = dataclasses.replace(config, checkpointing=True)
    expected = go(None, config, None, 2)
    losses, validation, _ = ranks.run(go_compiled, dataclasses.replace(config, compile=True), layout, 2, ranks=4)[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=5e-6, atol=1e-6)
    assert validation == pytest.approx(expected[1], rel=2e-6)


def test_muon_makes_more_of_a_rounding_than_adamw(make_config, pair, tmp_path):
    """What docs/DISTRIBUTED.md says of it: gradients that differ in their last bits go through bfloat16."""
    config = make_config(batch_size=4)
    expected = go(None, config, None, 6, save=tmp_path / "one")
    losses, _, _ = pair.run(go, config, Layout(shard=2), 6, None, tmp_path / "two", ranks=2)[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=1e-3, atol=0)
    one, two = (load_file(tmp_path / name / "step-00000006" / "model.safetensors") for name in ("one", "two"))
    furthest = max((one[name] - two[name]).abs().max().item() for name in one)
    assert furthest < 2e-2


def test_bfloat16_is_close(make_config, ranks):
    config = make_config(batch_size=4, accumulate=2, precision="bfloat16", model={"layers": 4})
    expected = go(None, config, None, 3)
    for layout in (Layout(shard=4), Layout(pipeline=2, virtual=2, shard=2)):
        losses, validation, _ = ranks.run(go, config, layout, 3, ranks=4)[0]
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[0]), rtol=2e-2, atol=1e-2)
        assert validation == pytest.approx(expected[1], rel=5e-3)


def collectives_of_a_step(_group, config, layout):
    """How often this process takes part in each kind of collective: what the dispatcher sees of c10d."""
    from attnres.torch_private import TorchDispatchMode

    counts: dict[str, int] = {}

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                name = func.overloadpacket.__name__
                counts[name] = counts.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    trainer = make_trainer(config, layout)
    trainer.train_step()
    with Count():
        trainer.train_step()
    return counts


SUBLAYERS = 8


LOSS = 1


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        # Each sublayer is gathered for forward and backward, and the rest once for both, in each of 4 micro-batches.
        (
            Layout(shard=4),
            {
                "_allgather_base_": 4 * (2 * SUBLAYERS + 1),
                "_reduce_scatter_base_": SUBLAYERS + 1,
                "allreduce_": LOSS,
            },
        ),
        # A chunk's are gathered once in a step. The second sum is of the norm.
        (
            Layout(pipeline=2, shard=2),
            {
                "_allgather_base_": SUBLAYERS // 2 + 1,
                "_reduce_scatter_base_": SUBLAYERS // 2 + 1,
                "allreduce_": LOSS + 1,
            },
        ),
    ],
    ids=["shard 4", "pipeline 2, shard 2"],
)
def test_no_collective_is_needless(make_config, ranks, layout, expected):
    config = make_config(batch_size=4, accumulate=4, model={"layers": 4}, optimizer={"hidden": "adamw"})
    for counts in ranks.run(collectives_of_a_step, config, layout, ranks=4):
        assert {name: counts.get(name, 0) for name in expected} == expected


def test_replicas_sum_their_gradients_once(make_config, pair):
    config = make_config(batch_size=4, accumulate=3, optimizer={"hidden": "adamw"})
    for counts in pair.run(collectives_of_a_step, config, Layout(replicate=2, shard=1), ranks=2):
        assert counts["allreduce_"] == 4 + 1 + LOSS  # 4 sublayers, the rest, the loss


def validation_read(_group, config, layout):
    """Where the windows begin that this process reads of the validation part, in one evaluation; and its operations."""

    class Noted:
        def __init__(self, tokens):
            self.tokens, self.starts = tokens, []

        def __len__(self):
            return len(self.tokens)

        def __getitem__(self, window):
            self.starts.append(int(window.start))
            return self.tokens[window]

    trainer = make_trainer(config, layout)
    noted = Noted(trainer.corpus.validation)
    trainer.corpus = dataclasses.replace(trainer.corpus, validation=noted)
    trainer.evaluate()
    return noted.starts, trainer.operations


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("layout", [Layout(shard=4), Layout(pipeline=2, shard=2)], ids=["shard 4", "pipeline 2 x 2"])
def test_a_process_reads_and_computes_its_share(make_config, ranks, layout, tied):
    config = make_config(batch_size=4, accumulate=2, model={"layers": 4, "tied": tied}, validation_tokens=112)
    everything, operations = validation_read(None, config, None)
    assert len(everything) == 7
    parts, counted = zip(*ranks.run(validation_read, config, layout, ranks=4), strict=True)
    assert sorted(start for part in parts for start in part) == sorted(everything * layout.pipeline)
    assert max(map(len, parts)) == 8 // layout.data_parallel
    assert sum(counted) == pytest.approx(operations)


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


def _start(_group, config):
    trainer = make_trainer(config, Layout(shard=4))
    weights = dict(make_trainer(config).model.named_parameters())
    own = sum(parameter.to_local().numel() for parameter in trainer.model.parameters())
    equal = {name: torch.equal(p.full_tensor(), weights[name]) for name, p in trainer.model.named_parameters()}
    return equal, equal.keys() == weights.keys(), own


@pytest.mark.parametrize("connection", ["block", "mhc", "mhc-lite", "postnorm"])
def test_the_meta_device_gives_the_weights_of_one_process(make_config, ranks, connection):
    config = make_config(batch_size=4, model={"connection": connection})
    results = ranks.run(_start, config, ranks=4)
    assert all(all(equal.values()) and complete for equal, complete, _ in results)
    assert sum(own for _, _, own in results) == make_trainer(config).parameters
