"""Training in one process and in several: what the tests run on each of them, and what a checkpoint holds."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from attnres.data import open_corpus
from attnres.train.checkpoint import Checkpoint
from attnres.train.trainer import Trainer


def make_trainer(config, layout=None):
    """In a test's own process the trainer of one; in one of `Ranks` that of all of them."""
    corpus = open_corpus(config.data)
    if layout is None:
        return Trainer(config, corpus)
    from attnres.train.distributed import DistributedTrainer

    return DistributedTrainer(config, corpus, make_world(layout))


def make_world(layout):
    """All processes of `Ranks`, in one of them."""
    import torch.distributed as dist

    from attnres.parallel.world import ManyProcesses

    return ManyProcesses(layout, torch.device("cpu"), dist.get_rank(), dist.get_world_size())


def go(_group, config, layout, steps, start=None, save=None, more=0):
    """Start, or go on from a checkpoint, for some steps; evaluate and save there, and go on for some more.

    Returns the losses and norms of all steps, the validation loss, and how many parameters there are.
    """
    trainer = make_trainer(config, layout)
    if start is not None:
        trainer.load(Checkpoint(start))
    records = [trainer.train_step() for _ in range(steps)]
    loss = trainer.evaluate()
    if save is not None:
        state = {**trainer.state(), "validation_loss": loss, "peak_memory_bytes": 0}
        trainer.checkpoints(Path(save)).save(trainer.step, *trainer.tensors(), state)
    records += [trainer.train_step() for _ in range(more)]
    return [(r["loss"], r["grad_norm"]) for r in records], loss, trainer.parameters


RULE = """
import torch
from torch import nn
from attnres.connections import Connection

class Scaled(Connection):
    def __init__(self, dim, sublayers):
        super().__init__(dim, sublayers)
        self.register_buffer("scale", torch.tensor(0.5))
        self.fixed = nn.ParameterList(nn.Parameter(torch.full((dim,), 2.0), False) for _ in range(sublayers + 1))
        self.gain = nn.ParameterList(1 + 0.1 * torch.randn(dim) for _ in range(sublayers + 1))

    def weigh(self, values, site):
        return (self.scale * self.fixed[site] * self.gain[site],)

    def gather(self, values, weights, site):
        return (values[0] * weights[0]).to(values[0].dtype)

    def scatter(self, values, weights, site, h, y):
        return (values[0] + y,)
"""


def own_rule(folder: Path) -> str:
    """A connection of one's own with a buffer, parameters that do not learn, and some whose start is drawn."""
    file = folder / "rule.py"
    file.write_text(RULE)
    return f"{file}:Scaled"


def contents(folder: Path, step: int) -> dict[str, torch.Tensor]:
    path = folder / f"step-{step:08d}"
    assert Checkpoint(path).damage() is None
    tensors = {**load_file(path / "model.safetensors"), **load_file(path / "optimizer.safetensors")}
    # A count that several processes wrote has an axis of length one.
    return {name: tensor.reshape(()) if name.endswith("/step") else tensor for name, tensor in tensors.items()}
