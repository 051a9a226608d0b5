"""Look into models live, and change what depth reads, on a page in the browser.

    attnres look runs/compare/block/seed-0
    attnres look runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres look models/attached
    attnres look

Takes runs of this lab, which may still be training, and folders of transformers models, attached or plain. With nothing
given it first trains a Block and a plain residual of the demo's size (one seed, a minute on two free cores) into
runs/look. Prints the page's address, which holds a token: who has the address can use the models. Ctrl-C ends it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._checks import check_installed
from attnres.errors import UsageError


def command(
    models: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    browser: bool = True,
) -> int:
    """Look.

    Args:
        models: Run folders, or folders of transformers models.
        host: Where to listen. Any other than this machine's own address lets the network in: it has no encryption.
        port: The port; a free one when 0.
        token: What the address must hold to be answered, 16 characters at least; a random one when not given. With the
            same port and token as before, a page that is still open goes on.
        browser: Open the page in a browser, where there is one.
    """
    check_installed("look", "look", "starlette", "uvicorn")
    if not 0 <= port < 2**16:
        raise UsageError(f"--port must be 0 to 65535, not {port}")
    if token is not None and not re.fullmatch(r"[\w-]{16,}", token, re.ASCII):
        raise UsageError("--token must be 16 letters, digits, - and _ at least; leave it out for a random one")
    from attnres.lab.defaults import DEFAULTS
    from attnres.look.prepare import Preparation, pair_of
    from attnres.look.server import Microscope
    from attnres.look.start import start
    from attnres.look.subject import open_subjects

    preparation = None if models else Preparation(pair_of(DEFAULTS.config))
    start(Microscope(open_subjects(models), preparation), host, port, token, browser)
    return 0
