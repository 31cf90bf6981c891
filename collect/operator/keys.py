"""Keys from the terminal, without waiting and without Enter: every program hears them here.

A thread reads them. So the emergency stop is heard whatever the program does meanwhile: draws,
connects an arm anew, waits for an answer, finishes a take.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import queue
import re
import select
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Self

from gaploop.core import platform_calls
from gaploop.core.protocols import Leader
from gaploop.teleop.stopping import CleanupStep

log = logging.getLogger(__name__)

SPACE: Final = "space"
"""The emergency stop, unless a program gives it to another key."""
_READ: Final = 4096


class Keys:
    """Hears keys of a terminal that gives every key at once, while the `with` block runs.

    Knows none where there is no terminal.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self.lost = False
        """The terminal is gone, such as when its window was closed."""
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._decoder = KeyDecoder()
        self._stop: Callable[[], None] | None = None
        self._stop_keys: Collection[str] = (SPACE,)
        self._unheeded = False
        self._thread = threading.Thread(target=self._read_all, name="keys", daemon=True)
        self._over: tuple[int, int] | None = None

    # -- whoever waits for keys -------------------------------------------------------------

    def listen(self, stop: Callable[[], None], stop_keys: Collection[str] = (SPACE,)) -> None:
        """Call `stop` at once, in the reader's thread, whenever one of `stop_keys` is pressed.

        Also when the terminal is gone. A stop that nobody has heeded yet, because it came while
        nothing listened, is called now.
        """
        self._stop, self._stop_keys = stop, stop_keys
        if self._unheeded or self.lost:
            self._call_stop()

    def deaf(self) -> None:
        """Call nothing any more: what was stopped is disconnected."""
        self._stop = None

    def presses(self, timeout_s: float) -> list[str]:
        """Return the names of the keys pressed since, as on them: `s`, `right`; stops first.

        Waits up to `timeout_s` [s] for the first.
        """
        if not self.works:
            time.sleep(timeout_s)
            return []
        names: list[str] = []
        with contextlib.suppress(queue.Empty):
            names.append(self._heard.get(timeout=timeout_s))
            while True:
                names.append(self._heard.get_nowait())
        self._unheeded = False
        return sorted(filter(None, names), key=lambda name: name not in self._stop_keys)

    def say(self, trip: str) -> None:
        """Show why the arm has tripped, "" where it hasn't; a terminal's view does that itself."""

    @property
    def clear_hint(self) -> str:
        """How a trip is cleared, such as `press c twice`; "" where there is nothing to press."""
        return "press c twice" if self.works else ""

    @property
    def works(self) -> bool:
        """Say whether there is a terminal to press keys in."""
        return self._fd is not None and not self.lost

    # -- the reader -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._fd is not None:
            # Typed before there was anything to see: of that only a stop counts.
            while select.select([self._fd], [], [], 0.0)[0] and not self.lost:
                self._unheeded |= SPACE in self._read()
            self._decoder = KeyDecoder()
            self._over = os.pipe()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._over is not None:
            ends, tell = self._over
            os.write(tell, b".")
            self._thread.join()
            os.close(ends)
            os.close(tell)
            self._over = None

    def _read_all(self) -> None:
        assert self._fd is not None
        assert self._over is not None
        while not self.lost:
            ready, _, _ = select.select([self._fd, self._over[0]], [], [])
            if self._over[0] in ready:
                return
            names = self._read()
            if self.lost or any(name in self._stop_keys for name in names):
                self._call_stop()
            for name in names if not self.lost else [""]:  # "" wakes whoever waits
                self._heard.put(name)

    def _read(self) -> list[str]:
        assert self._fd is not None
        try:
            data = os.read(self._fd, _READ)
        except OSError:  # hung up, or read from the background
            data = b""
        self.lost = not data
        return self._decoder.feed(data)

    def _call_stop(self) -> None:
        stop = self._stop
        self._unheeded = stop is None
        if stop is not None:
            with CleanupStep() as attempt:
                stop()
            if attempt.error is not None:
                log.error("the emergency stop failed: %s", attempt.error)


_NAMED: Final = {
    **{
        f"\x1b{begin}{letter}": name
        for begin in "[O"
        for letter, name in zip("ABCD", ("up", "down", "right", "left"), strict=True)
    },
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[2~": "insert",
    "\x1b[3~": "delete",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    **{f"\x1bO{letter}": f"f{number}" for number, letter in enumerate("PQRS", 1)},
    **{
        f"\x1b[{code}~": f"f{number}"
        for number, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)
    },
}
"""What a terminal sends for keys without a letter (xterm's control sequences)."""
_CONTROLS: Final = {
    "\n": "return",
    "\r": "return",
    "\t": "tab",
    "\x1b": "",  # see KeyDecoder
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x00": SPACE,  # with Ctrl
    "\x1a": SPACE,  # Ctrl-Z, which would leave the arm held by a program that stands still
}
# A space ends any sequence: no key sends one within, and it may be somebody's emergency stop.
_SEQUENCE: Final = re.compile(r"\x1b(?:\[\[[A-E]|\[[0-?]*[!-/]*[@-Z\\-~]|O[!-~])")
_BEGUN: Final = re.compile(r"\x1b(?:\[\[|\[[0-?]*[!-/]*|O)?")


class KeyDecoder:
    """From a terminal's bytes, in whatever pieces and however late they come, to the names of keys.

    Esc is no key here: an arrow begins with the same byte, and over a slow line its rest comes at
    any time. Taken for Esc and letters, `←` ended the session and discarded the take.
    """

    def __init__(self) -> None:
        self._letters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that are whole by now; a space always is."""
        text, names = self._rest + self._letters.decode(data), []
        self._rest = ""
        while text:
            if found := _SEQUENCE.match(text):
                names.append(_NAMED.get(found[0], ""))  # one that isn't known is no command
                text = text[found.end() :]
            elif text[0] == "\x1b" and _BEGUN.fullmatch(text):
                self._rest, text = text, ""
            else:
                letter, text = text[0], text[1:]
                name = letter.lower() if letter.isprintable() else ""
                if unicodedata.category(letter) == "Zs":  # also with AltGr, or another keyboard
                    name = SPACE
                names.append(_CONTROLS.get(letter, name))
        return [name for name in names if name]


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Yield the keys of the terminal on stdin; the terminal is put back afterwards.

    Meanwhile neither Ctrl-S nor Ctrl-Z holds the program up: it may have an arm to look after.
    """
    with platform_calls.key_by_key(sys.stdin) as works:
        if not works:
            yield Keys()
            return
        with Keys(sys.stdin.fileno()) as heard:
            yield heard


PUMP_S: Final = 0.02
"""The window's events are handled this often [s]; an input of 0.1 s counts as let go of."""


class WindowKeys(Keys):
    """The terminal's keys, while the window of a leader with `pump` and `listen` is kept alive.

    Clearing a trip in the window counts as `c`, so there, too, it takes two presses; its
    emergency stop counts as the space bar, and calls `estop` at once.
    """

    def __init__(self, terminal: Keys, leader: Any, estop: Callable[[], None]) -> None:
        super().__init__()
        self._terminal, self._leader, self._estop = terminal, leader, estop
        self._trip = ""
        self._pressed: list[str] = []
        leader.listen(self._stopped, lambda: self._pressed.append("c"))

    @classmethod
    def of(cls, terminal: Keys, leader: Leader | None, estop: Callable[[], None]) -> Keys:
        """Return the terminal's keys, with the window's where the leader has one."""
        return cls(terminal, leader, estop) if hasattr(leader, "pump") else terminal

    def presses(self, timeout_s: float) -> list[str]:
        """Handle the window's events and return what was pressed within `timeout_s` [s]."""
        until_s = time.monotonic() + timeout_s
        while True:
            self._leader.pump(self._trip)
            pressed, self._pressed = self._pressed, []
            left_s = until_s - time.monotonic()
            wait_s = 0.0 if pressed else min(PUMP_S, max(left_s, 0.0))
            pressed += self._terminal.presses(wait_s)
            if pressed or left_s <= 0.0:
                return sorted(pressed, key=lambda name: name != SPACE)

    def say(self, trip: str) -> None:
        """Show in the window why the arm has tripped; "" where it hasn't."""
        self._trip = trip

    @property
    def clear_hint(self) -> str:
        """How a trip is cleared in the window, or on a page elsewhere."""
        return str(getattr(self._leader, "clear_hint", "press Enter or Start twice"))

    @property
    def works(self) -> bool:
        """A window has keys, whether or not there is a terminal."""
        return True

    def _stopped(self) -> None:
        self._estop()
        self._pressed.append(SPACE)
