"""Who is let in, and what happens where the page can't be served."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message

from gaploop.core import platform_calls
from gaploop.core.errors import UnusableInputError
from gaploop.failure_analysis.review.server import (
    HOST,
    PORTS,
    STRANGERS,
    TokenGate,
    bounded,
    free_socket,
)
from gaploop.scripts import _review, cli

HERE = "http://127.0.0.1:8321"
PAGE = Starlette(routes=[Route("/", lambda _: PlainTextResponse("the page"))])
GATED = TokenGate(PAGE, "secret")


def ask(address: str, method: str = "GET", **headers: str) -> httpx.Response:
    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(GATED)
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
            return await client.request(method, address, headers=headers)

    return asyncio.run(answer())


def test_the_token_in_the_path_lets_in_and_no_cookie_holds_it() -> None:
    """Browsers send cookies to every port of a host: another program's server was sent it."""
    page = ask("/secret/")
    assert page.text == "the page"
    assert "set-cookie" not in page.headers
    assert page.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "address",
    ["/", "/secret", "/secre/", "/secrets/", "//secret/", "/é/", "/?token=secret", "/x/secret/"],
)
def test_nobody_else_is_let_in(address: str) -> None:
    assert ask(address).status_code == 403
    assert ask(address, cookie="gaploop_review_8321=secret").status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8321"},
        {"origin": "http://127.0.0.1:9000"},
        {"host": "127.0.0.1@evil.example:8321"},
        {"host": "[::1"},
        {"origin": "http://[::1"},
    ],
)
def test_another_page_in_the_same_browser_is_not_let_in(headers: dict[str, str]) -> None:
    """What is no address at all ended in a traceback and an answer of 500."""
    assert ask("/secret/").status_code == 200
    assert ask("/secret/", **headers).status_code == 403


@pytest.mark.parametrize("path", ["/", "/secre/_nicegui_ws/socket.io/"])
def test_a_web_socket_needs_the_token_too(path: str) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    host = [(b"host", b"127.0.0.1:8321"), (b"cookie", b"gaploop_review_8321=secret")]
    scope = {"type": "websocket", "path": path, "query_string": b"token=secret", "headers": host}
    asyncio.run(GATED(scope, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("begins", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
def test_strangers_dont_keep_the_page_from_its_user(begins: bytes) -> None:
    """Connections that never said anything were kept for good, until no more could be opened."""

    async def visit() -> None:
        gate = TokenGate(PAGE, "secret")
        bound = free_socket(0)
        host, port = bound.getsockname()
        server = uvicorn.Server(
            uvicorn.Config(gate, http=bounded(gate), log_level="warning", lifespan="off")
        )
        task = asyncio.create_task(server.serve(sockets=[bound]))
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as user:
            assert (await user.get("/secret/")).text == "the page"
            opened = [await asyncio.open_connection(host, port) for _ in range(STRANGERS + 20)]
            for _, writer in opened:
                writer.write(begins)
            while len(gate.strangers) != STRANGERS:
                await asyncio.sleep(0.01)
            await opened[0][0].read()  # the oldest was closed
            assert (await user.get("/secret/")).text == "the page"
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as another:
                assert (await another.get("/secret/")).text == "the page"
            for _, writer in opened:
                writer.close()
        server.should_exit = True
        await task

    asyncio.run(visit())


def test_what_is_no_request_passes() -> None:
    seen: list[str] = []

    async def app(scope: Message, *_: object) -> None:
        seen.append(scope["type"])

    asyncio.run(TokenGate(app, "secret")({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]


def test_a_busy_port_gives_way_to_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with free_socket(port) as found:
            assert port < found.getsockname()[1] < port + PORTS


@pytest.mark.parametrize("port", [65536, -30])
def test_where_no_port_can_be_used_it_says_why(port: int) -> None:
    """They were called taken where there are none such, or the system keeps them for itself."""
    with pytest.raises(UnusableInputError, match="--port") as said:
        free_socket(port)
    assert "taken" not in str(said.value)
    assert "0-65535" in str(said.value)


def test_ports_that_the_system_keeps_are_not_called_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(UnusableInputError, match="Permission denied"):
        free_socket(80)


def one_line(said: str) -> str:
    (line,) = said.strip().splitlines()
    return line


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_what_cannot_be_reviewed_is_one_line(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / what
    if what == "empty":
        path.mkdir()
    elif what == "file":
        path.write_text("x")
    assert cli.main(["review", str(path)]) == 2
    assert str(path) in one_line(capsys.readouterr().err)


def test_labels_that_could_not_be_written_are_refused_at_the_start(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who labels for an hour must not learn at the end that nothing could be saved."""
    (dataset / "meta" / "gap").mkdir(exist_ok=True)
    labels = dataset / "meta" / "gap" / "labels.jsonl"
    labels.unlink(missing_ok=True)
    labels.mkdir()  # as unwritable as it gets, also for root
    assert cli.main(["review", str(dataset)]) == 2
    assert str(labels) in one_line(capsys.readouterr().err)


def test_a_doubt_about_units_keeps_nobody_from_labelling(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """26 sets of an SO-101 from -40 to 40 weren't opened, though labels need no angles."""

    def doubt(_source: object, _stated: str) -> str:
        raise UnusableInputError("They may be degrees. Say which: --units=degrees.")

    monkeypatch.setattr(_review.TakeSource, "units", doubt)
    monkeypatch.setattr(_review, "serve", lambda *_, **__: None)
    ask_for = ["review", str(dataset), "--author=eva", "--suggestions=false"]
    assert cli.main(ask_for) == 0
    assert "--units=degrees. Until then" in capsys.readouterr().err
    assert cli.main([*ask_for, "--units=furlongs"]) == 2


def test_what_is_started_ignores_an_early_interrupt() -> None:
    """Ctrl-C in the first seconds of `review` printed the traceback of its second process."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    with platform_calls.starting_deaf():
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert said.stdout.split() == [b"True"]
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_nothing_heavy_is_imported_for_help() -> None:
    code = (
        "import sys; from gaploop.scripts.cli import main; main(['review', '--help']); "
        "print([m for m in ('nicegui', 'torch', 'lerobot', 'cv2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip().endswith("[]")


def test_the_token_is_in_no_command_line(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ps` showed every user of the machine the address with the token that the browser got."""
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s " "$@" > {seen}.part\nmv {seen}.part {seen}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    command = [sys.executable, "-m", "gaploop.scripts.cli", "review", "--port=0", str(dataset)]
    ours, terminal = os.openpty()  # it opens the browser where somebody sees its output
    with subprocess.Popen(
        [*command, "--suggestions=false"], stdout=terminal, stderr=subprocess.PIPE, text=True
    ) as run:
        os.close(terminal)
        try:
            assert run.stderr is not None
            address = next(line.split()[-1] for line in run.stderr if "Open http" in line)
            while not seen.exists():
                assert run.poll() is None
                time.sleep(0.05)
            page = Path(url2pathname(urlsplit(seen.read_text().strip()).path))
            assert urlsplit(address).path.strip("/") not in seen.read_text()
            assert address in page.read_text()
            assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (
                0o600,
                0o700,
            )
        finally:
            run.send_signal(signal.SIGINT)
    os.close(ours)
    assert run.returncode == 0
    assert not page.exists()
