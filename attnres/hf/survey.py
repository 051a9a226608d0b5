"""Which model types of transformers take a connection, found by trying each on a small random model.

Each type is tried in a process of its own, whose memory and time are bounded: what a configuration that nobody has
tried leads to, a crash in a kernel included, is that type's outcome and no other's.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
import transformers
from transformers.models.auto import modeling_auto

from attnres.errors import UsageError, first_line
from attnres.files import write_json
from attnres.hf.attach import attach, connection_of
from attnres.hf.checkpoint import load, load_plain
from attnres.hf.convert import TOLERANCE
from attnres.hf.small import small_inputs, small_model, spread_weights

CLASSES = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
"""The auto classes whose models are tried; a type that several of them know is tried with the first."""

CONNECTION = "block:block_size=3"
"""A block that ends inside a layer, so that neither kind of sublayer is special."""

SECONDS, BYTES = 600.0, 4 << 30
"""What one type may take."""

Outcome = Literal["attaches", "refused", "needs a package", "not made", "failed"]


@dataclass(frozen=True)
class Trial:
    """What came of attaching to one model type."""

    model_type: str
    auto_class: str
    outcome: Outcome
    """attaches: the logits are the plain model's, and so are those of the model when it is saved and loaded. failed:
    they are not, or there are none. not made: transformers, or our choice of sizes, gives no small model to try."""
    why: str = ""
    """One line; empty where it attaches."""
    sublayers: int = 0
    """How many a model of four layers has."""
    difference: float = 0.0
    """Largest difference of a logit to the plain model's, in units of the largest logit."""


class NoAnswer(Exception):
    """A process ended, or was ended, before its function returned. The message says how."""


def known_types() -> dict[str, str]:
    """Return every model type that is tried, in alphabetical order, and the auto class it is made by."""
    found: dict[str, str] = {}
    for auto_class, names in CLASSES.items():
        for model_type in getattr(modeling_auto, names):
            found.setdefault(model_type, auto_class)
    return dict(sorted(found.items()))


def survey(model_types: Sequence[str]) -> Iterator[Trial]:
    """Try model types one after the other. Raises UsageError for a type that transformers does not have."""
    known = known_types()
    if unknown := [name for name in model_types if name not in known]:
        names = ", ".join(map(repr, unknown))
        raise UsageError(f"transformers {transformers.__version__} has no model type {names} of those tried")
    for model_type in model_types:
        try:
            yield alone(attempt, model_type, known[model_type])
        except NoAnswer as ended:
            yield Trial(model_type, known[model_type], "failed", str(ended))


@torch.no_grad()
def attempt(model_type: str, auto_class: str) -> Trial:
    """Load a small model of the type, attach to it, save and load it, and compare the logits before and after."""
    try:
        model = small_model(model_type, auto_class)
        spread_weights(model)
        model = _from_a_folder(model, load_plain)
        inputs = small_inputs(model)
        plain = model(inputs).logits
    except ImportError as error:
        return Trial(model_type, auto_class, "needs a package", first_line(error))
    except Exception as error:  # whatever a configuration that its authors did not think of leads to
        return Trial(model_type, auto_class, "not made", _one_line(error))
    try:
        attach(model, CONNECTION)
        attached = model(inputs).logits
        loaded = _from_a_folder(model, load)(inputs).logits
        difference = max((found - plain).abs().max() / plain.abs().max() for found in (attached, loaded)).item()
    except UsageError as error:
        return Trial(model_type, auto_class, "refused", str(error))
    except Exception as error:
        return Trial(model_type, auto_class, "failed", _one_line(error))
    sublayers = connection_of(model).sites
    if difference <= TOLERANCE:
        return Trial(model_type, auto_class, "attaches", "", sublayers, difference)
    why = f"the logits differ by {difference:.1e} of the largest"
    return Trial(model_type, auto_class, "failed", why, sublayers, difference)


def _from_a_folder(model: Any, read: Callable[[Path], Any]) -> Any:
    """The model as it is loaded from what it saves, where tensors may have other names."""
    transformers.utils.logging.disable_progress_bar()  # whose lock this process would leave behind
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / "model")
        return read(Path(folder) / "model").eval()


def _one_line(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ..")


def alone(function: Callable[..., Any], *arguments: object, seconds: float = SECONDS) -> Any:
    """Call a function in a process of its own, with bounded memory and time.

    Raises:
        NoAnswer: it did not return.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch and transformers are imported once
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()  # so that a process that ends without an answer ends the waiting, too
    try:
        if receiver.poll(seconds):
            return receiver.recv()
        raise NoAnswer(f"it took longer than {seconds:g} s")
    except EOFError:
        process.join()
        code = process.exitcode or 0
        raise NoAnswer(f"its process died of {signal.Signals(-code).name}" if code < 0 else "it failed") from None
    finally:
        process.kill()
        process.join()
        receiver.close()


def _answer(sender: Pipe, function: Callable[..., Any], arguments: Sequence[object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's, which ends this process
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what models say of themselves would break the progress bar
        os.dup2(nowhere, stream)
    torch.set_num_threads(1)
    sender.send(function(*arguments))


def write_record(path: Path, trials: Sequence[Trial]) -> None:
    """Write what came of it, and with which versions, as JSON."""
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**versions, "python": platform.python_version()},
        "connection": CONNECTION,
        "rows": [asdict(trial) for trial in trials],
    }
    write_json(path, record)
