"""What a scripted teleoperator knows of the scene: as a person sees it, or as a tracker does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FollowerState
from gaploop.sim.cell import Cell
from gaploop.sim.kinematics import ArmIk, fold_square, from_polar
from gaploop.sim.motion import nominal_arm
from gaploop.sim.scene import CUBE_HALF_SIZE_M
from gaploop.sim.tasks import FULL_SQUARE_RAD, GOAL_TOLERANCE_M
from gaploop.sim.tracker import Tracker

HAND_CLEARANCE_M = 0.16  # a person waits while a hand is that near the object
LOST_M = 0.045  # an object this far from the tool is no longer held
GRIPPER_STILL_RAD_S = 0.2


@dataclass(frozen=True)
class SceneView:
    """The scene at one moment.

    Attributes:
        object_xy_m: object on the table, shape (2,).
        object_z_m: height of its centre.
        object_yaw_rad: direction of its longer side.
        half_size_m: half extents, shape (3,).
        has_faces: False for a cylinder, which may be gripped at any angle.
        rest_z_m: height of the object's centre on the table.
        goal_xy_m: where to put it, shape (2,).
        stack_m: height of what it is put on.
        align: its faces must end up along the cell's axes.
        tool_m: where the tool is, shape (3,).
        gripper_moving: the jaws are still opening or closing.
        hand_near: somebody reaches for the object or the tool.
        lost: the object isn't in the gripper.
        placed: the object lies where it should.
    """

    object_xy_m: NDArray[np.float64]
    object_z_m: float
    object_yaw_rad: float
    half_size_m: NDArray[np.float64]
    has_faces: bool
    rest_z_m: float
    goal_xy_m: NDArray[np.float64]
    stack_m: float
    align: bool
    tool_m: NDArray[np.float64]
    gripper_moving: bool
    hand_near: bool
    lost: bool
    placed: bool


class Sight(Protocol):
    """A source of views."""

    corrects: bool
    """The tool is seen where it really is, so that errors of the arm can be corrected."""

    def reset(self) -> None:
        """Get ready for a new take."""
        ...

    def look(self) -> SceneView:
        """Return the scene now."""
        ...


class SceneSight:
    """A person who sees the real scene."""

    corrects = True

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def reset(self) -> None:
        """Nothing to forget: a person looks anew."""

    def look(self) -> SceneView:
        """Return the real scene."""
        truth: dict[str, Any] = self._cell.truth()
        position = np.asarray(truth["object_pos_m"])
        half = np.asarray(truth["object_half_size_m"])
        tool = np.asarray(truth["tool_pos_m"])
        hand = truth["hand_pos_m"]
        stacked = self._cell.task == "stack_cube"
        return SceneView(
            object_xy_m=position[:2],
            object_z_m=float(position[2]),
            object_yaw_rad=float(truth["object_yaw_rad"]),
            half_size_m=half,
            has_faces=truth["object_shape"] == "box",
            rest_z_m=float(truth["table_z_m"]) + float(half[2]),
            goal_xy_m=np.asarray(truth["goal_xy_m"]),
            stack_m=2.0 * CUBE_HALF_SIZE_M if stacked else 0.0,
            align=float(truth["yaw_tolerance_rad"]) < FULL_SQUARE_RAD - 1e-6,
            tool_m=tool,
            gripper_moving=_moving(self._cell.read()),
            hand_near=hand is not None and _near(np.asarray(hand), position, tool),
            lost=float(np.linalg.norm(position - tool)) > LOST_M,
            placed=bool(truth["success"]),
        )


class TrackerSight:
    """A controller made in simulation: tracked poses, joint readings, nominal sizes."""

    corrects = False

    def __init__(self, cell: Cell, tracker: Tracker | None = None) -> None:
        self._cell = cell
        self._tracker = tracker or Tracker.nominal(cell.image_size, arm=cell.arm)
        self._ik = ArmIk(nominal_arm(cell.arm), cell.arm)
        self._seen: NDArray[np.float64] | None = None
        self._seen_t_s = 0.0

    def reset(self) -> None:
        """Forget the last take's detections."""
        self._tracker.reset()
        self._seen = None

    def look(self) -> SceneView:
        """Return the scene as tracked."""
        frame = self._cell.frame()
        if self._seen is None or frame.t_capture_s != self._seen_t_s:
            self._seen = self._tracker.observe(frame.image, frame.t_capture_s)
            self._seen_t_s = frame.t_capture_s
        seen = self._seen
        state = self._cell.read()
        q_rad = state.position_rad
        tool, _ = self._ik.tcp(q_rad)
        object_xy = from_polar(float(seen[0]), float(seen[1]))
        goal_xy = from_polar(float(seen[3]), float(seen[4]))
        return SceneView(
            object_xy_m=object_xy,
            object_z_m=CUBE_HALF_SIZE_M,
            object_yaw_rad=fold_square(float(seen[2])) + float(seen[0]),
            half_size_m=np.full(3, CUBE_HALF_SIZE_M),
            has_faces=True,
            rest_z_m=CUBE_HALF_SIZE_M,
            goal_xy_m=goal_xy,
            stack_m=2.0 * CUBE_HALF_SIZE_M if self._cell.task == "stack_cube" else 0.0,
            align=False,
            tool_m=tool,
            gripper_moving=_moving(state),
            hand_near=False,
            lost=bool(q_rad[-1] < self._cell.arm.grip.empty_rad),
            placed=float(np.linalg.norm(object_xy - goal_xy)) < GOAL_TOLERANCE_M,
        )


def _near(
    hand_m: NDArray[np.float64], object_m: NDArray[np.float64], tool_m: NDArray[np.float64]
) -> bool:
    gaps_m = [np.linalg.norm(hand_m[:2] - place[:2]) for place in (object_m, tool_m)]
    return bool(min(gaps_m) < HAND_CLEARANCE_M)


def _moving(state: FollowerState) -> bool:
    return bool(abs(state.velocity_rad_s[-1]) > GRIPPER_STILL_RAD_S)
