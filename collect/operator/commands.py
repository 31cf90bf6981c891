"""What an operator can ask for, and which key, gamepad button or pedal asks for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice


class Command(StrEnum):
    """What an operator can ask for."""

    NEXT = "next"
    """Start the take, end it early, end the reset, pass over a question."""
    RERECORD = "rerecord"
    """Discard the take and record it again."""
    STOP = "stop"
    """End the session."""
    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"
    ACCEPT = "accept"
    """Take the answer that is marked."""
    PAUSE = "pause"
    """Let the clock between two takes stand still."""
    UNDO = "undo"
    """Take back what was last said about a take."""
    UP = "up"
    """An answer, or a take, further up."""
    DOWN = "down"
    ESTOP = "estop"
    CLEAR = "clear"
    """Clear a trip; twice."""
    TAKE_OVER = "take_over"
    """In a rollout: drive the arm, or let the policy drive it again."""


DEFAULTS: Final[Mapping[Command, tuple[str, ...]]] = MappingProxyType(
    {
        Command.NEXT: ("right",),
        Command.RERECORD: ("left",),
        Command.STOP: ("q",),
        Command.SUCCESS: ("s",),
        Command.FAILURE: ("f",),
        Command.DISCARD: ("d",),
        Command.ACCEPT: ("return",),
        Command.PAUSE: ("p",),
        Command.UNDO: ("u",),
        Command.UP: ("up",),
        Command.DOWN: ("down",),
        Command.ESTOP: ("space",),
        Command.CLEAR: ("c",),
    }
)
"""Right and left as in lerobot-record; space, c and q as in gaploop teleoperate. Esc is no key of
these: a terminal's arrow keys begin with it, and over a slow line the rest may come later."""
ROLLOUT: Final[Mapping[Command, tuple[str, ...]]] = MappingProxyType(
    {**DEFAULTS, Command.TAKE_OVER: ("t",)}
)
"""With a policy that can be taken over from."""

NAMED_KEYS: Final = (
    *("right", "left", "up", "down", "space", "return", "backspace", "tab"),
    *("insert", "delete", "home", "end", "pageup", "pagedown"),
    *(f"f{number}" for number in range(1, 16)),
)
PUNCTUATION: Final = "-=[];',./\\`"
PAD: Final = "pad:"
PAD_BUTTONS: Final = (
    *("a", "b", "x", "y", "back", "guide", "start", "leftstick", "rightstick"),
    *("leftshoulder", "rightshoulder", "dpad_up", "dpad_down", "dpad_left", "dpad_right"),
)
"""SDL's names: the same on every pad that SDL knows."""
DIGITS: Final = "1234567890"
"""These choose an answer by its number and can't be given to anything else."""


def is_key(name: str) -> bool:
    """Say whether a key or gamepad button has this name."""
    if name.startswith(PAD):
        return name.removeprefix(PAD) in PAD_BUTTONS
    letter = len(name) == 1 and (name in PUNCTUATION or "a" <= name <= "z")
    return letter or name in NAMED_KEYS


@dataclass(frozen=True)
class KeyMap:
    """Which key asks for what. A pedal is a key: most send a letter or a function key."""

    keys: Mapping[Command, tuple[str, ...]] = field(default_factory=lambda: DEFAULTS)

    @classmethod
    def of(
        cls,
        changes: Mapping[str, str | Sequence[str]],
        taken: Mapping[str, str] | None = None,
        defaults: Mapping[Command, tuple[str, ...]] = DEFAULTS,
    ) -> KeyMap:
        """Return the default keys with those of `--keys` in their place.

        Args:
            changes: command to a key, or several in a list or separated by spaces.
            taken: keys that the leader needs for itself, to what they do there. A default key
                among them is left out; asking for one is refused.
            defaults: commands there are, and their usual keys.

        Raises:
            UnusableInputError: a command or key that doesn't exist, a key given twice, or a
                command left without a key.
        """
        taken = taken or {}
        for name in changes:
            if name not in defaults:
                raise unknown_choice("command", name, [c.value for c in defaults], "--keys")
        asked: dict[Command, tuple[str, ...]] = {}
        for name, value in changes.items():
            names = value.split() if isinstance(value, str) else [str(key) for key in value]
            given = asked[Command(name)] = tuple(dict.fromkeys(k.strip().lower() for k in names))
            if not given:
                raise UnusableInputError(
                    f"--keys: {name} needs a key. Leave it out for the usual one."
                )
            for key in given:
                if len(key) == 1 and key in DIGITS:
                    raise UnusableInputError(
                        f"--keys: {name} can't be {key}: digits choose an answer. Take another key."
                    )
                if not is_key(key):
                    pads = (f"{PAD}{button}" for button in PAD_BUTTONS)
                    valid = ("a … z", *PUNCTUATION, *NAMED_KEYS, *pads)
                    raise unknown_choice("key", key, valid, f"--keys: {name}")
                if key in taken:
                    raise UnusableInputError(
                        f"--keys: {name} can't be {key}: the leader needs it ({taken[key]}). "
                        "Take another key."
                    )
        wanted = {key for keys in asked.values() for key in keys}
        merged = {
            command: asked.get(command, tuple(k for k in keys if k not in taken))
            for command, keys in defaults.items()
        }
        owner: dict[str, Command] = {}
        for command, keys in merged.items():
            for key in keys:
                other = owner.setdefault(key, command)
                if other is not command:
                    usual = next((c for c in (other, command) if c not in asked), None)
                    more = (
                        f" Give {usual.value} another key too." if usual and key in wanted else ""
                    )
                    raise UnusableInputError(
                        f"--keys: {key} can't be both {other.value} and {command.value}.{more}"
                    )
        return cls(MappingProxyType(merged))

    def command(self, key: str) -> Command | None:
        """Return what a key asks for."""
        return next((c for c, keys in self.keys.items() if key in keys), None)

    def name(self, command: Command) -> str:
        """Return the first key of a command as it is shown, such as `→`; "" where it has none."""
        keys = self.keys.get(command, ())
        return shown(keys[0]) if keys else ""


_SHOWN: Final = {
    "right": "→",
    "left": "←",
    "up": "↑",
    "down": "↓",
    "return": "Enter",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}


def shown(key: str) -> str:
    """Return a key's name as a person reads it on the key."""
    if key.startswith(PAD):
        return f"pad {key.removeprefix(PAD).replace('dpad_', 'd-pad ').upper()}"
    return _SHOWN.get(key, key.capitalize())


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
