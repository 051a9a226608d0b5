"""The `attnres` command, which is `python -m attnres` too."""

import os
import signal
import sys
from contextlib import suppress


def main() -> int:
    """Run the command of this process. Returns its exit code, which attnres.cli.main explains."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:  # Ctrl-C while the commands are imported: the process ends by it, without Python's traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from attnres import cli

    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = cli.main()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # Not by the interpreter's end, where a process that had said its last line has aborted ("terminate called
        # without an active exception", presumably a thread of gloo that lets go of a Python object): it would count as
        # failed.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
