"""Continue a prompt with a trained run.

The text streams as it is drawn. The same seed gives the same text:

    attnres generate runs/compare/block/seed-0 --prompt "def read(path):"
    attnres generate RUN --prompt "import os" --tokens 400 --temperature 0.7 --top-p 0.9 --seed 3
    attnres generate RUN --prompt "class Tree:" --temperature 0

Temperature 0 always takes the likeliest token. Text ends where the model's context does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from attnres.generate import generate
from attnres.train import load_run


def command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    prompt: str,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    best: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Generate.

    Args:
        run: The run's folder.
        prompt: The text to go on from.
        tokens: How many new tokens at most.
        temperature: Below 1 prefers likely tokens; 0 always takes the likeliest.
        top_k: Draw from the k likeliest tokens only.
        top_p: Draw from the smallest set of tokens whose probability reaches this.
        seed: Of the draws.
        best: Use the checkpoint of lowest validation loss instead of the newest.
    """
    trained = load_run(run, best)
    drawn = generate(trained.model, trained.tokenizer.encode(prompt), tokens, temperature, top_k, top_p, seed)
    decoder = trained.tokenizer.stream_decoder()
    for position, token in enumerate(drawn):
        if position == 0:  # a prompt that cannot be continued is not echoed
            _write(prompt)
        _write(decoder.feed(token))
    _write(decoder.finish() + "\n")
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
