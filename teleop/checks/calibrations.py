"""Calibrations: LeRobot's of the arms, with their age and what motors hold; and the station's own.

LeRobot keeps a file for each arm; gaploop keeps one for a station's cameras and latencies.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.protocols import Follower
from gaploop.teleop.calibration.drift import CalibrationSighting, before_recording
from gaploop.teleop.calibration.hand_eye import MAX_RESIDUAL_MM
from gaploop.teleop.calibration.intrinsics import MAX_RMS_PX
from gaploop.teleop.calibration.store import OLD_DAYS as STATION_OLD_DAYS
from gaploop.teleop.calibration.store import CellCalibration, load_calibration
from gaploop.teleop.checks.result import By, CheckResult, Level, Person
from gaploop.teleop.servos.ranges import FIX, MotorRange, unusable
from gaploop.teleop.servos.registers import Protocol

NAME: Final = "calibration"
OLD_DAYS: Final = 90.0
"""Screws loosen and horns slip; LeRobot's users saw 17° of drift in a few months [days]."""
_DAY_S: Final = 86400.0
_TYPES: Final = {"so_follower": "so101_follower", "so_leader": "so101_leader"}
"""LeRobot's folder, where it isn't called as the type of its option: both arms are one class."""
_KNOWN: Final = ("so_", "so100_", "so101_", "koch_", "omx_")
"""Arms whose calibrations are of a kind that is known here."""
_QUALITY: Final = (
    ("intrinsics", "rms_px", MAX_RMS_PX, "px"),
    ("hand_eye", "held_out_mm", MAX_RESIDUAL_MM, "mm"),
)
"""Part of a camera's calibration, the figure that says how good it is, and the most it may be."""


# --- arms, as LeRobot keeps them ---------------------------------------------------------------


def arm_folder() -> Path:
    """Return where LeRobot keeps arm calibrations, by the same variables as LeRobot."""
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    home = Path(os.environ.get("HF_LEROBOT_HOME", cache / "lerobot"))
    return Path(os.environ.get("HF_LEROBOT_CALIBRATION", home / "calibration")).expanduser()


def check_arm_files(where: Path, now_s: float | None = None) -> list[CheckResult]:
    """Return every arm calibration in LeRobot's folder `where`, with its age at `now_s` [s]."""
    now_s = time.time() if now_s is None else now_s
    results = [check_arm_file(file, now_s) for file in sorted(where.glob("*/*/*.json"))]
    if results:
        return results
    fix = (
        "Before an arm is used: lerobot-calibrate --robot.type=so101_follower --robot.port=PORT "
        "--robot.id=NAME (a leader: --teleop.type=so101_leader …)"
    )
    return [CheckResult(NAME, Level.WARN, f"none in {where}", fix, subject="arms")]


def check_arm_file(file: Path, now_s: float) -> CheckResult:
    """Return whether an arm can be driven with its `<type>/<id>.json`, and its age at `now_s`."""
    arm, again = file.parent.name, command_for(file)
    name = f"{arm} '{file.stem}'"
    try:
        motors = read_json(file)
        days = max(0.0, now_s - file.stat().st_mtime) / _DAY_S
        flat = [m for m, c in motors.items() if not c["range_min"] < c["range_max"]]
    except (UnusableInputError, *DAMAGE):
        found = f"{file} can't be read"
        return CheckResult(NAME, Level.FAIL, found, f"Run again: {again}", subject=name)
    data = {"file": str(file), "age_days": days, "motors": len(motors)}
    if flat:
        found = f"empty range of {', '.join(flat)} in {file}"
        return CheckResult(NAME, Level.FAIL, found, f"Run again: {again}", data, name)
    if arm.startswith(_KNOWN):
        protocol = Protocol.FEETECH if arm.startswith("so") else Protocol.DYNAMIXEL
        with contextlib.suppress(KeyError, TypeError):  # of an arm that keeps something else
            ranges = {motor: MotorRange.of(kept) for motor, kept in motors.items()}
            wrong = "; ".join(unusable(protocol, arm, ranges, {}))
            if wrong:
                fix = f"{FIX}. Run: {again}"
                return CheckResult(NAME, Level.FAIL, f"{wrong} ({file})", fix, data, name)
    age = f"{days:.0f} days" if days >= 1 else f"{days * 24:.1f} h"
    found = f"{len(motors)} motors, {age} old ({file})"
    if days <= OLD_DAYS:
        return CheckResult(NAME, Level.OK, found, data=data, subject=name)
    fix = f"Screws loosen in such a time. Check it, or run again: {again}"
    return CheckResult(NAME, Level.WARN, found, fix, data, name)


def command_for(file: Path) -> str:
    """Return the command that calibrates the arm of a calibration file anew."""
    arm = file.parent.name
    flag = "robot" if file.parent.parent.name == "robots" else "teleop"
    return (
        f"lerobot-calibrate --{flag}.type={_TYPES.get(arm, arm)} --{flag}.port=PORT "
        f"--{flag}.id={file.stem}"
    )


def calibration_owner(
    where: Path, held: Mapping[int, MotorRange]
) -> tuple[Path | None, Path | None, str]:
    """Return whose calibration, in LeRobot's folder `where`, the motors of a bus hold, by id.

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
            differ = [
                f"{name}: {held[i].other_than(wanted)}"
                for i, (name, wanted) in ranges.items()
                if wanted != held[i]
            ]
            if not differ:
                return file, None, ""
            if len(differ) < nearest[0]:
                nearest = len(differ), file, differ[0]
    return None, nearest[1], nearest[2]


# --- the station's own -------------------------------------------------------------------------


def _load(path: Path, subject: str) -> CellCalibration | CheckResult:
    try:
        return load_calibration(path, missing_ok=True)
    except UnusableInputError as error:
        fix = "Run: gaploop calibrate"
        return CheckResult(NAME, Level.FAIL, str(error), fix, subject=subject)


def check_station_ages(path: Path) -> list[CheckResult]:
    """Return the age of each part of gaploop's own calibration file, which need not exist."""
    calibration = _load(path, path.name)
    if isinstance(calibration, CheckResult):
        return [calibration]
    results = []
    for name, days in calibration.ages_days().items():
        level, fix = Level.OK, ""
        if days > STATION_OLD_DAYS:
            level, fix = Level.WARN, "Repeat it if anything was touched: gaploop calibrate --help"
        data = {"file": str(path), "age_days": days, "id": calibration.id}
        results.append(CheckResult(NAME, level, f"{days:.0f} days old ({path})", fix, data, name))
    if results:
        return results
    data = {"hint": "Only takes with cameras need it: gaploop calibrate --help"}
    return [CheckResult(NAME, Level.OK, "no cameras calibrated yet", "", data, path.name)]


def check_station(
    path: Path, follower: Follower, cameras: Sequence[str], person: Person
) -> Iterator[CheckResult]:
    """Yield how well every camera is calibrated, and what has changed since.

    The arm is at rest: its pose is compared with the stored one. `cameras` are those that the
    policy sees the scene with; `person` is asked about one that isn't calibrated.
    """
    calibration = _load(path, "")
    if isinstance(calibration, CheckResult):
        yield calibration
        return
    for camera in cameras:
        parts = calibration.get("cameras", camera) or {}
        measured = [
            (part, float(parts[part].get(key, math.inf)), limit, unit)
            for part, key, limit, unit in _QUALITY
            if part in parts
        ]
        data: dict[str, Any] = {"camera": camera, **{part: value for part, value, *_ in measured}}
        found = f"{camera}: " + ", ".join(
            f"{part} {value:.2g} of at most {limit:g} {unit}"
            for part, value, limit, unit in measured
        )
        poor = [part for part, value, limit, _ in measured if not value <= limit]
        if poor:
            fix = f"Run: gaploop calibrate {poor[0]} FOLDER --camera_name={camera}"
            yield CheckResult(NAME, Level.FAIL, found, fix, data)
            continue
        if len(measured) == len(_QUALITY):
            yield CheckResult(NAME, Level.OK, found, data=data)
            continue
        is_so = "isn't calibrated"
        if measured:  # intrinsics don't say where it stands
            is_so = "has no hand-eye calibration" if "intrinsics" in data else "has no intrinsics"
        question = (
            f"Camera {camera} {is_so}. Does it stand where it stood when the policy's takes were "
            "recorded?"
        )
        answer = person.ask(question, {"y": "yes", "n": "no"}, safety=False)
        level, word = Level.FAIL, "No"
        fix = f"Run: gaploop calibrate intrinsics, then hand_eye, --camera_name={camera}"
        if answer is None:
            level, word = Level.UNANSWERED, "Nobody answered"
        elif answer == "y":
            level, word, fix = Level.OK, "Yes", ""
        data = {"question": question, **data}
        yield CheckResult(NAME, level, f"{question} {word}.", fix, data, by=By.PERSON)
    name = model_of(follower.robot_type)
    own: Mapping[str, Any] = vars(follower) if hasattr(follower, "__dict__") else {}
    changed = before_recording(
        calibration,
        CalibrationSighting(follower.read().position_rad, follower.joint_names),
        arm=ArmModel.load(name) if name else None,
        arm_file=getattr(own.get("device"), "calibration_fpath", None),
    )
    if changed:
        fix = "Repeat what is named, or store the pose anew: gaploop calibrate drift --store"
        yield CheckResult(NAME, Level.WARN, " ".join(changed), fix)
    elif not cameras:
        yield CheckResult(NAME, Level.OK, "the policy sees no camera")
