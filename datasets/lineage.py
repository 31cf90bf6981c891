"""`run.json` of a dataset that was made of others: which, by id and hash, and which episodes.

No path stands in it, only names, so that it can be pushed; and no uid, so that takes which are
deleted later leave nothing behind. What the sources were made of stands in it too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256
from gaploop.core.run_record import RUN
from gaploop.datasets.edit.compose import DatasetPiece

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
