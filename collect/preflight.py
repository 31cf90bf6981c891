"""Before a policy may drive: who is asked, what is kept of it, whether a rollout can rely on it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gaploop.collect.operator.keys import Keys, keys
from gaploop.collect.rollout import SOFT, SOFT_UNTIL, SUCCESSES, SpeedRamp
from gaploop.core.clock import utc_ns
from gaploop.core.errors import DAMAGE, GaploopError
from gaploop.core.files import read_json, writable_folder, write_json
from gaploop.core.vocabulary import Domain
from gaploop.teleop.checks.result import CheckResult, Level

FILE: Final = "preflight.json"
"""In the journal's folder: the newest preflight of the cell."""
SCHEMA: Final = "gaploop.preflight.v1"
LOOK_S: Final = 0.1
"""How often it is looked whether Ctrl-C was pressed while an answer is waited for [s]."""
OLD_H: Final = 24.0
"""What was checked longer ago is worth checking again [h]: cables, light and cameras move."""


@dataclass(frozen=True)
class Checked:
    """Which policy, by its id, a preflight was for, and which robot: its type and id, in words.

    Attributes:
        runs: where and how the policy computes, in words.
    """

    policy: str
    robot: str
    runs: str = ""


def check_speed(ramp: SpeedRamp, domain: Domain) -> CheckResult:
    """Return how fast a policy begins that is new to the arm."""
    data = {"speed_scale": ramp.scale, "successes": ramp.successes}
    found = "a simulated arm; full speed"
    if domain is not Domain.SIM:
        found = f"begins at {ramp.scale:.0%} of its speed, {ramp.successes} of {SUCCESSES} "
        found += "successes until full speed"
        found += f"; {SOFT}" if (ramp.successes or 0) < SOFT_UNTIL else ""
    return CheckResult("speed", Level.OK, found, data=data)


def write_record(journal: Path, checked: Checked, ok: bool, content: Mapping[str, Any]) -> Path:
    """Write what a preflight found into the journal's folder, made if needed; return the file."""
    file = writable_folder(journal, "Journal", "--journal") / FILE
    at = datetime.fromtimestamp(utc_ns() * 1e-9, UTC).isoformat(timespec="seconds")
    write_json(file, {"schema": SCHEMA, "at": at, **asdict(checked), "ok": ok, **content})
    return file


def missing(journal: Path, checked: Checked) -> str:
    """Return why a rollout can't rely on a preflight, in one line; "" where it can."""
    file = journal / FILE
    if not file.exists():
        return "this arm and policy were never checked together"
    try:
        kept = read_json(file)
        at = datetime.fromisoformat(str(kept["at"]))
        age_h = (utc_ns() * 1e-9 - at.timestamp()) / 3600.0
    except (GaploopError, *DAMAGE):
        return f"{file} can't be read"
    if kept.get("policy") != checked.policy or kept.get("robot") != checked.robot:
        return "the last check was of another policy or another arm"
    if kept.get("runs", "") != checked.runs:
        return f"the last check was with the policy on {kept.get('runs') or 'another machine'}"
    if not kept.get("ok"):
        return "the last check found something that has to be fixed"
    return f"the last check is {age_h:.0f} hours old" if age_h > OLD_H else ""


class Terminal:
    """A `Person` asked on stderr, who answers by keys; nobody if standard input is no terminal."""

    def __init__(self) -> None:
        self._gone: Callable[[], bool] = lambda: False
        self._keys = Keys()
        self._typed: list[str] = []
        self.stopped = False
        """The emergency stop was pressed, or the terminal was closed."""

    @property
    def is_there(self) -> bool:
        """Whether somebody can answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    @contextlib.contextmanager
    def listening(self, estop: Callable[[], None], gone: Callable[[], bool]) -> Iterator[None]:
        """Hear the space bar while the block runs, asked or not: it stops the arm."""
        self._gone = gone

        def stop() -> None:
            self.stopped = True
            estop()

        with keys() as self._keys:
            self._keys.listen(stop)
            yield
        self._keys = Keys()

    def ask(self, question: str, choices: Mapping[str, str]) -> str | None:
        """Ask until one of the choices is typed; None where nobody is there."""
        if not self.is_there:
            return None
        menu = ", ".join(f"{key} {meaning}" for key, meaning in choices.items())
        with contextlib.ExitStack() as held:
            heard = self._keys if self._keys.works else held.enter_context(keys())
            while not self._gone() and not self.stopped:
                _say(f"\n{question}\n  {menu}: ")
                typed = self._line(heard)
                if typed is None or typed in choices:
                    return typed
        return None

    def instruct(self, what: str) -> bool:
        """Ask for something to be done."""
        if self.is_there:
            _say(f"\n{what}\n")
        return self.is_there

    def _line(self, heard: Keys) -> str | None:
        """Return what is typed up to Enter, shown as it is typed; None where nobody does."""
        line = ""
        while heard.works and not self._gone() and not self.stopped:
            self._typed += [] if self._typed else heard.presses(LOOK_S)
            name = self._typed.pop(0) if self._typed else ""
            if name == "return":
                _say("\n")
                return line
            if name == "backspace" and line:
                line = line[:-1]
                _say("\b \b")
            elif len(name) == 1:
                line += name
                _say(name)
        return None


def _say(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()
