"""Write example messages of a tiny model, as the server sends them: python -m tests.look.examples FOLDER."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attnres.look.subject import open_subjects
from tests.look.runs import serving, train_small

CONTENT = {"text": "the brown dog 🙂", "model": 1}
REQUESTS = {
    "look": {"view": {**CONTENT, "changes": [{"kind": "mute", "source": 0, "sites": [2]}]}},
    "explain": {"view": CONTENT, "position": 4},
    "remove": {"view": CONTENT},
    "continue": {"view": CONTENT, "count": 5},
    "watch": {"model": 1},
    "prepare": {},
}


def write_examples(folder: Path, runs: Sequence[Path]) -> None:
    """Write one file per command: what two small runs answer."""
    folder.mkdir(parents=True, exist_ok=True)
    with serving(open_subjects(runs)) as client:
        (folder / "session.json").write_text(json.dumps(client.session(), indent=1), encoding="utf-8")
        for command, request in REQUESTS.items():
            answer = client.open("POST", f"/api/{command}", request).read().decode()
            (folder / f"{command}.ndjson").write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        trained = [train_small(Path(scratch), name) for name in ("residual", "block:block_size=2")]
        write_examples(Path(sys.argv[1]), trained)
