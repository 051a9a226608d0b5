"""One training run from its first step, or from where it was stopped, to its summary."""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from attnres.connections import file_digest
from attnres.connections.check import check_rule
from attnres.data import Corpus, check_length, in_bits, open_corpus
from attnres.errors import UsageError
from attnres.parallel.layout import ONE_PROCESS, Layout
from attnres.parallel.world import ManyProcesses, World, join_world
from attnres.signals import Stopped, heard
from attnres.train.checkpoint import Checkpoint
from attnres.train.folder import Claim, RunFolder, fit_vocabulary
from attnres.train.jsonconfig import config_to_json
from attnres.train.memory import PeakMemory
from attnres.train.metrics import Metrics
from attnres.train.runconfig import RunConfig
from attnres.train.tensorboard import tensorboard_writer
from attnres.train.trainer import NonFinite, Trainer, choose_device
from attnres.version import __version__

Listener = Callable[[dict[str, Any]], None]


WARM_UP_STEPS = 3
"""The first steps, which allocate and compile, do not count in the median step time."""


class RunStopped(UsageError):
    """A run could not go on. The message says at which step, why, and which checkpoint is good."""


class Diverged(RunStopped):
    """It could not go on because a number is not finite."""


class Interrupted(Stopped):
    """Ctrl-C, SIGTERM, a closed terminal: the run was saved, and the message says how to go on."""


def train(
    config: RunConfig,
    folder: str | Path,
    listen: Listener | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    layout: Layout = ONE_PROCESS,
) -> dict[str, Any]:
    """Start the run in `folder`, or continue the one that is there, and return its summary at the end.

    A finished run only returns its summary. With one thread the result is bit-identical however often the run was
    stopped.

    Args:
        config: all that decides the result. A `model.vocab_size` below the corpus's is raised to it.
        folder: the run folder.
        listen: called with every record of metrics.jsonl as it is written, before them with {"kind": "start", "folder",
            "connection", "parameters", "corpus", "separator", "step", "steps", "note" (that the run had lost its end,
            or ""), "tokens_per_step", "compiles"}, and for every checkpoint with {"kind": "saved", "step", "path"}.
        progress: handed to `open_corpus`.
        layout: in each of several processes (see `join_world`), how they share the work. All of them call this with the
            same arguments; only the first one writes and calls `listen`.

    Raises:
        UsageError: a bad configuration, corpus or layout, or a folder of another configuration or in use.
        RunStopped: numbers not finite, a full disk.
        Interrupted: Ctrl-C, SIGTERM, a closed terminal; the run was saved.
    """
    run = RunFolder(folder)
    with join_world(layout, choose_device(config.device).type) as world:
        return _train(config, run, world, listen, progress)


def _train(
    config: RunConfig,
    run: RunFolder,
    world: World,
    listen: Listener | None,
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    world.agree(_what_decides(config))
    if not world.main:
        logging.getLogger("attnres").setLevel(logging.ERROR)  # every process would warn of the same
    run.refuse_other(config)
    corpus = open_corpus(config.data, progress)
    world.agree({"corpus": corpus.sha256})
    check_length(corpus, config.model.context)
    config = fit_vocabulary(config, corpus.vocab_size)
    trainer = _trainer(config, corpus, world, resumes=bool(run.checkpoints.all()))
    # Whatever is wrong with the options, nothing has been written yet.
    with ExitStack() as stack:
        claim = world.together(lambda: stack.enter_context(run.claim(config, corpus)) if world.main else None)[0]
        assert claim is not None
        world.require_shared(run.path)
        if claim.done:
            return claim.done
        listeners = [listen] if listen and world.main else []
        if config.tensorboard and world.main:
            listeners.append(stack.enter_context(tensorboard_writer(run.path, claim.step)))
        return Loop(trainer, run, claim, world, listeners).run()


def _what_decides(config: RunConfig) -> dict[str, str]:
    """What must be the same in all processes of a run."""
    return {
        "configuration": json.dumps(config_to_json(config)),
        "connection's file": file_digest(config.model.connection) or "",
        "version": __version__,
        "torch": torch.__version__,
    }


def _trainer(config: RunConfig, corpus: Corpus, world: World, resumes: bool) -> Trainer:
    if file_digest(config.model.connection):  # the tests hold the library's own rules to the same
        check_rule(config.model.connection, config.model.dim, config.model.sublayers)
    if not isinstance(world, ManyProcesses):
        return Trainer(config, corpus, resumes)
    from attnres.train.distributed import DistributedTrainer  # takes a second to import

    return DistributedTrainer(config, corpus, world)


class Loop:
    """Train, evaluate, save and report until the last step. In several processes each runs one, in step."""

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        claim: Claim,
        world: World,
        listeners: list[Listener],
    ) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.folder = folder
        self.world = world
        self.note = claim.note
        self.listeners = listeners
        self.metrics = world.share(lambda: Metrics(folder.metrics, claim.step))
        self.metrics.writes = world.main
        self.checkpoints = trainer.checkpoints(folder.checkpoints.folder)
        self.last_good = claim.resumed
        self.earlier_peak = 0
        if claim.resumed:
            trainer.load(claim.resumed)
            self.earlier_peak = claim.resumed.state()["peak_memory_bytes"]
        self.memory = PeakMemory(trainer.device)

    def run(self) -> dict[str, Any]:
        """Go on to the last step; return the summary."""
        try:
            return self._run()
        except NonFinite as error:
            advice = "; try a lower learning rate (--optimizer.lr) in another folder" if self.trainer.step else ""
            raise Diverged(f"{error}; {self._last_good()}{advice}") from error
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise RunStopped(
                f"{where}{error.strerror or error}, at step {self.trainer.step}; {self._last_good()}; "
                "once that is mended the same command goes on"
            ) from error

    def _run(self) -> dict[str, Any]:
        trainer, steps = self.trainer, self.config.steps
        self._tell(self._start_record())
        with _stop_requested() as requests:

            def asked_to_stop() -> bool:
                return self.world.any(bool(requests))

            while True:
                if asked_to_stop():
                    path = self._save().path
                    raise Interrupted(
                        f"stopped at step {trainer.step} of {steps} and saved in {path}; "
                        "run the same command again to go on",
                        *requests[:1],
                    )
                if self._due(self.config.evaluate_every) and self._validation_loss() is None:
                    loss = trainer.evaluate(asked_to_stop)
                    if loss is None:
                        continue
                    self._record({"kind": "eval", "step": trainer.step, "loss": loss})
                if trainer.step > 0 and self._due(self.config.save_every):
                    self._save()
                if trainer.step == steps:
                    break
                self._step()
        assert self.last_good is not None
        summary = self.last_good.result()
        assert summary is not None
        if self.world.main:
            self.folder.write_summary(summary)
        return summary

    def _step(self) -> None:
        began = time.perf_counter()
        result = self.trainer.train_step()
        seconds = time.perf_counter() - began
        speed = self.config.tokens_per_step / seconds
        record = {"kind": "train", "step": self.trainer.step, **result}
        self._record({**record, "tokens_per_second": speed, "step_seconds": seconds})

    def _due(self, every: int) -> bool:
        return self.trainer.step % every == 0 or self.trainer.step == self.config.steps

    def _validation_loss(self) -> float | None:
        """Return the loss of the step where the run stands; None if it has not been measured."""
        return next((r["loss"] for r in self.metrics.of_kind("eval") if r["step"] == self.trainer.step), None)

    def _save(self) -> Checkpoint:
        """Save, unless the checkpoint of this step is there; but one made before its evaluation gets the loss."""
        step, loss, saved = self.trainer.step, self._validation_loss(), self.last_good
        if saved and saved.step == step and (loss is None or saved.validation_loss() == loss):
            return saved
        last = step == self.config.steps and loss is not None
        model, optimizer = self.trainer.tensors()
        state = {
            **self.trainer.state(),
            "validation_loss": loss,
            "peak_memory_bytes": self._peak_memory(),
            "result": self._result() if last else None,
        }
        self.metrics.sync()
        self.last_good = self.checkpoints.save(step, model, optimizer, state)
        if self.world.main:
            self.checkpoints.prune(self.config.keep)
        self._tell({"kind": "saved", "step": step, "path": str(self.last_good.path)})
        return self.last_good

    def _record(self, record: dict[str, Any]) -> None:
        self.metrics.append(record)
        self._tell(record)

    def _tell(self, event: dict[str, Any]) -> None:
        for listen in self.listeners:
            listen(event)

    def _peak_memory(self) -> int:
        return max(self.earlier_peak, self.memory.bytes())

    def _last_good(self) -> str:
        return f"last good checkpoint: {self.last_good.path}" if self.last_good else "no checkpoint was saved before"

    def _start_record(self) -> dict[str, Any]:
        return {
            "kind": "start",
            "folder": str(self.folder.path),
            "connection": self.config.model.connection,
            "parameters": self.trainer.parameters,
            "corpus": self.trainer.corpus.description,
            "separator": self.trainer.corpus.separator,
            "bytes_per_token": self.trainer.bytes_per_token,
            "step": self.trainer.step,
            "steps": self.config.steps,
            "note": self.note,
            "tokens_per_step": self.config.tokens_per_step,
            "compiles": self.config.compile,
        }

    def _result(self) -> dict[str, Any]:
        seconds = [record["step_seconds"] for record in self.metrics.of_kind("train")]
        warm = seconds[WARM_UP_STEPS:]
        validation = [record["loss"] for record in self.metrics.of_kind("eval")]
        return {
            "status": "done",
            "steps": self.trainer.step,
            "tokens": self.trainer.step * self.config.tokens_per_step,
            "validation_loss": validation[-1],
            "best_validation_loss": min(validation),
            "bytes_per_token": self.trainer.bytes_per_token,
            "bits_per_byte": in_bits(validation[-1] / self.trainer.bytes_per_token),
            "step_seconds": statistics.median(warm or seconds) if seconds else None,  # metrics.jsonl was lost
            "peak_memory_bytes": self._peak_memory(),
            "parameters": self.trainer.parameters,
            "connection": self.config.model.connection,
        }


@contextmanager
def _stop_requested() -> Iterator[list[int]]:
    """While the block runs, a signal is only added to the yielded list; the same one a second time stops at once."""
    requests: list[int] = []

    def request(number: int) -> None:
        if number in requests:
            raise Stopped(number=number)
        requests.append(number)

    with heard(request):
        yield requests
