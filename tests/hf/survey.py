"""Write docs/reference/models.md: which causal language models of the installed transformers take a connection.

    python -m tests.hf.survey

A small random model of each type is loaded from a folder, attached to, saved and loaded, and its logits are compared
with the plain model's. Each type is tried in a process of its own: one that crashes or hangs is one line.
"""

from __future__ import annotations

import copy
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from attnres.errors import UsageError
from attnres.hf import attach, connection_of, load
from attnres.hf.checkpoint import load_plain
from tests.hf.small import small_inputs, small_model, spread_weights

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
SECONDS, BYTES = 300, 4 << 30  # what one type may take

HEAD = """# Which models take a connection

This page lists every model type for which Transformers {transformers} has a causal language model.
Each was tried with a small random model of four layers (torch {torch}, {date}).
It was loaded from a folder, `block:block_size=3` was attached, and it was saved and loaded again.
"Yes" means that afterwards no logit differed from the plain model's by more than 1e-5 of the largest logit.
"Reads" is the largest value of `reads=` that the type supports ([transformers.md](../transformers.md)).
"Not tried" means that Transformers could not make a model of our small sizes; `attach` may still work.
"No" is about adding a connection. Some have one already, which can be seen ([released models](../released.md)).
`python -m tests.hf.survey` writes this page.

{count} of {all} attach.

| type | attaches | reads | sublayers per layer | why not |
|---|---|---|---|---|
"""


class Row(NamedTuple):
    type: str
    attaches: str
    reads: str = ""
    sublayers: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"| {' | '.join(part.replace('|', '/') for part in self)} |".replace("  ", " ")


@torch.no_grad()
def attempt(model_type: str) -> Row:
    """Try one type."""
    try:
        model = small_model(model_type)
        spread_weights(model)
        plain = _from_a_folder(model, load_plain)
        inputs = small_inputs(plain)
        expected = plain(inputs).logits
    except Exception:  # whatever a configuration that its authors did not think of leads to
        return Row(model_type, "not tried")
    try:
        model = attach(copy.deepcopy(plain), "block", block_size=3)
        found = [model(inputs).logits, _from_a_folder(model, load)(inputs).logits]
    except UsageError as error:
        return Row(model_type, "no", why=str(error).partition(": ")[2] or str(error))
    except Exception as error:
        return Row(model_type, "fails", why=_line(error))
    difference = max(((each - expected).abs().max() / expected.abs().max()).item() for each in found)
    if not difference <= 1e-5:
        return Row(model_type, "fails", why=f"a logit differs by {difference:.1e} of the largest")
    return Row(model_type, "yes", _reads(plain), f"{connection_of(model).sublayers / 4:g}")


def _reads(plain: Any) -> str:
    for reads in "qkv-gate-up", "qkv":
        try:
            attach(copy.deepcopy(plain), "block", reads=reads)
            return reads
        except UsageError:
            pass
    return "one"


def _from_a_folder(model: Any, read: Any) -> Any:
    """The model as it is loaded from what it saves, where tensors may have other names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / "model")
        return read(Path(folder) / "model").eval()


def _line(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {error}", 160, placeholder=" ..")


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def survey(model_types: Iterable[str]) -> Iterable[Row]:
    for model_type in model_types:
        with multiprocessing.get_context("fork").Pool(1, _bound) as alone:
            try:
                yield alone.apply_async(attempt, (model_type,)).get(SECONDS)
            except multiprocessing.TimeoutError:
                yield Row(model_type, "fails", why=f"no answer within {SECONDS} s")


def main() -> None:
    rows = []
    for row in survey(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)):
        print(row, flush=True)
        rows.append(row)
    head = HEAD.format(
        transformers=transformers.__version__,
        torch=torch.__version__.partition("+")[0],
        date=time.strftime("%Y-%m-%d"),
        count=sum(row.attaches == "yes" for row in rows),
        all=len(rows),
    )
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(head + "".join(f"{row}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
