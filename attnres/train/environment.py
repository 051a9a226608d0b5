"""Which code a run was trained with, and on what machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from attnres.version import __version__


def environment() -> dict[str, Any]:
    """`versions` and `machine` of every record."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": {
            "attnres": __version__,
            "commit": _commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": gpu,
        },
    }


def _commit() -> str | None:
    """The commit of this package, with `-dirty` behind it if files have changed; None if not from git.

    Records under results/ are written while runs go on, and are nothing that a run reads: they make none dirty.
    """
    package = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # an environment inside some other repository is not it
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
