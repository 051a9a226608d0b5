"""The trainer of several processes, and its checkpoints.

It is the trainer of one process; what differs is how the model is built, where its forward and backward passes happen,
and who holds which part of a tensor. Every process reads its rows of the same batches, so the losses are those of one
process. The checkpoints are the same files, whatever the layout that wrote them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from attnres.data import Corpus
from attnres.errors import UsageError
from attnres.model import Transformer
from attnres.parallel.muon import ShardedMuon
from attnres.parallel.sharding import compile_sublayers, first_row, local, reshard, shard, sharded_transformer
from attnres.parallel.world import ManyProcesses
from attnres.train.checkpoint import MODEL, OPTIMIZER, Checkpoint, Checkpoints, Tensors
from attnres.train.optimizers import make_optimizers
from attnres.train.runconfig import RunConfig
from attnres.train.trainer import COUNT, Trainer, forward_backward, token_losses

OF_PROCESS = "rng/"
"""How the names of random-number states begin, of which each process has its own."""


class DistributedTrainer(Trainer):
    """A `Trainer` in each process of a world. Its methods are collective: all processes call them in the same order."""

    def __init__(self, config: RunConfig, corpus: Corpus, world: ManyProcesses) -> None:
        world.layout.check(config.model.sublayers, config.batch_size)
        if config.start_from:
            raise UsageError("start_from is for one process; leave it out with several")
        self.world = world
        self.layout = world.layout
        self._process = world.rank
        self._own_state = f"{OF_PROCESS}{world.rank}-of-{world.size}"
        """Where its random-number state is: each process has its own, which means nothing among another number."""
        super().__init__(config, corpus)
        self._seed_draws(0)
        # Of a sharded tensor all of it.
        own = sum(parameter.numel() for parameter in self.model.parameters() if parameter is not self._tied_copy)
        self._parameter_count = round(self.world.sum(torch.tensor(float(own), dtype=torch.float64)).item())
        self._parameter_count //= self.layout.data_parallel

    def _build(self) -> tuple[Any, list[Optimizer]]:
        config, layout, mesh = self.config, self.layout, self.world.mesh
        self.device = self.world.device
        # With one replica a second dimension would only sum gradients over groups of one process.
        data_mesh = mesh["replicate", "shard"] if layout.replicate > 1 else mesh["shard"]
        precision = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
        self._tied_copy: Tensor | None = None
        """What an earlier process of the pipeline counts already."""
        if layout.pipeline > 1:
            from attnres.parallel.pipeline import Pipeline

            def cut(chunk: Transformer) -> None:
                shard(chunk, data_mesh, precision, keep=True)

            model: Any = Pipeline(
                config.model,
                config.seed,
                group=mesh["pipeline"].get_group(),
                virtual=layout.virtual,
                schedule=layout.order,
                micro_batches=config.accumulate,
                device=self.device,
                precision=torch.bfloat16 if config.precision == "bfloat16" else None,
                checkpointing=config.checkpointing,
                compile=config.compile,
                shard=cut if layout.data_parallel > 1 else lambda chunk: None,
            )
            self._roots: list[Any] = list(model.chunks)
            self._tied_copy = model.tied_copy
        else:
            model = sharded_transformer(config.model, config.seed, data_mesh, self.device, precision)
            model.checkpointing = config.checkpointing
            if config.compile:
                compile_sublayers(model)
            self._roots = [model]
        self.forward = model
        muon = {"muon": ShardedMuon} if layout.data_parallel > 1 else {}
        return model, make_optimizers(model, config.optimizer, **muon)

    @property
    def parameters(self) -> int:
        return self._parameter_count

    def forward_backward(self, batches: list[Tensor]) -> Tensor:
        if self.layout.pipeline > 1:
            loss = torch.tensor(self.model.forward_backward(batches), dtype=torch.float64)
        else:
            # Gradients add up here and are summed over the processes once, in the last backward pass.
            loss = forward_backward(self.forward, batches, self._autocast(), self.model.set_requires_gradient_sync)
        # Every process of a pipeline has the loss of its rows.
        return self.world.sum(loss) / self.world.size

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        copied = None if self._tied_copy is None else self._tied_copy.grad
        norm = super().total_norm([gradient for gradient in gradients if gradient is not copied])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if self.layout.pipeline > 1:
            # The chunks' other parameters are disjoint, and data-parallel processes have the same norm.
            norm = (self.world.sum(norm.square()) / self.layout.data_parallel).sqrt()
        return norm

    def total_loss(self, tokens: Tensor) -> tuple[float, float]:
        # All processes run the same shapes; what fills up the last batch does not count.
        rows, own = tokens.shape[0], len(self._own_rows())
        filled = F.pad(tokens, (0, 0, 0, own - rows))
        if self.layout.pipeline > 1:
            losses = self.model.token_losses(filled)
        else:
            with self._autocast():
                losses = token_losses(self.forward, filled)
        for root in self._roots:
            reshard(root)
        counted = losses.double().view(own, -1)[:rows]
        both = self.world.sum(torch.stack([counted.sum(), counted.new_tensor(counted.numel())]))
        total, count = (both / self.layout.pipeline).tolist()
        return total, count

    def _own_rows(self) -> range:
        count = self.config.batch_size // self.layout.data_parallel
        return range(self.world.data_rank * count, (self.world.data_rank + 1) * count)

    def checkpoints(self, folder: Path) -> Checkpoints:
        return DistributedCheckpoints(folder, self.world)

    def load(self, checkpoint: Checkpoint) -> None:
        """Read this process's part of every tensor, from a checkpoint of any layout."""
        weights = self.model.state_dict()  # buffers, too
        model: dict[str, Tensor] = {}
        with safe_open(checkpoint.path / MODEL, "pt") as file:
            for name, weight in weights.items():
                model[name] = _read(file, name, weight)
        optimizer: dict[str, Tensor] = {}
        with safe_open(checkpoint.path / OPTIMIZER, "pt") as file:
            for key in file.keys():  # noqa: SIM118 not a dict
                name, _, entry = key.rpartition("/")
                if name == self._own_state:
                    optimizer[f"rng/{entry}"] = file.get_tensor(key)
                if name in weights:
                    optimizer[key] = file.get_tensor(key) if entry == COUNT else _read(file, key, weights[name])
        self.restore(model, optimizer, checkpoint.state())

    def _random_state(self) -> dict[str, Tensor]:
        states = super()._random_state()
        return {key.replace("rng", self._own_state): state for key, state in states.items()}

    def _is_finite(self, tensor: Tensor) -> bool:
        return super()._is_finite(local(tensor))

    def _diagnosis(self, step: int, loss: float, norm: float, batches: list[Tensor]) -> str:
        broken = f"the loss is {loss}" if loss - loss != 0 else f"the gradient norm is {norm}"
        bad = [name for name, p in self.model.named_parameters() if p.grad is not None and not self._is_finite(p.grad)]
        first = next((names[0] for names in self.world.gather(bad[:1]) if names), None)
        return f"step {step}: {broken}" + (f"; first non-finite gradient: {first}" if first else "")


class DistributedCheckpoints(Checkpoints):
    """The checkpoints of several processes: the first one writes them, in the format of one process."""

    def __init__(self, folder: Path, world: ManyProcesses) -> None:
        super().__init__(folder)
        self.world = world

    def save(self, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any]) -> Checkpoint:
        """Write one, durable when this returns. What stops the first process is raised on all of them."""
        whole = self._whole(model), self._whole(optimizer)
        write = super().save
        self.world.together(lambda: write(step, *whole, state) if self.world.main else None)
        return Checkpoint(self.place(step))

    def _whole(self, tensors: Tensors) -> Tensors:
        """All tensors of all processes, in the first one's CPU memory; nothing in the others.

        Of what several hold, the first one's. (Both ends of a pipeline have a tied embedding, and they are equal.)
        """
        own: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.world.data_rank == 0 or name.startswith(OF_PROCESS):
                own[name] = whole.cpu()
        return {name: tensor for of_one in self.world.to_main(own) for name, tensor in of_one.items()}

    def newest_good(self) -> Checkpoint | None:
        """The first process decides, as it would alone."""
        return self.world.share(super().newest_good)


def _read(file: Any, name: str, like: Tensor) -> Tensor:
    """What this process holds of a tensor in an open file, cut as `like` is."""
    if not isinstance(like, DTensor):
        return file.get_tensor(name)
    first, rows = first_row(like), like.to_local().shape[0]
    values = file.get_slice(name)[first : first + rows] if rows else like.to_local()
    return DTensor.from_local(
        values.to(like.device), like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )
