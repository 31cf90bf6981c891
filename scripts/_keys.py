"""Single keys from the terminal, without waiting and without Enter."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator
from typing import TextIO

from gaploop.core.types import SafetyReason


class Keys:
    """Reads keys from a terminal that is in cbreak mode; knows none where there is no terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def wait(self, timeout_s: float) -> str:
        """Return the next key within `timeout_s` [s], or the empty text."""
        if self._stream is None:
            return ""
        ready, _, _ = select.select([self._stream], [], [], timeout_s)
        if not ready:
            return ""
        pressed = os.read(self._stream.fileno(), 32)
        # An arrow key sends several bytes that begin with ESC: none of them is a command.
        return "" if pressed[:1] in (b"", b"\x1b") else pressed[:1].decode(errors="ignore")

    def say(self, trip: str) -> None:
        """Show why the arm has tripped, "" where it hasn't; a terminal's view does that itself."""

    def gone(self, reasons: SafetyReason) -> SafetyReason:
        """Return after which of `reasons` the devices must be connected anew."""
        return reasons

    @property
    def works(self) -> bool:
        """Say whether there is a terminal to press keys in."""
        return self._stream is not None


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Yield the keys of the terminal on stdin; the terminal is put back afterwards."""
    before = _settings()
    if before is None:
        yield Keys(None)
        return
    import termios
    import tty

    tty.setcbreak(sys.stdin)
    try:
        yield Keys(sys.stdin)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _settings() -> list[object] | None:
    """Return the settings of the terminal on stdin, or None where keys can't be read from one."""
    try:
        import termios

        settings: list[object] = termios.tcgetattr(sys.stdin)
        # Started with & a program that reads is stopped by the shell.
        in_front = os.getpgrp() == os.tcgetpgrp(sys.stdin.fileno())
    except (ImportError, OSError, ValueError, termios.error):
        return None
    return settings if in_front else None
