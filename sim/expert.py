"""A scripted teleoperator: solves the task through joint commands only.

It stands for a person. With `sees="scene"` it sees the real scene, as a person does, and
adapts to it; with `sees="tracker"` it knows only what the camera tracker reports and nominal
sizes, as a controller made in simulation does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import unknown_choice
from gaploop.core.types import LeaderSample
from gaploop.sim.cell import Cell
from gaploop.sim.kinematics import fold_square, polar
from gaploop.sim.motion import ToolGoal, ToolMotion
from gaploop.sim.observers import SceneSight, SceneView, Sight, TrackerSight
from gaploop.sim.tracker import Tracker

Sees = Literal["scene", "tracker"]

APPROACH_M = 0.055  # heights of the tool above the object's resting centre
DESCEND_M = -0.001
CARRY_M = 0.050
LIFT_EXTRA_M = 0.018  # where lifting is the task: clearly above the height that counts
RELEASE_M = 0.006
JAW_CLEARANCE_M = 0.006  # left between the fixed jaw and the object's face

ARRIVED_M = 0.004
ARRIVED_RAD = 0.06
FOLLOWED_M = 0.010  # the arm itself is this near its set point
PATIENCE_S = 0.6  # waits this long for an arm that lags
CORRECTION_RATE_HZ = 3.0  # how fast a person corrects a tool that stands elsewhere
STILL_M_S = 0.02
LARGEST_CORRECTION_M = 0.04


class ExpertStage(IntEnum):
    """Where the attempt is."""

    APPROACH = 0
    DESCEND = 1
    CLOSE = 2
    LIFT = 3
    CARRY = 4
    LOWER = 5
    OPEN = 6
    RETREAT = 7
    DONE = 8


# How long a stage lasts at least, after its set point has been reached [s].
DWELL_S = {
    ExpertStage.CLOSE: 0.10,
    ExpertStage.LOWER: 0.06,
    ExpertStage.OPEN: 0.06,
    ExpertStage.RETREAT: 0.10,
}


@dataclass(frozen=True)
class _Habits:
    """What differs between two attempts of the same person."""

    speed: float
    height_m: float
    jaw_m: float
    yaw_rad: float
    place_m: NDArray[np.float64]


class ScriptedLeader:
    """Implements core's `Leader`: read() gives the next joint command."""

    def __init__(
        self,
        cell: Cell,
        seed: int = 0,
        *,
        sees: Sees = "scene",
        retries: int | None = None,
        noise: float = 1.0,
        tracker: Tracker | None = None,
    ) -> None:
        """Drive `cell`.

        Args:
            cell: the cell; read for its scene or its pictures, never commanded here.
            seed: draws the habits of each attempt.
            sees: "scene" (a person) or "tracker" (camera tracker and nominal sizes).
            retries: attempts after the first; by default 4 for a person and 0 otherwise.
            noise: factor on the person's inaccuracies; 0 for none.
            tracker: the tracker to use; by default the nominal one.

        Raises:
            UnknownChoiceError: for another value of `sees`.
        """
        if sees not in ("scene", "tracker"):
            raise unknown_choice("sight", sees, ("scene", "tracker"), "sees")
        self._cell = cell
        self._grip = cell.arm.grip
        self._seed = seed
        self._noise = noise
        self._sight: Sight = SceneSight(cell) if sees == "scene" else TrackerSight(cell, tracker)
        self._retries = (4 if sees == "scene" else 0) if retries is None else retries
        self._takes = 0
        self.reset()

    def reset(self) -> None:
        """Get ready for a new take, which the cell has already been reset to."""
        self._rng = np.random.default_rng([self._seed, self._takes, 31])
        self._takes += 1
        self._sight.reset()
        self._attempts_left = self._retries
        self._habits = self._draw_habits()
        self._motion = ToolMotion(self._rng, self._noise, self._cell.arm)
        self._motion.reset(self._cell.read().position_rad, self._habits.speed)
        self._held_x_m = 0.0
        self._last_t_s: float | None = None
        self._last_tool_m: NDArray[np.float64] = np.zeros(3)
        self._grasp: ToolGoal | None = None
        self._grasp_disturbed = False
        self._enter(ExpertStage.APPROACH)

    @property
    def stage(self) -> ExpertStage:
        """Where the attempt is."""
        return self._stage

    def done(self) -> bool:
        """Say whether the attempt is over."""
        return self._stage is ExpertStage.DONE

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint command for loop time `t_s` [s]; call at the policy rate or faster."""
        period_s = 1.0 / self._cell.fps
        if self._last_t_s is not None:
            period_s = float(np.clip(t_s - self._last_t_s, 0.0, 0.1))
        self._last_t_s = t_s
        view = self._sight.look()
        if view.hand_near and ExpertStage.DESCEND <= self._stage <= ExpertStage.LOWER:
            return LeaderSample(t_s, self._wait_for_hand())
        if self._grasp_disturbed:
            self._grasp_disturbed = False
            self._enter(ExpertStage.APPROACH)
        self._change_stage(view, period_s)
        goal = self._goal(view)
        if self._sight.corrects:
            self._correct(view, period_s)
        return LeaderSample(t_s, self._motion.step(goal, period_s))

    def _wait_for_hand(self) -> NDArray[np.float64]:
        """Hold still while a hand is near; a grasp that isn't finished starts over afterwards."""
        self._grasp_disturbed = self._stage <= ExpertStage.CLOSE
        return self._motion.hold()

    def _draw_habits(self) -> _Habits:
        rng, k = self._rng, self._noise
        return _Habits(
            speed=1.0 + 0.08 * k * float(rng.uniform(-1, 1)),
            height_m=0.003 * k * float(np.clip(rng.normal(), -2, 2)),
            jaw_m=0.0008 * k * float(np.clip(rng.normal(), -2, 2)),
            yaw_rad=np.radians(1.5) * k * float(np.clip(rng.normal(), -2, 2)),
            place_m=0.0015 * k * np.clip(rng.normal(size=2), -2, 2),
        )

    def _enter(self, stage: ExpertStage) -> None:
        self._stage = stage
        self._waited_s = 0.0
        self._reached_s = 0.0

    def _goal(self, view: SceneView) -> ToolGoal:
        if self._stage <= ExpertStage.DESCEND or self._grasp is None:
            self._grasp = self._grasp_goal(view)
        if self._stage <= ExpertStage.DESCEND:
            return self._grasp
        if self._stage is ExpertStage.CLOSE:
            return replace(self._grasp, gripper_rad=self._grip.shut_rad)
        if self._stage is ExpertStage.LIFT:
            height_m = view.rest_z_m + CARRY_M + self._habits.height_m
            height_m += LIFT_EXTRA_M if self._cell.task == "pick_lift" else 0.0
            return replace(self._grasp, height_m=height_m, gripper_rad=self._grip.shut_rad)
        return self._place_goal(view)

    def _grasp_goal(self, view: SceneView) -> ToolGoal:
        """Tool pose that puts the object between the jaws, a face near the fixed one."""
        azimuth, _ = polar(view.object_xy_m)
        turn, half_m = _best_grip(view, azimuth, self._grip.widest_m)
        jaw = azimuth + np.pi + turn + self._habits.yaw_rad
        reach_m = self._grip.beside_m(half_m, JAW_CLEARANCE_M) + self._habits.jaw_m
        xy = view.object_xy_m - reach_m * np.array([np.cos(jaw), np.sin(jaw)])
        height_m = view.object_z_m + DESCEND_M
        if self._stage is ExpertStage.APPROACH:
            height_m = view.object_z_m + APPROACH_M + self._habits.height_m
            height_m += 0.06 if view.hand_near else 0.0
        return ToolGoal(xy, height_m, jaw - np.pi - polar(xy)[0], self._grip.open_rad)

    def _place_goal(self, view: SceneView) -> ToolGoal:
        """Tool pose that puts the held object on the goal, or above it."""
        if self._stage is ExpertStage.CARRY:
            self._held_x_m = self._held_offset(view)
        turn = self._motion.turn_rad
        if view.align and self._stage <= ExpertStage.LOWER:
            turn = fold_square(-polar(view.goal_xy_m)[0])
        axis = self._motion.jaw_axis(view.goal_xy_m, turn)
        xy = view.goal_xy_m + self._habits.place_m - self._held_x_m * axis
        low = self._stage in (ExpertStage.LOWER, ExpertStage.OPEN)
        height_m = view.rest_z_m + view.stack_m + (RELEASE_M if low else CARRY_M)
        opened = self._stage >= ExpertStage.OPEN
        return ToolGoal(xy, height_m, turn, self._grip.open_rad if opened else self._grip.shut_rad)

    def _held_offset(self, view: SceneView) -> float:
        """Where the object is in the gripper, along the tool's x axis [m]."""
        axis = self._motion.jaw_axis(view.tool_m[:2], self._motion.turn_rad)
        if not self._sight.corrects:
            return self._grip.beside_m(float(view.half_size_m[0]), 0.0)
        return float(np.clip((view.object_xy_m - view.tool_m[:2]) @ axis, -0.02, 0.02))

    def _change_stage(self, view: SceneView, period_s: float) -> None:
        if self._stage is ExpertStage.DONE or self._grasp is None:
            return
        if (
            self._stage in (ExpertStage.CARRY, ExpertStage.LOWER)
            and view.lost
            and self._attempts_left > 0
        ):
            self._retry()
            return
        self._reached_s += period_s
        if not self._reached(view):
            self._reached_s = 0.0
            return
        if self._reached_s < DWELL_S.get(self._stage, 0.0):
            return
        if self._stage is ExpertStage.APPROACH and view.hand_near:
            return
        self._enter(self._following(view))

    def _reached(self, view: SceneView) -> bool:
        goal = self._goal(view)
        left_m, turn_rad, opening_rad = self._motion.left(goal)
        if left_m > ARRIVED_M or max(turn_rad, opening_rad) > ARRIVED_RAD:
            self._waited_s = 0.0
            return False
        self._waited_s += 1.0 / self._cell.fps
        behind_m = float(np.linalg.norm(self._motion.position_m - view.tool_m))
        gripping = self._stage in (ExpertStage.CLOSE, ExpertStage.OPEN)
        settled = behind_m < FOLLOWED_M and not (gripping and view.gripper_moving)
        return settled or self._waited_s > PATIENCE_S

    def _following(self, view: SceneView) -> ExpertStage:
        stage = self._stage
        if stage is ExpertStage.LIFT and self._cell.task == "pick_lift":
            return ExpertStage.DONE
        if stage is ExpertStage.RETREAT and self._attempts_left > 0 and not view.placed:
            self._retry()
            return ExpertStage.APPROACH
        return ExpertStage(stage + 1)

    def _retry(self) -> None:
        self._attempts_left -= 1
        self._habits = self._draw_habits()
        self._enter(ExpertStage.APPROACH)

    def _correct(self, view: SceneView, period_s: float) -> None:
        """Shift the set point by what the eye sees missing, slowly, once the arm has settled."""
        speed_m_s = float(np.linalg.norm(view.tool_m - self._last_tool_m)) / max(period_s, 1e-3)
        self._last_tool_m = view.tool_m
        if self._waited_s == 0.0 or speed_m_s > STILL_M_S:
            return  # a lagging arm is not a misplaced one
        missing = self._motion.position_m - view.tool_m
        change = CORRECTION_RATE_HZ * period_s * missing
        total = self._motion.correction_m + change
        self._motion.correction_m = np.clip(total, -LARGEST_CORRECTION_M, LARGEST_CORRECTION_M)


def _best_grip(view: SceneView, azimuth_rad: float, widest_m: float) -> tuple[float, float]:
    """Jaw angle nearest to wrist_roll 0 at which the object fits, and the half width there."""
    if not view.has_faces:
        return 0.0, float(view.half_size_m[0])
    turn = fold_square(view.object_yaw_rad - azimuth_rad)
    quarters = round((view.object_yaw_rad - azimuth_rad - turn) / (np.pi / 2.0))
    half_m = float(view.half_size_m[quarters % 2])
    if half_m <= widest_m and half_m <= 1.3 * float(view.half_size_m[:2].min()):
        return turn, half_m
    turn += -np.pi / 2.0 if turn > 0 else np.pi / 2.0
    return turn, float(view.half_size_m[(quarters + 1) % 2])
