"""Give a transformers checkpoint a connection, without loss.

    attnres convert models/llama models/llama-attnres
    attnres convert SRC DST --connection full
    attnres convert SRC DST --connection block --block-size 4 --options eps 1e-5

SRC is a local folder that save_pretrained wrote, DST a new one. The new model gives the same logits, which is checked
before DST appears. In Python, attnres.hf.load(DST) reads it; docs/TRANSFORMERS.md goes on from there. A connection that
does not start as the plain residual (mhc, highway, window ..) needs --lossy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console


def command(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")],
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")],
    connection: str = "block",
    block_size: int | None = None,
    options: Annotated[dict[str, str], tyro.conf.arg(metavar="NAME VALUE ..")] = {},  # noqa: B006
    lossy: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Convert.

    Args:
        connection: What joins the sublayers: a name of the README's table.
        block_size: Sublayers in a block; a transformer layer has two. For block.
        options: More options of the connection.
        lossy: Write the model although its logits differ from the plain one's.
    """
    from attnres.hf.convert import convert

    chosen: dict[str, Any] = {name: _value(text) for name, text in options.items()}
    if block_size is not None:
        chosen["block_size"] = block_size
    console = Console()
    with console.status("starting") as status:
        done = convert(source, target, connection, chosen, lossy, lambda text: status.update(text))
    said = ", ".join(f"{name} {value}" for name, value in done.options.items())
    console.print(f"{target}: {connection}" + (f" ({said})" if said else ""), highlight=False, soft_wrap=True)
    console.print(
        f"  {done.added:,} parameters in {len(done.tensors)} tensors added to {done.parameters:,} "
        f"({done.added / done.parameters:.3%}); all others as they were",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"  logits in float32 differ by at most {done.difference:.1e} of the largest", highlight=False, soft_wrap=True
    )
    return 0


def _value(text: str) -> Any:
    """A number or True, False, None as Python writes them; any other text is itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text
