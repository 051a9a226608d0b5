"""One optimizer step, one evaluation, and the whole state of both: what happens on the device.

Files, signals and progress are the loop's (loop.py). A trainer for several devices replaces `forward_backward`.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.data import Corpus, Sampler, validation_batches
from attnres.errors import UsageError
from attnres.model import Transformer
from attnres.train.config import RunConfig
from attnres.train.diagnose import first_non_finite, first_non_finite_gradient
from attnres.train.optimizers import make_optimizers, schedule, set_learning_rate

Model = Callable[[Tensor], Tensor]


class NonFinite(Exception):
    """A loss, a gradient or a weight is infinite or not a number. The message says which, at which step and where."""


def forward_backward(model: Model, batches: list[Tensor], autocast: contextlib.AbstractContextManager) -> float:
    """Add the gradient of the batches' mean loss to the parameters; return that loss in nats per token."""
    total = 0.0
    for tokens in batches:
        with autocast:
            loss = token_losses(model, tokens).mean() / len(batches)
        loss.backward()
        total += loss.item()
    return total


def token_losses(model: Model, tokens: Tensor) -> Tensor:
    """tokens [batch, time + 1] -> nats [batch * time] of predicting each token from those before it."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")


class Trainer:
    """Model, optimizers and position in the data after `step` updates. `tensors` and `state` are all that it is."""

    def __init__(self, config: RunConfig, corpus: Corpus) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.corpus = corpus
        self.device = _device(config.device)
        self.model = Transformer(config.model, config.seed).to(self.device)
        self.model.checkpointing = config.checkpointing
        self.forward: Model = torch.compile(self.model, dynamic=False) if config.compile else self.model
        self.optimizers = make_optimizers(self.model, config.optimizer)
        self.sampler = Sampler(corpus.train, config.model.context, config.batch_size, config.seed)
        self.step = 0

    @property
    def tokens_per_step(self) -> int:
        return self.config.accumulate * self.config.batch_size * self.config.model.context

    def train_step(self) -> dict[str, float]:
        """One update. Returns its loss, learning rate and gradient norm; raises NonFinite and changes no weight."""
        config = self.config.optimizer
        batches = [self._to_device(self.sampler.next()) for _ in range(self.config.accumulate)]
        loss = forward_backward(self.forward, batches, self._autocast())
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not (math.isfinite(loss) and math.isfinite(norm.item())):
            raise NonFinite(self._diagnosis(self.step + 1, loss, norm.item(), batches))
        if config.clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, config.clip, norm)
        share = schedule(config, self.step, self.config.steps)
        set_learning_rate(self.optimizers, share)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return {"loss": loss, "lr": share * config.lr, "grad_norm": norm.item()}

    @torch.no_grad()
    def evaluate(self) -> float:
        """Nats per token over the whole of the fixed validation set."""
        config = self.config
        total, count = 0.0, 0
        self.model.eval()
        batches: Iterable = validation_batches(
            self.corpus, config.model.context, config.batch_size, config.validation_tokens
        )
        for batch in batches:
            tokens = self._to_device(batch)
            with self._autocast():
                losses = token_losses(self.forward, tokens)
            batch_total = losses.double().sum().item()
            if not math.isfinite(batch_total):
                raise NonFinite(self._diagnosis(self.step, batch_total, 0.0, [tokens]))
            total, count = total + batch_total, count + losses.numel()
        self.model.train()
        return total / count

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights, and everything else that is a tensor: optimizer state and random-number state.

        Raises NonFinite rather than hand out what must not reach the disk.
        """
        optimizer = {f"{name}/{key}": tensor for name, key, tensor in self._optimizer_state()}
        model = self.model.state_dict()
        for name, tensor in [*model.items(), *optimizer.items()]:
            if not bool(torch.isfinite(tensor).all()):
                raise NonFinite(f"step {self.step}: {name} is not finite after the update")
        optimizer["rng/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            optimizer["rng/cuda"] = torch.cuda.get_rng_state(self.device)
        return model, optimizer

    def state(self) -> dict[str, Any]:
        """The rest, as a JSON value."""
        return {"step": self.step, "sampler": self.sampler.state()}

    def restore(self, model: dict[str, Tensor], optimizer: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Be what `tensors` and `state` came from."""
        self.model.load_state_dict(model)
        saved: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in optimizer.items():
            name, _, entry = key.rpartition("/")
            # A copy: the tensor may be a view of the checkpoint's file, aligned in some other way.
            saved[name][entry] = tensor.clone()
        for owner, names in zip(self.optimizers, self._names(), strict=True):
            entries = {index: saved[name] for index, name in enumerate(names) if name in saved}
            owner.load_state_dict({"state": entries, "param_groups": owner.state_dict()["param_groups"]})
        torch.set_rng_state(optimizer["rng/cpu"])
        if self.device.type == "cuda" and "rng/cuda" in optimizer:
            torch.cuda.set_rng_state(optimizer["rng/cuda"], self.device)
        self.sampler.restore(state["sampler"])
        self.step = state["step"]

    def _names(self) -> list[list[str]]:
        """For each optimizer the names of its parameters, in its own order."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return [[names[p] for group in o.param_groups for p in group["params"]] for o in self.optimizers]

    def _optimizer_state(self) -> Iterable[tuple[str, str, Tensor]]:
        for optimizer, names in zip(self.optimizers, self._names(), strict=True):
            for index, entries in optimizer.state_dict()["state"].items():
                yield from ((names[index], key, tensor) for key, tensor in entries.items())

    def _to_device(self, batch: Any) -> Tensor:
        return torch.from_numpy(batch).to(self.device)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")

    def _diagnosis(self, step: int, loss: float, norm: float, batches: list[Tensor]) -> str:
        """Pass the batches once more, eagerly and site by site, and say what broke first."""
        broken = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        with self._autocast():
            activations = (first_non_finite(self.model, tokens[:, :-1]) for tokens in batches)
            where = next((place for place in activations if place), None)
        if where:
            return f"step {step}: {broken}; first non-finite activation: {where}"
        if name := first_non_finite_gradient(self.model):
            return f"step {step}: {broken}; every activation is finite, first non-finite gradient: {name}"
        return f"step {step}: {broken}, although every activation is finite"


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: torch finds no GPU here; use --device cpu or auto")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
