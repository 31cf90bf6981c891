"""When an attempt counts as done: the station's criterion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

INSTRUCTIONS = {
    "pick_place": "Put the cube on the disc",
    "pick_lift": "Lift the cube",
    "stack_cube": "Put the red cube on the blue one",
}
"""Task to what an operator is told."""
TASKS = tuple(INSTRUCTIONS)


def find_task(words: str) -> str:
    """Return the cell's task of this name, or told in these words; pick_place for others."""
    return next((task for task, told in INSTRUCTIONS.items() if words in (task, told)), TASKS[0])


# Thresholds of so101-nexus' PickAndPlace-v1 and StackCube-v1, but for the goal tolerance,
# which is 15 instead of 25 mm: otherwise coarse placements count.
GOAL_TOLERANCE_M = 0.015
REST_SLACK_M = 0.010
LIFT_HEIGHT_M = 0.05
STATIC_SPEED_M_S = 0.01
STATIC_TURN_RAD_S = 0.5
FULL_SQUARE_RAD = np.pi / 4.0  # the largest yaw error a square can have


@dataclass(frozen=True)
class Criterion:
    """What the station counts as success.

    Attributes:
        tolerance_m: largest distance of the object from the goal.
        goal_offset_m: where the goal lies, relative to the visible target, shape (2,).
        yaw_tolerance_rad: largest angle between the object's faces and the cell's axes.
        deadline_s: latest time of the take at which it counts.
        clearance_m: smallest distance of the tool from the object.
    """

    task: str = "pick_place"
    tolerance_m: float = GOAL_TOLERANCE_M
    goal_offset_m: tuple[float, float] = (0.0, 0.0)
    yaw_tolerance_rad: float = FULL_SQUARE_RAD
    deadline_s: float = math.inf
    clearance_m: float = 0.0


@dataclass(frozen=True)
class TaskState:
    """Privileged state that the criterion looks at.

    Attributes:
        object_yaw_rad: its yaw folded into [-45, 45) degrees.
        object_rest_z_m: height of its centre when it lies on the table.
        target_pos_m: position of the visible target, shape (3,).
        held: both jaws press on it.
        t_s: time since the take began.
        tool_distance_m: distance of the tool from the object's centre.
    """

    object_pos_m: NDArray[np.float64]
    object_yaw_rad: float
    object_rest_z_m: float
    object_half_height_m: float
    speed_m_s: float
    turn_rad_s: float
    target_pos_m: NDArray[np.float64]
    held: bool
    t_s: float
    tool_distance_m: float


def is_success(criterion: Criterion, state: TaskState) -> bool:
    """Judge the state against the criterion."""
    if state.t_s > criterion.deadline_s:
        return False
    if criterion.task == "pick_lift":
        lifted = state.object_pos_m[2] - state.object_rest_z_m >= LIFT_HEIGHT_M
        return bool(lifted and state.held)
    goal = state.target_pos_m[:2] + np.asarray(criterion.goal_offset_m)
    near = float(np.linalg.norm(state.object_pos_m[:2] - goal)) <= criterion.tolerance_m
    still = state.speed_m_s < STATIC_SPEED_M_S and state.turn_rad_s < STATIC_TURN_RAD_S
    aligned = abs(state.object_yaw_rad) <= criterion.yaw_tolerance_rad + 1e-9
    height_m = float(state.object_pos_m[2])
    if criterion.task == "stack_cube":
        on_top_m = float(state.target_pos_m[2]) + 2.0 * state.object_half_height_m
        at_rest = abs(height_m - on_top_m) < REST_SLACK_M
    else:
        at_rest = height_m < state.object_rest_z_m + REST_SLACK_M
    done = near and at_rest and still and aligned and not state.held
    return bool(done and state.tool_distance_m >= criterion.clearance_m)
