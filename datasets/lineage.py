"""`run.json` of a dataset that was made of others: which, by id and hash, and which episodes.

No path stands in it, only names, so that it can be pushed; and no uid, so that takes which are
deleted later leave nothing behind. What the sources were made of stands in it too. Before takes go
anywhere, the consent of the people in them is looked up, and the place is noted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from gaploop.core.consent import (
    Place,
    Use,
    consent_ids,
    load_register,
    note_places,
    require_consent,
)
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256
from gaploop.core.run_record import RUN
from gaploop.core.take import TakeInfo
from gaploop.datasets.edit.compose import DatasetPiece
from gaploop.datasets.layout import read_episodes, read_info

SCHEMA: Final = "gaploop.edit.v1"


def dataset_hash(root: Path) -> str:
    """Return the hash that names a dataset's content: `sha256:` and 16 hexadecimal digits.

    Metadata, labels and numbers count byte by byte; videos and telemetry by name and size.
    """
    digest = hashlib.sha256()
    for folder in ("meta", "data", "videos", "telemetry"):
        for path in sorted(p for p in (root / folder).rglob("*") if p.is_file()):
            content = sha256(path) if folder in ("meta", "data") else str(path.stat().st_size)
            digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def spans(numbers: Iterable[int]) -> str:
    """Return episode numbers in the form that `--episodes` reads: `0:3,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    return ",".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in runs)


def source_of(piece: DatasetPiece) -> dict[str, Any]:
    """Return how `run.json` names a dataset that episodes were taken from."""
    run = read_run(piece.info.root)
    return {
        "name": piece.info.root.name,
        "id": str(run.get("id", "")),
        "hash": dataset_hash(piece.info.root),
        "episodes": spans(piece.chosen),
        "takes": len(piece.chosen),
        "of": len(piece.held),
        **({"run": run} if run else {}),
    }


def read_run(root: Path) -> dict[str, Any]:
    """Return a dataset's `run.json`; empty where it has none that says where it came from."""
    try:
        run = read_json(root / RUN)
    except UnusableInputError:
        return {}
    return run if isinstance(run, dict) and run.get("schema") == SCHEMA else {}


def require_dataset_consent(root: Path, use: Use, on: date | None = None) -> None:
    """Refuse to pass a dataset on where anybody in it doesn't agree, `on` a day (UTC) or today."""
    infos = [episode.info for episode in read_episodes(read_info(root))]
    require_consent(load_register(), infos, use, f"Dataset {root}", on)


def note_and_refuse_withdrawn(takes: Mapping[Path, Sequence[TakeInfo]]) -> None:
    """Note into which new datasets takes go, and refuse those whose consent was withdrawn.

    The place is noted first: a withdrawal at the same moment is seen here, or finds the place.
    """
    infos = [info for placed in takes.values() for info in placed]
    for where, placed in takes.items():
        note_places(placed, Place("dataset", str(where)))
    known = load_register().consents if any(info.consent for info in infos) else {}
    for info in infos:
        for id_ in consent_ids(info.consent):
            if id_ in known and known[id_].withdrawn:
                raise UnusableInputError(
                    f"Episode {info.uid} is of a person who withdrew consent {id_}. Remove it "
                    f"first: gaploop consent withdraw {id_} --yes"
                )
