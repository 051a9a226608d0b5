"""The debug models for a CPU: short sequences of text that is made up, attention without flex's compiler."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.common.moe import GroupedExperts

from attnres.torchtitan import config_registry as product
from tests.parallel.cases import counted_sends

TIME = 32


class Tokens(torch.utils.data.IterableDataset):
    """Sequence i is a function of i alone; rank r of n has sequences r, r + n, .."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.at = rank, ranks, 0

    def __iter__(self):
        while True:
            drawn = torch.Generator().manual_seed(self.at * self.ranks + self.rank)
            start, stride = torch.randint(64, (2,), generator=drawn)
            tokens = (start + stride * torch.arange(TIME + 1)) % 64
            self.at += 1
            yield {"input": tokens[:-1], "positions": torch.arange(TIME)}, tokens[1:]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Loader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        infinite: bool = True

    def __init__(self, config, *, dp_world_size, dp_rank, local_batch_size, **_):
        super().__init__(Tokens(dp_rank, dp_world_size), dp_rank, dp_world_size, batch_size=local_batch_size)


class ExactExperts(GroupedExperts):
    """torchtitan's experts in float32: theirs multiply in bfloat16, and layouts would differ by that rounding."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD, num_tokens_per_expert_E):
        weights = [w.to_local() if isinstance(w, DTensor) else w for w in (self.w1_EFD, self.w2_EDF, self.w3_EFD)]
        rows = x_RD.split(num_tokens_per_expert_E.long().tolist())
        silu = torch.nn.functional.silu
        return torch.cat([(silu(x @ w1.T) * (x @ w3.T)) @ w2.T for x, w1, w2, w3 in zip(rows, *weights, strict=True)])


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        self.eos_id = 0

    def encode(self, *args, **kwargs):
        raise NotImplementedError

    def decode(self, *args, **kwargs):
        raise NotImplementedError

    def get_vocab_size(self):
        return 2048


def counting(pipeline):
    """The `pipelining_fn` that leaves the bytes this rank has sent, by transition and direction, in a file."""

    def build(*args, **settings):
        built = pipeline(*args, **settings)
        schedule = built[0]
        step, file = schedule.step, Path(os.environ["TRAFFIC"]) / f"{os.environ['RANK']}.json"

        def counted(*inputs, **more):
            with counted_sends() as sent:
                result = step(*inputs, **more)
            file.write_text(json.dumps([[*key, value] for key, value in sent.items()]))
            return result

        schedule.step = counted
        return built

    return build


def configuration(family: str, connection: str):
    """The debug model."""
    config = product.configuration(family, connection, "debug")
    if "TRAFFIC" in os.environ:
        config.model_spec = replace(config.model_spec, pipelining_fn=counting(config.model_spec.pipelining_fn))
    for block in config.model_spec.model.layers:
        block.attention.inner_attention = ScaledDotProductAttention.Config()
        if block.moe is not None:
            experts = block.moe.routed_experts.inner_experts
            same = {field.name: getattr(experts, field.name) for field in fields(experts)}
            block.moe.routed_experts.inner_experts = ExactExperts.Config(**{**same, "hidden_dim": 16})  # of 768
    config.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))
    config.dataloader, config.tokenizer = Loader.Config(), NoTokenizer.Config()
    config.activation_checkpoint = None
    config.training.seq_len, config.training.local_batch_size, config.training.steps = TIME, 4, 3
    config.training.mixed_precision_param = "float32"
    config.debug.seed = 0  # else each start is drawn by chance, and three steps do not lower the loss of every one
    config.validator.dataloader, config.validator.freq, config.validator.steps = Loader.Config(), 1, 2
    config.optimizer.implementation = "for-loop"
    return config


def __getattr__(name: str):
    family, _, connection = name.partition("_")
    if name.startswith("_") or not connection:
        raise AttributeError(name)
    return lambda: configuration(family, connection)
