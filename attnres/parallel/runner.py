"""A chunk's half of torch's pipeline schedules: what it sends, receives and keeps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from attnres.parallel.cache import CrossStageCache
from attnres.parallel.chunk import ChunkModel
from attnres.parallel.plan import ChunkPlan, Held
from attnres.torch_private import PipelineStageBase, grad_fn_or_grad_acc


class ChunkRunner(PipelineStageBase):
    """One chunk in torch's schedules: what to send, what to receive and where gradients go, as its plan says.

    torch's `PipelineStage` sends every output to the next stage and every input's gradient to the one before. Here an
    entry of `values` that the next rank has had is not sent, and the shares of its gradient meet in the rank's cache:
    from the chunks that read it here and from the rank that it was sent on to. In backward order the chunk that first
    received it comes last, so it sends the sum back.

    `splits` says whether zero bubble may take the gradients of inputs and of weights apart.
    """

    def __init__(
        self,
        module: ChunkModel,
        index: int,
        count: int,
        device: torch.device,
        group: dist.ProcessGroup | None,
        cache: CrossStageCache,
        splits: bool = True,
    ) -> None:
        super().__init__(module, index, count, device, group)
        # The weight pass goes round the hooks in which FSDP2 gathers and sums (torch 2.13).
        self._splits = splits and not isinstance(module, FSDPModule)
        self.cache = cache
        self._outbox: dict[int, list[Tensor]] = {}
        self._inbox: dict[int, list[Tensor]] = {}
        self._returned: dict[int, list[Tensor]] = {}
        self._on_the_way: dict[str, list[dist.Work]] = {"forward": [], "backward": []}
        self.lets_go = False
        """Whether sends are waited for here, one micro-batch later, and not by the schedule, when the step ends.

        torch's schedules of several chunks do that, and whoever has not waited for a send keeps its tensor: they would
        hold all that a rank sends in a step. Schedule1F1B waits in time, and joins sends with receives.
        """
        # forward_one_chunk compares with the plan; torch 2.11 calls the methods.
        self._runtime_validate = False
        self._validate_fwd_input = self._validate_fwd_outputs = lambda *values: None
        self.args_recv_info = {0: ()}  # torch asks it who the neighbours are; the plan knows

    def follow(self, plan: ChunkPlan) -> None:
        """Use this plan from now on: the entries' shapes are those of the micro-batches to come."""
        self.plan = plan
        # Only its length is read; torch 2.11 reads nothing.
        getattr(self, "_stage_meta", self).inputs = (None,) * max(1, len(plan.inputs))  # type: ignore

    # Forward

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        buffers = [self.cache.keep(fwd_chunk_id, held, self._empty(held)) for held in self.plan.received]
        return [self._receive(buffer, self.stage_index - 1) for buffer in buffers]

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[Tensor, ...]:
        needs_grad = self.has_backward and torch.is_grad_enabled()
        # A leaf of its own for each chunk that reads the entry: their gradients stay apart until they are added.
        read = (self.cache.tensor(fwd_chunk_id, held) for held in self.plan.inputs)
        return tuple(tensor.detach().requires_grad_(needs_grad) for tensor in read)

    def forward_one_chunk(self, fwd_chunk_id: int, args: tuple, kwargs: Any = None, save_forward_output: bool = True):
        output = super().forward_one_chunk(fwd_chunk_id, args, kwargs, save_forward_output)
        if not self.is_last:
            for held, made in zip(self.plan.made, output, strict=True):
                expected = held.entry.shape, held.entry.dtype
                if expected != (tuple(made.shape), made.dtype):
                    raise RuntimeError(f"chunk {self.stage_index} made {made.dtype} {list(made.shape)}, not {expected}")
                self.cache.keep(fwd_chunk_id, held, made.detach())
        # Before anything is forgotten, because a schedule may ask for the sends later.
        sent = (self.cache.tensor(fwd_chunk_id, held) for held in self.plan.sent)
        self._outbox[fwd_chunk_id] = [tensor.contiguous() for tensor in sent]
        for held in self.plan.forgotten:
            self.cache.forget(fwd_chunk_id, held)
        return output

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._send(self._outbox.pop(fwd_chunk_id), self.stage_index + 1, "forward")

    # Backward

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if not self.has_backward or self.is_last:
            return []
        buffers = self._inbox[bwd_chunk_id] = [self._empty(held) for held in self.plan.sent]
        return [self._receive(buffer, self.stage_index + 1) for buffer in buffers]

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[Tensor, ...]:
        for held, gradient in zip(self.plan.sent, self._inbox.pop(bwd_chunk_id, ()), strict=True):
            self.cache.add_gradient(bwd_chunk_id, held, gradient)
        return tuple(self.cache.take_gradient(bwd_chunk_id, held, self.device) for held in self.plan.made)

    def backward_one_chunk(self, bwd_chunk_id: int, loss=None, full_backward: bool = True, last_backward: bool = False):
        if not self.has_backward:
            return
        # What cannot be split makes all gradients in the input pass, and the bubble is filled less.
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward or not self._splits, last_backward)
        if loss is not None:
            loss.detach_()  # torch keeps it to the step's end, and its graph would keep the chunk's inputs
        gradients = self.bwd_cache.pop(bwd_chunk_id)
        if self.is_first:
            return
        for held, gradient in zip(self.plan.inputs, gradients, strict=True):
            if gradient is not None:
                self.cache.add_gradient(bwd_chunk_id, held, gradient)
        received = self.plan.received
        self._returned[bwd_chunk_id] = [self.cache.take_gradient(bwd_chunk_id, held, self.device) for held in received]

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        if self._splits:
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def backward_maybe_with_nosync(self, backward_type: str, bwd_kwargs: dict, last_backward: bool = False) -> tuple:
        if backward_type != "input":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        # The connection's parameters get their gradients together with the inputs: its operators compute both at once.
        # And they must: where one operator has several sites' queries, torch 2.13 sorts the parameters into groups that
        # overlap, goes over the freed graph again, and counts gradients twice if the graph is not freed.
        inputs = bwd_kwargs["input_values"]
        connection = [p for p in self.submod.connection.parameters() if p.requires_grad]  # type: ignore
        bwd_kwargs = {**bwd_kwargs, "input_values": [*inputs, *connection]}
        gradients, groups = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        for parameter, gradient in zip(connection, gradients[len(inputs) :], strict=True):
            # torch adds the next micro-batch's in place, and autograd may return one tensor as two gradients.
            if gradient is not None and parameter.grad is gradient:
                parameter.grad = gradient.clone()
        done = {grad_fn_or_grad_acc(parameter) for parameter in connection}
        return gradients[: len(inputs)], [group for group in groups or () if not done & group["params"]]

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if not self.has_backward or self.is_first:
            return []
        gradients = [gradient.contiguous() for gradient in self._returned.pop(bwd_chunk_id)]
        return self._send(gradients, self.stage_index - 1, "backward")

    # Chunks that follow each other on one rank (a pipeline of one) meet in the cache: nothing to hand over.

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        pass

    def get_local_bwd_output(self, mb_index: int) -> tuple:
        return ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple, mb_index: int) -> None:
        pass

    # Set-up and transport

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> None:
        self.chunks = num_microbatches

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> None:
        self.chunks = num_microbatches

    def _create_grad_recv_info(self, act_send_info: dict) -> tuple:
        return ()

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        # Neighbours may be one process, in a pipeline of one or where a V turns, and gloo cannot send to itself.
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.peer != dist.get_rank()]

    def _empty(self, held: Held) -> Tensor:
        return torch.empty(held.entry.shape, dtype=held.entry.dtype, device=self.device)

    def _receive(self, buffer: Tensor, source: int) -> dist.P2POp:
        return dist.P2POp(dist.irecv, buffer, group=self.group, group_peer=self.stage_index_to_group_rank[source])

    def _send(self, tensors: list[Tensor], target: int, direction: str) -> list[dist.P2POp]:
        """What the schedule is to send: nothing where it is on its way already."""
        if not tensors:
            return []
        peer = self.stage_index_to_group_rank[target]
        if not self.lets_go:
            return [dist.P2POp(dist.isend, tensor, group=self.group, group_peer=peer) for tensor in tensors]
        self._arrive(direction)
        started = (dist.isend(tensor, group=self.group, group_dst=peer) for tensor in tensors)
        self._on_the_way[direction] = [work for work in started if work is not None]
        return []

    def _arrive(self, direction: str) -> None:
        for work in self._on_the_way[direction]:
            work.wait()
        self._on_the_way[direction] = []

    def clear_runtime_states(self) -> None:
        super().clear_runtime_states()
        for direction in self._on_the_way:
            self._arrive(direction)
