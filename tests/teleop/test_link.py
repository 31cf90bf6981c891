"""Who is let in, what is taken from whom, and how old it is."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import websockets.sync.client
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus
from websockets.sync.connection import Connection

from gaploop.core.errors import DeviceError, LostError, UnusableInputError
from gaploop.teleop import link

KIND, TOKEN = "gaploop.echo.1", link.new_token()
MOST = 1000


class Word(link.Message):
    number: link.Count
    values: link.Numbers


def echo(connection: Connection) -> None:
    while True:
        word = link.hear(connection, Word)
        assert word is not None
        link.say(connection, word)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a handshake may take longer than a person would wait for it."""
    monkeypatch.setattr(link, "OPEN_S", 60.0)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with link.listening(KIND, TOKEN, echo, host="127.0.0.1", port=0, max_bytes=MOST) as found:
        yield found


def connect(port: int, kind: str = KIND, token: str = TOKEN) -> Connection:
    return link.connect(kind, "127.0.0.1", port, token, MOST)


def is_closed(connection: Connection) -> str:
    """Wait until it is, and return why."""
    with pytest.raises(LostError) as lost:
        link.hear(connection, Word, 60.0)
    return str(lost.value)


def works(port: int) -> bool:
    with contextlib.closing(connect(port)) as connection:
        link.say(connection, Word(7, [0.5]))
        return link.hear(connection, Word, 60.0) == Word(7, [0.5])


def test_who_has_the_token_is_understood(port: int) -> None:
    assert works(port)


def test_a_server_without_the_token_is_not_told_it(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sits between two machines must not learn the token by being asked for it."""
    with pytest.raises(DeviceError, match="doesn't know the token") as refused:
        connect(port, token=link.new_token())
    assert len(str(refused.value).splitlines()) == 1
    assert not [r for r in caplog.records if "refused" in r.message]  # it never asked for anything


def strangers_context() -> ssl.SSLContext:
    """Return what speaks TLS without looking at the server's key, as a stranger would.

    Once in some thousand connections a client of two threads stood still, or read nothing, before
    it had the sockets that the link has.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = link._InTurn
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def ask(port: int, *words: str, **headers: str) -> InvalidStatus:
    with (
        pytest.raises(InvalidStatus) as refused,
        websockets.sync.client.connect(
            f"wss://127.0.0.1:{port}/",
            ssl=strangers_context(),
            subprotocols=[websockets.Subprotocol(word) for word in words] or None,
            additional_headers=headers,
            proxy=None,
            open_timeout=120,  # beside busy programs
        ),
    ):
        pass
    return refused.value


@pytest.mark.parametrize("words", [(), (KIND,), (KIND, TOKEN[:-1] + "!"), (KIND, TOKEN[:-1])])
def test_a_stranger_is_refused(
    words: tuple[str, ...], port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(port, *words).response.status_code == 401
    lines = [r.getMessage() for r in caplog.records if "refused" in r.message]
    assert len(lines) == 1
    assert TOKEN[:-1] not in lines[0]


def test_another_page_in_a_browser_is_refused(port: int) -> None:
    assert ask(port, KIND, TOKEN, Origin="https://evil.example").response.status_code == 403


def test_another_version_is_one_line_at_both_ends(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DeviceError, match=r"gaploop\.echo\.1, and you ask for gaploop\.echo\.2"):
        connect(port, "gaploop.echo.2")
    assert len([r for r in caplog.records if "it speaks gaploop.echo.2" in r.getMessage()]) == 1


WORD = msgspec.msgpack.encode(Word(1, [0.5, 0.25]))
HOSTILE = {
    "garbage": b"\x00\xff" * 20,
    "cut": WORD[:-1],
    "longer": WORD + b"\x00",
    "huge length": b"\xdd\xff\xff\xff\xff",
    "deep": b"\x91" * 900,
    "too many": msgspec.msgpack.encode([1, [0.0] * 65]),
    "another field": msgspec.msgpack.encode([1, [], "rm -rf"]),
    "wrong type": msgspec.msgpack.encode([1, ["x"]]),
    "negative": msgspec.msgpack.encode([-1, []]),
    "NaN": msgspec.msgpack.encode([1, [float("nan")]]),
    "infinity": msgspec.msgpack.encode([1, [float("inf")]]),
    "an object": msgspec.msgpack.encode([1, msgspec.msgpack.Ext(1, b"cos\nsystem")]),
    "text": "[1, []]",
    "oversized": b"\x00" * (MOST + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_isnt_due_closes_the_connection_in_one_line(
    name: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    connection = connect(port)
    connection.send(HOSTILE[name])
    is_closed(connection)
    assert works(port)

    def said() -> list[logging.LogRecord]:
        return [r for r in caplog.records if "It sends" in r.message or "closed" in r.message]

    while not said():  # the peer learns first
        time.sleep(0.01)
    assert not [r for r in caplog.records if r.exc_info or "\n" in r.message]


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70_000]
)
def test_who_doesnt_even_speak_tls_costs_nothing(data: bytes, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as stranger, contextlib.suppress(OSError):
        stranger.sendall(data)
    assert works(port)


def begin_tls(sock: socket.socket) -> socket.socket:
    sock.sendall(b"\x16\x03\x01\x02\x00\x01")
    return sock


def begin_http(sock: socket.socket) -> socket.socket:
    secure = strangers_context().wrap_socket(sock)
    secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")
    return secure


def ends_half(sock: socket.socket) -> socket.socket:
    sock.shutdown(socket.SHUT_WR)
    return sock


def has_another_token(sock: socket.socket) -> socket.socket:
    secure = begin_http(sock)
    secure.sendall(b"\r\nSec-WebSocket-Protocol: gaploop.echo.1, " + b"x" * 32 + b"\r\n\r\n")
    return secure


BEGINS: dict[str, Callable[[socket.socket], socket.socket]] = {
    "silent": lambda sock: sock,
    "half a TLS handshake": begin_tls,
    "half an HTTP header": begin_http,
    "half open": ends_half,
    "another token": has_another_token,
}


@pytest.mark.parametrize("begin", BEGINS.values(), ids=BEGINS)
def test_strangers_dont_keep_the_holder_out(
    begin: Callable[[socket.socket], socket.socket], port: int
) -> None:
    """16 trickling sockets without a token kept it out 50 times out of 50."""
    before = threading.active_count()
    with contextlib.ExitStack() as stack, contextlib.closing(connect(port)) as held:
        for _ in range(16):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stack.enter_context(begin(sock))
        assert works(port)
        link.say(held, Word(7, [0.5]))
        assert link.hear(held, Word, 60.0) == Word(7, [0.5])
    while threading.active_count() > before:  # what is closed costs no thread
        time.sleep(0.01)


def test_one_thread_at_a_time_is_in_openssl(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading and writing at once ended now and then in its internal error, or stood still."""
    inside: dict[int, int] = {}
    most: list[int] = []

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watch(sock: ssl.SSLSocket, *given: Any) -> Any:
            inside[id(sock)] = inside.get(id(sock), 0) + 1
            most.append(inside[id(sock)])
            try:
                return call(sock, *given)
            finally:
                inside[id(sock)] -= 1

        return watch

    for name in ("recv", "send"):
        monkeypatch.setattr(ssl.SSLSocket, name, watched(getattr(ssl.SSLSocket, name)))
    many = 300
    with contextlib.closing(connect(port)) as connection:

        def ask() -> None:
            for number in range(many):
                link.say(connection, Word(number, [0.5] * 64))

        asking = threading.Thread(target=ask)
        asking.start()
        for number in range(many):
            word = link.hear(connection, Word, 60.0)
            assert word is not None
            assert word.number == number
        asking.join()
    assert max(most) == 1


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "with a space" * 4, "ü" * 40, "x" * 200])
def test_a_token_that_could_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(UnusableInputError, match=r"--teleop\.token|GAPLOOP_LINK_TOKEN=TOKEN"):
        link.require_token(token, "--teleop.token")


@pytest.mark.parametrize(
    "address", ["", "a:b", ":8440", "host:99999", "https://host", "u@h:1", "h/x"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UnusableInputError, match=r"--teleop\.address"):
        link.parse_address(address, "--teleop.address")


def test_addresses_of_both_kinds() -> None:
    assert link.parse_address("192.168.1.20", "x") == ("192.168.1.20", link.PORT)
    assert link.parse_address("[::1]:8441", "x") == ("::1", 8441)


def test_a_page_is_for_everybody_and_the_link_behind_it_isnt(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<p>hello")
    with (
        link.listening(
            KIND, TOKEN, echo, host="127.0.0.1", port=0, max_bytes=MOST, page=page
        ) as port,
        socket.create_connection(("127.0.0.1", port)) as plain,
        strangers_context().wrap_socket(plain) as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b"".join(iter(lambda: secure.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"default-src 'none'" in answer
        assert answer.endswith(b"<p>hello")
        assert ask(port, KIND).response.status_code == 401
        assert works(port)


# -- how old an answer is --------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0.0, 0.1), st.integers(0, 40), st.floats(0.0, 5.0)), max_size=60)
)
def test_no_answer_ever_seems_younger_than_it_is(events: list[tuple[float, int, float]]) -> None:
    """Whatever is delayed, lost, doubled or out of order, on any clock of the other machine."""
    asked, now_s, at, newest = link.AnswerClock(), 0.0, list[float](), -1
    for wait_s, answered, age_s in events:
        at.append(now_s)
        assert asked.ask(now_s) == len(at) - 1
        now_s += wait_s
        made_s = asked.made_s(answered, age_s)
        if made_s is not None:
            assert made_s <= at[answered] <= now_s
            assert answered > newest
            newest = answered
            assert asked.made_s(answered, 0.0) is None  # the same again


def test_what_was_never_asked_counts_for_nothing() -> None:
    asked = link.AnswerClock()
    assert asked.made_s(0, 0.0) is None
    for _ in range(link.ASKED + 5):
        asked.ask(1.0)
    assert asked.made_s(link.ASKED + 5, 0.0) is None
    assert asked.made_s(2, 0.0) is None  # asked too long ago
    assert asked.made_s(9, -3.0) == 1.0  # nothing is younger than its question
