"""Who may use the microscope: whoever has the token, which stands in the address that attnres look prints."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response

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
    """ASGI middleware: whoever asks for anything but the page's files has the token.

    A page of another site can make a browser send requests here, and by DNS rebinding even read the answers. It does
    not know the token, and no browser adds it by itself, because it is no cookie.
    """

    app: Any
    token: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            await send(message)

        app = self.app if self._has_token(scope) else REFUSED
        await app(scope, receive, send_guarded)

    def _has_token(self, scope: Any) -> bool:
        path, headers = scope["path"], Headers(scope=scope)
        of_address = QueryParams(scope["query_string"]).get("token", "") if path == "/" else ""
        given = of_address or headers.get(TOKEN_HEADER, "")
        return path.startswith("/page/") or secrets.compare_digest(given.encode(), self.token.encode())


REFUSED = Response(
    encode(Failure("the token is missing or wrong; open the address that attnres look printed last")),
    status_code=403,
    media_type="application/json",
)
