"""`python -m attnres` is the `attnres` command."""

import os
import sys
from contextlib import suppress

from attnres.cli import main

code = main()
if os.environ.get("WORLD_SIZE", "1") != "1":
    # Not by the interpreter's end, where a process that had said its last line has aborted ("terminate called without
    # an active exception", presumably a thread of gloo that lets go of a Python object): it would count as failed.
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
sys.exit(code)
