"""The run folder: what a run is, written down before its first step.

config.json      the whole configuration, versions, corpus, machine
tokenizer.json
metrics.jsonl    one JSON object per line while the run goes
checkpoints/     see checkpoint.py
summary.json     when the run is done: its result, copied from the last checkpoint, where it has a checksum
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnres.connections import file_digest, from_anywhere, parse_connection, saved_connection
from attnres.data import Corpus, Tokenizer, tokenizer_from_json, validation_bytes_per_token
from attnres.errors import UsageError
from attnres.files import LOCK, PARTIAL, RUN, folder_kind, locked, remove_partial, write_json
from attnres.train.checkpoint import Checkpoint, Checkpoints
from attnres.train.environment import environment
from attnres.train.jsonconfig import config_from_json, config_to_json, flat_fields
from attnres.train.metrics import Record, read_metrics
from attnres.train.runconfig import RunConfig
from attnres.version import __version__

TOKENIZER = "tokenizer.json"

FREE_FIELDS = ("device", "save_every", "keep", "tensorboard", "data.cache")
"""What may change when a run goes on: it decides where and how often something is written, not the weights."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """How far the run is in a folder that was claimed for it."""

    resumed: Checkpoint | None
    """What it goes on from; None for a new run."""
    done: dict[str, Any] | None
    """Its result, where it has reached its last step."""
    note: str = ""
    """One line about a run that had lost its end."""

    @property
    def step(self) -> int:
        return self.resumed.step if self.resumed else 0


def default_folder(config: RunConfig) -> Path:
    """A folder of its own for every configuration, so that the same command finds its run again."""
    model, (name, _) = config.model, parse_connection(config.model.connection)
    digest = hashlib.sha256(json.dumps(config_to_json(config), sort_keys=True).encode()).hexdigest()[:6]
    return Path("runs") / f"{Path(name).name.replace(':', '-')}-{model.layers}x{model.dim}-seed{config.seed}-{digest}"


class RunFolder:
    """Paths and records of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._config = self.path / "config.json"
        self._summary = self.path / "summary.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing in the folder. Raises UsageError if one does already."""

        def refuse() -> None:
            raise UsageError(f"{self.path}: another process is training in this folder; wait for it or stop it")

        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / LOCK, taken=refuse):
            remove_partial(self.path)
            yield

    def record(self) -> dict[str, Any] | None:
        """The content of config.json, or None if the folder holds no run yet."""
        if not self._config.exists():
            return None
        if (kind := folder_kind(self.path)) != RUN:
            of = f"; this is a model of transformers ({kind}), which attnres look and attnres eval take" if kind else ""
            raise UsageError(f"{self._config}: not written by attnres train; choose another folder{of}")
        return json.loads(self._config.read_text(encoding="utf-8"))

    def config(self) -> RunConfig:
        """The configuration of the run in this folder. Raises UsageError if there is none."""
        if not self.path.exists():
            raise UsageError(f"{self.path}: there is no such folder; give one that train wrote")
        record = self.record()
        if record is None:
            # ARM/seed-N, as compare writes them; scaling has the size between, and the rate of a grid.
            levels = (sorted(self.path.glob(f"{above}seed-*/config.json")) for above in ("", "*/", "*/*/", "*/*/*/"))
            inside = next((found[0] for found in levels if found), None)
            hint = f"give one of its runs, such as {inside.parent}" if inside else "give a folder that train wrote"
            raise UsageError(f"{self.path}: not a run folder (it has no config.json); {hint}")
        return self._recorded_config(record)

    def _recorded_config(self, record: dict[str, Any]) -> RunConfig:
        try:
            config = config_from_json(_seen_from_here(record))
        except UsageError as error:
            theirs = record["versions"].get("attnres")
            other = "" if theirs == __version__ else f"written by attnres {theirs}, and this is attnres {__version__}: "
            raise UsageError(f"{self.path}: {other}{error}") from None
        connection = config.model.connection
        if record.get("connection_file") not in (None, file_digest(connection)):
            raise UsageError(
                f"{self.path}: the file of {connection} has changed since this run began; restore it or train anew"
            )
        return config

    def tokenizer(self) -> Tokenizer:
        """The one that the run's corpus was made with."""
        return tokenizer_from_json(json.loads((self.path / TOKENIZER).read_text(encoding="utf-8")))

    def weights(self) -> str | None:
        """The checksum of the newest good weights, by which a run that begins with them knows them, or None."""
        newest = self.checkpoints.newest_good()
        return None if newest is None else newest.weights_checksum()

    def summary(self) -> dict[str, Any] | None:
        """The result of a run that is done and whose final weights are still there and good, else None."""
        newest = self.checkpoints.newest_good() if self._summary.is_file() and self.record() else None
        return newest.result() if newest is not None else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json: a copy for people, next to the run's last checkpoint."""
        write_json(self._summary, summary)

    def evaluations(self) -> list[Record]:
        """The evaluations so far, in order."""
        return [record for record in read_metrics(self.metrics) if record["kind"] == "eval"]

    def refuse_other(self, config: RunConfig) -> None:
        """Raise UsageError, naming the fields, if another configuration's run is in the folder, or no run but files."""
        record = self.record()
        if record is None:
            self._refuse_foreign_files()
            return
        stored = _fields(self._recorded_config(record))
        given = _fields(fit_vocabulary(config, record["corpus"]["vocab_size"]))
        if config.start_from and "start" in record:  # the weights count, not what leads there
            now = RunFolder(config.start_from).weights() or record["start"]
            stored["start_from"], given["start_from"] = f"weights {record['start']}", f"weights {now}"
        differing = [
            f"{name} is {stored.get(name, 'not set')!r} there and {given.get(name, 'not set')!r} here"
            for name in {**stored, **given}
            if name not in FREE_FIELDS and stored.get(name) != given.get(name)
        ]
        if differing:
            raise UsageError(
                f"{self.path} holds a run of another configuration: {'; '.join(differing)}. "
                "Choose another folder, or repeat its options to go on with it"
            )

    def _refuse_foreign_files(self) -> None:
        """A run folder is new, empty or a run: its config.json is written first."""
        paths = sorted(self.path.iterdir()) if self.path.is_dir() else []
        names = [path.name for path in paths if path.name != LOCK and not path.name.endswith(PARTIAL)]
        if names:
            more = ", .." if len(names) > 3 else ""
            raise UsageError(
                f"{self.path} holds files and no run ({', '.join(names[:3])}{more}); give a new or empty folder"
            )

    @contextmanager
    def claim(self, config: RunConfig, corpus: Corpus) -> Iterator[Claim]:
        """Hold the folder of that run, new or begun, while the block runs. Raises UsageError where it is another's."""
        with self.lock():
            self.refuse_other(config)
            self.refuse_other_text(corpus, "choose another folder")
            if self.record() is None:
                write_json(self._config, _description(config, corpus))
            write_json(self.path / TOKENIZER, corpus.tokenizer.to_json())
            resumed = self.checkpoints.newest_good()
            done, note = resumed.result() if resumed and resumed.step == config.steps else None, ""
            if done:
                self.write_summary(done)
            elif self._summary.is_file():
                self._summary.unlink()
                note = "this run was done, and its last checkpoint is gone or damaged: its end is trained again"
            self.checkpoints.clean(resumed)
            yield Claim(resumed, done, note)

    def refuse_other_text(self, corpus: Corpus, instead: str) -> None:
        """Raise UsageError if there is a run here that was begun on another text. instead: of restoring that."""
        record = self.record()
        if record is not None and (recorded := record["corpus"])["sha256"] != corpus.sha256:
            raise UsageError(
                f"{self.path}: the corpus has changed since this run began: it was {recorded['description']}, with a "
                f"hash that begins with {recorded['sha256']:.8}, and now is {corpus.description}, with "
                f"{corpus.sha256:.8}; restore its files or {instead}"
            )


def _fields(config: RunConfig) -> dict[str, Any]:
    """All fields by their names, as they compare: a connection's own file has many names."""
    return flat_fields(config_to_json(config)) | {"model.connection": from_anywhere(_connection(config))}


def _connection(config: RunConfig) -> str:
    return saved_connection(config.model.connection, config.model.sublayers)


def _seen_from_here(record: dict[str, Any]) -> Any:
    """The recorded configuration, with a connection's own file by its whole path where its name leads elsewhere."""
    config, there = record["config"], record.get("connection", "")
    file = parse_connection(there)[0].rpartition(":")[0]
    if not Path(file).is_file() or from_anywhere(config["model"]["connection"]) == there:
        return config
    return {**config, "model": {**config["model"], "connection": there}}


def fit_vocabulary(config: RunConfig, vocab_size: int) -> RunConfig:
    """The configuration with a model that has room for the corpus's tokens."""
    vocab_size = max(vocab_size, config.model.vocab_size)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=vocab_size))


def _description(config: RunConfig, corpus: Corpus) -> dict[str, Any]:
    return {
        "config": config_to_json(config),
        "connection": from_anywhere(_connection(config)),
        "connection_file": file_digest(config.model.connection),
        **({"start": RunFolder(config.start_from).weights()} if config.start_from else {}),
        "corpus": {
            "description": corpus.description,
            "sha256": corpus.sha256,
            "vocab_size": corpus.vocab_size,
            "bytes_per_token": validation_bytes_per_token(corpus, config.model.context, config.validation_tokens),
            "train_tokens": len(corpus.train),
            "validation_tokens": len(corpus.validation),
        },
        **environment(),
    }
