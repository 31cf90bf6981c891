"""What is kept of a preflight beside the journal, and whether a rollout can rely on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gaploop.collect.rollout import SUCCESSES, SpeedRamp
from gaploop.core.clock import utc_ns
from gaploop.core.errors import DAMAGE, GaploopError
from gaploop.core.files import read_json, writable_folder, write_json
from gaploop.core.vocabulary import Domain
from gaploop.teleop.checks.result import CheckResult, Level

FILE: Final = "preflight.json"
"""In the journal's folder: the newest preflight of the cell."""
SCHEMA: Final = "gaploop.preflight.v1"
OLD_H: Final = 24.0
"""What was checked longer ago is worth checking again [h]: cables, light and cameras move."""


@dataclass(frozen=True)
class Checked:
    """Which policy, by its id, a preflight was for, and which robot: its type and id, in words."""

    policy: str
    robot: str


def check_speed(ramp: SpeedRamp, domain: Domain) -> CheckResult:
    """Return whether a policy that is new to the arm begins slowly."""
    scale, successes = ramp.scale, ramp.successes
    data = {"speed_scale": scale, "successes": successes}
    if domain is Domain.SIM:
        return CheckResult("speed", Level.OK, "a simulated arm; full speed", data=data)
    if successes is None and scale == 1.0:
        found = "--speed_scale=1: the policy drives at full speed from its first attempt"
        fix = f"Leave --speed_scale out: it then begins slowly, and is fast after {SUCCESSES} "
        fix += "successes."
        return CheckResult("speed", Level.FAIL, found, fix, data)
    found = f"begins at {scale:.0%} of its speed"
    if successes is not None:
        found += f", {successes} of {SUCCESSES} successes until full speed"
    return CheckResult("speed", Level.OK, found, data=data)


def write_record(journal: Path, checked: Checked, ok: bool, content: Mapping[str, Any]) -> Path:
    """Write what a preflight found into the journal's folder, made if needed; return the file."""
    file = writable_folder(journal, "Journal", "--journal") / FILE
    at = datetime.fromtimestamp(utc_ns() * 1e-9, UTC).isoformat(timespec="seconds")
    write_json(file, {"schema": SCHEMA, "at": at, **asdict(checked), "ok": ok, **content})
    return file


def missing(journal: Path, checked: Checked) -> str:
    """Return why a rollout can't rely on a preflight, in one line; "" where it can."""
    file = journal / FILE
    if not file.exists():
        return "this arm and policy were never checked together"
    try:
        kept = read_json(file)
        at = datetime.fromisoformat(str(kept["at"]))
        age_h = (utc_ns() * 1e-9 - at.timestamp()) / 3600.0
    except (GaploopError, *DAMAGE):
        return f"{file} can't be read"
    if kept.get("policy") != checked.policy or kept.get("robot") != checked.robot:
        return "the last preflight was for another policy or another arm"
    if not kept.get("ok"):
        return "the last preflight found something that has to be fixed"
    return f"the last preflight is {age_h:.0f} hours old" if age_h > OLD_H else ""
