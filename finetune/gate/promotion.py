"""The promotion record: what was promoted on which evidence, by hash, to be checked afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, sha256, write_json
from gaploop.core.paths import relative_path
from gaploop.core.run_record import read_run, versions
from gaploop.finetune.gate.folder import OPENED, OUTCOMES, RESULT, SETUP, SIMULATED, commitment
from gaploop.finetune.runs import run_files

SCHEMA: Final = "gaploop.promotion.v1"
PROMOTION: Final = "promotion.json"
WITHDRAWN: Final = "promotion.withdrawn.json"
SUITE: Final = "suite.json"
KEPT: Final = (RESULT, SETUP, OUTCOMES, SIMULATED, SUITE, OPENED)
"""Files of the gate's folder that the record names by hash, where they are there."""


@dataclass(frozen=True)
class RecordFinding:
    """One thing that a record names.

    Attributes:
        ok: it is there and unchanged.
        message: what is wrong with it, or "".
    """

    what: str
    ok: bool
    message: str = ""


def write_promotion(
    folder: Path, policies: Mapping[str, Path], suite: Path | None, recorded: Path | None
) -> Path:
    """Write `promotion.json` beside the gate's result, once all its files are final.

    Args:
        suite: the suite's file, where it has one.
        recorded: the outcomes' file, where they were recorded elsewhere.
    """
    result = read_json(folder / RESULT)
    record = {
        "schema": SCHEMA,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": result["verdict"],
        "message": result["message"],
        "evidence": result["evidence"],
        "stages": {stage["stage"]: stage["answer"] for stage in result["stages"]},
        "not_run": result["not_run"],
        "policies": {side: _policy(path) for side, path in policies.items()},
        "files": {name: sha256(folder / name) for name in KEPT if (folder / name).exists()},
        "sources": {str(path.absolute()): sha256(path) for path in (suite, recorded) if path},
        "versions": versions(),
    }
    record["sha256"] = _own_hash(record)
    write_json(folder / PROMOTION, record)
    return folder / PROMOTION


def withdraw(folder: Path) -> Path | None:
    """Rename the record of a promotion by an earlier stage that doesn't hold any more.

    Returns:
        what it is called now; None where there was none.
    """
    record = folder / PROMOTION
    if not record.exists():
        return None
    return record.replace(folder / WITHDRAWN)


def verify(path: Path) -> list[RecordFinding]:
    """Check everything that a promotion record names.

    Raises:
        UnusableInputError: it isn't a promotion record.
    """
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UnusableInputError(f"{path} is not a {SCHEMA} file. gaploop gate writes one.")
    folder = path.parent
    try:
        same = record.get("sha256") == _own_hash(record)
        found = [RecordFinding("the record itself", same, "" if same else "was changed afterwards")]
        for name, digest in record["files"].items():
            kept = folder / relative_path(name, "file", folder / PROMOTION)
            found.append(_checked(name, kept, digest))
        for name, digest in record["sources"].items():
            found.append(_checked(name, Path(name), digest))
        for side, policy in record["policies"].items():
            found.append(_checked(f"{side} policy", Path(policy["path"]), policy["sha256"]))
            if run := policy["run"]:
                found.append(_checked(f"{side} run.json", Path(run["path"]), run["sha256"]))
        # The order of the attempts has to be the one committed to before the first.
        ok, message = True, "recorded elsewhere"
        if OPENED in record["files"]:
            try:
                setup, key = read_json(folder / SETUP), read_json(folder / OPENED)
                ok = commitment(key) == setup.get("order_sha256")
                message = "" if ok else "isn't the one that the gate began with"
            except UnusableInputError as error:
                ok, message = False, str(error)
        return [*found, RecordFinding("the order of the attempts", ok, message)]
    except DAMAGE:
        raise UnusableInputError(
            f"{path} lacks parts of a promotion record. Restore it, or run the gate again."
        ) from None


def _checked(what: str, path: Path, digest: str) -> RecordFinding:
    if not path.exists():
        return RecordFinding(what, False, f"{path} is gone")
    same = sha256(path) == digest
    return RecordFinding(what, same, "" if same else f"{path} was changed afterwards")


def _policy(path: Path) -> dict[str, Any]:
    """Return how a record names a policy, with the training that it came from, if known."""
    from gaploop.finetune.lerobot_policy import policy_id  # here: torch

    found = {"path": str(path.absolute()), "id": policy_id(path), "sha256": sha256(path)}
    return found | {"run": _run_of(path, found["id"])}


def _run_of(path: Path, identity: str) -> dict[str, Any] | None:
    """Return what a policy was trained on; one from a Hub has that beside it as lineage."""
    from gaploop.finetune.hub_policy import LINEAGE

    for file in (*run_files(path), path / LINEAGE):
        if not file.exists():
            continue
        held = read_run(file)
        result = held["result"]
        named = {result.get("policy", ""), result.get("merged", ""), *result["policies"]}
        named = {*named, str(held.get("policy") or "")} - {""}
        if named and identity not in named:
            continue  # of another policy
        kept = {name: held.get(name) for name in ("id", "seed", "command")}
        shipped = {name: held.get(name) for name in ("base", "datasets")}
        kept["lineage"] = shipped if file.name == LINEAGE else held["lineage"]
        return {"path": str(file.absolute()), "sha256": sha256(file), **kept}
    return None


def _own_hash(record: Mapping[str, Any]) -> str:
    return commitment({name: value for name, value in record.items() if name != "sha256"})
