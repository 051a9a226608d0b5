"""Look into models live, and change what depth reads, on a page in the browser; or save what depth does as a file.

    attnres look runs/compare/block/seed-0
    attnres look runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres look models/attached
    attnres look
    attnres look RUN --save depth.png --prompt "def add(a, b): return a + b"

Takes runs of `attnres train`, which may still be training, and folders of Hugging Face models, attached or plain. With
nothing given it first trains a Block and a plain residual of the demo's size (one seed, a minute on two free cores)
into runs/look. Prints the page's address, which holds a token: who has the address can use the models. Ctrl-C ends it.

With --save it starts no server. It reads the prompt or, without one, a few sequences of the run's own validation text,
prints the strongest depth sinks and writes the picture of the depth matrix (.png, .svg). The page itself saves pages.
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
    save: Path | None = None,
    prompt: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    browser: bool = True,
) -> int:
    """Look.

    Args:
        models: Run folders, or folders of Hugging Face models.
        save: Write one run's depth matrix as this picture, .png or .svg, and end.
        prompt: With --save: the text to read instead of the validation set. Its last token is predicted and not read.
        host: Where to listen. Any other than this machine's own address lets the network in: it has no encryption.
        port: The port; a free one when 0.
        token: What the address must hold to be answered, 16 characters at least; a random one when not given. With the
            same port and token as before, a page that is still open works again when it is reloaded.
        browser: Open the page in a browser, where there is one.
    """
    if save is not None:
        return _save(models, save, prompt)
    if prompt is not None:
        raise UsageError("--prompt needs --save; without it, type the text on the page")
    check_installed("look", "look", "starlette", "uvicorn")
    if token is not None and not re.fullmatch(r"[\w-]{16,}", token, re.ASCII):
        raise UsageError("--token must be 16 letters, digits, - and _ at least; leave it out for a random one")
    from attnres.cli._tables import Output
    from attnres.cli._terminal import Terminal
    from attnres.lab.experiments.compare import DEFAULTS
    from attnres.look.prepare import PAIR_FOLDER, trained_pair
    from attnres.look.server import Microscope
    from attnres.look.start import start
    from attnres.look.subject import open_subjects

    if not models:
        with Terminal(Output()) as terminal:
            terminal.say(f"Nothing is given, so a small pair is trained in {PAIR_FOLDER}, unless it is there.")
            models = tuple(trained_pair(DEFAULTS, terminal))
    start(Microscope(open_subjects(models)), host, port, token, browser)
    return 0


def _save(models: tuple[Path, ...], file: Path, prompt: str | None) -> int:
    from attnres.cli._tables import Output, print_line, print_table
    from attnres.cli._terminal import working
    from attnres.files import write_bytes
    from attnres.report.draw import drawn
    from attnres.report.runs import run_profile
    from attnres.report.write import depth_pictures, sink_table
    from attnres.train import load_run

    if len(models) != 1:
        raise UsageError(f"--save takes one run; give one folder, not {len(models)}")
    if file.suffix not in (".png", ".svg"):
        raise UsageError(f"--save {file}: name a picture .png or .svg")
    run = load_run(models[0])
    console = Output()
    with working(console, "reading the depth of the model"):
        profiles = {run.config.model.connection: run_profile(run, prompt)}
        write_bytes(file, drawn(depth_pictures(profiles)[0], file.suffix[1:]))
    print_table(console, sink_table(profiles))
    print_line(console, f"Saved: {file}")
    return 0
