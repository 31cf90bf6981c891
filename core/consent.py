"""Consent of people who take part: who may be recorded, until when, for what.

A participant is a pseudonymous id such as `c-k3v7q2mzna`, drawn here and nowhere derived from a
name. The register lies outside journals and datasets; names never leave this computer:

consents.jsonl   events {"event": "add" | "withdraw" | "place", "id", "at", …}, appended only
names.json       id to whatever tells the team who it is; mode 0600, optional
bands.json       id to age band, handedness and the like; mode 0600, optional

A take needs consent if people take part in it: it names a consent id, or it was recorded on a
real station with a `human` condition other than "none", or as a demonstration of
`human_behavior`. Simulated people in the embedded cell need none.
"""

import json
import os
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import append_line, json_lines, read_json, write_atomically
from gaploop.core.schema import mapping
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, GapDimension, TakeKind

NOBODY: Final = "none"
"""The `human` condition of an episode without people."""
BANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "age_band": ("18-29", "30-44", "45-59", "60+"),
    "handedness": ("left", "right", "both"),
    "experience": ("none", "some", "daily"),
    "body_type": ("small", "medium", "large"),
    "movement": ("slow", "steady", "quick"),
}
"""What a plan may ask of who takes part; experience is of driving robots, movement the style of it.
Wide enough that a band alone tells nobody who it is; all five together may, in a small team.
Episodes carry the consent id and no band."""
REGISTER: Final = "consents.jsonl"
NAMES: Final = "names.json"
BANDS_FILE: Final = "bands.json"
ENVIRONMENT: Final = "GAPLOOP_CONSENTS"
EVENTS: Final = ("add", "withdraw", "place")
PLACES: Final = ("journal", "dataset", "export", "hub", "cache", "run")
_PRIVATE: Final = 0o600
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"  # base32, RFC 4648 section 6
_ID: Final = re.compile(rf"c-[{_LETTERS}]{{10}}")


class Use(StrEnum):
    """What a participant may agree to; each needs those before it."""

    RECORD = "record"
    """Being recorded into a journal on this station's computers."""
    PUBLISH = "publish"
    """The episode in a dataset that others in the organisation train on."""
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
            raise refused(f"episode {info.uid}: {reason}" if info.uid else reason, use, what)


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
            f"{where}: what may be done with the episodes? One or more of: {', '.join(Use)}."
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


def check_bands(value: Any, where: str) -> dict[str, str]:
    """Return one person's bands, kind to band, or raise UnusableInputError for an unknown one."""
    given = mapping(value, where, "kind: band")
    for kind, band in given.items():
        if kind not in BANDS:
            raise unknown_choice("kind", kind, BANDS, where)
        if band not in BANDS[kind]:
            raise unknown_choice("band", band, BANDS[kind], f"{where}: {kind}")
    return {str(kind): str(band) for kind, band in given.items()}


# -- the register on disk, and what stands beside it --------------------------------------------


def default_register() -> Path:
    """Return where the register lies unless an option says otherwise.

    `$GAPLOOP_CONSENTS`, or `gaploop/consents.jsonl` in `$XDG_DATA_HOME` (XDG Base Directory
    Specification), which is `~/.local/share`.
    """
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "gaploop" / REGISTER


def load_register(path: Path | None = None) -> ConsentRegister:
    """Read the register; an empty one where there is no file, so that nobody is assumed to agree.

    Raises:
        UnusableInputError: a line that can't be read. A torn last line is passed over.
    """
    path = path or default_register()
    consents: dict[str, Consent] = {}
    places: dict[str, list[Place]] = {}
    for event in json_lines(path, "a consent event", _checked):
        id_ = event["id"]
        known = consents.get(id_)
        if event["event"] == "place":
            place = Place(event["what"], event["where"])
            if place not in places.setdefault(id_, []):
                places[id_].append(place)
        elif known is not None and known.withdrawn:
            continue  # that is final
        elif event["event"] == "add":
            consents[id_] = Consent(id_, event["expires"], event["scope"], event["at"])
        elif known is not None:
            consents[id_] = Consent(id_, known.expires, known.scope, known.at, event["at"])
    return ConsentRegister(consents, {k: tuple(v) for k, v in places.items()}, str(path))


def add(path: Path, id_: str, expires: date, scope: frozenset[Use]) -> Consent:
    """Record that a participant agrees, anew or with another term or scope.

    Raises:
        UnusableInputError: the consent was withdrawn, which is final, the scope makes no sense, or
            the file can't be written.
    """
    check_scope(scope)
    known = load_register(path).consents.get(check_id(id_))
    if known is not None and known.withdrawn:
        raise UnusableInputError(
            f"Consent {id_} was withdrawn on {known.withdrawn[:10]}, which is final. If the person "
            "agrees again, make a new id: gaploop consent add"
        )
    scoped = sorted(scope, key=list(Use).index)
    at = _append(path, "add", id_, expires=expires.isoformat(), scope=scoped)
    return Consent(id_, expires, scope, at)


def withdraw(path: Path, id_: str) -> Consent:
    """Record that a participant withdraws; nothing more is recorded, published or pushed then.

    Raises:
        UnusableInputError: no such consent.
    """
    known = get(load_register(path), id_)
    if not known.withdrawn:
        _append(path, "withdraw", id_)
    return get(load_register(path), id_)


def get(register: ConsentRegister, id_: str) -> Consent:
    """Return one consent, or raise UnusableInputError with those there are."""
    if check_id(id_) not in register.consents:
        where = register.name
        raise unknown_choice("consent", id_, register.consents or ("(none yet)",), where)
    return register.consents[id_]


def add_place(path: Path, id_: str, place: Place) -> None:
    """Remember where takes of a participant are put, before they are put there.

    Withdrawing finds them by it. What is known already isn't written again.
    """
    if place not in load_register(path).places.get(id_, ()):
        _append(path, "place", id_, what=place.what, where=place.where)


def refusal_at(path: Path | None, info: TakeInfo, use: Use, place: Place) -> str:
    """Say why a take may not be put in a place for a use; "" where it may.

    The place is remembered first: a withdrawal at the same moment either is seen here, or finds
    the place in the register.
    """
    path = path or default_register()
    ids = consent_ids(info.consent)
    if not ids:
        return ConsentRegister({}, {}, str(path)).refusal(info, use)
    _remember(path, ids, place)
    return load_register(path).refusal(info, use)


def note_places(infos: Iterable[TakeInfo], place: Place) -> None:
    """Remember where takes are copied to, for the participants that the register knows."""
    ids = {part.strip() for info in infos for part in info.consent.split(",")} - {""}
    if ids:
        _remember(default_register(), sorted(ids), place)


def _remember(path: Path, ids: Iterable[str], place: Place) -> None:
    known = load_register(path).consents
    for id_ in ids:
        if id_ in known:
            add_place(path, id_, place)


def note_made_from(place: Place, made_from: Iterable[str | Path | None]) -> None:
    """Remember a run, a cache or a copy for every participant whose takes are in it.

    Known by where the datasets, journals and runs are that it was made from, in the default
    register: no take is read.
    """
    path = default_register()
    if not path.exists():
        return
    roots = [Path(root).expanduser().resolve() for root in made_from if root]
    for id_, places in load_register(path).places.items():
        held = [Path(p.where).resolve() for p in places if p.what in ("journal", "dataset", "run")]
        if any(root.is_relative_to(where) for root in roots for where in held):
            add_place(path, id_, place)


def read_names(path: Path) -> dict[str, str]:
    """Return id to name from `names.json` beside the register; empty where nobody keeps any."""
    return {k: str(v) for k, v in _read_private(path, NAMES).items()}


def read_bands(path: Path) -> dict[str, dict[str, str]]:
    """Return id to kind to band from `bands.json` beside the register."""
    known = _read_private(path, BANDS_FILE)
    return {k: check_bands(v, f"{path.parent / BANDS_FILE}: {k}") for k, v in known.items()}


def set_name(path: Path, id_: str, name: str | None) -> None:
    """Keep a name for an id in `names.json` (mode 0600), or forget it where `name` is None."""
    _set_private(path, NAMES, id_, name)


def set_bands(path: Path, id_: str, bands: Mapping[str, str] | None) -> None:
    """Keep a participant's bands in `bands.json` (mode 0600), or forget them where None."""
    _set_private(path, BANDS_FILE, id_, None if bands is None else check_bands(bands, "--bands"))


def _read_private(path: Path, name: str) -> dict[str, Any]:
    file = path.parent / name
    if not file.exists():
        return {}
    value = read_json(file)
    if not isinstance(value, dict):
        raise UnusableInputError(f"{file} must map ids to {file.stem}. Restore or delete it.")
    return {str(k): v for k, v in value.items()}


def _set_private(path: Path, name: str, id_: str, value: Any) -> None:
    _make_folder(path.parent)
    file = path.parent / name
    if value is None and not file.exists():
        return
    with FileLock(path.parent / f".{name}.lock"):
        known = _read_private(path, name)
        known.pop(id_, None)
        if value is not None:
            known[id_] = value
        write_atomically(file, json.dumps(known, indent=1, ensure_ascii=False) + "\n", _PRIVATE)


def _append(path: Path, event: str, id_: str, **details: Any) -> str:
    at = datetime.now(UTC).isoformat()
    _make_folder(path.parent)
    append_line(path, json.dumps({"event": event, "id": id_, "at": at, **details}))
    return at


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnusableInputError(
            f"{folder} can't be made ({error.strerror}). Name another: GAPLOOP_CONSENTS=FILE."
        ) from None


def _checked(event: dict[str, Any], where: str) -> dict[str, Any]:
    if event["event"] not in EVENTS:
        raise unknown_choice("consent event", event["event"], EVENTS, where)
    found = {"event": event["event"], "id": check_id(event["id"]), "at": str(event["at"])}
    if event["event"] == "add":
        scope = check_scope(event["scope"], f"{where}: scope")
        found |= {"expires": check_day(event["expires"], f"{where}: expires"), "scope": scope}
    elif event["event"] == "place":
        if event["what"] not in PLACES:
            raise unknown_choice("place", event["what"], PLACES, where)
        found |= {"what": event["what"], "where": str(event["where"])}
    return found
