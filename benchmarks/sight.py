"""A script that sees by the camera tracker, as a controller made in simulation does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gaploop.sim.cell import SimCell
from gaploop.sim.expert import (
    GOAL_TOLERANCE_M,
    SceneSight,
    SceneView,
    ScriptedLeader,
    gripper_moves,
    nominal_arm,
)
from gaploop.sim.kinematics import ArmIk, fold_square, from_polar
from gaploop.sim.scene import CUBE_HALF_SIZE_M
from gaploop.sim.tracker import Tracker


class TrackerSight(SceneSight):
    """A controller made in simulation: tracked poses, joint readings, nominal sizes."""

    corrects = False

    def __init__(self, cell: SimCell, tracker: Tracker | None = None) -> None:
        self._cell = cell
        self._tracker = tracker or Tracker.nominal(cell.image_size, arm=cell.arm)
        self._ik = ArmIk(nominal_arm(cell.arm), cell.arm.joint_names[:-1])
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
            gripper_moving=gripper_moves(state),
            hand_near=False,
            lost=bool(q_rad[-1] < self._cell.arm.grip.empty_rad),
            placed=float(np.linalg.norm(object_xy - goal_xy)) < GOAL_TOLERANCE_M,
        )


def by_tracker(cell: SimCell, seed: int = 0, tracker: Tracker | None = None) -> ScriptedLeader:
    """Return a script that tries once, by the nominal tracker unless another is given."""
    return ScriptedLeader(cell, seed, sight=TrackerSight(cell, tracker), retries=0)
