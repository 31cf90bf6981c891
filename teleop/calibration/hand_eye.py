"""Where a camera is on the arm or beside it, from pictures of a board at known arm poses.

Two set-ups, one equation. The camera is mounted on the tool (eye in hand) or on the base (eye
to hand); the board is fixed at the far end, on the base or on the tool. With
A = T_far_mount, X = T_mount_camera, B = T_camera_board and Y = T_far_board, A X B = Y in every
picture. OpenCV's closed form of Shah (2013, robot-world/hand-eye) is the start of one robust fit:
least squares over X and Y of how far A X B and Y lie apart, in which a picture where the board
slipped or the arm moved counts little (soft L1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from scipy.optimize import least_squares

from gaploop.core.camera import IN_HAND, SETUPS, checked_pose, read_hand_eye
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView
from gaploop.teleop.calibration.intrinsics import (
    Intrinsics,
    angle_rad,
    inverse,
    pose,
    rotation_vector,
    transform,
)

MAX_RESIDUAL_MM: Final = 5.0
"""A calibration that places the board worse than this in held-out pictures is refused [mm]."""
EXPLAINED_MM: Final = 1.0
"""A residual above this is explained: a good print and a good arm are below it [mm]."""
MIN_SIGHTINGS: Final = 6
"""Fewer pictures are refused; 15 to 25 are a good number."""
MIN_TURN_DEG: Final = 5.0
"""Rotation about the second axis, RMS over pairs of poses, below which is refused [deg].

With rotation about one axis alone the translation along it can't be seen (Tsai and Lenz, 1989).
"""
FOLDS: Final = 5
HELPS: Final = 0.5
"""Pictures explain a residual if leaving them out leaves less than this share of it."""
OUTLIER_TIMES: Final = 3.0
"""A picture this many times worse than the median one is named."""
APART_M: Final = 0.002
APART_RAD: Final = 0.005
"""How far the two sides of A X B = Y usually lie apart with a hobby arm [m, rad]: beyond it the fit
grows robust. An exact arm is met to half a millimetre and 0.1°, backlash of a third of a degree
moves the camera by 3 mm."""


@dataclass(frozen=True)
class Sighting:
    """One pose of the arm, (4, 4), and what the camera saw there; joints [rad] where known."""

    T_base_tcp: FloatArray
    view: BoardView
    q_rad: FloatArray | None = None


@dataclass(frozen=True)
class HandEye:
    """Where a camera is on its mount, tool or base, and the board on the other; both (4, 4)."""

    setup: str
    T_mount_camera: FloatArray
    T_far_board: FloatArray

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> HandEye:
        """Read what `HandEyeResult.to_json` wrote; UnusableInputError where it isn't that."""
        mount, in_hand = read_hand_eye(value, where)
        setup = IN_HAND if in_hand else SETUPS[1]
        return cls(setup, mount, checked_pose(value.get("T_far_board"), f"{where}: T_far_board"))


@dataclass(frozen=True)
class HandEyeResult:
    """A hand-eye calibration and everything that says how far to trust it.

    Attributes:
        held_out_mm: how far the board's corners lie from where they should, RMS, in pictures left
            out of the fit, k-fold [mm].
        held_out_deg: the same of its orientation [deg].
        turn_deg: rotation between poses about the two main axes, RMS [deg].
        errors_mm: picture to how far the board is off in it under the final fit [mm].
    """

    hand_eye: HandEye
    held_out_mm: float
    held_out_deg: float
    turn_deg: tuple[float, float]
    errors_mm: dict[str, float]

    def refusals(self) -> tuple[str, ...]:
        """Return why this calibration must not be used, with its fix; empty where fine."""
        if self.held_out_mm <= MAX_RESIDUAL_MM:
            return ()
        return (
            f"The board is misplaced by {self.held_out_mm:.1f} mm in held-out pictures, "
            f"above {MAX_RESIDUAL_MM:g}. {self.explanation()}",
        )

    def explanation(self) -> str:
        """Say in a sentence what to look at where the residual is large."""
        worst = {name for name, _ in self.outliers()}
        rest = [error for name, error in self.errors_mm.items() if name not in worst]
        without_mm = float(np.sqrt(np.mean(np.square(rest))))
        most_mm = min(MAX_RESIDUAL_MM, HELPS * self.held_out_mm)
        if 0 < len(worst) <= len(self.errors_mm) // 4 and without_mm < most_mm:
            return (
                f"Without {', '.join(sorted(worst))} it is {without_mm:.1f} mm: the board slipped "
                "or the arm moved there; remove or retake them."
            )
        other = SETUPS[1 - SETUPS.index(self.hand_eye.setup)]
        return (
            "Check the size of the board's squares as printed, that the board could not move, the "
            "arm's joint zeros (lerobot-calibrate), and whether the camera is mounted as "
            f"--setup={other} says."
        )

    def outliers(self) -> tuple[tuple[str, float], ...]:
        """Return pictures that fit far worse than the others, with their error [mm]."""
        limit = max(OUTLIER_TIMES * float(np.median(list(self.errors_mm.values()))), 0.5)
        found = [one for one in self.errors_mm.items() if one[1] > limit]
        return tuple(sorted(found, key=lambda one: -one[1]))

    def lines(self) -> list[str]:
        """Return the result for people."""
        T, turns = self.hand_eye.T_mount_camera, self.turn_deg
        name = "T_tcp_camera" if self.hand_eye.setup == SETUPS[0] else "T_base_camera"
        place = ", ".join(f"{value:.2f}" for value in T[:3, 3] * 1e3)
        turn = ", ".join(f"{v:.2f}" for v in np.degrees(rotation_vector(T[:3, :3])))
        lines = [
            f"  turned by     {turns[0]:.0f}° and {turns[1]:.0f}° about two axes",
            f"  {name:<13} {place} mm",
            f"  rotation      {turn} ° (rotation vector)",
            f"  held out      board off by {self.held_out_mm:.2f} mm, {self.held_out_deg:.2f}°",
        ]
        lines += [f"  hurts         {n}: off by {mm:.1f} mm" for n, mm in self.outliers()[:5]]
        if self.held_out_mm > EXPLAINED_MM:
            lines.append(f"  perhaps       {self.explanation()}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            "setup": self.hand_eye.setup,
            "T_mount_camera": self.hand_eye.T_mount_camera.tolist(),
            "T_far_board": self.hand_eye.T_far_board.tolist(),
            "held_out_mm": self.held_out_mm,
            "held_out_rotation_deg": self.held_out_deg,
            "images": len(self.errors_mm),
        }


def calibrate_hand_eye(
    board: Board, lens: Intrinsics, sightings: Sequence[Sighting], setup: str = SETUPS[0]
) -> HandEyeResult:
    """Find where a camera is.

    Args:
        sightings: at least `MIN_SIGHTINGS`, with rotations about two axes or more.
        setup: `eye_in_hand` (camera on the tool, board fixed to the base) or `eye_to_hand`
            (camera fixed to the base, board on the tool).

    Raises:
        UnusableInputError: too few sightings, too little rotation, or no answer.
    """
    if setup not in SETUPS:
        raise unknown_choice("set-up", setup, SETUPS, "--setup")
    n = len(sightings)
    if n < MIN_SIGHTINGS:
        raise UnusableInputError(
            f"The board was found at {n} poses, {MIN_SIGHTINGS} are needed and 15 to 25 are good. "
            "Take more, with the gripper turned about two axes."
        )
    A, B = equations(board, lens, sightings, setup)
    turns, axis = main_turns_deg(A)
    if turns[1] < MIN_TURN_DEG:
        known = [s.q_rad for s in sightings if s.q_rad is not None]
        hint = "Pitch the gripper and roll it, each by 20° or more."
        if len(known) == n:
            spans = ", ".join(f"{deg:.0f}°" for deg in np.degrees(np.ptp(np.array(known), axis=0)))
            hint = f"The joints moved by {spans}: move the still ones of the wrist by 20° or more."
        frame = "gripper's" if setup == SETUPS[0] else "base's"
        words = ", ".join(f"{value:.2f}" for value in axis)
        raise UnusableInputError(
            f"The gripper turned by {turns[0]:.0f}° about the {frame} axis ({words}) and by "
            f"{turns[1]:.1f}° about any other; 2 axes with {MIN_TURN_DEG:g}° or more are needed. "
            f"{hint}"
        )
    out_m, out_rad = np.zeros(n), np.zeros(n)
    for out in (np.arange(fold, n, FOLDS) for fold in range(FOLDS)):
        fitted = np.setdiff1d(np.arange(n), out)
        X, Y = solve(A[fitted], B[fitted])
        out_m[out], out_rad[out] = _errors(board, A[out], B[out], X, Y)
    X, Y = solve(A, B)
    errors_m, _ = _errors(board, A, B, X, Y)
    return HandEyeResult(
        HandEye(setup, X, Y),
        float(np.sqrt(np.mean(out_m**2))) * 1e3,
        float(np.degrees(np.sqrt(np.mean(out_rad**2)))),
        (float(turns[0]), float(turns[1])),
        {s.view.name: float(e) * 1e3 for s, e in zip(sightings, errors_m, strict=True)},
    )


def main_turns_deg(T: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rotation between poses, shape (n, 4, 4), about their main axes.

    Returns:
        RMS over pairs [deg], largest first, shape (3,); the axis of the largest, shape (3,).
    """
    first, second = np.triu_indices(len(T), 1)
    turns = rotation_vector((inverse(T[first]) @ T[second])[:, :3, :3])
    values, axes = np.linalg.eigh(turns.T @ turns / len(turns))
    main = axes[:, 2] * np.sign(axes[np.argmax(np.abs(axes[:, 2])), 2])
    return np.degrees(np.sqrt(np.maximum(values[::-1], 0.0))), main


def equations(
    board: Board, lens: Intrinsics, sightings: Sequence[Sighting], setup: str
) -> tuple[FloatArray, FloatArray]:
    """Return A and B, shape (n, 4, 4); raises UnusableInputError for pictures of another size."""
    T_base_tcp = np.array([s.T_base_tcp for s in sightings])
    A = T_base_tcp if setup == SETUPS[0] else inverse(T_base_tcp)
    return A, np.array([lens.board_pose(board, s.view)[0] for s in sightings])


def solve(A: FloatArray, B: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return X and Y, each of shape (4, 4).

    Raises:
        UnusableInputError: there is no finite rigid motion to begin with.
    """
    X, Y = _shah(A, B)

    def moved(p: FloatArray) -> tuple[FloatArray, FloatArray]:
        return X @ pose(p[0:3], p[3:6]), Y @ pose(p[6:9], p[9:12])

    def apart(p: FloatArray) -> FloatArray:
        at_X, at_Y = moved(p)
        T = inverse(at_Y) @ A @ at_X @ B
        turned = rotation_vector(T[:, :3, :3]) / APART_RAD
        return np.concatenate([(T[:, :3, 3] / APART_M).ravel(), turned.ravel()])

    return moved(np.asarray(least_squares(apart, np.zeros(12), loss="soft_l1", max_nfev=100).x))


def _shah(A: FloatArray, B: FloatArray) -> tuple[FloatArray, FloatArray]:
    arms = inverse(A)
    found = []
    try:
        R_board_far, t_board_far, R_camera_mount, t_camera_mount = cv2.calibrateRobotWorldHandEye(
            list(B[:, :3, :3]), list(B[:, :3, 3]), list(arms[:, :3, :3]), list(arms[:, :3, 3]),
            method=cv2.CALIB_ROBOT_WORLD_HAND_EYE_SHAH,
        )  # fmt: skip
        for R, t in ((R_camera_mount, t_camera_mount), (R_board_far, t_board_far)):
            T = np.vstack([np.column_stack([R, np.ravel(t)]), [0.0, 0.0, 0.0, 1.0]])
            found.append(inverse(checked_pose(T, "the pose")))
    except (cv2.error, UnusableInputError) as error:
        raise UnusableInputError(
            "These pictures have no hand-eye answer. Take more, with the gripper turned about two "
            f"axes by 20° or more. ({getattr(error, 'err', error)})"
        ) from None
    return found[0], found[1]


def _errors(
    board: Board, A: FloatArray, B: FloatArray, X: FloatArray, Y: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return each picture's errors of the board's corners, RMS [m], and orientation [rad]."""
    seen = A @ X @ B
    apart = transform(seen, board.corners_m) - transform(Y, board.corners_m)
    turn = angle_rad(np.swapaxes(seen[:, :3, :3], -1, -2) @ Y[:3, :3])
    return np.sqrt((apart**2).sum(axis=-1).mean(axis=-1)), turn
