"""The hub, where names of tokenizers, datasets and tasks lead that are no files: asked first whether it is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attnres.errors import first_line


@contextmanager
def hub_or_cache() -> Iterator[str]:
    """Yield why the hub cannot be reached, or "". Where it cannot, its libraries look into their caches alone.

    Left to themselves they try again for half a minute, and print every time that they do.
    """
    from huggingface_hub import constants

    why = _unreachable()
    # datasets has taken a copy of the setting, if it is imported.
    holders: list[Any] = [constants, *(module for name, module in sys.modules.items() if name == "datasets.config")]
    before = [holder.HF_HUB_OFFLINE for holder in holders]
    try:
        for holder in holders if why else ():
            holder.HF_HUB_OFFLINE = True
        yield why
    finally:
        for holder, value in zip(holders, before, strict=True):
            holder.HF_HUB_OFFLINE = value


def _unreachable() -> str:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # the libraries below have each their own
        return f"it cannot be reached ({first_line(error)})"
    return ""
