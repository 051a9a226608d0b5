"""A transformer cut into chunks over the ranks of a process group, run by torch's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from attnres.connections import make_connection
from attnres.errors import UsageError
from attnres.model import TransformerConfig
from attnres.parallel.cache import CrossStageCache
from attnres.parallel.chunk import ChunkModel, build_chunks
from attnres.parallel.plan import ChunkPlan, Trace, plan, trace
from attnres.parallel.runner import ChunkRunner
from attnres.parallel.schedule import check_schedule, even_cuts
from attnres.parallel.sharding import compile_sublayers, local


class Pipeline:
    """Forward and backward of `Transformer(config, seed)` over P ranks, V chunks of sublayers on each.

    Chunk c is on rank c mod P. Losses and gradients are the one-process model's. Every rank of the group calls the
    same methods in the same order.

    Args:
        micro_batches: how many a step has.
        group: the ranks of this pipeline; by default all.
        precision: the dtype of matrix products under autocast; None is that of the parameters.
        compile: compile each sublayer. Its backward pass is then one node, which zero bubble cannot split.
        shard: called with each of the rank's chunks before its weights take memory, to cut them over other processes.

    Raises:
        UsageError: what cannot be a pipeline; on every rank, before anything is sent.
    """

    def __init__(
        self,
        config: TransformerConfig,
        seed: int,
        micro_batches: int,
        group: dist.ProcessGroup | None = None,
        virtual: int = 1,
        schedule: str = "1f1b",
        device: torch.device | str = "cpu",
        precision: torch.dtype | None = None,
        checkpointing: bool = False,
        compile: bool = False,
        shard: Callable[[ChunkModel], object] = lambda chunk: None,
    ) -> None:
        self.config = config
        self.group = group
        self.micro_batches = micro_batches
        self.precision = precision
        self.device = torch.device(device)
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        check_schedule(schedule, self.ranks, virtual, micro_batches)
        if config.tied and self.ranks == 1 < virtual:
            raise UsageError("a tied embedding stands at both ends of the depth: give two ranks, or leave virtual out")
        if checkpointing and schedule == "zero-bubble":
            raise UsageError(
                "zero-bubble goes over a chunk's graph twice, so it cannot recompute it; use another schedule"
            )
        self.cuts = even_cuts(config.sublayers, self.ranks * virtual)
        self.cache = CrossStageCache()
        self._plans: dict[tuple[int, int], list[ChunkPlan]] = {}

        count = self.ranks * virtual
        own = range(self.rank, count, self.ranks)
        shapeless = self._trace(1, 1)
        plans = plan(shapeless.values, self.cuts, self.ranks)
        self.chunks = build_chunks(config, seed, plans, shapeless.users, own, self.device, shard)
        """This rank's part of the model."""
        for chunk in self.chunks:
            chunk.checkpointing = checkpointing
            chunk.autocast = precision
            if compile:
                compile_sublayers(chunk)
        self._runners = [
            ChunkRunner(chunk, index, count, self.device, group, self.cache, not compile)
            for index, chunk in zip(own, self.chunks, strict=True)
        ]
        options = {"n_microbatches": micro_batches, "loss_fn": self._loss, "scale_grads": False}
        if schedule == "1f1b":
            self.schedule = Schedule1F1B(self._runners[0], **options)
        else:
            kind = ScheduleInterleaved1F1B if schedule == "interleaved-1f1b" else ScheduleInterleavedZeroBubble
            self.schedule = kind(self._runners, **options)  # type: ignore[arg-type]
        for runner in self._runners:
            runner.lets_go = isinstance(self.schedule, PipelineScheduleMulti)

    def forward_backward(self, batches: Sequence[Tensor]) -> float:
        """Add the gradient of the batches' mean loss to the parameters; return that loss, on every rank.

        batches: as many as `micro_batches`, all [batch, time + 1], the same on every rank.
        """
        if len(batches) != self.micro_batches or len({batch.shape for batch in batches}) != 1:
            shapes = ", ".join(str(list(batch.shape)) for batch in batches)
            raise UsageError(f"a step takes {self.micro_batches} micro-batches of one shape, not {shapes}")
        self._follow(batches[0])
        tokens = torch.cat(list(batches))
        inputs = (tokens[:, :-1],) if self.rank == 0 else ()
        losses: list[Tensor] = []
        with self._tied_gradient():
            if self._last:
                self.schedule.step(*inputs, target=tokens[:, 1:], losses=losses, return_outputs=False)
            else:
                self.schedule.step(*inputs, return_outputs=False)
        # Summed as the trainer does on one device, in Python's floats.
        loss = torch.tensor(sum(loss.item() for loss in losses), dtype=torch.float64, device=self.device)
        self._from_last(loss)
        return loss.item()

    @torch.no_grad()
    def token_losses(self, tokens: Tensor) -> Tensor:
        """tokens [batch, time + 1] -> nats [batch * time] of each next token, on every rank. Forward only."""
        self._follow(tokens)
        losses = torch.empty(tokens[:, 1:].numel(), device=self.device)
        sends: list[dist.Work] = []
        for runner in self._runners:
            runner.has_backward = False
            for work in _start(runner.get_fwd_recv_ops(0) if not runner.is_first else []):
                work.wait()
            output = runner.forward_one_chunk(0, (tokens[:, :-1],))
            runner.clear_runtime_states()
            sends += _start(runner.get_fwd_send_ops(0))
            if runner.is_last:
                losses = self._token_losses(output, tokens[:, 1:])
        for work in sends:
            work.wait()
        self._from_last(losses)
        return losses

    def plan(self, batch: int, time: int) -> list[ChunkPlan]:
        """What every chunk reads, makes, receives and sends, for micro-batches of this shape."""
        if (batch, time) not in self._plans:
            self._plans[batch, time] = plan(self._trace(batch, time).values, self.cuts, self.ranks)
        return self._plans[batch, time]

    def _trace(self, batch: int, time: int) -> Trace:
        config = self.config
        with torch.device("meta"):
            connection = make_connection(config.connection, config.dim, config.sublayers)
        stream = torch.get_default_dtype()
        # The embedding is no matrix product, so autocast leaves it alone; every sublayer ends in one.
        return trace(connection, (batch, time, config.dim), stream, self.precision or stream)

    # The model that these chunks are a part of: parameters have the one-process names and differ between ranks.

    def modules(self) -> Iterator[nn.Module]:
        for chunk in self.chunks:
            yield from chunk.modules()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for chunk in self.chunks:
            yield from chunk.named_parameters()

    @property
    def tied_copy(self) -> Tensor | None:
        """The embedding where it is the head: the first rank has it too, with the same values and gradient."""
        return self.chunks[-1].embedding.weight if self.config.tied and self._last and self.ranks > 1 else None

    def parameters(self) -> Iterator[nn.Parameter]:
        for _, parameter in self.named_parameters():
            yield parameter

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor for chunk in self.chunks for name, tensor in chunk.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take this rank's share of the state; the whole model's will do."""
        for chunk in self.chunks:
            chunk.load_state_dict({name: state[name] for name in chunk.state_dict()})

    def train(self, mode: bool = True) -> None:
        for chunk in self.chunks:
            chunk.train(mode)

    def eval(self) -> None:
        self.train(False)

    @property
    def _last(self) -> bool:
        return self.rank == self.ranks - 1

    @contextmanager
    def _tied_gradient(self) -> Iterator[None]:
        """Give both ends of the depth the sum of the gradients that a step adds to a tied embedding."""
        if not (self.config.tied and self.ranks > 1 and self.rank in (0, self.ranks - 1)):
            yield
            return
        weight = self.chunks[-1 if self._last else 0].embedding.weight
        before, weight.grad = weight.grad, None
        yield
        assert weight.grad is not None
        own = local(weight.grad)
        other = torch.empty_like(own)
        to = {"group": self.group, "group_peer": self.ranks - 1 - self.rank}
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, other, **to), dist.P2POp(dist.isend, own, **to)]):
            work.wait()
        own.add_(other)  # a sum of two: the same bits at both ends
        if before is not None:
            weight.grad.add_(before)

    def _follow(self, tokens: Tensor) -> None:
        batch, time = tokens.shape[0], tokens.shape[1] - 1
        if time > self.config.context:
            raise UsageError(f"{time} tokens do not fit the model's context of {self.config.context}")
        for runner in self._runners:
            runner.follow(self.plan(batch, time)[runner.stage_index])

    def _token_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.precision, enabled=self.precision is not None):
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self._token_losses(logits, targets).mean() / self.micro_batches

    def _from_last(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, group=self.group, group_src=self.ranks - 1)


def _start(operations: list[dist.P2POp]) -> list[dist.Work]:
    """Start them one by one, as torch's schedules do: joined, NCCL would wait for their partners to be joined too."""
    return [op.op(op.tensor, None, op.group, op.tag, op.group_peer) for op in operations]
