"""Calibrations: LeRobot's of the arms, with their age and what motors hold; and the station's own.

LeRobot keeps a file for each arm; gaploop keeps one for a station's cameras and latencies.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.protocols import Follower
from gaploop.teleop.calibration.hand_eye import MAX_RESIDUAL_MM
from gaploop.teleop.calibration.intrinsics import most_rms_px
from gaploop.teleop.calibration.store import OLD_DAYS as STATION_OLD_DAYS
from gaploop.teleop.calibration.store import CellCalibration, load_calibration
from gaploop.teleop.checks import By, CheckResult, Level, Person
from gaploop.teleop.servos.calibration import (
    FIX,
    FORMER,
    MotorRange,
    agrees,
    bring_over,
    differences,
    kept_motors,
    place_today,
    put_away,
    unusable,
)
from gaploop.teleop.servos.registers import Protocol

NAME: Final = "calibration"
OLD_DAYS: Final = 90.0
"""Screws loosen and horns slip; LeRobot's users saw 17° of drift in a few months [days]."""
_DAY_S: Final = 86400.0
_TYPES: Final = {"so_follower": "so101_follower", "so_leader": "so101_leader"}
"""LeRobot's folder, where it isn't called as the type of its option: both arms are one class."""
_KNOWN: Final = ("so_", "so100_", "so101_", "koch_", "omx_")
"""Arms whose calibrations are of a kind that is known here."""
_QUALITY: Final[tuple[tuple[str, str, Callable[[Mapping[str, Any]], float], str], ...]] = (
    ("intrinsics", "rms_px", lambda part: most_rms_px(int(part.get("width", 0))), "px"),
    ("hand_eye", "held_out_mm", lambda _: MAX_RESIDUAL_MM, "mm"),
)
"""Part of a camera's calibration, the figure that says how good it is, and its limit."""


# --- arms, as LeRobot keeps them ---------------------------------------------------------------


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
    arm, again, name = file.parent.name, command_for(file), arm_of(file)
    fail = functools.partial(CheckResult, NAME, Level.FAIL, subject=name)
    anew = f"Run: {put_away(file)}; then: {again}"
    try:
        days = max(0.0, now_s - file.stat().st_mtime) / _DAY_S
        motors = read_json(file)
        if arm.startswith(_KNOWN):
            kept_motors(file)
        flat = [m for m, c in motors.items() if not c["range_min"] < c["range_max"]]
    except UnusableInputError as error:
        return fail(str(error).rstrip("."), anew)
    except DAMAGE:
        return fail(f"{file} can't be read", anew)
    data = {"file": str(file), "age_days": days, "motors": len(motors)}
    today = place_today(file, file.parents[2])
    if today != file and not today.exists():
        found = f"{file} is in LeRobot's former folder; it now looks for {today}"
        fix = f"If this arm is still in use, don't calibrate it anew: {bring_over(file, today)}"
        return CheckResult(NAME, Level.WARN, found, fix, data, name)
    if today != file:
        found = f"in LeRobot's former folder ({file}); {today} is used"
        return CheckResult(NAME, Level.OK, found, data=data, subject=name)
    if arm.startswith(_KNOWN):
        protocol = Protocol.FEETECH if arm.startswith("so") else Protocol.DYNAMIXEL
        with contextlib.suppress(KeyError, TypeError):  # of an arm that keeps something else
            ranges = {motor: MotorRange.of(kept) for motor, kept in motors.items()}
            wrong = "; ".join(unusable(protocol, arm, ranges, {}))
            if wrong:
                return fail(f"{wrong} ({file})", f"{FIX}. Run: {again}", data)
    if flat:
        return fail(f"empty range of {', '.join(flat)} in {file}", f"Run again: {again}", data)
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
        f"lerobot-calibrate --{flag}.type={_TYPES.get(FORMER.get(arm, arm), arm)} "
        f"--{flag}.port=PORT --{flag}.id={file.stem}"
    )


def arm_of(file: Path) -> str:
    """Return what the arm of a calibration file is called, such as `so_follower 'white'`."""
    return f"{file.parent.name} '{file.stem}'"


def role_of(file: Path) -> str:
    """Return follower or leader."""
    return "follower" if file.parent.parent.name == "robots" else "leader"


def owners(files: Sequence[Path], held: Mapping[int, MotorRange]) -> list[Path]:
    """Return the calibration files that say of every servo what it holds, copies left out.

    They may be of more servos than answer. What was copied from another folder of LeRobot's, such
    as a former one, counts once.
    """
    named = {
        arm_of(file): file for file in reversed(files) if (m := _motors(file)) and agrees(m, held)
    }
    found = [file for file in files if file in named.values()]
    today = {role_of(file) for file in found if file.parent.name not in FORMER}
    return [f for f in found if f.parent.name not in FORMER or role_of(f) not in today]


def nearest(files: Sequence[Path], held: Mapping[int, MotorRange]) -> tuple[Path | None, list[str]]:
    """Return the file of an arm with these servos that differs least, and in what it does."""
    alike = [
        (file, differences(kept, held))
        for file in files
        if (kept := _motors(file)) and set(dict(kept.values())) == set(held)
    ]
    differing = [(file, differ) for file, differ in alike if differ]
    return min(differing, key=lambda one: len(one[1]), default=(None, []))


def _motors(file: Path) -> dict[str, tuple[int, MotorRange]] | None:
    with contextlib.suppress(UnusableInputError):
        return kept_motors(file)
    return None


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
    data = {"hint": "Only episodes with cameras need it: gaploop calibrate --help"}
    return [CheckResult(NAME, Level.OK, "no cameras calibrated yet", "", data, path.name)]


def check_station(
    path: Path, follower: Follower, cameras: Sequence[str], person: Person
) -> Iterator[CheckResult]:
    """Yield how well every camera is calibrated, and what has changed since.

    `cameras` are those that the policy sees the scene with; `person` is asked about one that isn't
    calibrated.
    """
    calibration = _load(path, "")
    if isinstance(calibration, CheckResult):
        yield calibration
        return
    for camera in cameras:
        parts = calibration.get("cameras", camera) or {}
        measured = [
            (part, float(parts[part].get(key, math.inf)), most(parts[part]), unit)
            for part, key, most, unit in _QUALITY
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
            f"Camera {camera} {is_so}. Does it stand where it stood when the policy's episodes "
            "were recorded?"
        )
        answer = person.ask(question, {"y": "yes", "n": "no"})
        level, word = Level.FAIL, "No"
        fix = f"Run: gaploop calibrate intrinsics, then hand_eye, --camera_name={camera}"
        if answer is None:
            level, word = Level.UNANSWERED, "Nobody answered"
        elif answer == "y":
            level, word, fix = Level.OK, "Yes", ""
        data = {"question": question, **data}
        yield CheckResult(NAME, level, f"{question} {word}.", fix, data, by=By.PERSON)
    own: Mapping[str, Any] = vars(follower) if hasattr(follower, "__dict__") else {}
    doubts = calibration.doubts(getattr(own.get("device"), "calibration_fpath", None))
    if doubts:
        yield CheckResult(NAME, Level.WARN, " ".join(doubts), "Repeat what is named.")
    elif not cameras:
        yield CheckResult(NAME, Level.OK, "no camera in use")
