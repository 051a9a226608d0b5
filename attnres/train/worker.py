"""One training run with one thread and no output: python -m attnres.train.worker FOLDER CONFIG.json

CONFIG.json holds what `config_to_json` makes of a RunConfig. Everything that the run has to say is in FOLDER; an error
is one line on stderr. Exit code: 0 done, 1 stopped on the way, 2 bad input, 130 interrupted and saved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from attnres.errors import UsageError
from attnres.train.jsonconfig import config_from_json
from attnres.train.loop import Interrupted, RunStopped, train


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        return _fail("usage: python -m attnres.train.worker FOLDER CONFIG.json", 2)
    folder, config_file = map(Path, arguments)
    torch.set_num_threads(1)
    try:
        train(config_from_json(json.loads(config_file.read_text(encoding="utf-8"))), folder)
    except Interrupted as stop:
        return _fail(str(stop), 130)
    except RunStopped as error:
        return _fail(str(error), 1)
    except UsageError as error:
        return _fail(str(error), 2)
    except json.JSONDecodeError as error:
        return _fail(f"{config_file}: not valid JSON ({error})", 2)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _fail(message: str, code: int) -> int:
    print(f"attnres: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
