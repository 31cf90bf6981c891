"""Has anything moved since it was calibrated? A known pose, looked at again.

A reference is kept when all is well: where the joints are with the arm at a place it can be put
back to (its rest, a mechanical stop, a jig), and where each camera sees a board that stays in
the cell. Later the same is looked at again. A calibration that slipped by a gear tooth or a
camera that was knocked shows here in a second, rather than in every take of a day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.camera import SETUPS
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import sha256
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView
from gaploop.teleop.calibration.intrinsics import angle_rad, transform
from gaploop.teleop.calibration.store import OLD_DAYS, CellCalibration

MAX_PX: Final = 3.0
"""A fixed camera that sees the board farther from its place has moved [px]."""
MAX_MM: Final = 5.0
"""As far as a hand-eye calibration may be wrong at all [mm]."""
MAX_DEG: Final = 2.0
"""Backlash and play put a hobby arm back within about a degree."""
ELSEWHERE_DEG: Final = 45.0
"""An arm that is farther from the reference isn't there; drift of 17° has been seen [deg]."""
MIN_COMMON: Final = 4


REST: Final = "rest"
"""The reference's name in the calibration file."""


@dataclass(frozen=True)
class CalibrationSighting:
    """What is seen now: joint positions [rad], and by camera the `board` in its picture."""

    q_rad: FloatArray | None = None
    joint_names: tuple[str, ...] = ()
    views: Mapping[str, BoardView] = field(default_factory=dict)
    board: Board | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds as a reference."""
        return {
            "joint_names": list(self.joint_names),
            "q_rad": None if self.q_rad is None else [float(v) for v in self.q_rad],
            "board": None if self.board is None else asdict(self.board),
            "views": {
                name: {
                    "ids": view.ids.tolist(),
                    "corners_px": np.round(view.corners_px, 3).tolist(),
                    "width": view.width,
                    "height": view.height,
                }
                for name, view in self.views.items()
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> CalibrationSighting:
        """Read what `to_json` wrote; UnusableInputError where it isn't that."""
        try:
            q = value["q_rad"]
            board = value["board"]
            views = {
                str(name): BoardView(
                    np.array(v["ids"], dtype=np.int64),
                    np.array(v["corners_px"], dtype=np.float64).reshape(-1, 2),
                    int(v["width"]),
                    int(v["height"]),
                )
                for name, v in value["views"].items()
            }
            return cls(
                None if q is None else np.array(q, dtype=np.float64),
                tuple(value["joint_names"]),
                views,
                None if board is None else Board.from_json(board),
            )
        except DAMAGE as error:
            raise UnusableInputError(
                f"{where} is not a reference ({error}). Store it again: gaploop calibrate drift "
                "--store"
            ) from None


@dataclass(frozen=True)
class Drift:
    """How far what is seen now lies from the reference.

    Attributes:
        px: board in a fixed camera's picture, RMS, of the worst camera [px]; NaN where not seen.
        mm: tool or board, whichever is worse [mm]; NaN where nobody knows.
        deg: joint or camera, whichever is worse [deg]; NaN where nobody knows.
        verdict: `ok`, `drifted`, or `unknown` where there was nothing to compare.
        message: a line for each thing that has drifted, with its fix.
    """

    px: float
    mm: float
    deg: float
    verdict: str
    message: tuple[str, ...] = ()


def check_drift(
    calibration: CellCalibration,
    observation: CalibrationSighting,
    arm: ArmModel | None = None,
) -> Drift:
    """Compare what is seen now with the stored reference.

    Joints are compared as they are: the arm must stand where it stood. A camera on the gripper
    may look from anywhere if its hand-eye calibration and `arm`, its kinematics, are known.

    Raises:
        UnusableInputError: no reference, other joints, or the arm is somewhere else.
    """
    value = calibration.get("references", REST)
    if value is None:
        raise UnusableInputError(
            f"{calibration.path} has no reference to compare with. With the arm at rest and "
            "all well, store one: gaploop calibrate drift --store"
        )
    before = CalibrationSighting.from_json(value, f"{calibration.path}: references.{REST}")
    found: list[tuple[FloatArray, str]] = [(np.full(3, np.nan), "")]
    if before.q_rad is not None and observation.q_rad is not None:
        if before.joint_names != observation.joint_names:
            raise UnusableInputError(
                f"Reference '{REST}' is of joints {', '.join(before.joint_names)}; the arm "
                f"has {', '.join(observation.joint_names)}. Store it again: "
                "gaploop calibrate drift --store"
            )
        names, degrees = before.joint_names, np.degrees(observation.q_rad - before.q_rad)
        most = int(np.argmax(np.abs(degrees)))
        if abs(degrees[most]) > ELSEWHERE_DEG:
            raise UnusableInputError(
                f"The arm is not at '{REST}': {names[most]} is {degrees[most]:+.0f}° away. "
                "Put it there and repeat this."
            )
        mm, where = np.nan, ""
        if arm is not None and arm.joint_names == names:
            apart = arm.T_base_tcp(observation.q_rad) - arm.T_base_tcp(before.q_rad)
            mm = float(np.linalg.norm(apart[:3, 3])) * 1e3
            where = f", {mm:.0f} mm at the tool"
        off = [
            f"{name} by {by:+.1f}°"
            for name, by in zip(names, degrees, strict=True)
            if abs(by) > MAX_DEG
        ]
        words = (
            f"Joints are off against '{REST}': {', '.join(off)}{where}. If the arm stands "
            "there, calibrate it again (lerobot-calibrate) before recording."
        )
        figures = np.array([np.nan, mm, np.abs(degrees).max()])
        found.append((figures, words if off else ""))
    for name in sorted(before.views.keys() & observation.views.keys()):
        found.append(_camera_shift(calibration, name, before, observation, arm))
    worst = np.fmax.reduce([figures for figures, _ in found])
    message = tuple(words for _, words in found if words)
    verdict = "drifted" if message else "ok" if np.isfinite(worst).any() else "unknown"
    px, mm, deg = worst.tolist()
    return Drift(px, mm, deg, verdict, message)


def before_recording(
    calibration: CellCalibration,
    observation: CalibrationSighting,
    arm: ArmModel | None = None,
    arm_file: Path | None = None,
) -> tuple[str, ...]:
    """Return what a person should know before recording; empty where all is well.

    Never raises for what the calibration file lacks: recording without a reference is allowed.
    `arm_file` is the arm's own calibration (lerobot-calibrate's).
    """
    said = [
        f"{name} was calibrated {age:.0f} days ago. Repeat it if anything was touched."
        for name, age in calibration.ages_days().items()
        if age > OLD_DAYS and not name.startswith("references.")
    ]
    known = calibration.get("arms", "follower", "calibration")
    file = arm_file if arm_file is not None and arm_file.is_file() else None
    if known is not None and file is not None and known["sha256"] != sha256(file):
        said.append(
            f"The arm was calibrated again ({file}) after its cameras were. Repeat: gaploop "
            "calibrate hand_eye, and drift --store"
        )
    if calibration.get("references", REST) is not None:
        try:
            said += check_drift(calibration, observation, arm).message
        except UnusableInputError as error:
            said.append(str(error))
    return tuple(said)


def _camera_shift(
    calibration: CellCalibration,
    name: str,
    before: CalibrationSighting,
    now: CalibrationSighting,
    arm: ArmModel | None,
) -> tuple[FloatArray, str]:
    """Return how far a camera moved [px, mm, deg], NaN where it can't be told, and what of it.

    One beside the arm must see the board where it saw it. Of one on the gripper it is predicted
    where it must see the board, from wherever it looks.
    """
    old, new, board = before.views[name], now.views[name], before.board
    if board is None or now.board != board:
        raise UnusableInputError(
            f"The reference was stored with another board ({board.words if board else 'none'}). "
            "Show that one, or store it again with --store."
        )
    if (old.width, old.height) != (new.width, new.height):
        raise UnusableInputError(
            f"Camera {name} takes {new.width}x{new.height} px, the reference has {old.width}x"
            f"{old.height}. Set the camera to that size, or store it again with --store."
        )
    again = f"gaploop calibrate hand_eye --camera_name={name}"
    both, was, here = np.intersect1d(old.ids, new.ids, return_indices=True)
    if len(both) < MIN_COMMON:
        return np.full(3, np.nan), ""
    parts = calibration.get("cameras", name) or {}
    if parts.get("hand_eye", {}).get("setup") != SETUPS[0]:
        moved = new.corners_px[here] - old.corners_px[was]
        px = float(np.sqrt((moved**2).sum(axis=1).mean()))
        message = (
            f"Camera {name} sees the board {px:.1f} px from where it was. If the board was not "
            f"moved, the camera was: put it back, or run {again}"
        )
        return np.array([px, np.nan, np.nan]), message if px > MAX_PX else ""
    if arm is None or before.q_rad is None or now.q_rad is None or "intrinsics" not in parts:
        return np.full(3, np.nan), ""
    lens, mounted = calibration.intrinsics(name), calibration.hand_eye(name).T_mount_camera
    expected, seen = (
        arm.T_base_tcp(q_rad) @ mounted @ lens.board_pose(board, view)[0]
        for q_rad, view in ((before.q_rad, old), (now.q_rad, new))
    )
    centre = board.centre_m[None]
    mm = float(np.linalg.norm(transform(expected, centre) - transform(seen, centre))) * 1e3
    deg = float(np.degrees(angle_rad(expected[:3, :3].T @ seen[:3, :3])))
    message = (
        f"Camera {name} sees the board {mm:.1f} mm and {deg:.1f}° from where arm and camera place "
        "it. If the board was not moved, the camera's mount or the arm's calibration has: run "
        f"{again}"
    )
    return np.array([np.nan, mm, deg]), message if mm > MAX_MM or deg > MAX_DEG else ""
