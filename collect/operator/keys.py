"""What an operator can ask for, which key asks for it, and the keys of a terminal.

A terminal's keys are heard without Enter by a thread. So the emergency stop is heard whatever the
program does meanwhile: draws, connects an arm anew, waits for an answer, finishes a take.
"""

import codecs
import contextlib
import logging
import math
import os
import queue
import re
import select
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from gaploop.core import platform_calls
from gaploop.teleop.stopping import CleanupStep

log = logging.getLogger(__name__)


class Command(StrEnum):
    """What an operator can ask for."""

    NEXT = "next"
    """Start the episode, end it early, end the reset, pass over a question."""
    RERECORD = "rerecord"
    """Discard the episode and record it again."""
    STOP = "stop"
    """End the session."""
    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"
    ACCEPT = "accept"
    """Take the answer that is marked."""
    UP = "up"
    """An answer further up."""
    DOWN = "down"
    ESTOP = "estop"
    CLEAR = "clear"
    """Clear a trip; twice."""
    TAKE_OVER = "take_over"
    """In a rollout: drive the arm, or let the policy drive it again."""


DEFAULTS: Final[Mapping[Command, tuple[str, ...]]] = {
    Command.NEXT: ("right",),
    Command.RERECORD: ("left",),
    Command.STOP: ("q",),
    Command.SUCCESS: ("s",),
    Command.FAILURE: ("f",),
    Command.DISCARD: ("d",),
    Command.ACCEPT: ("return",),
    Command.UP: ("up",),
    Command.DOWN: ("down",),
    Command.ESTOP: ("space",),
    Command.CLEAR: ("c",),
}
"""Right and left as in lerobot-record; space, c and q as in gaploop teleoperate. Esc is no key of
these: a terminal's arrow keys begin with it, and over a slow line the rest may come later."""
ROLLOUT: Final[Mapping[Command, tuple[str, ...]]] = {**DEFAULTS, Command.TAKE_OVER: ("t",)}
"""With a policy that can be taken over from."""

DRIVE: Final[Mapping[Command, tuple[str, ...]]] = {
    command: DEFAULTS[command] for command in (Command.STOP, Command.ESTOP, Command.CLEAR)
}
"""Where nothing is recorded."""

DIGITS: Final = "1234567890"
"""These choose an answer by its number."""


@dataclass(frozen=True)
class KeyMap:
    """Which key asks for what. A pedal is a key: let it send one of these."""

    keys: Mapping[Command, tuple[str, ...]] = field(default_factory=lambda: DEFAULTS)

    @classmethod
    def of(cls, keys: Mapping[Command, tuple[str, ...]], taken: Collection[str] = ()) -> Self:
        """Return a map without the keys that the leader needs for itself."""
        return cls({c: tuple(k for k in names if k not in taken) for c, names in keys.items()})

    def command(self, key: str) -> Command | None:
        """Return what a key asks for."""
        return next((c for c, keys in self.keys.items() if key in keys), None)

    def name(self, command: Command) -> str:
        """Return the first key of a command as it is shown, such as `→`; "" where it has none."""
        keys = self.keys.get(command, ())
        return _SHOWN.get(keys[0], keys[0].capitalize()) if keys else ""


_SHOWN: Final = {
    "right": "→",
    "left": "←",
    "up": "↑",
    "down": "↓",
    "return": "Enter",
}

AGAIN_S: Final = 3.0
"""The second press must follow the first within this [s]."""
HELD_S: Final = 0.1
"""Presses closer than this are of a key that is held down, or of text that was pasted [s]."""


class Twice:
    """Says when a key was pressed, let go of and pressed again: so a trip is cleared.

    A key that is held down presses itself many times, and so does pasted text: that asks once
    more, and confirms nothing.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._first_s = self._last_s = -math.inf
        self._second_s = math.nan

    def press(self) -> None:
        """Take a press."""
        now_s = self._now_s()
        is_again = now_s - self._last_s >= HELD_S and now_s - self._first_s <= AGAIN_S
        self._last_s = now_s
        if is_again:
            self._second_s = now_s
        else:
            self._first_s, self._second_s = now_s, math.nan

    def forget(self) -> None:
        """Take back what was pressed so far."""
        self._first_s = self._last_s = -math.inf
        self._second_s = math.nan

    @property
    def awaits_confirmation(self) -> bool:
        """Whether the second press is waited for."""
        return self._now_s() - self._first_s <= AGAIN_S

    def confirmed(self) -> bool:
        """Say, once, that it was pressed twice."""
        if not self._now_s() - self._second_s >= HELD_S:
            return False
        self.forget()
        return True


# -- the keys of a terminal ----------------------------------------------------------------------

SPACE: Final = "space"
"""The emergency stop, unless a program gives it to another key."""
_READ: Final = 4096
LOOK_S: Final = 0.1
"""How often it is looked whether Ctrl-C was pressed while an answer is waited for [s]."""


class Keys:
    """Hears keys of a terminal that gives every key at once, while the `with` block runs.

    Knows none where there is no terminal.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self.lost = False
        """The terminal is gone, such as when its window was closed."""
        # Not a SimpleQueue: a signal whose handler outlasts the wait makes it endless (CPython).
        self._heard: queue.Queue[str] = queue.Queue()
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
    f"\x1b{begin}{letter}": name
    for begin in "[O"
    for letter, name in zip("ABCD", ("up", "down", "right", "left"), strict=True)
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
