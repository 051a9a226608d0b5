"""`python -m attnres` is the `attnres` command."""

import os
import sys
from contextlib import suppress

from attnres.cli import main

code = main()
if os.environ.get("WORLD_SIZE", "1") != "1":
    # Not by the interpreter's end: a thread of gloo that lets go of a Python object meanwhile aborts the process
    # ("terminate called without an active exception"), and the launcher takes a run that is done for a failed one.
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
sys.exit(code)
