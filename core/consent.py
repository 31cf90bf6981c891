"""Consent of people who take part: who may be recorded, until when, for what.

A participant is a pseudonymous id such as `c-k3v7q2mzna`, drawn here and nowhere derived from a
name. `consents.jsonl`, the register, holds events by id and is only ever appended to; it lies
outside journals and datasets. Names, if anyone keeps them, are in `names.json` beside it,
readable by its owner only (`consent_store`).

A take needs consent if people take part in it: it names a consent id, or it was recorded on a
real station with a `human` condition other than "none", or as a demonstration of
`human_behavior`. Simulated people in the embedded cell need none.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, GapDimension, TakeKind

NOBODY: Final = "none"
"""The `human` condition of a take without people."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"  # base32, RFC 4648 section 6
_ID: Final = re.compile(rf"c-[{_LETTERS}]{{10}}")


class Use(StrEnum):
    """What a participant may agree to; each needs those before it."""

    RECORD = "record"
    """Being recorded into a journal on this station's computers."""
    PUBLISH = "publish"
    """The take in a dataset that others in the organisation train on."""
    PUSH = "push"
    """The dataset on a Hub, where copies can't be called back."""


@dataclass(frozen=True)
class Consent:
    """What one participant has agreed to, as it stands now.

    Attributes:
        expires: last day on which it holds, UTC.
        scope: what it holds for.
        at: when it was given or renewed, ISO 8601, UTC.
        withdrawn: when it was withdrawn, ISO 8601, UTC; "" while it wasn't.
    """

    id: str
    expires: date
    scope: frozenset[Use]
    at: str
    withdrawn: str = ""

    def refusal(self, use: Use, on: date) -> str:
        """Say why it doesn't allow `use` on that day; "" where it does."""
        if self.withdrawn:
            return f"consent {self.id} was withdrawn on {self.withdrawn[:10]}"
        if on > self.expires:
            return f"consent {self.id} expired on {self.expires.isoformat()}"
        if use not in self.scope:
            return f"consent {self.id} doesn't cover '{use}', only {_scope_words(self.scope)}"
        return ""


@dataclass(frozen=True)
class Place:
    """Where takes of a participant were put.

    Attributes:
        what: `journal`, `dataset`, `export` (in another project's layout), `hub`, `cache` (of
            pictures, for training) or `run` (a training or an analysis of them).
        where: absolute path, or repo id on the Hub.
    """

    what: str
    where: str


@dataclass(frozen=True)
class ConsentRegister:
    """What the register says now.

    Attributes:
        places: id to where its takes were put, oldest first.
        name: the register's path, for messages.
    """

    consents: Mapping[str, Consent]
    places: Mapping[str, tuple[Place, ...]]
    name: str = ""

    def refusal(self, info: TakeInfo, use: Use, on: date | None = None) -> str:
        """Say why a take may not be used so on a day, UTC, or today; "" where it may."""
        ids = consent_ids(info.consent)
        if not ids:
            why = takes_part(info)
            return f"{why} and it names no consent" if why else ""
        for id_ in ids:
            if id_ not in self.consents:
                return f"consent {id_} is not in {self.name or 'the register'}"
            reason = self.consents[id_].refusal(use, on or today())
            if reason:
                return reason
        return ""


def consent_ids(text: str) -> tuple[str, ...]:
    """Return the ids that a take's `consent` names, by commas, or raise UnusableInputError."""
    ids = tuple(part.strip() for part in text.split(",") if part.strip())
    for id_ in ids:
        check_id(id_)
    return ids


def check_id(text: str) -> str:
    """Return `text` if it has the form of a consent id, or raise UnusableInputError."""
    if not _ID.fullmatch(text):
        raise UnusableInputError(
            f"'{text}' is not a consent id (c- and ten letters or digits, never a name). "
            "Make one with: gaploop consent add; see those there are with: gaploop consent list"
        )
    return text


def new_id() -> str:
    """Return a new pseudonym: 50 random bits, nothing that leads back to a person."""
    return "c-" + "".join(secrets.choice(_LETTERS) for _ in range(10))


def takes_part(info: TakeInfo) -> str:
    """Say by what a take shows that people take part in it; "" where nothing does.

    Only real stations have people in them: those of the embedded cell are simulated.
    """
    if info.domain is not Domain.REAL:
        return ""
    human = info.conditions.get("human", NOBODY)
    if human not in (NOBODY, "", None):
        return f"people take part (human: {human})"
    demonstrates = info.kind is TakeKind.DEMONSTRATION
    if demonstrates and GapDimension.HUMAN_BEHAVIOR in tuple(info.dimensions):
        return "people take part (it demonstrates human_behavior)"
    return ""


def refused(reason: str, use: Use, what: str) -> UnusableInputError:
    """Return the error for a use of takes, named in words, that the register refuses so."""
    verb = {Use.RECORD: "recorded", Use.PUBLISH: "published", Use.PUSH: "pushed"}[use]
    return UnusableInputError(
        f"{what} can't be {verb}: {reason}. Ask the participant, then: gaploop consent add; "
        "name the id with --consent=ID."
    )


def require_consent(
    register: ConsentRegister,
    infos: Iterable[TakeInfo],
    use: Use,
    what: str,
    on: date | None = None,
) -> None:
    """Refuse a use of takes unless every one of them has valid consent for it on a day, UTC.

    `what` says in the message which takes they are; the day is today unless given.

    Raises:
        UnusableInputError: for the first take that may not be used so.
    """
    for info in infos:
        reason = register.refusal(info, use, on)
        if reason:
            raise refused(f"take {info.uid}: {reason}" if info.uid else reason, use, what)


def check_scope(names: Iterable[str], where: str = "--scope") -> frozenset[Use]:
    """Return what a consent covers; UnusableInputError for nothing, or without what a use needs."""
    scope = set[Use]()
    for name in names:
        try:
            scope.add(Use(name))
        except ValueError:
            raise unknown_choice("use", name, [u.value for u in Use], where) from None
    if not scope:
        raise UnusableInputError(
            f"{where}: what may be done with the takes? One or more of: {', '.join(Use)}."
        )
    order = list(Use)
    needed = set(order[: max(order.index(use) for use in scope) + 1])
    if needed != scope:
        raise UnusableInputError(
            f"{where}={_scope_words(scope)}: '{max(scope, key=order.index)}' also needs "
            f"{_scope_words(needed - scope)}."
        )
    return frozenset(scope)


def check_day(text: str, where: str = "--expires") -> date:
    """Return the day that `text` names as YYYY-MM-DD, or raise UnusableInputError."""
    try:
        return date.fromisoformat(text)
    except (TypeError, ValueError):
        raise UnusableInputError(
            f"{where}={text!r}: give the last day on which the consent holds, as YYYY-MM-DD."
        ) from None


def today() -> date:
    """Return the present day, UTC."""
    return datetime.now(UTC).date()


def _scope_words(scope: Collection[Use]) -> str:
    return ", ".join(use for use in Use if use in scope)
