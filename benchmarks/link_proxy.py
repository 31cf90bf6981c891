"""A man in the middle who knows the token: delays, drops, doubles, swaps and makes up messages."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from websockets.sync.connection import Connection

from gaploop.core.errors import GaploopError
from gaploop.teleop import link

type Trouble = Callable[[bytes], Sequence[tuple[float, bytes]]]
"""What becomes of a message: which are sent on instead, each so much later [s]."""


def as_it_is(message: bytes) -> Sequence[tuple[float, bytes]]:
    """Send it on."""
    return [(0.0, message)]


@contextlib.contextmanager
def meddling(
    kind: str, token: str, port: int, *, up: Trouble = as_it_is, down: Trouble = as_it_is
) -> Iterator[int]:
    """Yield the port of a proxy before the server on `port`.

    Args:
        kind: what is spoken.
        token: of both sides.
        port: of the server.
        up: what becomes of messages to the server.
        down: what becomes of its own.
    """

    def talk(near: Connection) -> None:
        far = link.connect(kind, "127.0.0.1", port, token, 1 << 20)
        ways = [(near, far, up), (far, near, down)]
        threads = [threading.Thread(target=_pass_on, args=way, daemon=True) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with link.listening(kind, token, talk, host="127.0.0.1", port=0, max_bytes=1 << 20) as own:
        yield own


def _pass_on(source: Connection, sink: Connection, trouble: Trouble) -> None:
    waiting: queue.PriorityQueue[tuple[float, int, bytes]] = queue.PriorityQueue()
    count = 0
    with contextlib.suppress(Exception):
        while True:
            left_s = waiting.queue[0][0] - time.monotonic() if waiting.queue else 1.0
            with contextlib.suppress(TimeoutError):
                message = source.recv(max(left_s, 0.0))
                assert isinstance(message, bytes)
                for later_s, put in trouble(message):
                    count += 1
                    waiting.put((time.monotonic() + later_s, count, put))
            while waiting.queue and waiting.queue[0][0] <= time.monotonic():
                sink.send(waiting.get()[2])
    with contextlib.suppress(GaploopError, OSError):
        source.close()
        sink.close()
