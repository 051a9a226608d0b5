"""A process of its own that opens a corpus."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attnres

# The package without its __init__, which would import torch: that takes seconds, and tokens do not need it.
OPEN = """
import resource, sys, types
cache, limit, package, *paths = sys.argv[1:]
sys.modules["attnres"] = types.ModuleType("attnres")
sys.modules["attnres"].__path__ = [package]
from attnres.data import DataConfig, open_corpus
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
heard = []
try:
    corpus = open_corpus(DataConfig(cache=cache, paths=tuple(paths)), lambda work, done, total: heard.append(work))
except OSError as error:
    sys.exit(f"{error.filename}: {error.strerror}")
print(corpus.sha256, int(corpus.train.sum()), "tokenizing" in heard)
"""


def start_opening(cache: Path, *paths: Path, limit: int = 0, seed: str = "random") -> subprocess.Popen:
    command = [sys.executable, "-c", OPEN, str(cache), str(limit), *attnres.__path__, *map(str, paths)]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen) -> list[str]:
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return out.split()
