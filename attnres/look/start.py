"""The microscope from its address to Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import webbrowser

from attnres.look.server import Microscope, Server, listen

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def start(microscope: Microscope, host: str, port: int, token: str | None, browser: bool) -> None:
    """Print the address, open it where there is a screen, and answer until Ctrl-C.

    Raises UsageError where the port cannot be had.
    """
    listening = listen(host, port)
    token = token or secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/?token={token}"
    print(f"Depth microscope: {address}", flush=True)
    if host not in LOOPBACK:
        print("attnres: it can be reached from the network; who knows the address can use the models", flush=True)
    if browser and _has_screen():
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):  # how it ends
        Server(microscope, token).run(sockets=[listening])


def _has_screen() -> bool:
    """Whether a browser has a window to open; one in the terminal would be in the way."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
