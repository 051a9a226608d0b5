"""Continue a prompt with a trained run.

The text streams as it is drawn. The same seed gives the same text:

    attnres generate runs/compare/block/seed-0 --prompt "def read(path):"
    attnres generate RUN --prompt "import os" --tokens 400 --temperature 0.7 --top-p 0.9 --seed 3
    attnres generate RUN --prompt "class Tree:" --temperature 0 --stop "\\nclass " "\\ndef "
    attnres generate RUN < prompt.txt

Temperature 0 always takes the likeliest token. Text ends where the model ends it, before the first of the stops, after
--tokens, or where the model's context is full; the last is said. On a terminal control characters are made visible.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._tables import print_error
from attnres.errors import UsageError
from attnres.texttable import visible


def command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    prompt: str | None = None,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    best: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Generate.

    Args:
        run: The run's folder.
        prompt: The text to go on from; standard input, without the newline at its end, when not given.
        tokens: How many new tokens at most.
        temperature: Below 1 prefers likely tokens; 0 always takes the likeliest.
        top_k: Draw from the k likeliest tokens only.
        top_p: Draw from the smallest set of tokens whose probability reaches this.
        seed: Of the draws.
        stop: Texts before which to stop; \\n in one is a newline, \\t a tab.
        best: Use the checkpoint of lowest validation loss instead of the newest.
    """
    from attnres.generate import Continuation
    from attnres.train import load_run

    trained = load_run(run, best)
    prompt = _read_prompt() if prompt is None else prompt
    stops = [text.replace("\\n", "\n").replace("\\t", "\t") for text in stop]
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    text = Continuation(trained.model, trained.tokenizer, prompt, tokens, stops, **sampling)
    for position, piece in enumerate(text):
        if position == 0:  # a prompt that cannot be continued is not echoed
            _write(prompt)
        _write(piece)
    _write("\n")
    if text.end == "context":
        context = trained.config.model.context
        print_error(
            f"the model's context of {context} tokens is full after {text.drawn} new ones; the text is cut there"
        )
    return 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        raise UsageError("there is no prompt; give --prompt TEXT, or a text on standard input")
    return sys.stdin.buffer.read().decode(errors="replace").removesuffix("\n")


def _write(text: str) -> None:
    if sys.stdout.isatty():
        text = visible(text, keep="\n\t")
    sys.stdout.write(text)
    sys.stdout.flush()
