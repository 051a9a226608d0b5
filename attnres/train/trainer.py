"""One optimizer step, one evaluation, and the whole state of both: what happens on the device.

Files, signals and progress are the loop's (loop.py). The trainer of several devices (distributed.py) differs in how the
model is built and where its forward and backward passes happen.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from attnres.data import Corpus, Sampler, validation_batches, validation_bytes_per_token
from attnres.errors import UsageError
from attnres.model import Transformer
from attnres.train.checkpoint import Checkpoint, Checkpoints
from attnres.train.diagnose import first_non_finite, first_non_finite_gradient
from attnres.train.optimizers import make_optimizers, schedule, set_learning_rate
from attnres.train.runconfig import RunConfig
from attnres.train.start import first_model

Model = Callable[[Tensor], Tensor]

COUNT = "step"
"""What optimizers call the number of updates that a parameter has had."""


class NonFinite(Exception):
    """A loss, a gradient or a weight is infinite or not a number. The message says which, at which step and where."""


def forward_backward(
    model: Model,
    batches: list[Tensor],
    autocast: contextlib.AbstractContextManager,
    announce: Callable[[bool], object] = lambda last: None,
) -> Tensor:
    """Add the gradient of the batches' mean loss to the parameters; return that loss in nats per token, in float64.

    announce: told before each batch whether it is the last one.
    """
    losses = []
    for number, tokens in enumerate(batches, 1):
        announce(number == len(batches))
        with autocast:
            loss = token_losses(model, tokens).mean() / len(batches)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).double().sum()


def token_losses(model: Model, tokens: Tensor) -> Tensor:
    """tokens [batch, time + 1] -> nats [batch * time] of predicting each token from those before it."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")


class Trainer:
    """Model, optimizers and position in the data after `step` updates. `tensors` and `state` are all that it is."""

    def __init__(self, config: RunConfig, corpus: Corpus, resumes: bool = False) -> None:
        """resumes: `load` follows, so the weights that a run of `start_from` begins with are not read."""
        torch.manual_seed(config.seed)
        self.config = config
        self.corpus = corpus
        self.resumes = resumes
        self.device = choose_device(config.device)
        self.model, self.optimizers = self._build()
        self.sampler = Sampler(corpus.train, config.model.context, config.batch_size, config.seed, self._own_rows())
        self._position = self.sampler.state()
        """Behind the last step: the sampler itself is behind what was read ahead."""
        self._ahead: list[Tensor] = []
        """The batches of the next step."""
        self.step = 0

    _process = 0
    """The number of this process among those of the run."""

    def _build(self) -> tuple[Any, list[Optimizer]]:
        config = self.config
        if self.resumes:
            model = Transformer(config.model, config.seed).to(self.device)
        else:
            model = first_model(config, self.corpus.tokenizer).to(self.device)
        model.checkpointing = self.config.checkpointing
        self.forward: Model = torch.compile(model, dynamic=False) if self.config.compile else model
        return model, make_optimizers(model, self.config.optimizer)

    def _own_rows(self) -> range:
        """The rows of each batch that this process computes."""
        return range(self.config.batch_size)

    @functools.cached_property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes per token of the text that is validated on."""
        return validation_bytes_per_token(self.corpus, self.config.model.context, self.config.validation_tokens)

    @property
    def parameters(self) -> int:
        """How many numbers the whole model has learned."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def train_step(self) -> dict[str, float]:
        """Make one update. Returns loss, learning rate and gradient norm; raises NonFinite and changes no weight."""
        config = self.config.optimizer
        batches = self._ahead or self._read()
        mean_loss = self.forward_backward(batches)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        total_norm = self.total_norm([p.grad for p in parameters if p.grad is not None])
        position, self._ahead = self.sampler.state(), self._read()  # while a GPU computes
        loss, norm = mean_loss.item(), total_norm.item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFinite(self._diagnosis(self.step + 1, loss, norm, batches))
        if config.clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, config.clip, total_norm)
        share = schedule(config, self.step, self.config.steps)
        set_learning_rate(self.optimizers, share)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step, self._position = self.step + 1, position
        return {"loss": loss, "lr": share * config.lr, "grad_norm": norm}

    def _read(self) -> list[Tensor]:
        return [self._to_device(self.sampler.next()) for _ in range(self.config.accumulate)]

    def forward_backward(self, batches: list[Tensor]) -> Tensor:
        """Add the gradient of the batches' mean loss to the parameters; return that loss, without waiting for it."""
        return forward_backward(self.forward, batches, self._autocast())

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of the whole gradient."""
        return torch.nn.utils.get_total_norm(gradients)

    @torch.no_grad()
    def evaluate(self, stop: Callable[[], bool] = lambda: False) -> float | None:
        """Nats per token over the whole fixed validation set; None where `stop` said so before one of its batches."""
        config = self.config
        total, count = 0.0, 0.0
        self.model.eval()
        try:
            for batch in validation_batches(
                self.corpus, config.model.context, config.batch_size, config.validation_tokens, self._own_rows()
            ):
                if stop():
                    return None
                tokens = self._to_device(batch)
                loss, predicted = self.total_loss(tokens)
                if not math.isfinite(loss):
                    raise NonFinite(self._diagnosis(self.step, loss, 0.0, [tokens]))
                total, count = total + loss, count + predicted
        finally:
            self.model.train()
        return total / count

    def total_loss(self, tokens: Tensor) -> tuple[float, float]:
        """Nats over all tokens of the batch, and how many tokens these are."""
        with self._autocast():
            losses = token_losses(self.forward, tokens)
        return losses.double().sum().item(), losses.numel()

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights, and everything else that is a tensor: optimizer state and random-number state.

        Raises NonFinite rather than hand out what must not reach the disk.
        """
        optimizer = {f"{name}/{key}": tensor for name, key, tensor in self._optimizer_state()}
        model = self.model.state_dict()
        for name, tensor in [*model.items(), *optimizer.items()]:
            if not self._is_finite(tensor):
                raise NonFinite(f"step {self.step}: {name} is not finite after the update")
        return model, {**optimizer, **self._random_state()}

    def state(self) -> dict[str, Any]:
        """The rest, as a JSON value."""
        return {"step": self.step, "sampler": self._position}

    def checkpoints(self, folder: Path) -> Checkpoints:
        """What writes and finds them in that folder."""
        return Checkpoints(folder)

    def load(self, checkpoint: Checkpoint) -> None:
        """Restore weights, optimizers and data position from the checkpoint."""
        self.restore(checkpoint.model(), checkpoint.optimizer(), checkpoint.state())

    def restore(self, model: dict[str, Tensor], optimizer: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore weights, optimizers and data position from `tensors` and `state`."""
        self.model.load_state_dict(model)
        saved: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in optimizer.items():
            name, _, entry = key.rpartition("/")
            # A copy: the tensor may be a view of the checkpoint's file, aligned in some other way.
            # A count has no axis, but one where several processes wrote it (distributed.py).
            saved[name][entry] = tensor.clone().reshape(() if entry == COUNT else tensor.shape)
        for owner, names in zip(self.optimizers, self._names(), strict=True):
            entries = {index: saved[name] for index, name in enumerate(names) if name in saved}
            owner.load_state_dict({"state": entries, "param_groups": owner.state_dict()["param_groups"]})
        if "rng/cpu" in optimizer:
            torch.set_rng_state(optimizer["rng/cpu"])
        else:  # of a run on other processes
            self._seed_draws(state["step"])
        if self.device.type == "cuda" and "rng/cuda" in optimizer:
            torch.cuda.set_rng_state(optimizer["rng/cuda"], self.device)
        self.sampler.restore(state["sampler"])
        self._position, self._ahead = state["sampler"], []
        self.step = state["step"]

    def _seed_draws(self, step: int) -> None:
        """Seed what is drawn in training from that step on, such as dropout's masks."""
        seed = np.random.SeedSequence((self.config.seed, step, self._process)).generate_state(1, np.uint64)
        torch.manual_seed(int(seed[0]))

    def _names(self) -> list[list[str]]:
        """The names of each optimizer's parameters, in its own order."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return [[names[p] for group in o.param_groups for p in group["params"]] for o in self.optimizers]

    def _optimizer_state(self) -> Iterable[tuple[str, str, Tensor]]:
        for optimizer, names in zip(self.optimizers, self._names(), strict=True):
            for index, entries in optimizer.state_dict()["state"].items():
                yield from ((names[index], key, tensor) for key, tensor in entries.items())

    def _random_state(self) -> dict[str, Tensor]:
        state = {"rng/cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["rng/cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def _is_finite(self, tensor: Tensor) -> bool:
        return bool(torch.isfinite(tensor).all())

    def _to_device(self, batch: np.ndarray) -> Tensor:
        """To a GPU through pinned memory, from which it is copied while the GPU computes."""
        tokens = torch.from_numpy(batch)
        return tokens.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tokens

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


def choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: torch finds no GPU here; use --device cpu or auto")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
