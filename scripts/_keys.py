"""Single keys from the terminal, without waiting and without Enter."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Final, TextIO

from gaploop.core import platform_calls
from gaploop.core.types import SafetyReason


class Keys:
    """Reads keys from a terminal that is in cbreak mode; knows none where there is no terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def wait(self, timeout_s: float) -> str:
        """Return the next key within `timeout_s` [s], or the empty text."""
        if self._stream is None:
            return ""
        if not platform_calls.has_input(self._stream, timeout_s):
            return ""
        pressed = os.read(self._stream.fileno(), 32)
        # An arrow key sends several bytes that begin with ESC: none of them is a command.
        return "" if pressed[:1] in (b"", b"\x1b") else pressed[:1].decode(errors="ignore")

    def presses(self, timeout_s: float) -> list[str]:
        """Return the names of the keys pressed within `timeout_s` [s], as on them: `s`, `right`."""
        if self._stream is None:
            time.sleep(timeout_s)
            return []
        if not platform_calls.has_input(self._stream, timeout_s):
            return []
        return key_names(os.read(self._stream.fileno(), 64))

    def say(self, trip: str) -> None:
        """Show why the arm has tripped, "" where it hasn't; a terminal's view does that itself."""

    def gone(self, reasons: SafetyReason) -> SafetyReason:
        """Return after which of `reasons` the devices must be connected anew."""
        return reasons

    @property
    def works(self) -> bool:
        """Say whether there is a terminal to press keys in."""
        return self._stream is not None


_SEQUENCES: Final = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[2~": "insert",
    b"\x1b[3~": "delete",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1bOP": "f1",
    b"\x1bOQ": "f2",
    b"\x1bOR": "f3",
    b"\x1bOS": "f4",
    **{
        b"\x1b[%d~" % code: f"f{number}"
        for number, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)
    },
}
"""What a terminal sends for keys without a letter (xterm's control sequences)."""
_CONTROLS: Final = {
    "\n": "return",
    "\r": "return",
    "\t": "tab",
    " ": "space",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\x08": "backspace",
}


def key_names(pressed: bytes) -> list[str]:
    """Return the names of the keys whose bytes a terminal sent."""
    names: list[str] = []
    while pressed:
        known = next((s for s in _SEQUENCES if pressed.startswith(s)), b"")
        if known:
            names.append(_SEQUENCES[known])
            pressed = pressed[len(known) :]
            continue
        letter = pressed[:1].decode(errors="ignore")
        names.append(_CONTROLS.get(letter, letter.lower()))
        pressed = pressed[1:]
    return [name for name in names if name]


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Yield the keys of the terminal on stdin; the terminal is put back afterwards."""
    with platform_calls.key_by_key(sys.stdin) as works:
        yield Keys(sys.stdin if works else None)
