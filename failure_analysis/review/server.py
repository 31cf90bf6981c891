"""Serves a page to this machine, to whoever has the token, until it is stopped: the review's.

Other users' programs and other web pages are on this machine too. So every request, the web
socket's included, needs the token: in the address at the first visit, in a cookie from then on. One
that another page sends is refused by its origin, one by another name of this machine by its host.
"""

from __future__ import annotations

import contextlib
import hmac
import html
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import AsyncIterator, Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.datastructures import Headers
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.failure_analysis.review.page import ReviewPage
from gaploop.failure_analysis.review.site import ReviewSite

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
PARAMETER: Final = "token"
_POLICY: Final = 1008  # WebSocket close code: policy violation


class TokenGate:
    """ASGI middleware that answers 403 to whoever lacks the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin", "")
        try:
            name = f"gaploop_review_{urlsplit(f'//{host}').port or 80}"
            asked_by = urlsplit(origin).netloc
        except ValueError:  # one of them is no address
            host = name = asked_by = ""
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(PARAMETER, [""])[0]
        in_address = scope.get("method") == "GET" and self._is_token(given)
        refusal = ""
        if host.rpartition(":")[0] not in LOOPBACK and host not in LOOPBACK:
            refusal = "This page is served to this machine only."
        elif origin and asked_by != host:
            refusal = "Another page has no business here."
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            cookie = None
        known = cookie is not None and self._is_token(cookie.value)
        if not refusal and known:
            await self._app(scope, receive, send)
        elif not refusal and scope["type"] == "http" and in_address:
            answer = RedirectResponse(scope["path"], status_code=303)
            answer.set_cookie(name, self._token, httponly=True, samesite="strict")
            await answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY})
        else:
            words = refusal or "Open the address that the command printed: its token is missing."
            await PlainTextResponse(f"{words}\n", status_code=403)(scope, receive, send)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


HOST: Final = "127.0.0.1"
PORTS: Final = 20
"""How many ports are tried, from the one that was asked for on."""
STYLE: Final = Path(__file__).with_name("page.css")


def free_socket(port: int) -> socket.socket:
    """Return a socket bound to a free port of this machine, `port` or one of the next; 0: any.

    Raises:
        UnusableInputError: none is free.
    """
    for candidate in range(port, port + PORTS) if port else (0,):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, candidate))
            bound.listen()
        except (OSError, OverflowError):
            bound.close()
            continue
        return bound
    raise UnusableInputError(
        f"Ports {port} to {port + PORTS - 1} are all taken. Name another with --port."
    )


def build(site: ReviewSite, token: str) -> FastAPI:
    """Return the application: the page, its videos, and the gate before both."""

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        site.start()
        yield
        site.stop()

    served = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)

    @served.get("/media/{uid}/{camera}")
    def media(uid: str, camera: str) -> Response:
        try:
            path = site.video(uid, camera)
        except (GaploopError, OSError) as error:
            return PlainTextResponse(" ".join(str(error).split()), status_code=404)
        return FileResponse(path, media_type="video/mp4", headers={"cache-control": "no-store"})

    @ui.page("/", title=f"{site.session.store.root.name} · gaploop review")
    def page() -> None:
        ui.add_css(STYLE.read_text())
        ReviewPage(site)

    return gated(served, token)


def gated(served: FastAPI, token: str) -> FastAPI:
    """Put NiceGUI's pages into an application, and the gate before all of it."""
    ui.run_with(served, tailwind=False, reconnect_timeout=20.0, show_welcome_message=False)
    served.add_middleware(TokenGate, token=token)
    return served


def serve(
    built: Callable[[str], FastAPI], port: int, ready: Callable[[str], None], *, browser: bool
) -> None:
    """Serve a page, built behind a gate with the token, until the process is told to stop.

    `port` is as of `free_socket`; `ready` is called with the page's address, token included, once
    it can be opened.

    Raises:
        UnusableInputError: no port is free.
    """
    bound = free_socket(port)
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{bound.getsockname()[1]}/?{PARAMETER}={token}"
    settings = uvicorn.Config(
        built(token), log_level="warning", timeout_graceful_shutdown=1, lifespan="on"
    )
    with tempfile.TemporaryDirectory(prefix="gaploop_review_") as folder:
        way_in = redirect_page(Path(folder), address) if browser else None

        class Announcing(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    ready(address)
                    if way_in is not None:
                        webbrowser.open(way_in.as_uri())

        with bound, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it is meant to end
            Announcing(settings).run(sockets=[bound])


def redirect_page(folder: Path, address: str) -> Path:
    """Write a page that leads to `address`, for this user's eyes only (mode 0600).

    A browser is started with what it opens in its command line, which every user of this machine
    can read; so it is given this page, as Jupyter does, and not the token.
    """
    page = folder / "open.html"
    words = '<meta name="referrer" content="no-referrer"><title>gaploop</title>'
    there = html.escape(address)
    content = f'<!doctype html>{words}<meta http-equiv="refresh" content="0;url={there}">'
    write_atomically(page, f'{content}<a href="{there}">Open the page</a>\n', 0o600)
    return page
