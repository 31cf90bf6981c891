"""Lets in who has the token: in the address at the first visit, in a cookie from then on.

The page is served to this machine only, but other users' programs and web pages that are open in
the same browser are on this machine too. So every request, the web socket's included, needs the
token; one that another page sends is refused by its origin, and one by another name for this
machine by its host.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
PARAMETER: Final = "token"
_POLICY: Final = 1008  # WebSocket close code: policy violation


class TokenGate:
    """ASGI middleware that answers 403 to whoever lacks the token.

    Args:
        app: what is behind it.
        token: what lets in.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        cookie = f"gaploop_review_{urlsplit(f'//{host}').port or 80}"
        refusal = _foreign(host, headers.get("origin", ""))
        if not refusal and self._has_cookie(headers, cookie):
            await self._app(scope, receive, send)
        elif not refusal and scope["type"] == "http" and self._in_address(scope):
            answer = RedirectResponse(scope["path"], status_code=303)
            answer.set_cookie(cookie, self._token, httponly=True, samesite="strict")
            await answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY})
        else:
            words = refusal or "Open the address that gaploop review printed: its token is missing."
            await PlainTextResponse(f"{words}\n", status_code=403)(scope, receive, send)

    def _has_cookie(self, headers: Headers, name: str) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            return False
        return found is not None and self._same(found.value)

    def _in_address(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get(PARAMETER, [""])
        return scope["method"] == "GET" and self._same(given[0])

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _foreign(host: str, origin: str) -> str:
    """Return why a request doesn't come from this page, "" where it may."""
    if host.rpartition(":")[0] not in LOOPBACK and host not in LOOPBACK:
        return "This page is served to this machine only."
    if origin and urlsplit(origin).netloc != host:
        return "Another page has no business here."
    return ""
