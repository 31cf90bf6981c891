"""How the `run.json` of an analysis names what went in, by id and hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gaploop.core.files import sha256
from gaploop.core.take import Take


def takes_input(source: Path, takes: Iterable[Take]) -> dict[str, Any]:
    """Return how `run.json` names a set of takes: by uid, outcome and length, not by its bytes."""
    digest, uids = hashlib.sha256(), []
    for take in takes:
        uids.append(take.info.uid)
        digest.update(f"{take.info.uid} {take.outcome} {take.duration_s:.6f}\n".encode())
    return {"root": str(source), "takes": len(uids), "uids": uids, "hash": digest.hexdigest()}


def file_input(path: Path, id_: str = "") -> dict[str, Any]:
    """Return how `run.json` names a file."""
    return {"root": str(path), "id": id_, "hash": sha256(path)}
