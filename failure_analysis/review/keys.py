"""Every key of the review page: one table for the page, its help and the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gaploop.core.vocabulary import FailureMode, GapDimension, Outcome, Phase
from gaploop.failure_analysis.station import words


@dataclass(frozen=True)
class Key:
    """One key, as browsers name it (KeyboardEvent.key), `Shift+` before names of several letters.

    What it does, with which value; actions of `PLAYER` are done by the browser itself.
    """

    key: str
    action: str
    value: str
    label: str
    group: str

    @property
    def cap(self) -> str:
        """What is printed on the key."""
        shifted = len(self.key) == 1 and self.key.isupper()
        return f"⇧{self.key}" if shifted else _CAPS.get(self.key, self.key)


PLAYER: Final = "player"
_CAPS: Final = {
    " ": "Space",
    "ArrowLeft": "←",
    "ArrowRight": "→",
    "ArrowUp": "↑",
    "ArrowDown": "↓",
    "Shift+ArrowLeft": "⇧←",
    "Shift+ArrowRight": "⇧→",
    "Backspace": "⌫",
    "Escape": "Esc",
}

_MODES: Final = {
    FailureMode.FROZEN: "f",
    FailureMode.OSCILLATION: "o",
    FailureMode.DRIFT: "d",
    FailureMode.COLLISION: "c",
    FailureMode.OBSTRUCTION: "b",
    FailureMode.MISSED_GRASP: "m",
    FailureMode.SLIP: "l",
    FailureMode.MISPLACEMENT: "p",
    FailureMode.TIMEOUT: "t",
    FailureMode.OPERATOR_STOP: "x",
}
_PHASES: Final = {
    Phase.APPROACH: "A",
    Phase.GRASP: "G",
    Phase.TRANSPORT: "T",
    Phase.PLACE: "P",
    Phase.RETREAT: "R",
}
_OUTCOMES: Final = {Outcome.SUCCESS: "s", Outcome.FAILURE: "F", Outcome.DISCARDED: "D"}


def _of[T: str](table: dict[T, str], action: str, group: str) -> tuple[Key, ...]:
    return tuple(Key(key, action, str(value), words(value), group) for value, key in table.items())


_GO: Final = "Save and move"
_SEE: Final = "Video"
_LOOK: Final = "Page"

KEYS: Final[tuple[Key, ...]] = (
    Key("Enter", "save", "", "save what the label shows, go to the next that needs you", _GO),
    Key("0", "clear", "", "no mode, no phase, no cause", _GO),
    Key("Backspace", "reset", "", "back to what is suggested", _GO),
    Key("u", "undo", "", "take back what you said last", _GO),
    Key("U", "redo", "", "say it again", _GO),
    Key("n", "next", "", "next episode that needs you, saving nothing", _GO),
    Key("j", "move", "1", "next episode", _GO),
    Key("k", "move", "-1", "episode before", _GO),
    Key("ArrowDown", "move", "1", "next episode", _GO),
    Key("ArrowUp", "move", "-1", "episode before", _GO),
    *_of(_OUTCOMES, "outcome", "How it ended"),
    *_of(_MODES, "mode", "What was seen"),
    *_of(_PHASES, "phase", "When"),
    *_of({d: str(n) for n, d in enumerate(GapDimension, 1)}, "dimension", "Why"),
    Key("+", "weight", "+", "more weight on the dimension pressed last", "Why"),
    Key("-", "weight", "-", "less weight on it", "Why"),
    Key(" ", PLAYER, "toggle", "play, pause", _SEE),
    Key("ArrowLeft", PLAYER, "-1", "one frame back", _SEE),
    Key("ArrowRight", PLAYER, "1", "one frame on", _SEE),
    Key("Shift+ArrowLeft", PLAYER, "-10", "ten frames back", _SEE),
    Key("Shift+ArrowRight", PLAYER, "10", "ten frames on", _SEE),
    Key("Home", PLAYER, "start", "first frame", _SEE),
    Key("End", PLAYER, "end", "last frame", _SEE),
    Key(",", PLAYER, "slower", "slower", _SEE),
    Key(".", PLAYER, "faster", "faster", _SEE),
    Key("e", "note", "", "write a note; Esc or Enter leaves it", _LOOK),
    Key("/", "search", "", "search; Esc leaves it", _LOOK),
    Key("v", "disagreements", "", "only episodes on which people disagree, or all again", _LOOK),
    Key("?", "help", "", "this help", _LOOK),
)

GROUPS: Final = tuple(dict.fromkeys(k.group for k in KEYS))
BY_KEY: Final = {k.key: k for k in KEYS} | {"=": next(k for k in KEYS if k.key == "+")}
"""`=` is `+` without Shift on an American keyboard."""
