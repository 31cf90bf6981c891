"""Calibration files with their age: LeRobot's of the arms, gaploop's of cameras and latency."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json
from gaploop.teleop.calibration.store import OLD_DAYS as STATION_OLD_DAYS
from gaploop.teleop.calibration.store import load_calibration
from gaploop.teleop.doctor.finding import DoctorFinding, Level
from gaploop.teleop.servos.ranges import FIX, MotorRange, unusable
from gaploop.teleop.servos.registers import Protocol

AREA: Final = "calibration"
OLD_DAYS: Final = 90.0
"""Screws loosen and horns slip; LeRobot's users saw 17° of drift in a few months [days]."""
_DAY_S: Final = 86400.0
_TYPES: Final = {"so_follower": "so101_follower", "so_leader": "so101_leader"}
"""LeRobot's folder, where it isn't called as the type of its option: both arms are one class."""
_KNOWN: Final = ("so_", "so100_", "so101_", "koch_", "omx_")
"""Arms whose calibrations are of a kind that is known here."""


def folder() -> Path:
    """Return where LeRobot keeps arm calibrations, by the same variables as LeRobot."""
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    home = Path(os.environ.get("HF_LEROBOT_HOME", cache / "lerobot"))
    return Path(os.environ.get("HF_LEROBOT_CALIBRATION", home / "calibration")).expanduser()


def look(where: Path, now_s: float | None = None) -> list[DoctorFinding]:
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
    return [DoctorFinding(AREA, "arms", Level.WARN, f"none in {where}", mend)]


def held_by(where: Path, held: Mapping[int, MotorRange]) -> tuple[Path | None, Path | None, str]:
    """Return whose calibration the motors of a bus hold.

    Args:
        where: as for `look`.
        held: id of each servo to what it holds.

    Returns:
        The file that says the same; else None, the file that is nearest to it, and in what it
        differs. Both are None where no file is of an arm with these servos.
    """
    nearest: tuple[int, Path | None, str] = (len(held) + 1, None, "")
    for file in sorted(where.glob("*/*/*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            motors = json.loads(file.read_text())
            ranges = {int(m["id"]): (name, MotorRange.of(m)) for name, m in motors.items()}
            if set(ranges) != set(held):
                continue
            differ = [i for i, (_, wanted) in ranges.items() if wanted != held[i]]
            if not differ:
                return file, None, ""
            if len(differ) < nearest[0]:
                name, wanted = ranges[differ[0]]
                field = next(
                    f for f in vars(wanted) if getattr(wanted, f) != getattr(held[differ[0]], f)
                )
                words = (
                    f"{name}: {field} {getattr(held[differ[0]], field)} in the motor, "
                    f"{getattr(wanted, field)} in the file"
                )
                nearest = len(differ), file, words
    return None, nearest[1], nearest[2]


def command_for(file: Path) -> str:
    """Return the command that calibrates the arm of a calibration file anew."""
    arm = file.parent.name
    flag = "robot" if file.parent.parent.name == "robots" else "teleop"
    return (
        f"lerobot-calibrate --{flag}.type={_TYPES.get(arm, arm)} --{flag}.port=PORT "
        f"--{flag}.id={file.stem}"
    )


def _unusable(arm: str, motors: Mapping[str, Any]) -> list[str]:
    is_feetech = arm.startswith("so")
    protocol = Protocol.FEETECH if is_feetech else Protocol.DYNAMIXEL
    try:
        ranges = {name: MotorRange.of(motor) for name, motor in motors.items()}
    except (KeyError, TypeError):
        return []  # of an arm that keeps something else
    return list(unusable(protocol, arm, ranges, {})) if arm.startswith(_KNOWN) else []


def look_at_station(path: Path) -> list[DoctorFinding]:
    """Return the age of each part of gaploop's own calibration file.

    Args:
        path: the file; need not exist.
    """
    try:
        calibration = load_calibration(path, missing_ok=True)
    except UnusableInputError as error:
        return [DoctorFinding(AREA, path.name, Level.FAIL, str(error), "Run: gaploop calibrate")]
    ages = calibration.ages_days()
    if not ages:
        mend = "Only takes with cameras need it: gaploop calibrate --help"
        return [
            DoctorFinding(
                AREA, path.name, Level.OK, "no cameras calibrated yet", data={"hint": mend}
            )
        ]
    findings = []
    for name, days in ages.items():
        old = days > STATION_OLD_DAYS
        mend = "Repeat it if anything was touched: gaploop calibrate --help" if old else ""
        level = Level.WARN if old else Level.OK
        data = {"file": str(path), "age_days": days, "id": calibration.id}
        findings.append(
            DoctorFinding(AREA, name, level, f"{days:.0f} days old ({path})", mend, data)
        )
    return findings


def _one(file: Path, now_s: float) -> DoctorFinding:
    arm = file.parent.name
    name = f"{arm} '{file.stem}'"
    again = command_for(file)
    try:
        motors = read_json(file)
        days = max(0.0, now_s - file.stat().st_mtime) / _DAY_S
        flat = [m for m, c in motors.items() if not c["range_min"] < c["range_max"]]
    except (UnusableInputError, *DAMAGE):
        return DoctorFinding(AREA, name, Level.FAIL, f"{file} can't be read", f"Run again: {again}")
    data = {"file": str(file), "age_days": days, "motors": len(motors)}
    wrong = _unusable(arm, motors)
    if wrong and not flat:
        return DoctorFinding(
            AREA, name, Level.FAIL, f"{'; '.join(wrong)} ({file})", f"{FIX}. Run: {again}", data
        )
    if flat:
        found = f"empty range of {', '.join(flat)} in {file}"
        return DoctorFinding(AREA, name, Level.FAIL, found, f"Run again: {again}", data)
    age = f"{days:.0f} days" if days >= 1 else f"{days * 24:.1f} h"
    found = f"{len(motors)} motors, {age} old ({file})"
    old = days > OLD_DAYS
    mend = f"Screws loosen in such a time. Check it, or run again: {again}" if old else ""
    return DoctorFinding(AREA, name, Level.WARN if old else Level.OK, found, mend, data)
