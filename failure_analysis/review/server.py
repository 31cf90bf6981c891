"""Serves a page to this machine, to whoever has the token, until it is stopped: the review's.

Other users' programs and other web pages are on this machine too. So every request, the web
socket's included, needs the token, with which each path begins. Not in a cookie: a browser sends
those to every port of a host, and so to other programs' servers. A request that another page sends
is refused by its origin, one by another name of this machine by its host.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import secrets
import socket
import tempfile
import webbrowser
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from nicegui import run, ui
from starlette.datastructures import Headers
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.failure_analysis.review.page import ReviewPage
from gaploop.failure_analysis.review.project import SECTIONS, Project, ProjectEntry, read_project
from gaploop.failure_analysis.review.site import ReviewSite

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_POLICY: Final = 1008  # WebSocket close code: policy violation


class TokenGate:
    """ASGI middleware that answers 403 to whoever lacks the token, and serves the rest below it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._prefix = f"/{token}"
        self.strangers: OrderedDict[Any, asyncio.BaseTransport] = OrderedDict()
        """Connections that haven't shown the token, by the address of their other end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin", "")
        try:
            name, asked_by = urlsplit(f"//{host}").netloc, urlsplit(origin).netloc
        except ValueError:  # one of them is no address
            host = name = asked_by = ""
        refusal = ""
        if name.rpartition(":")[0] not in LOOPBACK and name not in LOOPBACK:
            refusal = "This page is served to this machine only."
        elif origin and asked_by != host:
            refusal = "Another page has no business here."
        else:
            first, slash, _ = scope["path"][1:].partition("/")
            if not hmac.compare_digest(f"/{first}".encode(), self._prefix.encode()) or not slash:
                refusal = "Open the address that the command printed: its token is missing."
        if not refusal:
            self.strangers.pop(tuple(scope.get("client") or ()), None)
            await self._app({**scope, "root_path": self._prefix}, receive, _without_referrer(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY})
        else:
            await PlainTextResponse(f"{refusal}\n", status_code=403)(scope, receive, send)


def _without_referrer(send: Send) -> Send:
    """Have the browser tell nobody the address of a page, which holds the token."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"referrer-policy", b"no-referrer")]
        await send(message)

    return sent


STRANGERS: Final = 128
"""More connections without the token than so many at once: the oldest is closed for a newcomer."""
STRANGER_S: Final = 10.0
"""One that doesn't show it for this long is closed [s]."""


def bounded(gate: TokenGate) -> type[H11Protocol]:
    """Return a connection of uvicorn's that is closed unless it shows the gate's token in time.

    Of the two that uvicorn has, the one that bounds a request's headers, too.
    """

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            address = transport.get_extra_info("peername")
            gate.strangers[address] = transport
            self.loop.call_later(STRANGER_S, self._leave, address, transport)
            if len(gate.strangers) > STRANGERS:
                gate.strangers.popitem(last=False)[1].abort()  # type: ignore[attr-defined]

        def connection_lost(self, exc: Exception | None) -> None:
            self._leave(self.transport.get_extra_info("peername"), self.transport)
            super().connection_lost(exc)

        def _leave(self, address: Any, transport: asyncio.Transport) -> None:
            if gate.strangers.get(address) is transport:
                gate.strangers.pop(address)
                transport.abort()

    return BoundedProtocol


HOST: Final = "127.0.0.1"
PORTS: Final = 20
"""How many ports are tried, from the one that was asked for on."""
STYLE: Final = Path(__file__).with_name("page.css")


def free_socket(port: int) -> socket.socket:
    """Return a socket bound to a free port of this machine, `port` or one of the next; 0: any.

    Raises:
        UnusableInputError: none is free.
    """
    why = ""
    for candidate in range(port, port + PORTS) if port else (0,):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, candidate))
            bound.listen()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error).removeprefix("bind(): ")
            bound.close()
            continue
        return bound
    raise UnusableInputError(
        f"No port from {port} to {port + PORTS - 1} can be used: {why.rstrip('.')}. "
        "Name another with --port, from 1024 to 65535."
    )


def build(site: ReviewSite | None, project: Path) -> FastAPI:
    """Return the application: takes and their videos, where there is a site, and the project."""
    takes = site.session.store.root.name if site is not None else ""

    @ui.page("/project" if takes else "/", title=f"{project.name} · gaploop review")
    async def project_page() -> None:
        await ProjectPage(project, takes).look()

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if site is not None:
            site.start()
        yield
        if site is not None:
            site.stop()

    served = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    if site is not None:

        @served.get("/media/{uid}/{camera}")
        def media(uid: str, camera: str) -> Response:
            try:
                path = site.video(uid, camera)
            except (GaploopError, OSError) as error:
                return PlainTextResponse(" ".join(str(error).split()), status_code=404)
            return FileResponse(path, media_type="video/mp4", headers={"cache-control": "no-store"})

        @ui.page("/", title=f"{takes} · gaploop review")
        def page() -> None:
            ui.add_css(STYLE.read_text())
            ReviewPage(site, project.name)

    ui.run_with(served, tailwind=False, reconnect_timeout=20.0, show_welcome_message=False)
    return served


def serve(
    built: Callable[[], FastAPI], port: int, ready: Callable[[str], None], *, browser: bool
) -> None:
    """Serve a page behind a gate until the process is told to stop.

    `port` is as of `free_socket`; `ready` is called with the page's address, token included, once
    it can be opened.

    Raises:
        UnusableInputError: no port is free.
    """
    bound = free_socket(port)
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{bound.getsockname()[1]}/{token}/"
    gate = TokenGate(built(), token)
    settings = uvicorn.Config(
        gate,
        http=bounded(gate),
        backlog=STRANGERS,
        log_level="warning",
        timeout_graceful_shutdown=1,
        lifespan="on",
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


PROJECT_STYLE: Final = Path(__file__).with_name("project.css")
WORDS: Final = {
    "Stations": "None yet. Describe yours in a station.yaml.",
    "Sessions": "None yet. gaploop record records episodes.",
    "Campaigns": "None yet. gaploop record --plan=plan.yaml begins one.",
    "Episodes to review": "No episode waits for review.",
    "Diagnoses": "None yet. gaploop diagnose DIR finds out why episodes failed.",
    "Plans": "None yet. gaploop plan decides what to collect.",
    "Runs": "None yet. gaploop finetune adapts a policy.",
    "Gates": "None yet. gaploop gate compares two policies.",
}
"""What an empty section says."""


class ProjectPage:
    """The open page of a project's folder; `takes` names the folder that the other tab shows."""

    def __init__(self, root: Path, takes: str = "") -> None:
        ui.add_css(PROJECT_STYLE.read_text())
        self._root = root
        with ui.element("header"):
            if takes:
                ui.link("Episodes", "./").classes("tab").tooltip(takes)
                ui.label("Project")
            ui.label(root.name).classes("name")
            ui.label(str(root)).classes("quiet")
            self._again = ui.button("Look again", on_click=self.look).props("flat dense no-caps")
        self._sections = ui.element("div").classes("sections")

    async def look(self) -> None:
        """Read the folder, and show what is there."""
        self._again.disable()
        try:
            found = await run.io_bound(read_project, self._root)
        except UnusableInputError as error:
            found = Project(self._root, damaged=[str(error)])
        if found is None or self._sections.is_deleted:
            return  # the page is closing
        self._sections.clear()
        with self._sections:
            if found.damaged:
                with ui.element("section").classes("damaged"):
                    ui.label(f"Can't be read {len(found.damaged)}").classes("head")
                    for line in found.damaged:
                        ui.label(line)
            for name in SECTIONS:
                with ui.element("section").props(f'data-section="{name}"'):
                    ui.label(f"{name} {len(found.entries[name]) or ''}").classes("head")
                    for entry in found.entries[name]:
                        self._entry(entry)
                    if not found.entries[name]:
                        ui.label(WORDS[name]).classes("quiet")
        self._again.enable()

    def _entry(self, entry: ProjectEntry) -> None:
        with ui.element("article"):
            with ui.element("div").classes("line"):
                ui.label(entry.title).classes("title")
                ui.label(entry.where).classes("quiet")
            ui.label(entry.facts)
            for name, have, wanted in entry.bars:
                with ui.element("div").classes("quota"):
                    ui.label(name)
                    with ui.element("div").classes("bar"):
                        ui.element("i").style(f"width: {100 * have / max(wanted, 1):.0f}%")
                    ui.label(f"{have}/{wanted}")
            if entry.next:
                with ui.element("div").classes("next"):
                    ui.label(entry.next).classes("command")
                    copy = ui.button("Copy", on_click=lambda: self._copy(entry.next))
                    copy.props("flat dense no-caps")

    def _copy(self, command: str) -> None:
        ui.clipboard.write(command)
        ui.notify("Copied. Run it in the project's folder.", timeout=2000)
