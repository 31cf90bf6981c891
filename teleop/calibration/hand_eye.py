"""Where a camera is on the arm or beside it, from pictures of a board at known arm poses.

Two set-ups, one equation. The camera is mounted on the tool (eye in hand) or on the base (eye
to hand); the board is fixed at the far end, on the base or on the tool. With
A = T_far_mount, X = T_mount_camera, B = T_camera_board and Y = T_far_board, A X B = Y in every
picture. OpenCV's seven closed forms and a least-squares fit of the reprojection compete; the
one that places the board best in pictures left out of its fit wins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from gaploop.core.errors import GaploopError, UnusableInputError, unknown_choice
from gaploop.core.kinematics import ArmModel
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView
from gaploop.teleop.calibration.geometry import (
    angle_rad,
    checked_pose,
    inverse,
    mean_pose,
    pose,
    rotation_vector,
    transform,
)
from gaploop.teleop.calibration.intrinsics import Intrinsics

SETUPS: Final = ("eye_in_hand", "eye_to_hand")
MAX_RESIDUAL_MM: Final = 5.0
"""A calibration that places the board worse than this in held-out pictures is refused [mm]."""
MIN_SIGHTINGS: Final = 6
"""Fewer pictures are refused; 15 to 25 are a good number."""
MIN_TURN_DEG: Final = 5.0
"""Rotation about the second axis, RMS over pairs of poses, below which is refused [deg].

With rotation about one axis alone the translation along it can't be seen (Tsai and Lenz, 1989).
"""
FOLDS: Final = 5
BOOTSTRAPS: Final = 100
"""Tells a standard deviation within 7 % (1 / sqrt(2 n))."""
OUTLIER_TIMES: Final = 3.0
"""A picture this many times worse than the median one is named."""
HELPS: Final = 0.5
"""A mistake explains a residual if undoing it leaves less than this share of it."""
MIN_OFFSET_DEG: Final = 1.0
"""Smaller joint offsets are not worth naming [deg]."""
OFFSET_PRIOR_RAD: Final = np.radians(5.0)
"""Holds joint offsets that can't be told apart near 0 [rad]."""
REFINED: Final = "reprojection"
"""Least squares over X and Y of where the corners appear, started from a closed form."""

_PAIRS: Final = {
    "tsai": cv2.CALIB_HAND_EYE_TSAI,
    "park": cv2.CALIB_HAND_EYE_PARK,
    "horaud": cv2.CALIB_HAND_EYE_HORAUD,
    "andreff": cv2.CALIB_HAND_EYE_ANDREFF,
    "daniilidis": cv2.CALIB_HAND_EYE_DANIILIDIS,
}
_WORLDS: Final = {
    "shah": cv2.CALIB_ROBOT_WORLD_HAND_EYE_SHAH,
    "li": cv2.CALIB_ROBOT_WORLD_HAND_EYE_LI,
}
METHODS: Final = (*_PAIRS, *_WORLDS, REFINED)


@dataclass(frozen=True)
class Sighting:
    """One pose of the arm, (4, 4), and what the camera saw there; joints [rad] where known."""

    T_base_tcp: FloatArray
    view: BoardView
    q_rad: FloatArray | None = None


@dataclass(frozen=True)
class Residual:
    """How far predictions lie from what was seen, RMS.

    `board_mm` is of the board's corners, `translation_mm` of its centre alone.
    """

    board_mm: float
    translation_mm: float
    rotation_deg: float
    pixels: float


@dataclass(frozen=True)
class HandEye:
    """Where a camera is on its mount, tool or base, and the board on the other; both (4, 4)."""

    setup: str
    T_mount_camera: FloatArray
    T_far_board: FloatArray

    @property
    def name(self) -> str:
        """Return what `T_mount_camera` is called: `T_tcp_camera` or `T_base_camera`."""
        return "T_tcp_camera" if self.setup == SETUPS[0] else "T_base_camera"

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> HandEye:
        """Read what `HandEyeResult.to_json` wrote; UnusableInputError where it isn't that."""
        if not isinstance(value, Mapping):
            raise UnusableInputError(f"{where} holds no camera's place. Calibrate it again.")
        setup = value.get("setup")
        if setup not in SETUPS:
            raise unknown_choice("set-up", setup, SETUPS, where)
        mount = checked_pose(value.get("T_mount_camera"), f"{where}: T_mount_camera")
        return cls(setup, mount, checked_pose(value.get("T_far_board"), f"{where}: T_far_board"))


@dataclass(frozen=True)
class HandEyeResult:
    """A hand-eye calibration and everything that says how far to trust it.

    Attributes:
        held_out: residual in pictures left out of the fit, k-fold.
        std_mm: standard deviation of the camera's position along x, y, z of its mount [mm].
        std_deg: of its orientation about them [deg].
        covariance: of (translation [m], rotation vector [rad]), shape (6, 6), by bootstrap.
        turn_deg: rotation between poses about the two main axes, RMS [deg].
        errors_mm: board error of each picture under the final fit [mm].
    """

    hand_eye: HandEye
    method: str
    held_out: Residual
    by_method: Mapping[str, Residual]
    std_mm: FloatArray
    std_deg: FloatArray
    covariance: FloatArray
    turn_deg: tuple[float, float]
    errors_mm: FloatArray
    names: tuple[str, ...]
    explanations: tuple[str, ...] = ()

    def refusals(self) -> tuple[str, ...]:
        """Return why this calibration must not be used, with its fix; empty where fine."""
        if self.held_out.board_mm <= MAX_RESIDUAL_MM:
            return ()
        hints = " ".join(self.explanations) or (
            "Check that the board could not move, that its size is as printed, and that the arm's "
            "own calibration is right (lerobot-calibrate)."
        )
        return (
            f"The board is misplaced by {self.held_out.board_mm:.1f} mm in held-out pictures, "
            f"above {MAX_RESIDUAL_MM:g}. {hints}",
        )

    def outliers(self) -> tuple[tuple[str, float], ...]:
        """Return pictures that fit far worse than the others, with their error [mm]."""
        limit = max(OUTLIER_TIMES * float(np.median(self.errors_mm)), 0.5)
        found = [(n, float(e)) for n, e in zip(self.names, self.errors_mm, strict=True)]
        return tuple(sorted((f for f in found if f[1] > limit), key=lambda f: -f[1]))

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds."""
        return {
            "setup": self.hand_eye.setup,
            "T_mount_camera": self.hand_eye.T_mount_camera.tolist(),
            "T_far_board": self.hand_eye.T_far_board.tolist(),
            "method": self.method,
            "held_out_mm": self.held_out.board_mm,
            "held_out_translation_mm": self.held_out.translation_mm,
            "held_out_rotation_deg": self.held_out.rotation_deg,
            "held_out_px": self.held_out.pixels,
            "std_mm": self.std_mm.tolist(),
            "std_deg": self.std_deg.tolist(),
            "covariance": self.covariance.tolist(),
            "images": len(self.names),
        }


def calibrate_hand_eye(
    board: Board,
    lens: Intrinsics,
    sightings: Sequence[Sighting],
    setup: str = SETUPS[0],
    *,
    bootstraps: int = BOOTSTRAPS,
) -> HandEyeResult:
    """Find where a camera is.

    Args:
        sightings: at least `MIN_SIGHTINGS`, with rotations about two axes or more.
        setup: `eye_in_hand` (camera on the tool, board fixed to the base) or `eye_to_hand`
            (camera fixed to the base, board on the tool).

    Raises:
        UnusableInputError: too few sightings, too little rotation, or no method has an answer.
    """
    if setup not in SETUPS:
        raise unknown_choice("set-up", setup, SETUPS, "--setup")
    if len(sightings) < MIN_SIGHTINGS:
        raise UnusableInputError(
            f"The board was found at {len(sightings)} poses, {MIN_SIGHTINGS} are needed and 15 to "
            "25 are good. Take more, with the gripper turned about two axes."
        )
    if board.kind == "chessboard" and (board.columns + board.rows) % 2 == 0:
        raise UnusableInputError(
            f"A {board.words} looks the same upside down, so its pose is not known. Use one whose "
            "columns and rows add up to an odd number, or a ChArUco board."
        )
    equations = make_equations(board, lens, sightings, setup)
    turns, axis = main_turns_deg(equations.far_mount)
    if turns[1] < MIN_TURN_DEG:
        known = [s.q_rad for s in sightings if s.q_rad is not None]
        hint = "Pitch the gripper and roll it, each by 20° or more."
        if len(known) == len(sightings):
            spans = ", ".join(
                f"{span:.0f}°" for span in np.degrees(np.ptp(np.array(known), axis=0))
            )
            hint = f"The joints moved by {spans}: move the still ones of the wrist by 20° or more."
        frame = "gripper's" if setup == SETUPS[0] else "base's"
        words = ", ".join(f"{value:.2f}" for value in axis)
        raise UnusableInputError(
            f"The gripper turned by {turns[0]:.0f}° about the {frame} axis ({words}) and by "
            f"{turns[1]:.1f}° about any other; 2 axes with {MIN_TURN_DEG:g}° or more are needed. "
            f"{hint}"
        )
    n, by_method = len(sightings), dict[str, Residual]()
    for method in METHODS:
        parts = []
        with contextlib.suppress(NoAnswerError):
            for out in (np.arange(fold, n, FOLDS) for fold in range(FOLDS)):
                X, Y = solve(equations.take(np.setdiff1d(np.arange(n), out)), method)
                parts.append(_errors(equations.take(out), X, Y))
            rms = [
                float(np.sqrt(np.mean(np.concatenate(column) ** 2)))
                for column in zip(*parts, strict=True)
            ]
            by_method[method] = Residual(
                rms[0] * 1e3, rms[1] * 1e3, float(np.degrees(rms[2])), rms[3]
            )
    if not by_method:
        raise UnusableInputError(
            "No hand-eye method finds an answer. Take more pictures, with the gripper turned about "
            "two axes by 20° or more."
        )
    method = min(by_method, key=lambda name: by_method[name].board_mm)
    if by_method[method].board_mm > MAX_RESIDUAL_MM:
        bootstraps = min(bootstraps, 10)  # it will be refused: a rough idea is enough
    X, Y = solve(equations, method)
    covariance = _bootstrap(equations, method, (X, Y), bootstraps)
    std = np.sqrt(np.diag(covariance))
    return HandEyeResult(
        HandEye(setup, X, Y),
        method,
        by_method[method],
        by_method,
        std[:3] * 1e3,
        np.degrees(std[3:]),
        covariance,
        (float(turns[0]), float(turns[1])),
        np.asarray(_errors(equations, X, Y)[0] * 1e3),
        tuple(s.view.name for s in sightings),
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


def _errors(
    equations: Equations, X: FloatArray, Y: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return per picture board [m], centre [m] and rotation [rad] errors; per corner pixels."""
    seen = equations.far_mount @ X @ equations.camera_board
    apart = transform(seen, equations.corners_m) - transform(Y, equations.corners_m)
    board = np.sqrt((apart**2).sum(axis=-1).mean(axis=-1))
    centre = np.linalg.norm(apart.mean(axis=1), axis=-1)
    turn = angle_rad(np.swapaxes(seen[:, :3, :3], -1, -2) @ Y[:3, :3])
    pixels = reprojection_px(equations, X, Y)
    return board, centre, turn, np.linalg.norm(pixels.reshape(-1, 2), axis=1)


def _bootstrap(
    equations: Equations, method: str, fitted: tuple[FloatArray, FloatArray], times: int
) -> FloatArray:
    """Return the covariance of (translation [m], rotation vector [rad]), shape (6, 6)."""
    rng, n, X = np.random.default_rng(0), len(equations.far_mount), fitted[0]
    moved = []
    for _ in range(times):
        drawn = rng.integers(0, n, n)
        if len(np.unique(drawn)) < 4:
            continue
        try:
            again, _ = solve(equations.take(drawn), method, fitted)
        except NoAnswerError:
            continue
        turn = rotation_vector(again[:3, :3] @ X[:3, :3].T)
        moved.append(np.concatenate([again[:3, 3] - X[:3, 3], turn]))
    if len(moved) < max(times // 2, 2):
        raise UnusableInputError(
            "The answer falls apart when a few pictures are left out. Take more, "
            "with more rotation."
        )
    return np.asarray(np.cov(np.array(moved).T))


def explained(
    result: HandEyeResult,
    board: Board,
    lens: Intrinsics,
    sightings: Sequence[Sighting],
    arm: ArmModel | None = None,
) -> HandEyeResult:
    """Return `result` with what would explain its residual, best explanation first.

    `arm`, its kinematics, and joint positions in `sightings` are needed to find joint offsets.
    """
    setup = result.hand_eye.setup
    equations = make_equations(board, lens, sightings, setup)
    X, Y = result.hand_eye.T_mount_camera, result.hand_eye.T_far_board
    said: list[tuple[float, str]] = []

    # The worst picture is left out, one by one, until the rest agree: a fit bends towards it.
    n, keep, errors = len(result.names), np.arange(len(result.names)), result.errors_mm
    with contextlib.suppress(NoAnswerError):
        while len(keep) > max(MIN_SIGHTINGS, 0.75 * n):
            if errors.max() < OUTLIER_TIMES * np.median(errors):
                break
            keep = np.delete(keep, np.argmax(errors))
            some = equations.take(keep)
            errors = np.asarray(_errors(some, *solve(some, result.method))[0] * 1e3)
        if len(keep) < n:
            after = float(np.sqrt((errors**2).mean()))
            names = ", ".join(name for i, name in enumerate(result.names) if i not in keep)
            words = (
                f"Without {names} it is {after:.1f} mm: the board slipped or the arm moved there; "
                "remove or retake them."
            )
            said.append((after, words))

    other = SETUPS[1 - SETUPS.index(setup)]
    with contextlib.suppress(NoAnswerError):
        turned = make_equations(board, lens, sightings, other)
        after = _board_mm(turned, *solve(turned, "park"))
        said.append(
            (after, f"As --setup={other} it is {after:.1f} mm: is the camera mounted that way?")
        )

    def scaled(given: Equations, p: FloatArray) -> Equations:
        return replace(given, points_m=[points * (1 + p[0]) for points in given.points_m])

    *fit, (change,) = refine(equations, X, Y, more=1, change=scaled)
    if abs(change) >= 0.01 and change > -0.9:
        camera_board = equations.camera_board.copy()
        camera_board[:, :3, 3] *= 1 + change
        after = _board_mm(replace(equations, camera_board=camera_board), *fit)
        size_mm = board.square_m * 1e3
        words = (
            f"With squares of {size_mm * (1 + change):.2f} mm instead of {size_mm:g} it is "
            f"{after:.1f} mm: measure the printed board and give --board.square_mm."
        )
        said.append((after, words))

    known = [s.q_rad for s in sightings if s.q_rad is not None]
    if arm is not None and len(known) == len(sightings):
        model, joints = arm, len(arm.joint_names) - 1  # the gripper doesn't move the tool

        def moved(given: Equations, p: FloatArray) -> Equations:
            T = np.array([model.T_base_tcp(q + np.append(p, 0.0)) for q in known])
            return replace(given, far_mount=T if setup == SETUPS[0] else inverse(T))

        prior = np.full(joints, OFFSET_PRIOR_RAD)
        *fit, shift = refine(equations, X, Y, more=joints, change=moved, prior=prior)
        named = [
            f"{name} by {value:+.1f}°"
            for name, value in zip(arm.joint_names, np.degrees(shift), strict=False)
            if abs(value) >= MIN_OFFSET_DEG
        ]
        if named:
            after = _board_mm(moved(equations, shift), *fit)
            words = (
                f"With joint zeros shifted ({', '.join(named)}) it is {after:.1f} mm: the arm's "
                "calibration is off, run lerobot-calibrate and take the pictures again."
            )
            said.append((after, words))
    before = _board_mm(equations, X, Y)
    helps = sorted((s for s in said if s[0] < HELPS * before), key=lambda s: s[0])
    return replace(result, explanations=tuple(words for _, words in helps[:2]))


def _board_mm(equations: Equations, X: FloatArray, Y: FloatArray) -> float:
    return float(np.sqrt((_errors(equations, X, Y)[0] ** 2).mean()) * 1e3)


class NoAnswerError(GaploopError):
    """A method gave no finite rigid motion."""


@dataclass(frozen=True)
class Equations:
    """What is known: A X B = Y in each of n pictures, and the corners behind each B.

    Attributes:
        far_mount: A, shape (n, 4, 4).
        camera_board: B, shape (n, 4, 4).
        points_m: for each picture the corners seen, in the board's frame [m], shape (k, 3).
        rays: where they were seen (x/z, y/z), distortion removed, shape (k, 2).
        corners_m: all of the board's corners [m], shape (m, 3).
    """

    far_mount: FloatArray
    camera_board: FloatArray
    points_m: Sequence[FloatArray]
    rays: Sequence[FloatArray]
    corners_m: FloatArray
    focal_px: float

    def take(self, pictures: NDArray[np.intp]) -> Equations:
        """Return the equations of these pictures, by index; one may stand there twice."""
        return replace(
            self,
            far_mount=self.far_mount[pictures],
            camera_board=self.camera_board[pictures],
            points_m=[self.points_m[i] for i in pictures],
            rays=[self.rays[i] for i in pictures],
        )


def make_equations(
    board: Board, lens: Intrinsics, sightings: Sequence[Sighting], setup: str
) -> Equations:
    """Return what the solvers need; raises UnusableInputError for pictures of another size."""
    T_base_tcp = np.array([s.T_base_tcp for s in sightings])
    return Equations(
        T_base_tcp if setup == SETUPS[0] else inverse(T_base_tcp),
        np.array([lens.board_pose(board, s.view)[0] for s in sightings]),
        [s.view.points_m(board) for s in sightings],
        [lens.straightened(s.view.corners_px) for s in sightings],
        board.corners_m,
        lens.focal_px,
    )


def solve(
    equations: Equations, method: str, start: tuple[FloatArray, FloatArray] | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return X and Y, each of shape (4, 4); a fit begins with `start`, else with a closed form.

    Raises:
        NoAnswerError: the method gave no finite rigid motion.
    """
    if method != REFINED:
        return _closed_form(equations, method)
    for first in ("park", "shah", "daniilidis") if start is None else ():
        with contextlib.suppress(NoAnswerError):
            start = _closed_form(equations, first)
            break
    if start is None:
        raise NoAnswerError("no closed form to start from")
    X, Y, _ = refine(equations, *start)
    return X, Y


def refine(
    equations: Equations,
    X: FloatArray,
    Y: FloatArray,
    *,
    more: int = 0,
    change: Callable[[Equations, FloatArray], Equations] = lambda equations, _: equations,
    prior: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return X, Y and extra parameters that bring the corners nearest to where they were seen.

    Args:
        more: number of extra parameters, started at 0.
        change: returns the equations for their values, shape (more,).
        prior: standard deviations that hold them near 0, shape (more,).
    """

    def moved(p: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        return X @ pose(p[0:3], p[3:6]), Y @ pose(p[6:9], p[9:12]), p[12:]

    def errors(p: FloatArray) -> FloatArray:
        at_X, at_Y, extra = moved(p)
        wrong = reprojection_px(change(equations, extra), at_X, at_Y)
        return wrong if prior is None else np.concatenate([wrong, extra / prior])

    found = least_squares(errors, np.zeros(12 + more), method="lm", max_nfev=400)
    return moved(np.asarray(found.x, dtype=np.float64))


def reprojection_px(equations: Equations, X: FloatArray, Y: FloatArray) -> FloatArray:
    """Return where corners should appear less where they did [px], shape (2 m,)."""
    camera_board = inverse(equations.far_mount @ X) @ Y
    T = np.repeat(camera_board, [len(points) for points in equations.points_m], axis=0)
    points = np.concatenate(equations.points_m)
    seen = np.einsum("nij,nj->ni", T[:, :3, :3], points) + T[:, :3, 3]
    # A board behind the camera can't be seen: far outside the picture, rather than mirrored.
    rays = seen[:, :2] / np.maximum(seen[:, 2:], 1e-3)
    wrong = (rays - np.concatenate(equations.rays)).ravel()
    return np.asarray(wrong * equations.focal_px)


def _closed_form(equations: Equations, method: str) -> tuple[FloatArray, FloatArray]:
    A, B = equations.far_mount, equations.camera_board

    def parts(T: FloatArray) -> tuple[list[FloatArray], list[FloatArray]]:
        return list(T[:, :3, :3]), list(T[:, :3, 3])

    try:
        if method in _PAIRS:
            X = _rigid(*cv2.calibrateHandEye(*parts(A), *parts(B), method=_PAIRS[method]), method)
            return X, mean_pose(A @ X @ B)
        R_board_far, t_board_far, R_camera_mount, t_camera_mount = cv2.calibrateRobotWorldHandEye(
            *parts(B), *parts(inverse(A)), method=_WORLDS[method]
        )
    except cv2.error as error:
        raise NoAnswerError(f"{method}: {error}") from None
    X = inverse(_rigid(R_camera_mount, t_camera_mount, method))
    return X, inverse(_rigid(R_board_far, t_board_far, method))


def _rigid(R: FloatArray, t: FloatArray, method: str) -> FloatArray:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, np.ravel(t)
    good = np.isfinite(T).all() and np.linalg.det(T[:3, :3]) > 0.5
    if not good or not np.allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-2):
        raise NoAnswerError(f"{method}: no rigid motion")
    return pose(rotation_vector(T[:3, :3]), T[:3, 3])
