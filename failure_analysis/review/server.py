"""Serves the review page to this machine, until it is stopped."""

from __future__ import annotations

import contextlib
import html
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.responses import FileResponse, PlainTextResponse, Response

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.failure_analysis.review.gate import PARAMETER, TokenGate
from gaploop.failure_analysis.review.page import ReviewPage
from gaploop.failure_analysis.review.site import ReviewSite

HOST: Final = "127.0.0.1"
PORTS: Final = 20
"""How many ports are tried, from the one that was asked for on."""
STYLE: Final = Path(__file__).with_name("page.css")


def free_socket(port: int) -> socket.socket:
    """Return a socket bound to a free port of this machine, `port` or one of the next.

    Args:
        port: the first to try; 0 for any.

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

    @ui.page("/", title=f"{site.desk.folder.root.name} · gaploop review")
    def page() -> None:
        ui.add_css(STYLE.read_text())
        ReviewPage(site)

    ui.run_with(served, tailwind=False, reconnect_timeout=20.0, show_welcome_message=False)
    served.add_middleware(TokenGate, token=token)
    return served


def serve(site: ReviewSite, port: int, ready: Callable[[str], None], *, browser: bool) -> None:
    """Serve the page until the process is told to stop.

    Args:
        site: what is served.
        port: the first port to try; 0 for any.
        ready: called with the page's address, token included, once it can be opened.
        browser: open it in a browser too.

    Raises:
        UnusableInputError: no port is free.
    """
    bound = free_socket(port)
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{bound.getsockname()[1]}/?{PARAMETER}={token}"
    settings = uvicorn.Config(
        build(site, token), log_level="warning", timeout_graceful_shutdown=1, lifespan="on"
    )
    with tempfile.TemporaryDirectory(prefix="gaploop_review_") as folder:
        way_in = redirect_page(Path(folder), address) if browser else None
        server = _Announcing(settings, lambda: _announce(address, ready, way_in))
        with bound, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it is meant to end
            server.run(sockets=[bound])


def redirect_page(folder: Path, address: str) -> Path:
    """Write a page that leads to `address`, for this user's eyes only (mode 0600).

    A browser is started with what it opens in its command line, which every user of this machine
    can read; so it is given this page, as Jupyter does, and not the token.
    """
    page = folder / "open.html"
    words = '<meta name="referrer" content="no-referrer"><title>gaploop review</title>'
    there = html.escape(address)
    content = f'<!doctype html>{words}<meta http-equiv="refresh" content="0;url={there}">'
    write_atomically(page, f'{content}<a href="{there}">Open the review</a>\n', 0o600)
    return page


def _announce(address: str, ready: Callable[[str], None], way_in: Path | None) -> None:
    ready(address)
    if way_in is not None:
        webbrowser.open(way_in.as_uri())


class _Announcing(uvicorn.Server):
    """Says when it can be reached."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._said = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._said()
