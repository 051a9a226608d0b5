"""A decoder with a connection over pipeline stages, in torchtitan's schedules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torchtitan.config import TORCH_DTYPE_MAP

# Private names of torchtitan 0.3.0, the one version that the extra installs. So its options keep their meaning.
from torchtitan.distributed.pipeline_parallel import (
    _build_pipeline_schedule,
    _generate_llm_fqn_per_model_part,
    _get_pipeline_metadata,
    _get_pp_rank_to_stage_indices_mapping,
)

from attnres.parallel.cache import CrossStageCache
from attnres.parallel.chunk import connection_owners
from attnres.parallel.plan import ChunkPlan, plan, trace
from attnres.parallel.runner import ChunkRunner
from attnres.torchtitan.model import DepthDecoder


def pipeline(
    model: DepthDecoder,
    *,
    parallel_dims: Any,
    training: Any,
    parallelism: Any,
    device: torch.device,
    model_config: Any,
    parallelize_fn: Callable[..., DepthDecoder],
    loss_fn: Callable[..., Any],
    **settings: Any,
) -> tuple[Any, list[DepthDecoder], bool, bool]:
    """Cut the model where torchtitan cuts its own, and send each rank what it has never had.

    This is a `pipelining_fn`: the arguments are torchtitan's. Its options choose the schedule, the number of stages and
    where they begin; a schedule in which the stages turn back (a V) is one of them.

    Returns:
        The schedule, this rank's parts of the model, and whether it has the first and the last stage.
    """
    mesh = parallel_dims.get_mesh("pp")
    rank, ranks = mesh.get_local_rank(), mesh.size()
    cuts = _cuts(parallel_dims, parallelism, model_config)
    rank_of = _rank_of(ranks, len(cuts) + 1, parallelism.pipeline_parallel_schedule)
    dtype = TORCH_DTYPE_MAP[training.mixed_precision_param]
    shares = parallel_dims.tp if parallelism.enable_sequence_parallel else 1
    shape = (parallelism.pipeline_parallel_microbatch_size, training.seq_len // shares, model_config.dim)
    traced = trace(model.connection, shape, dtype, dtype)
    plans = plan(traced.values, cuts, ranks, rank_of=rank_of)
    owners = connection_owners(plans, traced.users)

    cache = CrossStageCache()
    parts, runners = [], []
    for index, chunk in enumerate(plans):
        if rank_of[index] == rank:
            part = parallelize_fn(
                _part(model, chunk, {name for name, owner in owners.items() if owner == index}),
                parallel_dims=parallel_dims,
                training=training,
                parallelism=parallelism,
                **settings,
            )
            runner = ChunkRunner(part, index, len(plans), device, mesh.get_group("pp"), cache)
            runner.follow(chunk)
            parts.append(part)
            runners.append(runner)
    schedule = _build_pipeline_schedule(
        parallelism=parallelism, local_batch_size=training.local_batch_size, stages=runners, loss_fn=loss_fn
    )
    for runner in runners:
        runner.lets_go = isinstance(schedule, PipelineScheduleMulti)
    return schedule, parts, rank_of[0] == rank, rank_of[-1] == rank


def _cuts(parallel_dims: Any, parallelism: Any, model_config: Any) -> list[int]:
    """The first site of each chunk but the first: torchtitan's stages in blocks, of two sites each."""
    names = parallelism.module_fqns_per_model_part
    if names is None:
        names = _generate_llm_fqn_per_model_part(*_get_pipeline_metadata(parallel_dims, parallelism, model_config))
    blocks = [sum(name.startswith("layers.") for name in stage) for stage in names]
    return [2 * end for end in accumulate(blocks)][:-1]


def _rank_of(ranks: int, chunks: int, schedule: str) -> list[int]:
    owned = {
        chunk: rank
        for rank in range(ranks)
        for chunk in _get_pp_rank_to_stage_indices_mapping(rank, ranks, schedule, chunks)
    }
    return [owned[chunk] for chunk in range(chunks)]


def _part(model: DepthDecoder, chunk: ChunkPlan, own: set[str]) -> DepthDecoder:
    """A copy of the model, on the meta device, with this chunk's halves and its parameters of the connection."""
    # deepcopy's memo says what to put for an object: None for what is another chunk's.
    elsewhere = {id(p): None for name, p in model.connection.named_parameters() if name not in own}
    part = copy.deepcopy(model, elsewhere)  # pyright: ignore[reportArgumentType]
    part.plan = chunk
    for site in range(part.connection.sublayers):
        if site not in chunk.sites:
            del part.layers[str(site)]
    if chunk.sites.start > 0:
        part.tok_embeddings = None
    if chunk.sites.stop < part.connection.sublayers:
        part.norm = part.lm_head = None
    return part
