"""Is what the station knows about its cameras and arms good enough, and still true?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.protocols import Follower
from gaploop.teleop.calibration.drift import CalibrationSighting, before_recording
from gaploop.teleop.calibration.hand_eye import MAX_RESIDUAL_MM
from gaploop.teleop.calibration.intrinsics import MAX_RMS_PX
from gaploop.teleop.calibration.store import CellCalibration, load_calibration
from gaploop.teleop.preflight.item import By, Item, Person, Result, confirmed

NAME: Final = "calibration"
_LIMITS: Final = (
    ("intrinsics", "rms_px", MAX_RMS_PX, "px"),
    ("hand_eye", "held_out_mm", MAX_RESIDUAL_MM, "mm"),
)


def check_calibration(
    path: Path, follower: Follower, cameras: Sequence[str], person: Person
) -> Iterator[Item]:
    """Yield an item for every camera, and one for what has changed since it was calibrated.

    Args:
        path: the station's calibration file; need not exist.
        follower: the arm, at rest, whose pose is compared with the stored one.
        cameras: that the policy sees the scene with.
        person: is asked about a camera that isn't calibrated.
    """
    try:
        calibration = load_calibration(path, missing_ok=True)
    except UnusableInputError as error:
        yield Item(NAME, Result.FAIL, By.MACHINE, str(error), "Run: gaploop calibrate")
        return
    for camera in cameras:
        yield _camera(calibration, camera, person)
    said = _said(calibration, follower)
    if said:
        mend = "Repeat what is named, or store the pose anew: gaploop calibrate drift --store"
        yield Item(NAME, Result.WARN, By.MACHINE, " ".join(said), mend)
    elif not cameras:
        yield Item(NAME, Result.OK, By.MACHINE, "the policy sees no camera")


def _camera(calibration: CellCalibration, camera: str, person: Person) -> Item:
    parts = calibration.get("cameras", camera) or {}
    measured = [
        (part, float(parts[part].get(key, math.inf)), limit, unit)
        for part, key, limit, unit in _LIMITS
        if part in parts
    ]
    data: dict[str, Any] = {"camera": camera, **{part: value for part, value, _, _ in measured}}
    words = f"{camera}: " + ", ".join(
        f"{part} {value:.2g} of at most {limit:g} {unit}" for part, value, limit, unit in measured
    )
    poor = [part for part, value, limit, _ in measured if not value <= limit]
    if not poor and len(measured) < len(_LIMITS):  # intrinsics don't say where it stands
        lacks = "has no hand-eye calibration" if "intrinsics" in data else "has no intrinsics"
        is_so = lacks if measured else "isn't calibrated"
        return confirmed(
            person,
            NAME,
            f"Camera {camera} {is_so}. Does it stand where it "
            "stood when the policy's takes were recorded?",
            f"Run: gaploop calibrate intrinsics, then hand_eye, --camera_name={camera}",
            data=data,
        )
    if not poor:
        return Item(NAME, Result.OK, By.MACHINE, words, data=data)
    mend = f"Run: gaploop calibrate {poor[0]} FOLDER --camera_name={camera}"
    return Item(NAME, Result.FAIL, By.MACHINE, words, mend, data)


def _said(calibration: CellCalibration, follower: Follower) -> tuple[str, ...]:
    name = model_of(follower.robot_type)
    own: Mapping[str, Any] = vars(follower) if hasattr(follower, "__dict__") else {}
    return before_recording(
        calibration,
        CalibrationSighting(follower.read().position_rad, follower.joint_names),
        arm=ArmModel.load(name) if name else None,
        arm_file=getattr(own.get("device"), "calibration_fpath", None),
    )
