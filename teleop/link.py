"""One authenticated, encrypted connection to another machine, for leaders, policies and browsers.

WebSocket messages over TLS 1.3; a token of 192 random bits is all that both ends share. The
server's key is derived from it, so that whoever connects knows by the key, before anything is said,
that the server knows the token (RFC 7469 pins keys likewise); then the token itself follows, and is
compared in constant time. Messages are MessagePack, or JSON from a browser, decoded by msgspec into
the types that a protocol names, whose numbers and lengths have bounds: nothing that is received is
executed, unpickled or used as a name. Whatever else arrives is one line, and the connection is
closed.

`AnswerClock` says how old an answer is by one machine's clock alone.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import ipaddress
import logging
import re
import secrets
import selectors
import socket
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import websockets.sync.client
import websockets.sync.server
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Request, Response
from websockets.sync.connection import Connection
from websockets.sync.server import ServerConnection
from websockets.typing import Subprotocol

from gaploop.core.errors import DeviceError, LostError, UnusableInputError
from gaploop.teleop.stopping import CleanupStep, one_line

log = logging.getLogger(__name__)

PORT: Final = 8440
TOKEN_VARIABLE: Final = "GAPLOOP_LINK_TOKEN"
"""Environment variable that says the token where no option does: options are seen by `ps`."""
OPEN_S: Final = 5.0
"""Connecting, and showing the token, may take this long [s]."""
PING_S: Final = 5.0
SILENT_S: Final = 10.0
"""A peer is asked this often whether it is there, and is gone if it doesn't answer for this long
[s]: busy programs take seconds. What it said has long been stale by then."""
CONNECTIONS: Final = 8
"""More than so many at once that showed the token are refused."""
STRANGERS: Final = 128
"""So many at once may not have shown it yet, each for `OPEN_S`; others are turned away."""
DAYS: Final = 397
"""Browsers take no certificate that is valid for longer than 398 days."""
ASKED: Final = 512
"""So many questions are remembered; older ones count as never asked."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32,128}")
_PAGE_HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; connect-src 'self' wss:; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Connection": "close",
}

Small = msgspec.Meta(ge=-1e6, le=1e6)
"""Bounds of any number that a peer sends: NaN and infinity are outside."""
type Numbers = Annotated[list[Annotated[float, Small]], msgspec.Meta(max_length=64)]
type Word = Annotated[str, msgspec.Meta(max_length=100)]
type Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what passes over a link as MessagePack, an array of its fields; all else is JSON."""


# -- the token -------------------------------------------------------------------------------------


def new_token() -> str:
    """Return a token of 192 random bits, as 32 letters, digits, dashes and underscores."""
    return secrets.token_urlsafe(24)


def require_token(token: str, option: str) -> str:
    """Return a token that can be used; UnusableInputError where it is missing or guessable."""
    if not token:
        raise UnusableInputError(
            "A link needs the token that gaploop serve printed. Say "
            f"{TOKEN_VARIABLE}=TOKEN before the command: others on this machine can't see it there."
        )
    if not _TOKEN.fullmatch(token):
        raise UnusableInputError(
            f"{option} must be 32 or more letters, digits, - and _, as gaploop serve makes them: a "
            "shorter one could be guessed."
        )
    return token


def _key(token: str) -> ec.EllipticCurvePrivateKey:
    """Return the server's key. Of 256 derived bits 255 are used: all are below P-256's order."""
    seed = HKDF(hashes.SHA256(), 32, None, b"gaploop link: server key, P-256").derive(
        token.encode()
    )
    return ec.derive_private_key(int.from_bytes(seed) >> 1, ec.SECP256R1())


def _public(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return b""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)


class _InTurn(ssl.SSLSocket):
    """Lets one thread at a time into OpenSSL: websockets reads in one and writes in others.

    Python 3.12 doesn't see to that: once in some hundred connections it ended in `[SSL] internal
    error`, or stood still. Nobody waits inside; whoever must wait for the network waits outside.
    """

    _turn: threading.Lock | None = None
    _wait_s: float | None

    def do_handshake(self, block: bool = False) -> None:
        """Shake hands, while only one thread knows the socket."""
        super().do_handshake(block)
        self._turn, self._wait_s = threading.Lock(), self.gettimeout()
        super().settimeout(0.0)

    def settimeout(self, value: float | None) -> None:
        self._wait_s = value
        if self._turn is None:
            super().settimeout(value)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        return self._take_turns(functools.partial(super().recv, buflen, flags))

    def sendall(self, data: Any, flags: int = 0) -> None:
        left = memoryview(data).cast("B")
        while left:
            send = functools.partial(super().send, left[:65536], flags)
            left = left[self._take_turns(send) :]

    def shutdown(self, how: int) -> None:
        """End reading and writing; who waits for them wakes up."""
        with self._turn or contextlib.nullcontext():
            super().shutdown(how)

    def _take_turns[T](self, call: Callable[[], T]) -> T:
        while True:
            with self._turn or contextlib.nullcontext():
                try:
                    return call()
                except (ssl.SSLWantReadError, BlockingIOError):
                    wanted = selectors.EVENT_READ
                except ssl.SSLWantWriteError:
                    wanted = selectors.EVENT_WRITE
            with selectors.DefaultSelector() as selector:
                try:
                    selector.register(self, wanted)
                except ValueError as error:
                    raise OSError("The socket is closed.") from error
                if not selector.select(self._wait_s):
                    raise TimeoutError("The peer is silent.")


def _server_context(token: str, host: str) -> ssl.SSLContext:
    """Return what a server needs to speak TLS with the token's key, its certificate new."""
    key, now = _key(token), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gaploop")])
    alternative: x509.GeneralName = x509.DNSName(host)
    with contextlib.suppress(ValueError):
        alternative = x509.IPAddress(ipaddress.ip_address(host))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS - 1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _InTurn
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.NamedTemporaryFile(prefix="gaploop_link_") as file:  # mode 0600; ssl reads files
        file.write(private + certificate.public_bytes(pem))
        file.flush()
        context.load_cert_chain(file.name)
    return context


# -- who listens -----------------------------------------------------------------------------------


def own_address() -> str:
    """Return this machine's address as others on its network see it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found, contextlib.suppress(OSError):
        found.connect(("192.0.2.1", 9))  # RFC 5737: an address that is nobody's
        return str(found.getsockname()[0])
    return "127.0.0.1"


@contextlib.contextmanager
def listening(
    kind: str,
    token: str,
    talk: Callable[[Connection], None],
    *,
    host: str = "",
    port: int = PORT,
    max_bytes: int,
    page: Path | None = None,
) -> Iterator[int]:
    """Listen in threads for who knows the token; yield the port.

    Args:
        kind: what is spoken, with its version, such as `gaploop.leader.1`.
        talk: called in a thread of its own for each peer; when it returns the connection is closed.
            What it raises is one line here; a DeviceError is told to the peer, too.
        page: what browsers get that open the address; it holds no secret.

    Raises:
        UnusableInputError: the port is taken.
    """
    strangers, peers, turn = set[socket.socket](), set[socket.socket](), threading.Lock()

    def admit(connection: ServerConnection, request: Request) -> Response | None:
        given = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
        offered = [word.strip() for word in given.split(",") if word.strip()]
        here = "".join(request.headers.get_all("Host"))
        origins = [urlsplit(origin).netloc for origin in request.headers.get_all("Origin")]
        if page is not None and not offered and request.path.partition("?")[0] == "/":
            body = page.read_bytes()
            headers = Headers({**_PAGE_HEADERS, "Content-Length": str(len(body))})
            return Response(HTTPStatus.OK.value, HTTPStatus.OK.phrase, headers, body)
        who = connection.remote_address[0]
        if not any(hmac.compare_digest(word.encode(), token.encode()) for word in offered):
            log.warning("%s: refused: it doesn't know the token.", who)
            return connection.respond(HTTPStatus.UNAUTHORIZED, "The token is wrong.")
        if any(origin != here for origin in origins):
            log.warning("%s: refused: another page asks.", who)
            return connection.respond(HTTPStatus.FORBIDDEN, "Another page may not connect here.")
        if kind not in offered:
            theirs = ", ".join(word for word in offered if word.startswith("gaploop."))
            log.warning("%s: refused: it speaks %s, this is %s.", who, theirs or "nothing", kind)
            return connection.respond(
                HTTPStatus.BAD_REQUEST,
                f"This is {kind}, and you ask for {theirs}: another service, or another version "
                "of gaploop.",
            )
        with turn:
            strangers.discard(connection.socket)
            if len(peers) < CONNECTIONS:
                peers.add(connection.socket)
        if connection.socket not in peers:
            words = f"{CONNECTIONS} are connected already. End one of them."
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, words)
        return None

    def handle(connection: ServerConnection) -> None:
        who = connection.remote_address[0]
        log.info("%s: connected.", who)
        with CleanupStep() as attempt, report_on_close(connection):
            talk(connection)
        is_fault = attempt.error is not None and not isinstance(attempt.error, LostError)
        words = one_line(attempt.error) if attempt.error is not None else "The link is closed."
        log.log(logging.WARNING if is_fault else logging.INFO, "%s: %s", who, words)

    try:
        server = websockets.sync.server.serve(
            handle,
            host,
            port,
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            ssl=_server_context(token, host or own_address()),
            process_request=admit,
            select_subprotocol=lambda _connection, _offered: Subprotocol(kind),
            server_header=None,
            **_both_ends(max_bytes),
        )
    except (OSError, OverflowError) as error:
        raise UnusableInputError(
            f"Port {port} can't be listened on ({error}). Name another with --port."
        ) from error
    serve_one = server.handler

    def serve_few(sock: socket.socket, address: object) -> None:
        with turn:
            is_full = len(strangers) >= STRANGERS
            if not is_full:
                strangers.add(sock)
        if is_full:
            sock.close()
            return
        try:
            serve_one(sock, address)
        finally:
            with turn:
                strangers.discard(sock)
                peers.discard(sock)

    server.handler = serve_few
    thread = threading.Thread(target=server.serve_forever, name="link", daemon=True)
    thread.start()
    with server:
        yield int(server.socket.getsockname()[1])
    thread.join()


_QUIET: Final = logging.getLogger(f"{__name__}.websockets")
"""What websockets says of peers that don't keep to its rules, tracebacks included: it is dropped,
so that a stranger can't fill the operator's screen."""
_QUIET.setLevel(logging.CRITICAL + 1)


def _both_ends(max_bytes: int) -> dict[str, Any]:
    """Return what websockets is told at both ends of a link."""
    return {
        "compression": None,
        "open_timeout": OPEN_S,
        "ping_interval": PING_S,
        "ping_timeout": SILENT_S,
        "close_timeout": 1.0,
        "max_size": max_bytes,
        "logger": _QUIET,
    }


# -- who connects ----------------------------------------------------------------------------------


def parse_address(address: str, option: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `host`; UnusableInputError where it is neither."""
    parts = urlsplit(f"//{address}")
    with contextlib.suppress(ValueError):
        if parts.hostname and not parts.path and not parts.username:
            return parts.hostname, parts.port or PORT
    raise UnusableInputError(
        f"{option} must be host:port, such as 192.168.1.20:{PORT}, got '{address}'."
    )


def connect(kind: str, host: str, port: int, token: str, max_bytes: int) -> Connection:
    """Connect to who listens, make sure that it knows the token, and show ours.

    Raises:
        DeviceError: nobody listens, the token is another, or it speaks something else.
    """
    where = f"{host}:{port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = _InTurn
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the key is compared below
    try:
        with contextlib.ExitStack() as undo:
            plain = undo.enter_context(socket.create_connection((host, port), OPEN_S))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            secure = undo.enter_context(context.wrap_socket(plain))
            shown = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
            if _public(shown.public_key()) != _public(_key(token).public_key()):
                raise DeviceError(
                    f"{where} doesn't know the token: another program answers, somebody is in "
                    "between, or gaploop serve was started anew and printed another one."
                )
            secure.settimeout(None)
            connection: Connection = websockets.sync.client.connect(
                f"ws://[{host}]:{port}/" if ":" in host else f"ws://{where}/",
                sock=secure,
                subprotocols=[Subprotocol(kind), Subprotocol(token)],
                proxy=None,
                user_agent_header=None,
                **_both_ends(max_bytes),
            ).__enter__()
            undo.pop_all()
    except InvalidStatus as error:
        said = (error.response.body or b"").decode(errors="replace")[:200]
        raise DeviceError(f"{where} refuses: {said or error}") from error
    except (OSError, ValueError, WebSocketException) as error:
        raise DeviceError(
            f"No link to {where} ({error}). Does gaploop serve run there, and does a firewall let "
            "its port through?"
        ) from error
    return connection


# -- what is said ----------------------------------------------------------------------------------


def say(connection: Connection, message: msgspec.Struct) -> None:
    """Send a message; LostError where the connection is closed."""
    try:
        if isinstance(message, Message):
            connection.send(msgspec.msgpack.encode(message))
        else:
            connection.send(msgspec.json.encode(message).decode())
    except (ConnectionClosed, OSError) as error:
        raise LostError(_closed(error)) from error


def hear[T](connection: Connection, kind: type[T], timeout_s: float | None = None) -> T | None:
    """Return the next message; None where none comes in `timeout_s` [s].

    Raises:
        LostError: the connection is closed.
        DeviceError: the message isn't of that kind.
    """
    try:
        data = connection.recv(timeout_s)
    except TimeoutError:
        return None
    except (ConnectionClosed, OSError) as error:
        raise LostError(_closed(error)) from error
    return decoded(data, kind)


def decoded[T](data: str | bytes, kind: type[T]) -> T:
    """Return what a peer's message says; DeviceError where it isn't of that kind."""
    is_packed = issubclass(kind, Message)
    if isinstance(data, bytes) is not is_packed:
        words = "text" if is_packed else "bytes"
        raise DeviceError(f"It sends {words} instead of {kind.__name__}.")
    try:
        if isinstance(data, bytes):
            return msgspec.msgpack.decode(data, type=kind)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeviceError(f"It sends no valid {kind.__name__} ({error}).") from error


def _closed(error: Exception) -> str:
    frame = error.rcvd if isinstance(error, ConnectionClosed) else None
    sent = error.sent if isinstance(error, ConnectionClosed) else None
    why = next((f.reason for f in (frame, sent) if f is not None and f.reason), "")
    return f"The link is closed{f': {why}' if why else ''}."


@contextlib.contextmanager
def report_on_close(connection: Connection) -> Iterator[None]:
    """Close the connection at the end, and tell the peer of a DeviceError."""
    try:
        yield
    except DeviceError as error:
        connection.close(1008, str(error).encode()[:120].decode(errors="ignore"))
        raise
    finally:
        connection.close()


# -- how old an answer is --------------------------------------------------------------------------


class AnswerClock:
    """Dates the answers of a machine whose clock isn't ours.

    Questions have numbers, and an answer says which one it is for: it was made after that question
    was asked. So it isn't older than the time since, plus the age that its maker says it already
    had. One to a question that was never asked, or was answered, or that comes after a newer one's
    counts for nothing, so that what is repeated, kept back or out of order can only seem older.
    """

    def __init__(self) -> None:
        self._asked: deque[tuple[int, float]] = deque(maxlen=ASKED)
        self._next = 0

    def ask(self, now_s: float) -> int:
        """Return the number of a question that is asked at `now_s` [s]."""
        self._asked.append((self._next, now_s))
        self._next += 1
        return self._next - 1

    def made_s(self, number: int, age_s: float) -> float | None:
        """Return when an answer was made at the earliest [s]; None where it counts for nothing.

        `age_s` is how old it was by its maker's clock when it was sent [s].
        """
        if not self._asked or not self._asked[0][0] <= number < self._next:
            return None
        while self._asked[0][0] < number:
            self._asked.popleft()
        _, asked_s = self._asked.popleft()
        return asked_s - max(age_s, 0.0)
