"""What can be looked at: a run of the lab, or a folder that save_pretrained wrote."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from attnres.analysis import Change
from attnres.analysis.interventions import connection_in, differs_by_channel
from attnres.analysis.profile import names_of
from attnres.connections import Connection, connection_class, connection_names, make_connection, parse_connection
from attnres.data import Tokenizer, load_tokenizer
from attnres.errors import UsageError
from attnres.files import RUN, folder_kind
from attnres.look.messages import ModelEntry
from attnres.look.work import Worker
from attnres.model.backbones.borrowed import cache_name
from attnres.train import load_run
from attnres.train.checkpoint import CHECKSUMS
from attnres.train.folder import RunFolder

KEPT_MODELS = 3
"""Checkpoints of one run that stay in memory."""
QUIET_SECONDS = 120.0
"""A run that has written nothing for so long, and is not done, was stopped."""


class Subject(ABC):
    """A model, at one step or several, and its tokenizer. Its worker alone touches the model."""

    def __init__(
        self, path: Path, name: str, tokenizer: Tokenizer, rule: str, connection: Connection, context: int, vocab: int
    ) -> None:
        place, names = path.resolve(), names_of(connection)
        self.tokenizer, self.rule, self.context, self.vocab_size = tokenizer, rule, context, vocab
        self.sublayers = connection.sublayers
        self.worker = Worker(name)
        self.cache: OrderedDict[Any, Any] = OrderedDict()
        self.entry = ModelEntry(
            id=f"{place.name}@{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}",
            name=name,
            connection=rule,
            description="",
            sites=(*names, "readout"),
            sources=("embedding", *names),
            reads=tuple(connection.reads(site) for site in range(connection.sublayers + 1)),
            per_channel=differs_by_channel(connection),
            tokens=hashlib.sha256(json.dumps(tokenizer.to_json(), sort_keys=True).encode()).hexdigest()[:8],
            steps=(0,),
            training=False,
        )
        """What the page is told of it; of a run more is known with time."""

    special = False
    """Whether it reads a text with the special tokens that its tokenizer adds."""

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, self.special)

    def spans(self, text: str) -> list[tuple[int, int]]:
        return self.tokenizer.spans(text, self.special)

    @property
    def ends(self) -> Collection[int]:
        """The ids that end a text."""
        return () if self.tokenizer.end is None else (self.tokenizer.end,)

    def describe(self) -> ModelEntry:
        """Say what it is, as it is now."""
        return self.entry

    @abstractmethod
    def step(self, asked: int | None) -> int:
        """The step that is meant, the newest for None. Raises UsageError if there is none."""

    @abstractmethod
    def model(self, step: int) -> Any:
        """The model of that step."""

    def checksums(self, step: int) -> str:
        """What tells the weights of that step from others that take their place; "" where none can."""
        return ""

    def python(self, text: str, step: int | None, changes: Sequence[Change]) -> str:
        """The Python that makes the changes and computes the loss of the text."""
        names = sorted({type(change).__name__ for change in changes})
        return "\n".join(
            [
                "import torch",
                f"from attnres.analysis import {', '.join([*names, 'intervene'])}",
                *self._loading(step),
                "",
                f"tokens = torch.tensor([tokenizer.encode({text!r}, special={self.special})])",
                f"with torch.no_grad(), intervene(model, {', '.join(map(str, changes))}):",
                f"    logits = model(tokens){'.logits' if self.special else ''}",
                "loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])",
            ]
        )

    @abstractmethod
    def _loading(self, step: int | None) -> list[str]:
        """The lines that make `model` and `tokenizer`."""

    def remembered(self, key: Any, make: Any, most: int) -> Any:
        """What `make()` returned for the key, of which the last `most` are kept."""
        if key not in self.cache:
            self.cache[key] = make()
            same = [known for known in self.cache if known[0] == key[0]]
            for old in same[:-most]:
                del self.cache[old]
        self.cache.move_to_end(key)
        return self.cache[key]


def open_subjects(paths: Sequence[Path]) -> list[Subject]:
    """Open what the command line names. Raises UsageError for what is neither a run nor a model, or named twice."""
    places = [path.resolve() for path in paths]
    if len(set(places)) < len(places):
        raise UsageError("a run or model is given twice; give each once")
    above = os.path.commonpath([place.parent for place in places])
    return [
        (RunSubject if folder_kind(path) in ("", RUN) else TransformersSubject)(path, str(place.relative_to(above)))
        for path, place in zip(paths, places, strict=True)
    ]


class RunSubject(Subject):
    """A run folder, whose run may still be going on."""

    def __init__(self, path: Path, name: str) -> None:
        self.folder = RunFolder(path)
        self.config = self.folder.config()
        self._opened = self._made_of(self.folder.record())
        model = self.config.model
        connection = make_connection(model.connection, model.dim, model.sublayers)
        of_model = model.connection, connection, model.context, model.vocab_size
        super().__init__(path, name, self.folder.tokenizer(), *of_model)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(checkpoint.step for checkpoint in self.folder.checkpoints.all())

    def _keep_up(self) -> None:
        """Take the run's steps as they are now. Raises UsageError where the folder no longer holds the run."""
        record = self.folder.record()
        if record is None or self._made_of(record) != self._opened:
            happened = "is gone" if record is None else "was replaced by another"
            raise UsageError(f"{self.folder.path}: the run that was opened {happened}; start attnres look again")
        self.config = dataclasses.replace(self.config, steps=record["config"]["steps"])

    @staticmethod
    def _made_of(record: Any) -> Any:
        """What of a run's config.json stays while it goes on."""
        return record and (record["corpus"].get("sha256"), record["config"]["model"], record["config"]["seed"])

    def describe(self) -> ModelEntry:
        model = self.config.model
        try:
            self._keep_up()
        except UsageError as error:  # the page is told of the other models all the same
            steps, description, training = (), str(error), False
        else:
            steps, training = self.steps, self._is_running()
            reached = f"{steps[-1]} of {self.config.steps} steps" if steps else "no checkpoint yet"
            description = f"{model.layers} layers of width {model.dim}, {reached}, seed {self.config.seed}"
        return dataclasses.replace(self.entry, description=description, steps=steps, training=training)

    def step(self, asked: int | None) -> int:
        self._keep_up()
        steps = self.steps
        if not steps:
            raise UsageError("the run has saved no checkpoint yet; wait for the first one")
        if asked is not None and asked not in steps:
            raise UsageError(f"there is no checkpoint of step {asked}, but of {', '.join(map(str, steps))}")
        return steps[-1] if asked is None else asked

    def model(self, step: int) -> Any:
        key = "model", step, self.checksums(step)
        return self.remembered(key, lambda: load_run(self.folder.path, step=step).model, KEPT_MODELS)

    def checksums(self, step: int) -> str:
        try:
            return (self.folder.checkpoints.place(step) / CHECKSUMS).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""  # to load it says what is wrong

    def _loading(self, step: int | None) -> list[str]:
        of_step = "" if step is None else f", step={step}"
        return [
            "from attnres import load_run",
            f"run = load_run({str(self.folder.path)!r}{of_step})",
            "model, tokenizer = run.model, run.tokenizer",
        ]

    def _is_running(self) -> bool:
        if (self.folder.path / "summary.json").is_file():
            return False
        try:
            return time.time() - self.folder.metrics.stat().st_mtime < QUIET_SECONDS
        except OSError:
            return False


class TransformersSubject(Subject):
    """A causal language model that `save_pretrained` wrote, plain or with a connection attached; from disk alone."""

    special = True  # as tokenizer(text)["input_ids"] of transformers

    def __init__(self, path: Path, name: str) -> None:
        from attnres.hf.causal import load_causal
        from attnres.hf.folder import read_config
        from attnres.hf.record import RECORD

        if not (path / "tokenizer.json").is_file():
            raise UsageError(f"{path}: there is no tokenizer.json; save the model's tokenizer into the folder too")
        self.path = path
        self.attached = RECORD in read_config(path)
        self._model = load_causal(path, use_safetensors=True)
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            tensor.data = tensor.data.clone()  # else it is the file's memory, and changes with what is written there
        connection, config = connection_in(self._model), self._model.config.get_text_config()
        rule = self._model.config.attnres["connection"] if self.attached else _rule(connection)
        context = getattr(config, "max_position_embeddings", None) or 1024
        super().__init__(path, name, load_tokenizer(str(path)), rule, connection, context, config.vocab_size)
        where = "" if self.attached else ", as it is"
        told = f"{config.model_type}, {config.num_hidden_layers} layers of width {config.hidden_size}{where}"
        self.entry = dataclasses.replace(self.entry, description=told)

    @property
    def ends(self) -> Collection[int]:
        own = self._model.generation_config.eos_token_id  # config.json's where nothing else says it
        return {*super().ends, *(own if isinstance(own, list) else () if own is None else (own,))}

    def step(self, asked: int | None) -> int:
        return 0

    def model(self, step: int) -> Any:
        return self._model

    def _loading(self, step: int | None) -> list[str]:
        of_file = ":" in parse_connection(self.rule)[0]
        trust = ", trust_remote_code=True" if of_file else ""
        load = f"attnres.hf.load({str(self.path)!r}{trust})"
        if not self.attached:
            load = f"transformers.AutoModelForCausalLM.from_pretrained({str(self.path)!r})"
        package = "attnres.hf" if self.attached else "transformers"
        of_tokenizer = ["from attnres.data import load_tokenizer", f"tokenizer = load_tokenizer({str(self.path)!r})"]
        return [f"import {package}", f"model = {load}.eval()", *of_tokenizer]


def _rule(connection: Connection) -> str:
    """The name of the rule that a model has in its own code, or that of its class."""
    known = {connection_class(name): name for name in connection_names()}
    kind = type(getattr(connection, "inner", connection))
    return known.get(kind, kind.__name__)


class CachedDecoder:
    """A model that goes on from a text token by token, its keys and values kept: for both kinds of models."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.length = 0
        self._caches = model.new_caches(1) if hasattr(model, "new_caches") else None

    @torch.no_grad()
    def feed(self, ids: Sequence[int]) -> Tensor:
        """Read more tokens; the logits [vocabulary] of the one after them."""
        tokens = torch.tensor([list(ids)], device=next(self.model.parameters()).device)
        self.length += len(ids)
        if hasattr(self.model, "new_caches"):
            return self.model.logits(self.model.hidden(tokens, self._caches)[0, -1])
        name = cache_name(self.model)
        out = self.model(input_ids=tokens, **{name: self._caches}, use_cache=True, logits_to_keep=1)
        self._caches = out[name]
        return cast(Tensor, out.logits[0, -1])
