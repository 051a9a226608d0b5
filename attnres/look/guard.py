"""Who may use the microscope: only this machine's own page."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from attnres.look.messages import Failure
from attnres.look.wire import encode

TOKEN_HEADER = "x-attnres-token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),  # the token stands in the address
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True)
class Guard:
    """ASGI middleware: Host and Origin are ours, and whoever asks for anything but the page's files has the token.

    A page of another site can make a browser send requests here: its Origin gives it away. By DNS rebinding it can even
    make them of one origin: then the Host is that site's name. So the Host must be an address or one of our own names.
    """

    app: Any
    host: str
    token: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            await send(message)

        refused = self._refusal(scope["path"], Headers(scope=scope), scope["query_string"].decode("latin-1"))
        if refused is None:
            await self.app(scope, receive, send_guarded)
            return
        headers = [(b"content-type", b"application/json")]
        await send_guarded({"type": "http.response.start", "status": 403, "headers": headers})
        await send_guarded({"type": "http.response.body", "body": encode(Failure(refused))})

    def _refusal(self, path: str, headers: Mapping[str, str], query: str) -> str | None:
        """Why a request is not answered; None if it is."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return "this address is not the microscope's; open the one that attnres look printed"
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return "another site's page may not ask"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "another site's page may not ask"
        given = query.removeprefix("token=") if path == "/" else headers.get(TOKEN_HEADER, "")
        if not path.startswith("/page/") and not secrets.compare_digest(given.encode(), self.token.encode()):
            return "the token is missing or wrong; open the address that attnres look printed last"
        return None

    def _is_ours(self, host: str) -> bool:
        name = re.sub(r":\d+$", "", host).lower()  # the port may be that of a tunnel
        own = self.host.lower()  # as browsers send it
        if name in ("localhost", "127.0.0.1", "[::1]", own, f"[{own}]"):
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        try:  # it listens everywhere: any address is ours, and no name is
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True
