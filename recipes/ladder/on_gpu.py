"""Sizes of the ladder on a GPU, at the rates that the record's grid gives them: every run a process of its own.

    python recipes/ladder/on_gpu.py runs/ladder-16 results/ladder-16.json 16x80@10 16x96@10

A model this small leaves most of a GPU idle, and launching its kernels one by one takes longer than they do. So a whole
step, with its optimizers, is one CUDA graph here; all else is the trainer's, and so is what a run ends with, but for
rounding. All runs of a size go on at once, side by side under an MPS daemon (nvidia-cuda-mps-control -d); a process
that is done with one size goes on with the next. With COMPILE=1 torch.compile makes fewer kernels of each sublayer.
What is done is left out, what was stopped goes on; `attnres scaling` with the same --out takes finished runs into the
record. BY=0.5 trains the check of the rates in their place: the first seed at half of them.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon

from attnres.errors import UsageError
from attnres.lab.record import read_record
from attnres.lab.scaling.plan import Options, Planned, plan, planned
from attnres.lab.scaling.rates import chosen_rates, rounded, seed_runs
from attnres.lab.scaling.record import ScalingRecord
from attnres.ops.newton_schulz import orthogonalise
from attnres.torch_private import adjust_lr
from attnres.train import config_from_json, loop, train
from attnres.train.folder import RunFolder
from attnres.train.loop import Interrupted, RunStopped
from attnres.train.optimizers import schedule
from attnres.train.trainer import NonFinite, Trainer, token_losses

LAUNCHED = 3
"""Steps before the one that is captured: they make the optimizers' states, and compile what must be."""


class GraphTrainer(Trainer):
    """A trainer of one batch per step whose steps are replays of one CUDA graph; on a CPU they are made as they are.

    A learning rate is a tensor here, because a graph keeps numbers as they were. The GPU's default stream takes no
    capture: make and run it on another.
    """

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._tokens = torch.zeros(
            (self.config.batch_size, self.config.model.context + 1), dtype=torch.int64, device=self.device
        )
        self._share = torch.zeros((), device=self.device)
        self._numbers = torch.zeros(2, device=self.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._launched = 0

    def _build(self):
        model, optimizers = super()._build()
        if os.environ.get("COMPILE"):
            for sublayer in model.sublayers:
                sublayer.compile(dynamic=False)
        self._learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
                if isinstance(optimizer, AdamW):
                    group["capturable"] = self.device.type == "cuda"
        self._matrices = [
            Matrices(muon, list(matrices))
            for muon in optimizers
            if isinstance(muon, Muon)
            for _, matrices in itertools.groupby(sorted(muon.param_groups[0]["params"], key=shape_of), shape_of)
        ]
        return model, optimizers

    def train_step(self) -> dict[str, float]:
        began = time.perf_counter()
        (batch,) = (self.sampler.next() for _ in range(self.config.accumulate))
        self.data_seconds += time.perf_counter() - began
        share = schedule(self.config.optimizer, self.step, self.config.steps)
        self._tokens.copy_(batch, non_blocking=True)
        self._share.fill_(share)
        if self._graph:
            self._graph.replay()
        elif self.device.type == "cuda" and self._launched == LAUNCHED:
            self._graph = torch.cuda.CUDAGraph()
            here = torch.cuda.current_stream()
            # Of this thread alone: another one pins the next batch meanwhile.
            with torch.cuda.graph(self._graph, stream=here, capture_error_mode="thread_local"):
                self._advance()
            self._graph.replay()
        else:
            self._advance()
            self._launched += 1
        loss, norm = self._numbers.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):  # the last checkpoint is good, these weights are not
            raise NonFinite(f"step {self.step + 1}: the loss is {loss}, the gradient norm is {norm}")
        self.step += 1
        return {"loss": loss, "lr": share * self.config.optimizer.lr, "grad_norm": norm}

    def evaluate(self, before_each: Callable[[], None] = lambda: None) -> float:
        with torch.compiler.set_stance("force_eager"):  # compiled code for so few batches would come too late
            return super().evaluate(before_each)

    def _advance(self) -> None:
        """One step from the batch in `_tokens` at the share in `_share` of the learning rates."""
        with self._autocast():
            loss = token_losses(self.model, self._tokens).mean()
        loss.backward()
        parameters = [parameter for parameter in self._learned if parameter.grad is not None]
        norm = self.total_norm([p.grad for p in parameters if p.grad is not None])
        self._numbers.copy_(torch.stack([loss.detach(), norm]))
        if self.config.optimizer.clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.optimizer.clip, norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                torch.mul(self._share, group["peak_lr"], out=group["lr"])
            if isinstance(optimizer, AdamW):
                optimizer.step()
        for of_one_shape in self._matrices:
            of_one_shape.step()
        for parameter in self._learned:
            parameter.grad = None


def shape_of(matrix: Tensor) -> tuple[int, ...]:
    return tuple(matrix.shape)


class Matrices:
    """The hidden matrices of one shape as rows of one tensor: Muon's step for all of them in few launches."""

    def __init__(self, muon: Muon, matrices: Sequence[nn.Parameter]) -> None:
        self.muon, self.matrices = muon, matrices
        self.weights = torch.stack([matrix.detach() for matrix in matrices])
        for matrix, row in zip(matrices, self.weights, strict=True):
            matrix.data = row
        self.momenta: Tensor | None = None

    @torch.no_grad()
    def step(self) -> None:
        (group,) = self.muon.param_groups
        if self.momenta is None:  # rows of one tensor, too, and still the optimizer's state, which is saved
            states = [self.muon.state[matrix] for matrix in self.matrices]
            zero = torch.zeros_like(self.weights[0])
            self.momenta = torch.stack([state.get("momentum_buffer", zero) for state in states])
            for state, row in zip(states, self.momenta, strict=True):
                state["momentum_buffer"] = row
        grads = torch.stack([matrix.grad for matrix in self.matrices])  # pyright: ignore[reportArgumentType]: all have
        self.momenta.lerp_(grads, 1 - group["momentum"])
        updates = grads.lerp(self.momenta, group["momentum"]).unbind()
        whole = orthogonalise(updates, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = adjust_lr(1.0, group["adjust_lr_fn"], updates[0].shape) * group["lr"]
        self.weights.mul_(1 - group["lr"] * group["weight_decay"])
        self.weights.sub_(torch.stack(list(whole)).float() * rate)


def runs_of(out: Path, record: Path, sizes: Sequence[str], by: float = 1.0) -> list[Planned]:
    """The runs of these sizes on the seeds of the sweep, with its configuration and at the rates of its rule.

    Where `by` is not 1, the first seed at that multiple of them.
    """
    known = read_record(record, ScalingRecord)
    if known.sweep is None:
        raise UsageError(f"{record} is from before a sweep's settings were kept")
    smallest = tuple(dict.fromkeys(run.size for run in known.grid))
    options = Options(
        known.arms,
        (*smallest, *(size for size in sizes if size.partition("@")[0] not in smallest)),
        heads=known.sweep.heads,
        tokens_per_parameter=known.tokens_per_parameter,
        seeds=len({run.seed for run in known.runs}),
        grid=known.sweep.grid,
        config=config_from_json(dict(known.sweep.config)),
    )
    of = plan(options, out)
    if {size.name for size in of.sizes[:2]} != set(smallest):
        raise UsageError(f"a size smaller than {smallest[1]} is of another sweep: rates come from the two smallest")
    rates, wanted = chosen_rates(of, known.grid), {size.partition("@")[0] for size in sizes}
    chosen = [size for size in of.sizes if size.name in wanted]
    if by == 1:
        return [run for size in chosen for run in seed_runs(of, size, rates)]
    return [
        planned(of, arm, size, options.config.seed, rounded(rates[arm][size.name] * by))
        for size in chosen
        for arm in options.arms
    ]


def multiple(text: str) -> float:
    try:
        by = float(text)
    except ValueError:
        by = math.nan
    if not 0 < by < math.inf:
        raise UsageError(f"BY={text}: give a multiple of the rates, such as 0.5")
    return by


def let_waiting_sleep() -> None:
    """Have a process give up its core while it waits for the GPU: there are more processes than cores."""
    driver, blocking = ctypes.CDLL("libcuda.so.1"), 4
    if driver.cuInit(0) or driver.cuDevicePrimaryCtxSetFlags_v2(0, blocking):
        raise UsageError("the driver of the GPU does not answer")


def train_one(run: Planned) -> None:
    if RunFolder(run.job.folder).summary() is None:
        print(f"{run.job.name}: {run.job.folder}", flush=True)
        print(f"done: validation loss {train(run.job.config, run.job.folder)['validation_loss']:.4f}", flush=True)


def train_all(commands: Mapping[str, Sequence[str]]) -> bool:
    """Run every command with its name as ONLY, all at a time; whether all ended well. SIGTERM stops all of them."""
    processes = [subprocess.Popen(command, env=os.environ | {"ONLY": name}) for name, command in commands.items()]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches each of them by itself, and this one waits
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in processes])
    return not any([process.wait() for process in processes])


def main(out: Path, record: Path, sizes: Sequence[str], by: float, only: str | None) -> None:
    """Train what `only` names, ARM/SEED, or all of it, each in a process of its own."""
    runs: dict[str, list[Planned]] = {}
    for run in runs_of(out, record, sizes, by):
        runs.setdefault(f"{run.arm}/{run.seed}", []).append(run)
    if not torch.cuda.is_available():
        raise UsageError("torch finds no GPU here; recipes/ladder.sh trains on a CPU")
    if only is None:
        command = [sys.executable, __file__, str(out), str(record), *sizes]
        if not train_all(dict.fromkeys(runs, command)):
            raise UsageError("some run was not finished; the same command goes on with it")
        return
    if only not in runs:
        raise UsageError(f"ONLY={only}: there are {', '.join(runs)}")
    loop._trainer = lambda config, corpus, world, resumes: GraphTrainer(config, corpus, resumes)
    torch.set_num_threads(1)
    let_waiting_sleep()
    with torch.cuda.stream(torch.cuda.Stream()):  # not the default one, on which nothing can be captured
        for run in runs[only]:
            train_one(run)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        by = multiple(os.environ.get("BY", "1"))
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:], by, os.environ.get("ONLY"))
    except (UsageError, RunStopped, Interrupted) as error:
        sys.exit(f"attnres: {error}")
