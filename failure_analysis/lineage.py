"""`run.json` of an analysis: what went in, by id and hash, which versions, what came of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gaploop.core.files import sha256, write_json
from gaploop.core.take import Take

SCHEMA: Final = "gaploop.run.v1"
PACKAGES: Final = ("gaploop", "lerobot", "mujoco", "numpy", "scipy", "opencv-python-headless")


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


def write_run(
    folder: Path,
    command: str,
    config: Mapping[str, Any],
    inputs: Iterable[Mapping[str, Any]],
    result: Mapping[str, Any],
) -> None:
    """Write `run.json` to `folder`.

    Args:
        folder: the run's folder.
        command: which command ran.
        config: every option, as given or by default.
        inputs: what `takes_input` and `file_input` return.
        result: what came of it; its `id` is the run's.
    """
    versions = {name: _version(name) for name in PACKAGES}
    write_json(
        folder / "run.json",
        {
            "schema": SCHEMA,
            "id": result.get("id", ""),
            "command": command,
            "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "at": datetime.now(UTC).isoformat(),
            "versions": {"python": platform.python_version(), **versions},
            "config": dict(config),
            "inputs": list(inputs),
            "result": dict(result),
        },
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
