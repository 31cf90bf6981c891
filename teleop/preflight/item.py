"""One line of the checklist, and the person who is asked where nothing can be measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Result(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    """The policy may drive; something could be better."""
    FAIL = "fail"
    """The policy must not drive until it is fixed."""
    UNANSWERED = "unanswered"
    """Nobody answered a question, so the policy must not drive."""


class By(StrEnum):
    """Who says so."""

    MACHINE = "machine"
    PERSON = "person"


@dataclass(frozen=True)
class Item:
    """What was checked, how it came out, and how to fix it.

    Attributes:
        name: of the check, such as `joint_order`.
        result: how it came out.
        by: whether it was measured, or a person said so.
        found: what is so, in words.
        fix: what to do about it; "" where nothing is wrong.
        data: the same as numbers and names, for programs.
    """

    name: str
    result: Result
    by: By
    found: str
    mend: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def may_drive(items: Iterable[Item]) -> bool:
    """Say whether nothing stands in the way of a policy."""
    return not any(item.result in (Result.FAIL, Result.UNANSWERED) for item in items)


class Person(Protocol):
    """Somebody beside the arm, or nobody."""

    def asked(self, question: str, choices: Mapping[str, str], *, safety: bool) -> str | None:
        """Ask; return the key of the choice, or None where nobody answers.

        Args:
            question: in one line.
            choices: what may be typed, to what it means.
            safety: only a person's own answer counts; no option may give it.
        """
        ...

    def told(self, what: str) -> bool:
        """Ask for something to be done; return False where nobody is there."""
        ...


def confirmed(
    person: Person,
    name: str,
    question: str,
    mend: str,
    *,
    safety: bool = False,
    data: Mapping[str, Any] | None = None,
) -> Item:
    """Return the item of a question that "yes" settles."""
    answer = person.asked(question, {"y": "yes", "n": "no"}, safety=safety)
    data = {"question": question, **(data or {})}
    if answer == "y":
        return Item(name, Result.OK, By.PERSON, f"{question} Yes.", data=data)
    result = Result.UNANSWERED if answer is None else Result.FAIL
    word = "nobody answered" if answer is None else "no"
    return Item(name, result, By.PERSON, f"{question} {word.capitalize()}.", mend, data)
