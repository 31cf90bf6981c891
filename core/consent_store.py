"""The consent register on disk, and the names beside it that never leave this computer.

consents.jsonl   events {"event": "add" | "withdraw" | "place", "id", "at", …}, appended only
names.json       id to whatever tells the team who it is; mode 0600, optional
bands.json       id to age band, handedness and experience; mode 0600, optional
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from gaploop.core.consent import (
    Consent,
    ConsentRegister,
    Place,
    Use,
    check_day,
    check_id,
    check_scope,
    consent_ids,
)
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import append_line, json_lines, read_json, write_atomically
from gaploop.core.participants import check_bands
from gaploop.core.take import TakeInfo

REGISTER: Final = "consents.jsonl"
NAMES: Final = "names.json"
BANDS: Final = "bands.json"
ENVIRONMENT: Final = "GAPLOOP_CONSENTS"
EVENTS: Final = ("add", "withdraw", "place")
PLACES: Final = ("journal", "dataset", "export", "hub", "cache", "run")
_PRIVATE: Final = 0o600


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
    texts = {info.consent for info in infos} - {""}
    if texts:
        ids = sorted({part.strip() for text in texts for part in text.split(",")})
        _remember(default_register(), ids, place)


def _remember(path: Path, ids: Iterable[str], place: Place) -> None:
    known = load_register(path)
    for id_ in ids:
        if id_ in known.consents and place not in known.places.get(id_, ()):
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
    known = _read_private(path, BANDS)
    return {k: check_bands(v, f"{path.parent / BANDS}: {k}") for k, v in known.items()}


def set_name(path: Path, id_: str, name: str | None) -> None:
    """Keep a name for an id in `names.json` (mode 0600), or forget it where `name` is None."""
    _set_private(path, NAMES, id_, name)


def set_bands(path: Path, id_: str, bands: Mapping[str, str] | None) -> None:
    """Keep a participant's bands in `bands.json` (mode 0600), or forget them where None."""
    _set_private(path, BANDS, id_, None if bands is None else check_bands(bands, "--bands"))


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
