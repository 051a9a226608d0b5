"""The trainer of several processes, and its checkpoints.

It is the trainer of one process; what differs is how the model is built, where its forward and backward passes happen,
and who holds which part of a tensor. Every process reads the same batches and takes its rows of them, so the losses are
those of one process. The checkpoints are the same files, whatever the layout that wrote them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, zeros
from torch.optim import Optimizer

from attnres.data import Corpus
from attnres.errors import UsageError
from attnres.files import partial_folder, remove_folder
from attnres.model import Transformer
from attnres.parallel.muon import ShardedMuon
from attnres.parallel.sharding import local, shard, sharded_transformer
from attnres.parallel.world import ManyProcesses
from attnres.train.checkpoint import MODEL, OPTIMIZER, Checkpoint, Checkpoints, Tensors
from attnres.train.config import RunConfig
from attnres.train.optimizers import make_optimizers
from attnres.train.trainer import COUNT, Trainer, forward_backward, token_losses


class DistributedTrainer(Trainer):
    """A `Trainer` in each process of a world. Its methods are collective: all processes call them in the same order."""

    def __init__(self, config: RunConfig, corpus: Corpus, world: ManyProcesses) -> None:
        world.layout.check(config.model.sites, config.batch_size)
        if config.compile:
            raise UsageError("compile is for one process; leave it out with several")
        self.world = world
        self.layout = world.layout
        super().__init__(config, corpus)
        own = sum(parameter.numel() for parameter in self.model.parameters())  # of a sharded tensor, all of it
        self._parameter_count = round(self.world.sum(torch.tensor(float(own), dtype=torch.float64)).item())
        self._parameter_count //= self.layout.data_parallel

    def _build(self) -> tuple[Any, list[Optimizer]]:
        config, layout, mesh = self.config, self.layout, self.world.mesh
        self.device = self.world.device
        data_mesh = mesh["replicate", "shard"]
        precision = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
        if layout.pipeline > 1:
            from attnres.parallel.pipeline import Pipeline

            def cut(chunk: Transformer) -> None:
                shard(chunk, data_mesh, precision)

            model: Any = Pipeline(
                config.model,
                config.seed,
                group=mesh["pipeline"].get_group(),
                virtual=layout.virtual,
                schedule=layout.order,
                cache=layout.cache == "on",
                micro_batches=config.accumulate,
                device=self.device,
                precision=torch.bfloat16 if config.precision == "bfloat16" else None,
                checkpointing=config.checkpointing,
                shard=cut if layout.data_parallel > 1 else lambda chunk: None,
            )
            self._roots: list[Any] = list(model.chunks)
        else:
            model = sharded_transformer(config.model, config.seed, data_mesh, self.device, precision)
            model.checkpointing = config.checkpointing
            self._roots = [model]
        muon = {"muon": ShardedMuon} if layout.data_parallel > 1 else {}
        return model, make_optimizers(model, config.optimizer, **muon)

    @property
    def parameters(self) -> int:
        return self._parameter_count

    def forward_backward(self, batches: list[Tensor]) -> float:
        mine = [self._rows(tokens) for tokens in batches]
        if self.layout.pipeline > 1:
            loss = self.model.forward_backward(mine)
        else:
            loss = forward_backward(self.forward, mine, self._autocast())
        # Every process of a pipeline has the loss of its rows.
        return self.world.sum(torch.tensor(loss, dtype=torch.float64)).item() / self.world.size

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        norm = super().total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if self.layout.pipeline > 1:
            # The chunks' parameters are disjoint, and data-parallel processes have the same norm.
            norm = (self.world.sum(norm.square()) / self.layout.data_parallel).sqrt()
        return norm

    def total_loss(self, tokens: Tensor) -> float:
        rows = tokens.shape[0]
        most = -(-rows // self.layout.data_parallel)
        places = torch.arange(self.world.data_rank * most, (self.world.data_rank + 1) * most)
        mine = tokens[places % rows]  # all processes run the same shapes; what is read twice does not count twice
        if self.layout.pipeline > 1:
            losses = self.model.token_losses(mine)
        else:
            with self._autocast():
                losses = token_losses(self.forward, mine)
        for root in self._roots:
            if isinstance(root, FSDPModule):
                root.reshard()  # without a backward pass it stays gathered
        total = losses.double().view(most, -1)[places < rows].sum()
        return self.world.sum(total).item() / self.layout.pipeline

    def _rows(self, tokens: Tensor) -> Tensor:
        """This process's part of a batch."""
        return tokens.chunk(self.layout.data_parallel)[self.world.data_rank]

    def checkpoints(self, folder: Path) -> Checkpoints:
        return DistributedCheckpoints(folder, self.world)

    def load(self, checkpoint: Checkpoint) -> None:
        """Read this process's part of every tensor, from a checkpoint of any layout."""
        model = {name: _empty_like(parameter) for name, parameter in self.model.named_parameters()}
        optimizer: dict[str, Tensor] = {}
        with safe_open(checkpoint.path / OPTIMIZER, "pt") as file:
            for key in file.keys():  # noqa: SIM118 not a dict
                name, _, entry = key.rpartition("/")
                if name in model:
                    of_weight = entry != COUNT and file.get_slice(key).get_shape() == list(model[name].shape)
                    optimizer[key] = _empty_like(model[name]) if of_weight else file.get_tensor(key)
        whole = {key: tensor for key, tensor in {**model, **optimizer}.items() if not isinstance(tensor, DTensor)}
        parts = {key: tensor for key, tensor in {**model, **optimizer}.items() if isinstance(tensor, DTensor)}
        _read_whole(checkpoint.path, whole)
        if parts:
            load(parts, storage_reader=HuggingFaceStorageReader(str(checkpoint.path)))  # type: ignore[arg-type]
        self.restore(model, optimizer, checkpoint.state())

    def _random_state(self) -> dict[str, Tensor]:
        return {}  # nothing here draws after the start; each process would have its own

    def _is_finite(self, tensor: Tensor) -> bool:
        return super()._is_finite(local(tensor))

    def _diagnosis(self, step: int, loss: float, norm: float, batches: list[Tensor]) -> str:
        broken = f"the loss is {loss}" if loss - loss != 0 else f"the gradient norm is {norm}"
        bad = [name for name, p in self.model.named_parameters() if p.grad is not None and not self._is_finite(p.grad)]
        first = next((names[0] for names in self.world.gather(bad[:1]) if names), None)
        return f"step {step}: {broken}" + (f"; first non-finite gradient: {first}" if first else "")


class DistributedCheckpoints(Checkpoints):
    """The checkpoints of several processes, in the format of one.

    Each process writes its own part of every tensor (torch.distributed.checkpoint, as safetensors); the main process
    then joins the parts to the two files that `Checkpoints` has. All must see the same folder.
    """

    def __init__(self, folder: Path, world: ManyProcesses) -> None:
        super().__init__(folder)
        self.world = world

    def save(self, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any]) -> Checkpoint:
        if self.world.main:
            checkpoint = super().save(step, model, optimizer, state)
        else:
            checkpoint = Checkpoint(self.folder / f"step-{step:08d}")
            self._write_tensors(partial_folder(checkpoint.path), model, optimizer)
        self.world.share(lambda: None)  # nobody goes on before it is there
        return checkpoint

    def _write_tensors(self, folder: Path, model: Tensors, optimizer: Tensors) -> None:
        # torch joins the parts of a tensor without axes to a zero (2.13).
        optimizer = {name: tensor.view(1) if tensor.ndim == 0 else tensor for name, tensor in optimizer.items()}
        files = dict.fromkeys(model, 1) | dict.fromkeys(optimizer, 2)
        names: dict[str, int] = {}
        for of_one in self.world.gather(files):  # also: the main process has made the folder
            names |= of_one
        # In one order, or a run that was restarted would write the same tensors to different bytes.
        tensors, names = dict(sorted({**model, **optimizer}.items())), dict(sorted(names.items()))
        writer = HuggingFaceStorageWriter(str(folder), names, save_distributed=True, enable_consolidation=True)
        try:
            save(tensors, storage_writer=writer)
        except CheckpointException as error:
            for cause, _ in error.failures.values():
                if isinstance(cause, OSError):
                    raise cause from error
            raise
        if self.world.main:
            for number, name in enumerate((MODEL, OPTIMIZER), 1):
                (folder / f"model-{number:05d}-of-00002.safetensors").rename(folder / name)
            remove_folder(folder / "sharded")
            for index in folder.glob("*.index.json"):
                index.unlink()


def _empty_like(weight: Tensor) -> Tensor:
    """Zeros of the weight's shape, cut over processes as it is."""
    if isinstance(weight, DTensor):
        return zeros(weight.shape, dtype=weight.dtype, device_mesh=weight.device_mesh, placements=weight.placements)
    return torch.zeros_like(weight)


def _read_whole(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill the tensors, each of which this process holds whole, from the checkpoint's two files."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for key in tensors:
        by_file[OPTIMIZER if "/" in key else MODEL].append(key)
    for name, keys in by_file.items():
        with safe_open(folder / name, "pt") as file:
            for key in keys:
                tensors[key].copy_(file.get_tensor(key))
