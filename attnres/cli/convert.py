"""Add a connection to a Hugging Face checkpoint, without loss.

    attnres convert models/llama models/llama-attnres
    attnres convert SRC DST --connection full
    attnres convert SRC DST --connection block:block_size=4,eps=1e-5

SRC is a local folder that save_pretrained wrote, DST a new one. The new model gives the same logits, which is checked
before DST appears. The Auto class that loads SRC loads DST: see docs/transformers.md. A connection that
does not start as the plain residual (mhc, highway, window ..) needs --lossy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._checks import check_installed
from attnres.cli._tables import Output, print_line
from attnres.cli._terminal import working


def command(
    plain: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")],
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")],
    connection: str | None = None,
    lossy: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Convert.

    Args:
        plain: The checkpoint's folder.
        target: A new folder.
        connection: What joins the sublayers, NAME or NAME:OPTION=VALUE,OPTION=VALUE; block if not given. A transformer
            layer has two.
        lossy: Write the model although its logits differ from the plain one's.
    """
    check_installed("convert", "hf", "transformers")
    from attnres.hf.convert import convert

    console = Output()
    with working(console, "starting") as tell:
        done = convert(plain, target, connection, lossy, tell)
    print_line(console, f"{target}: {done.connection}")
    print_line(
        console,
        f"  {done.added:,} parameters in {len(done.tensors)} tensors added to "
        f"{done.parameters:,} "
        f"({done.added / done.parameters:.3%}); all others as they were",
    )
    print_line(console, f"  logits in float32 differ by at most {done.difference:.1e} of the largest")
    return 0
