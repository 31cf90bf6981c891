"""`run.json`: what a run was made from, by id and hash, with which versions, what came of it.

The one writer of it. Where a run is made from takes of people, its folder is noted in the consent
register, so that a withdrawal finds what was trained on them or shows them.
"""

import functools
import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gaploop.core.consent import Place, note_made_from
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, sha256, uuid7, write_json
from gaploop.core.take import Take

RUN: Final = "run.json"
SCHEMA: Final = "gaploop.run.v1"
PACKAGES: Final = (
    "gaploop", "lerobot", "torch", "peft", "mujoco", "so101-nexus", "numpy", "scipy",
    "opencv-python-headless",
)  # fmt: skip
"""Those that decide a result."""


def write_run(
    folder: Path,
    command: str,
    config: Mapping[str, Any],
    inputs: Iterable[Mapping[str, Any]],
    result: Mapping[str, Any],
    *,
    seed: int | None = None,
    base: str = "",
    base_folder: Path | None = None,
) -> None:
    """Write `run.json` of a training or an analysis by `command` to its folder.

    Args:
        config: every option, as given or by default.
        inputs: each dataset, journal or file: `root`, hash (`sha256` or `hash`), `uids`, `plans`.
        result: what came of it; its `id` is the run's, if it has one.
        base: id of the policy that training started from, or ""; it is in `base_folder`.
    """
    inputs = list(inputs)
    lineage = {
        "base": base,
        "datasets": [str(e.get("sha256") or e.get("hash") or "") for e in inputs],
        "plans": sorted({plan for e in inputs for plan in e.get("plans", ())}),
        "takes": [uid for e in inputs for uid in e.get("uids", ())],
    }
    more = {"argv": [Path(sys.argv[0]).name, *sys.argv[1:]], "seed": seed, "lineage": lineage}
    write_record(folder, SCHEMA, command, config, inputs, result, more)
    roots = [e["root"] for e in inputs if e.get("root")]
    note_made_from(Place("run", str(folder.absolute())), [*roots, base_folder])


def read_run(path: Path) -> dict[str, Any]:
    """Read a `run.json` that somebody else may have written.

    `config`, `inputs`, `result` and `lineage` are there; uids and ids are text.

    Raises:
        UnusableInputError: it is missing, or no record of a run.
    """
    value = read_json(path)
    try:
        inputs = [dict(entry) for entry in value.get("inputs") or ()]
        for entry in inputs:
            entry |= {k: [str(v) for v in entry[k] or ()] for k in ("uids", "plans") if k in entry}
        parts = {key: dict(value.get(key) or {}) for key in ("config", "result", "lineage")}
        result, lineage = parts["result"], parts["lineage"]
        result |= {k: str(result[k] or "") for k in ("policy", "merged") if k in result}
        result["policies"] = [str(policy) for policy in result.get("policies") or ()]
        lineage["base"] = str(lineage.get("base") or "")
    except DAMAGE:
        raise UnusableInputError(
            f"{path} is no record of a run. Restore it, or move it away."
        ) from None
    return {**value, **parts, "inputs": inputs}


def write_record(
    folder: Path,
    schema: str,
    command: str,
    config: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write what every `run.json` holds, and `more`; as of `write_run`."""
    write_json(
        folder / RUN,
        {
            "schema": schema,
            "id": result.get("id") or uuid7(),
            "command": command,
            "at": datetime.now(UTC).isoformat(),
            "versions": versions(),
            "config": dict(config),
            "inputs": list(inputs),
            "result": dict(result),
            **(more or {}),
        },
    )


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


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
