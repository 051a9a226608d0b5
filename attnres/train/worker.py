"""One training run with one thread and no output: python -m attnres.train.worker FOLDER CONFIG.json [--with-parent]

CONFIG.json holds what `config_to_json` makes of a RunConfig. Everything that the run has to say is in FOLDER; an error
is one line on stderr. With --with-parent the run saves and stops when its standard input is closed, at the latest when
the process that started it is gone, however it went.

Exit code: 0 done, 1 stopped on the way, 2 bad input, 3 diverged, 130 interrupted and saved.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import torch

from attnres.errors import UsageError
from attnres.train.jsonconfig import config_from_json
from attnres.train.loop import Diverged, Interrupted, RunStopped, train

DIVERGED = 3


def main(arguments: list[str]) -> int:
    with_parent = arguments[2:] == ["--with-parent"]
    folder, config_file = map(Path, arguments[:2])
    if with_parent:
        threading.Thread(target=_stop_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        train(config_from_json(json.loads(config_file.read_text(encoding="utf-8"))), folder)
    except Interrupted as stop:
        return _fail(str(stop), 130)
    except Diverged as error:
        return _fail(str(error), DIVERGED)
    except RunStopped as error:
        return _fail(str(error), 1)
    except UsageError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _stop_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: it returns when the other end is closed. Not sys.stdin: it would lock it
    os.kill(os.getpid(), signal.SIGTERM)


def _fail(message: str, code: int) -> int:
    print(f"attnres: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
