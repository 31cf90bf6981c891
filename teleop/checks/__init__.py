"""How a check came out, and the person who is asked where nothing can be measured."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Level(StrEnum):
    """How well it is."""

    OK = "ok"
    WARN = "warn"
    """It works and a policy may drive, but it could be better."""
    FAIL = "fail"
    """It can't be used, and no policy may drive, until it is fixed."""
    UNANSWERED = "unanswered"
    """Nobody answered a question, so no policy may drive."""


class By(StrEnum):
    """Who says so."""

    MACHINE = "machine"
    PERSON = "person"


@dataclass(frozen=True)
class CheckResult:
    """What was checked, how it came out, and how to fix it.

    Attributes:
        check: what was checked, such as `serial port` or `joint_order`.
        data: the same as numbers and names, for programs.
        subject: which one, such as `/dev/ttyACM0`; "" where there is only one.
    """

    check: str
    level: Level
    found: str
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    by: By = By.MACHINE


def all_usable(results: Iterable[CheckResult]) -> bool:
    """Say whether nothing has to be fixed or answered first."""
    return not any(result.level in (Level.FAIL, Level.UNANSWERED) for result in results)


class Person(Protocol):
    """Somebody beside the arm, or nobody."""

    stopped: bool
    """The emergency stop was pressed, or whoever could press it is gone."""

    @property
    def is_there(self) -> bool:
        """Whether somebody can answer."""

    def listening(
        self, estop: Callable[[], None], gone: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        """Call `estop` where it is pressed in the block; `gone` says that nobody waits any more."""

    def ask(self, question: str, choices: Mapping[str, str]) -> str | None:
        """Ask; return the key of the choice, or None where nobody answers."""

    def instruct(self, what: str) -> bool:
        """Ask for something to be done; return False where nobody is there."""
