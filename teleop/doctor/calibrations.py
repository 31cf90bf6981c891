"""Calibration files with their age: LeRobot's of the arms, gaploop's of cameras and latency."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json
from gaploop.teleop.calibration.store import OLD_DAYS as STATION_OLD_DAYS
from gaploop.teleop.calibration.store import load_calibration
from gaploop.teleop.doctor.finding import Finding, Level

AREA: Final = "calibration"
OLD_DAYS: Final = 90.0
"""Screws loosen and horns slip; LeRobot's users saw 17° of drift in a few months [days]."""
_DAY_S: Final = 86400.0
_TYPES: Final = {"so_follower": "so101_follower", "so_leader": "so101_leader"}
"""LeRobot's folder, where it isn't called as the type of its option: both arms are one class."""


def folder() -> Path:
    """Return where LeRobot keeps arm calibrations, by the same variables as LeRobot."""
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    home = Path(os.environ.get("HF_LEROBOT_HOME", cache / "lerobot"))
    return Path(os.environ.get("HF_LEROBOT_CALIBRATION", home / "calibration")).expanduser()


def look(where: Path, now_s: float | None = None) -> list[Finding]:
    """Return every arm calibration under `where` with its age.

    Args:
        where: LeRobot's calibration folder: `robots/<type>/<id>.json`, `teleoperators/…`.
        now_s: the time now [s since 1970].
    """
    now_s = time.time() if now_s is None else now_s
    found = [_one(file, now_s) for file in sorted(where.glob("*/*/*.json"))]
    if found:
        return found
    mend = (
        "Before an arm is used: lerobot-calibrate --robot.type=so101_follower --robot.port=PORT "
        "--robot.id=NAME (a leader: --teleop.type=so101_leader …)"
    )
    return [Finding(AREA, "arms", Level.WARN, f"none in {where}", mend)]


def look_at_station(path: Path) -> list[Finding]:
    """Return the age of each part of gaploop's own calibration file.

    Args:
        path: the file; need not exist.
    """
    try:
        calibration = load_calibration(path, missing_ok=True)
    except UnusableInputError as error:
        return [Finding(AREA, path.name, Level.FAIL, str(error), "Run: gaploop calibrate")]
    ages = calibration.ages_days()
    if not ages:
        mend = "Only takes with cameras need it: gaploop calibrate --help"
        return [
            Finding(AREA, path.name, Level.OK, "no cameras calibrated yet", data={"hint": mend})
        ]
    findings = []
    for name, days in ages.items():
        old = days > STATION_OLD_DAYS
        mend = "Repeat it if anything was touched: gaploop calibrate --help" if old else ""
        level = Level.WARN if old else Level.OK
        data = {"file": str(path), "age_days": days, "id": calibration.id}
        findings.append(Finding(AREA, name, level, f"{days:.0f} days old ({path})", mend, data))
    return findings


def _one(file: Path, now_s: float) -> Finding:
    kind, arm = file.parent.parent.name, file.parent.name
    name = f"{arm} '{file.stem}'"
    flag = "robot" if kind == "robots" else "teleop"
    again = (
        f"lerobot-calibrate --{flag}.type={_TYPES.get(arm, arm)} --{flag}.port=PORT "
        f"--{flag}.id={file.stem}"
    )
    try:
        motors = read_json(file)
        days = max(0.0, now_s - file.stat().st_mtime) / _DAY_S
        flat = [m for m, c in motors.items() if not c["range_min"] < c["range_max"]]
    except (UnusableInputError, *DAMAGE):
        return Finding(AREA, name, Level.FAIL, f"{file} can't be read", f"Run again: {again}")
    data = {"file": str(file), "age_days": days, "motors": len(motors)}
    if flat:
        found = f"empty range of {', '.join(flat)} in {file}"
        return Finding(AREA, name, Level.FAIL, found, f"Run again: {again}", data)
    age = f"{days:.0f} days" if days >= 1 else f"{days * 24:.1f} h"
    found = f"{len(motors)} motors, {age} old ({file})"
    old = days > OLD_DAYS
    mend = f"Screws loosen in such a time. Check it, or run again: {again}" if old else ""
    return Finding(AREA, name, Level.WARN if old else Level.OK, found, mend, data)
