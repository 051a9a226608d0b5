"""torchtitan's families of models that can have a connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.models import llama3, qwen3
from torchtitan.models.llama3 import Llama3Model
from torchtitan.models.qwen3 import Qwen3Model
from torchtitan.protocols.model_spec import ModelSpec

from attnres.connections import Connection, canonical_connection, make_connection
from attnres.errors import UsageError
from attnres.torchtitan.model import DepthDecoder
from attnres.torchtitan.parallelize import parallelizing
from attnres.torchtitan.pipeline import pipeline
from attnres.torchtitan.state_dict import adapting


class DepthLlama3(DepthDecoder):
    """Llama 3 with a connection."""

    @dataclass(kw_only=True, slots=True)
    class Config(Llama3Model.Config):
        connection: str
        sequence_parallel: bool = True

        def update_from_config(self, *, config: Any, **kwargs: Any) -> None:
            self.sequence_parallel = _checked(config.parallelism).enable_sequence_parallel
            Llama3Model.Config.update_from_config(self, config=config, **kwargs)


class DepthQwen3(DepthDecoder):
    """Qwen 3 with a connection, dense or with a mixture of experts."""

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3Model.Config):
        connection: str
        sequence_parallel: bool = True

        def update_from_config(self, *, config: Any, **kwargs: Any) -> None:
            self.sequence_parallel = _checked(config.parallelism).enable_sequence_parallel
            Qwen3Model.Config.update_from_config(self, config=config, **kwargs)


FAMILIES: dict[str, tuple[Callable[..., ModelSpec], type[DepthDecoder]]] = {
    "llama3": (llama3.model_registry, DepthLlama3),
    "qwen3": (qwen3.model_registry, DepthQwen3),
    "qwen3-moe": (qwen3.model_registry, DepthQwen3),
}


def connected(config: Any, family: str, flavor: str, connection: str) -> Any:
    """Give a `Trainer.Config` a model with a connection, optimizer groups for it, and what it needs of torchtitan.

    It is changed in place, and returned; its optimizer has one group for all. The rest as for `model_registry`.
    """
    config.model_spec = model_registry(family, flavor, connection)
    config.optimizer = by_role(config.optimizer, config.model_spec.model)
    config.parallelism.spmd_backend = "partial_dtensor"  # the connection works on each rank's plain tensors
    config.training.disable_cuda_graphs = True
    return config


def model_registry(family: str, flavor: str, connection: str, **options: Any) -> ModelSpec:
    """Make a model of torchtitan's with a connection in place of its residual.

    Args:
        family: a name of `FAMILIES`.
        flavor: torchtitan's name of a size: "debugmodel", "1B", "8B" and so on.
        connection: NAME:OPTION=VALUE,OPTION=VALUE.
        **options: those of the family's own `model_registry`, such as attn_backend.

    Raises:
        UsageError: an unknown connection or option, or one with several reads.
    """
    registry, decoder = FAMILIES[family]
    spec = registry(flavor, **options)
    connection = canonical_connection(connection)
    made = _on_meta(connection, spec.model)
    if any(made.reads(site) > 1 for site in range(made.sublayers)):
        raise UsageError("torchtitan's sublayers read one mixture of the sources; leave reads out")
    fields = {field.name: getattr(spec.model, field.name) for field in dataclasses.fields(spec.model)}
    return dataclasses.replace(
        spec,
        name=f"{family} with {connection}",
        model=decoder.Config(**fields, connection=connection),  # pyright: ignore[reportCallIssue]
        parallelize_fn=parallelizing(spec.parallelize_fn),
        pipelining_fn=pipeline,
        state_dict_adapter=adapting(spec.state_dict_adapter),
    )


def by_role(optimizer: OptimizersContainer.Config, model: Any) -> OptimizersContainer.Config:
    """The optimizer with groups of the connection's own: no decay, ten times the rate, that / dim for channel maps.

    `attnres.param_groups` says why. The groups are made of the optimizer's one group for all.
    """
    (rest,) = optimizer.param_groups
    connection = _on_meta(model.connection, model)
    kinds = {name.split(".")[0] for name, _ in connection.named_parameters()}
    rate = 10 * rest.optimizer_kwargs["lr"]
    rates = {kind: rate / model.dim if kind in connection.channel_maps else rate for kind in sorted(kinds)}
    groups = [
        dataclasses.replace(
            rest,
            pattern=rf"^depth\.connection\.{kind}\b",
            optimizer_kwargs={**rest.optimizer_kwargs, "lr": lr, "weight_decay": 0.0},
        )
        for kind, lr in rates.items()
    ]
    return dataclasses.replace(optimizer, param_groups=[*groups, rest])


def _on_meta(connection: str, model: Any) -> Connection:
    """The connection of a model of that configuration, where it takes no memory: two sites for each block."""
    with torch.device("meta"):
        return make_connection(connection, model.dim, 2 * len(model.layers))


def _checked(parallelism: Any) -> Any:
    if parallelism.spmd_backend != "partial_dtensor":
        raise UsageError("connections need --parallelism.spmd_backend partial_dtensor")
    if parallelism.context_parallel_degree > 1:
        raise UsageError("attnres.torchtitan has no context parallelism; leave its degree at 1")
    return parallelism
