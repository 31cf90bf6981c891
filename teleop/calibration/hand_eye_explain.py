"""Why a hand-eye calibration doesn't fit: each usual mistake is undone, to see whether it helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gaploop.core.kinematics import ArmModel
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration import hand_eye_solvers as solvers
from gaploop.teleop.calibration.board import Board
from gaploop.teleop.calibration.camera_model import Intrinsics
from gaploop.teleop.calibration.geometry import inverse, transform
from gaploop.teleop.calibration.hand_eye import MIN_SIGHTINGS, make_equations
from gaploop.teleop.calibration.hand_eye_model import (
    OUTLIER_TIMES,
    SETUPS,
    HandEyeResult,
    Sighting,
)
from gaploop.teleop.calibration.hand_eye_solvers import Equations

HELPS: Final = 0.5
"""A mistake explains a residual if undoing it leaves less than this share of it."""
MIN_OFFSET_DEG: Final = 1.0
"""Smaller joint offsets are not worth naming [deg]."""
OFFSET_PRIOR_RAD: Final = np.radians(5.0)
"""Holds joint offsets that can't be told apart near 0 [rad]."""


def explained(
    result: HandEyeResult,
    board: Board,
    lens: Intrinsics,
    sightings: Sequence[Sighting],
    arm: ArmModel | None = None,
) -> HandEyeResult:
    """Return `result` with what would explain its residual, best explanation first.

    Args:
        result: of `calibrate_hand_eye` with the same board, lens and sightings.
        board: the board seen.
        lens: the camera's intrinsics.
        sightings: what the result was made of.
        arm: its kinematics, to look for joint offsets; needs joint positions in `sightings`.
    """
    setup = result.hand_eye.setup
    equations = make_equations(board, lens, sightings, setup)
    start = result.hand_eye.T_mount_camera, result.hand_eye.T_far_board
    before = _board_mm(equations, *start)
    said: list[tuple[float, str]] = []
    said += _outliers(result, equations)
    said += _other_setup(board, lens, sightings, setup)
    said += _wrong_scale(board, equations, start)
    if arm is not None:
        said += _joint_offsets(arm, sightings, setup, equations, start)
    helps = sorted((s for s in said if s[0] < HELPS * before), key=lambda s: s[0])
    return replace(result, explanations=tuple(words for _, words in helps[:2]))


def _board_mm(equations: Equations, X: FloatArray, Y: FloatArray) -> float:
    seen = transform(equations.far_mount @ X @ equations.camera_board, equations.corners_m)
    apart = seen - transform(Y, equations.corners_m)
    return float(np.sqrt((apart**2).sum(axis=-1).mean()) * 1e3)


def _outliers(result: HandEyeResult, equations: Equations) -> Iterator[tuple[float, str]]:
    # The fit bends towards a bad picture: leave out the worst one by one until the rest agree.
    keep = np.ones(len(result.names), dtype=bool)
    errors = result.errors_mm
    while keep.sum() > max(MIN_SIGHTINGS, 0.75 * len(keep)):
        left = np.flatnonzero(keep)
        if errors.max() < OUTLIER_TIMES * np.median(errors):
            break
        keep[left[int(np.argmax(errors))]] = False
        some = equations.take(keep)
        try:
            X, Y = solvers.solve(some, result.method)
        except solvers.NoAnswerError:
            return
        seen = transform(some.far_mount @ X @ some.camera_board, some.corners_m)
        apart = seen - transform(Y, some.corners_m)
        errors = np.sqrt((apart**2).sum(axis=-1).mean(axis=-1)) * 1e3
    if keep.all():
        return
    after = float(np.sqrt((errors**2).mean()))
    names = ", ".join(name for name, kept in zip(result.names, keep, strict=True) if not kept)
    yield (
        after,
        f"Without {names} it is {after:.1f} mm: the board slipped or the arm moved there; remove "
        "or retake them.",
    )


def _other_setup(
    board: Board, lens: Intrinsics, sightings: Sequence[Sighting], setup: str
) -> Iterator[tuple[float, str]]:
    other = SETUPS[1 - SETUPS.index(setup)]
    equations = make_equations(board, lens, sightings, other)
    try:
        after = _board_mm(equations, *solvers.solve(equations, "park"))
    except solvers.NoAnswerError:
        return
    yield after, f"As --setup={other} it is {after:.1f} mm: is the camera mounted that way?"


def _wrong_scale(
    board: Board, equations: Equations, start: tuple[FloatArray, FloatArray]
) -> Iterator[tuple[float, str]]:
    def scaled(given: Equations, p: FloatArray) -> Equations:
        return replace(given, points_m=given.points_m * (1 + p[0]))

    X, Y, (change,) = solvers.refine(equations, *start, more=1, change=scaled)
    if abs(change) < 0.01 or change < -0.9:
        return
    camera_board = equations.camera_board.copy()
    camera_board[:, :3, 3] *= 1 + change
    after = _board_mm(replace(equations, camera_board=camera_board), X, Y)
    size_mm = board.square_m * 1e3
    yield (
        after,
        f"With squares of {size_mm * (1 + change):.2f} mm instead of {size_mm:g} it is "
        f"{after:.1f} mm: measure the printed board and give --board.square_mm.",
    )


def _joint_offsets(
    arm: ArmModel,
    sightings: Sequence[Sighting],
    setup: str,
    equations: Equations,
    start: tuple[FloatArray, FloatArray],
) -> Iterator[tuple[float, str]]:
    known = [s.q_rad for s in sightings if s.q_rad is not None]
    if len(known) < len(sightings):
        return
    q, joints = np.array(known), len(arm.joint_names) - 1  # the gripper doesn't move the tool

    def moved(given: Equations, p: FloatArray) -> Equations:
        shift = np.append(p, 0.0)
        T = np.array([arm.T_base_tcp(row + shift) for row in q])
        return replace(given, far_mount=T if setup == SETUPS[0] else inverse(T))

    prior = np.full(joints, OFFSET_PRIOR_RAD)
    X, Y, shift = solvers.refine(equations, *start, more=joints, change=moved, prior=prior)
    degrees = np.degrees(shift)
    named = [
        f"{name} by {value:+.1f}°"
        for name, value in zip(arm.joint_names, degrees, strict=False)
        if abs(value) >= MIN_OFFSET_DEG
    ]
    if named:
        after = _board_mm(moved(equations, shift), X, Y)
        yield (
            after,
            f"With joint zeros shifted ({', '.join(named)}) it is {after:.1f} mm: the arm's "
            "calibration is off, run lerobot-calibrate and take the pictures again.",
        )
