"""A scripted teleoperator: solves the task through joint commands only.

It stands for a person, sees the scene as one does, and adapts to it. From top to bottom: how it
moves its tool, what it sees, what it does, and how two arms hand over to each other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from typing import Any, Final, cast

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import CellArm, MountedArm
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample
from gaploop.sim import scene
from gaploop.sim.catalogue import SO101
from gaploop.sim.cell import SimCell
from gaploop.sim.kinematics import TCP_SITE, ArmIk, fold_square, from_polar, polar
from gaploop.sim.predicates import FULL_SQUARE_RAD
from gaploop.sim.scene import CUBE_HALF_SIZE_M

SPEED_M_S = 0.42
ACCELERATION_M_S2 = 4.0
TURN_RAD_S = 2.6
JOINT_RAD_S = 2.8  # under the 3 rad/s that a station's safety filter allows by default
GRIPPER_RAD_S = 2.6
TURN_RAD_S2 = 30.0
APPROACH_RATE_HZ = 11.0  # speed per distance left: slows down before the goal
AZIMUTH_ARM_M = 0.20  # turns azimuth into a length, so that one speed limit serves all
TREMOR_M = 0.0006  # standard deviation of a person's hand on a leader arm; assumed
TREMOR_TIME_S = 0.25
GOAL_TOLERANCE_M = 0.015  # by which a person sees that a take is done, as of pick_place.yaml
REST_SLACK_M = 0.010
REVERSAL_RAD = 0.01  # a joint that comes back by less trembles, by more it has turned round

_SPEEDS = np.array([SPEED_M_S, SPEED_M_S, SPEED_M_S, TURN_RAD_S, GRIPPER_RAD_S])
_ACCELERATIONS = np.array([ACCELERATION_M_S2] * 3 + [TURN_RAD_S2, TURN_RAD_S2])


@dataclass(frozen=True)
class ToolGoal:
    """Where the tool shall be.

    Attributes:
        xy_m: tool centre over the table, shape (2,).
        height_m: its height in the base frame.
        turn_rad: jaw angle against the arm's radial direction: about the wrist_roll angle.
    """

    xy_m: NDArray[np.float64]
    height_m: float
    turn_rad: float
    gripper_rad: float


@cache
def nominal_arm(arm: CellArm = SO101) -> mujoco.MjModel:
    """The arm as designed, for kinematics; shared, must not be changed."""
    return scene.build_model(scene.SceneOptions(arm=arm))


class ToolMotion:
    """Moves a tool set point towards goals with limited speed and acceleration."""

    def __init__(self, rng: np.random.Generator, arm: CellArm, play_rad: FloatArray) -> None:
        """Move `arm`; `rng` draws tremor; the play of its joints [rad] is crossed."""
        self.ik = ArmIk(nominal_arm(arm), arm.joint_names[:-1])
        self._rng = rng
        self._play_rad = play_rad

    def reset(self, q_rad: NDArray[np.float64], speed: float) -> None:
        """Start from rest at `q_rad` [rad], gripper last, with a factor on the speed limits."""
        self._q, self._sent, self._turned = q_rad.copy(), q_rad.copy(), q_rad.copy()
        self._side: FloatArray = np.zeros(len(q_rad))
        position, rotation = self.ik.tcp(q_rad)
        azimuth, radius = polar(position[:2])
        turn = float(np.arctan2(rotation[1, 0], rotation[0, 0])) - azimuth - np.pi
        turn = (turn + np.pi) % (2.0 * np.pi) - np.pi
        self._at = np.array([azimuth * AZIMUTH_ARM_M, radius, position[2], turn, q_rad[-1]])
        self._rate = np.zeros(5)
        self._speed_factor = speed
        self._tremor = np.zeros(3)
        self.correction_m: NDArray[np.float64] = np.zeros(3)

    @property
    def position_m(self) -> NDArray[np.float64]:
        """Tool set point [m], shape (3,), in the base frame, without correction."""
        xy = from_polar(self._at[0] / AZIMUTH_ARM_M, self._at[1])
        return np.array([xy[0], xy[1], self._at[2]])

    @property
    def turn_rad(self) -> float:
        """Present jaw angle against the arm's radial direction [rad]."""
        return float(self._at[3])

    def jaw_axis(self, xy_m: NDArray[np.float64], turn_rad: float) -> NDArray[np.float64]:
        """Direction of the fixed jaw, shape (2,), for a tool at `xy_m` with `turn_rad`."""
        angle = polar(xy_m)[0] + np.pi + turn_rad
        return np.array([np.cos(angle), np.sin(angle)])

    def step(self, goal: ToolGoal, period_s: float) -> NDArray[np.float64]:
        """Move the set point for `period_s` [s] towards `goal`; return the joint command [rad]."""
        before_at, before_q = self._at.copy(), self._q.copy()
        error = self._coordinates(goal) - self._at
        limit = _SPEEDS * self._speed_factor
        wanted = np.clip(APPROACH_RATE_HZ * error, -limit, limit)
        change = _ACCELERATIONS * period_s
        self._rate += np.clip(wanted - self._rate, -change, change)
        self._at = self._at + self._rate * period_s
        keep = np.exp(-period_s / TREMOR_TIME_S)
        kick = TREMOR_M * np.sqrt(1.0 - keep**2)
        self._tremor = keep * self._tremor + kick * self._rng.normal(size=3)
        q = self._joints(before_q)
        fastest = float(np.abs(q - before_q).max()) / max(period_s * JOINT_RAD_S, 1e-9)
        if fastest > 1.0:  # near the arm's edge a straight tool path asks much of the joints
            self._at = before_at + (self._at - before_at) / fastest
            self._rate /= fastest
            q = self._joints(before_q)
        limit_rad = JOINT_RAD_S * period_s
        self._q = np.clip(q, before_q - limit_rad, before_q + limit_rad)
        # Where a joint turns round its play is crossed first, as fast as a leader may move.
        back = (self._turned - self._q) * self._side
        turns = (back > REVERSAL_RAD) | (self._side == 0.0)
        self._side = np.where(turns, np.sign(self._q - self._turned), self._side)
        self._turned = np.where(turns | (back < 0.0), self._q, self._turned)
        wanted = self._q + 0.5 * self._play_rad * self._side
        sent = np.clip(wanted, self._sent - limit_rad, self._sent + limit_rad)
        self._sent = np.where(self._play_rad > 0.0, sent, self._q)
        return self._sent.copy()

    def hold(self) -> NDArray[np.float64]:
        """Stop and repeat the last joint command [rad]."""
        self._rate = np.zeros(5)
        return self._sent.copy()

    def left(self, goal: ToolGoal) -> tuple[float, float, float]:
        """Distance [m], turn [rad] and opening [rad] still to go."""
        error = np.abs(self._coordinates(goal) - self._at)
        return float(np.linalg.norm(error[:3])), float(error[3]), float(error[4])

    def _coordinates(self, goal: ToolGoal) -> NDArray[np.float64]:
        azimuth, radius = polar(goal.xy_m)
        return np.array(
            [azimuth * AZIMUTH_ARM_M, radius, goal.height_m, goal.turn_rad, goal.gripper_rad]
        )

    def _joints(self, q_start_rad: NDArray[np.float64]) -> NDArray[np.float64]:
        azimuth = self._at[0] / AZIMUTH_ARM_M
        position = self.position_m + self.correction_m + self._tremor
        arm = self.ik.solve(position, azimuth + np.pi + self._at[3], q_start_rad)
        return np.append(arm, self._at[4])


HAND_CLEARANCE_M = 0.16  # a person waits while a hand is that near the object
LOST_M = 0.045  # an object this far from the tool is no longer held
GRIPPER_STILL_RAD_S = 0.2


@dataclass(frozen=True)
class SceneView:
    """The scene at one moment.

    Attributes:
        object_z_m: height of its centre.
        object_yaw_rad: direction of its longer side.
        has_faces: False for a cylinder, which may be gripped at any angle.
        rest_z_m: height of the object's centre on the table.
        stack_m: height of what it is put on.
        goal_yaw_rad: direction that its faces must end up along; None for any.
        hand_near: somebody reaches for the object or the tool.
    """

    object_xy_m: NDArray[np.float64]
    object_z_m: float
    object_yaw_rad: float
    half_size_m: NDArray[np.float64]
    has_faces: bool
    rest_z_m: float
    goal_xy_m: NDArray[np.float64]
    stack_m: float
    goal_yaw_rad: float | None
    tool_m: NDArray[np.float64]
    gripper_moving: bool
    hand_near: bool
    lost: bool
    placed: bool


class SceneSight:
    """A person who sees the real scene."""

    corrects = True
    """The tool is seen where it really is, so that errors of the arm can be corrected."""

    def __init__(self, cell: SimCell) -> None:
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
        nearest_m = np.inf
        if hand is not None:
            nearest_m = min(float(np.linalg.norm(at[:2] - hand[:2])) for at in (position, tool))
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
            goal_yaw_rad=0.0
            if float(truth["yaw_tolerance_rad"]) < FULL_SQUARE_RAD - 1e-6
            else None,
            tool_m=tool,
            gripper_moving=gripper_moves(self._cell.read()),
            hand_near=nearest_m < HAND_CLEARANCE_M,
            lost=float(np.linalg.norm(position - tool)) > LOST_M,
            placed=bool(truth["success"]),
        )


class TrackedSight(SceneSight):
    """A script that sees by a camera's tracker: tracked poses, joint readings, nominal sizes.

    Args:
        read: what the servos report.
        see: the scene as `tracker.NAMES` has it, shape (7,).
    """

    corrects = False

    def __init__(
        self,
        arm: CellArm,
        read: Callable[[], FollowerState],
        see: Callable[[], NDArray[np.float64]],
        *,
        stack_m: float = 0.0,
        goal_yaw_rad: float | None = None,
    ) -> None:
        self._arm, self._read, self._see = arm, read, see
        self._stack_m, self._goal_yaw_rad = stack_m, goal_yaw_rad
        self._ik = ArmIk(nominal_arm(arm), arm.joint_names[:-1])

    def look(self) -> SceneView:
        """Return the scene as tracked."""
        seen, state = self._see(), self._read()
        tool, _ = self._ik.tcp(state.position_rad)
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
            stack_m=self._stack_m,
            goal_yaw_rad=self._goal_yaw_rad,
            tool_m=tool,
            gripper_moving=gripper_moves(state),
            hand_near=False,
            lost=bool(state.position_rad[-1] < self._arm.grip.empty_rad),
            placed=float(np.linalg.norm(object_xy - goal_xy)) < GOAL_TOLERANCE_M,
        )


def gripper_moves(state: FollowerState) -> bool:
    """Say whether the gripper opens or closes."""
    return bool(abs(state.velocity_rad_s[-1]) > GRIPPER_STILL_RAD_S)


APPROACH_M = 0.055  # heights of the tool above the object's resting centre
DESCEND_M = -0.001
CARRY_M = 0.050
LIFT_EXTRA_M = 0.018  # where lifting is the task: clearly above the height that counts
RELEASE_M = 0.006
JAW_CLEARANCE_M = 0.006  # left between the fixed jaw and the object's face

ARRIVED_M = 0.004
ARRIVED_RAD = 0.06
FOLLOWED_M = 0.010  # the arm itself is this near its set point
PATIENCE_S = 0.6  # waits this long for an arm that lags and stands still
UNDER_WAY_RAD_S = 0.15
LONGEST_WAIT_S = 6.0
CORRECTION_RATE_HZ = 3.0  # how fast a person corrects a tool that stands elsewhere
STILL_M_S = 0.02
LOW_M = 0.03  # an object held this far above where it lay is carried, lower it is lifted first
BESIDE_M = 0.012  # a tool that is this near to the grasp, seen from above, descends
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
    """Implements core's `Leader`: read() gives the next joint command.

    Attributes:
        stage: where the attempt is.
    """

    def __init__(
        self,
        cell: SimCell,
        seed: int = 0,
        *,
        sight: SceneSight | None = None,
        retries: int = 4,
        speed: float = 1.0,
        patience_s: float = LONGEST_WAIT_S,
    ) -> None:
        """Drive `cell`.

        Args:
            cell: the cell; read for its scene, never commanded here.
            seed: draws the habits of each attempt.
            sight: how the scene is seen; as a person does unless given.
            retries: attempts after the first.
            speed: factor on how fast it moves.
            patience_s: how long it waits for an arm that lags and still moves [s].
        """
        self._cell = cell
        self._grip = cell.arm.grip
        self._seed = seed
        self._sight, self._retries = sight or SceneSight(cell), retries
        self._speed, self._patience_s = speed, patience_s
        self._takes = 0
        self.reset()

    def reset(self) -> None:
        """Get ready for a new take, which the cell has already been reset to."""
        self._rng = np.random.default_rng([self._seed, self._takes, 31])
        self._takes += 1
        self._sight.reset()
        self._attempts_left = self._retries
        self._habits = self._draw_habits()
        play_rad = self._cell.play_rad() * self._sight.corrects  # who doesn't see it, doesn't know
        self._motion = ToolMotion(self._rng, self._cell.arm, play_rad)
        self._motion.reset(self._cell.read().position_rad, self._habits.speed)
        self._held_x_m = 0.0
        self._last_t_s: float | None = None
        self._last_tool_m: NDArray[np.float64] = np.zeros(3)
        self._grasp: ToolGoal | None = None
        self._grasp_disturbed = False
        self._enter(ExpertStage.APPROACH)

    def take_over(self) -> None:
        """Go on in the middle of a take that somebody else has driven so far."""
        self.reset()
        view, truth = self._sight.look(), self._cell.truth()
        grasp = self._grasp_goal(view)
        offset_m, turn_rad, _ = self._motion.left(replace(grasp, height_m=float(view.tool_m[2])))
        if truth["held"]:
            is_low = view.object_z_m < view.rest_z_m + LOW_M
            here = replace(grasp, xy_m=view.tool_m[:2], turn_rad=self._motion.turn_rad)
            self._grasp = here
            self._enter(ExpertStage.LIFT if is_low else ExpertStage.CARRY)
        elif view.placed:
            self._enter(ExpertStage.RETREAT)
        elif offset_m < BESIDE_M and turn_rad < 2 * ARRIVED_RAD and not view.gripper_moving:
            self._enter(ExpertStage.DESCEND)

    def done(self) -> bool:
        """Say whether the attempt is over."""
        return self.stage is ExpertStage.DONE

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint command for loop time `t_s` [s]; call at the policy rate or faster."""
        period_s = 1.0 / self._cell.fps
        if self._last_t_s is not None:
            period_s = float(np.clip(t_s - self._last_t_s, 0.0, 0.1))
        self._last_t_s = t_s
        view = self._sight.look()
        if view.hand_near and ExpertStage.DESCEND <= self.stage <= ExpertStage.LOWER:
            # A grasp that isn't finished starts over afterwards.
            self._grasp_disturbed = self.stage <= ExpertStage.CLOSE
            return LeaderSample(t_s, self._motion.hold())
        if self._grasp_disturbed:
            self._grasp_disturbed = False
            self._enter(ExpertStage.APPROACH)
        self._change_stage(view, period_s)
        goal = self._goal(view)
        if self._sight.corrects:
            # Shift the set point by what the eye sees missing, slowly, once the arm has settled:
            # a lagging arm is not a misplaced one.
            moved_m = float(np.linalg.norm(view.tool_m - self._last_tool_m))
            self._last_tool_m = view.tool_m
            lags = self._lags and self._behind_m(view) > FOLLOWED_M
            if self._waited_s > 0.0 and not lags and moved_m / max(period_s, 1e-3) <= STILL_M_S:
                missing = self._motion.position_m - view.tool_m
                total = self._motion.correction_m + CORRECTION_RATE_HZ * period_s * missing
                most = LARGEST_CORRECTION_M
                self._motion.correction_m = np.clip(total, -most, most)
        return LeaderSample(t_s, self._motion.step(goal, period_s))

    def _draw_habits(self) -> _Habits:
        rng = self._rng
        return _Habits(
            speed=self._speed * (1.0 + 0.08 * float(rng.uniform(-1, 1))),
            height_m=0.003 * float(np.clip(rng.normal(), -2, 2)),
            jaw_m=0.0008 * float(np.clip(rng.normal(), -2, 2)),
            yaw_rad=np.radians(1.5) * float(np.clip(rng.normal(), -2, 2)),
            place_m=0.0015 * np.clip(rng.normal(size=2), -2, 2),
        )

    def _enter(self, stage: ExpertStage) -> None:
        self.stage = stage
        self._waited_s = self._stuck_s = self._reached_s = 0.0
        self._lags = False

    def _goal(self, view: SceneView) -> ToolGoal:
        if self.stage <= ExpertStage.DESCEND or self._grasp is None:
            self._grasp = self._grasp_goal(view)
        if self.stage <= ExpertStage.DESCEND:
            return self._grasp
        if self.stage is ExpertStage.CLOSE:
            return replace(self._grasp, gripper_rad=self._grip.shut_rad)
        if self.stage is ExpertStage.LIFT:
            height_m = view.rest_z_m + CARRY_M + self._habits.height_m
            height_m += LIFT_EXTRA_M if self._cell.task == "pick_lift" else 0.0
            return replace(self._grasp, height_m=height_m, gripper_rad=self._grip.shut_rad)
        # The held object on the goal, or above it.
        if self.stage is ExpertStage.CARRY:
            # Where the object is in the gripper, along the tool's x axis.
            self._held_x_m = self._grip.object_offset_m(float(view.half_size_m[0]), 0.0)
            if self._sight.corrects:
                axis = self._motion.jaw_axis(view.tool_m[:2], self._motion.turn_rad)
                held_m = float((view.object_xy_m - view.tool_m[:2]) @ axis)
                self._held_x_m = float(np.clip(held_m, -0.02, 0.02))
        turn = self._motion.turn_rad
        if view.goal_yaw_rad is not None and self.stage <= ExpertStage.LOWER:
            turn = fold_square(view.goal_yaw_rad - polar(view.goal_xy_m)[0])
        axis = self._motion.jaw_axis(view.goal_xy_m, turn)
        xy = view.goal_xy_m + self._habits.place_m - self._held_x_m * axis
        low = self.stage in (ExpertStage.LOWER, ExpertStage.OPEN)
        height_m = view.rest_z_m + view.stack_m + (RELEASE_M if low else CARRY_M)
        opened = self.stage >= ExpertStage.OPEN
        return ToolGoal(xy, height_m, turn, self._grip.open_rad if opened else self._grip.shut_rad)

    def _grasp_goal(self, view: SceneView) -> ToolGoal:
        """Tool pose that puts the object between the jaws, a face near the fixed one."""
        azimuth, _ = polar(view.object_xy_m)
        turn, half_m = 0.0, float(view.half_size_m[0])
        if view.has_faces:
            # The jaw angle nearest to wrist_roll 0 at which the object fits.
            turn = fold_square(view.object_yaw_rad - azimuth)
            quarters = round((view.object_yaw_rad - azimuth - turn) / (np.pi / 2.0))
            half_m = float(view.half_size_m[quarters % 2])
            narrow_m = min(self._grip.widest_m, 1.3 * float(view.half_size_m[:2].min()))
            if half_m > narrow_m:
                turn += -np.pi / 2.0 if turn > 0 else np.pi / 2.0
                half_m = float(view.half_size_m[(quarters + 1) % 2])
        jaw = azimuth + np.pi + turn + self._habits.yaw_rad
        reach_m = self._grip.object_offset_m(half_m, JAW_CLEARANCE_M) + self._habits.jaw_m
        xy = view.object_xy_m - reach_m * np.array([np.cos(jaw), np.sin(jaw)])
        height_m = view.object_z_m + DESCEND_M
        if self.stage is ExpertStage.APPROACH:
            height_m = view.object_z_m + APPROACH_M + self._habits.height_m
            height_m += 0.06 if view.hand_near else 0.0
        return ToolGoal(xy, height_m, jaw - np.pi - polar(xy)[0], self._grip.open_rad)

    def _change_stage(self, view: SceneView, period_s: float) -> None:
        if self.stage is ExpertStage.DONE or self._grasp is None:
            return
        carries = self.stage in (ExpertStage.CARRY, ExpertStage.LOWER)
        if carries and view.lost and self._attempts_left > 0:
            self._retry()
            return
        self._reached_s += period_s
        left_m, turn_rad, opening_rad = self._motion.left(self._goal(view))
        if left_m > ARRIVED_M or max(turn_rad, opening_rad) > ARRIVED_RAD:
            self._waited_s = self._reached_s = 0.0
            return
        self._waited_s += 1.0 / self._cell.fps
        behind_m = self._behind_m(view)
        gripping = self.stage in (ExpertStage.CLOSE, ExpertStage.OPEN)
        settled = behind_m < FOLLOWED_M and not (gripping and view.gripper_moving)
        arm = self._cell.read()
        if self.stage is ExpertStage.OPEN:
            settled &= bool(arm.position_rad[-1] > 0.5 * self._grip.open_rad)
        self._lags = not settled and bool(np.abs(arm.velocity_rad_s).max() > UNDER_WAY_RAD_S)
        self._stuck_s = 0.0 if self._lags else self._stuck_s + period_s
        if not settled and self._stuck_s <= PATIENCE_S and self._waited_s <= self._patience_s:
            self._reached_s = 0.0
            return
        if self._reached_s < DWELL_S.get(self.stage, 0.0):
            return
        if self.stage is ExpertStage.APPROACH and view.hand_near:
            return
        lifted = self.stage is ExpertStage.LIFT and self._cell.task == "pick_lift"
        missed = self.stage is ExpertStage.RETREAT and not view.placed
        if missed and self._attempts_left > 0:
            self._retry()
        else:
            self._enter(ExpertStage.DONE if lifted else ExpertStage(self.stage + 1))

    def _behind_m(self, view: SceneView) -> float:
        return float(np.linalg.norm(self._motion.position_m - view.tool_m))

    def _retry(self) -> None:
        self._attempts_left -= 1
        self._habits = self._draw_habits()
        self._enter(ExpertStage.APPROACH)


HOME_RAD_S: Final = 2.6
AT_HOME_RAD: Final = 0.02
MOST_TURNS: Final = 4
OWN_SIDE_M: Final = 0.04
"""Further than this on the first arm's side of where things are handed over, it is its turn."""


class _Side:
    """One arm of a pair as a cell of its own, in that arm's frame: what `ScriptedLeader` reads."""

    def __init__(self, cell: SimCell, side: MountedArm, *, hands_over: bool) -> None:
        self._cell, self._side, self._hands_over = cell, side, hands_over
        self.columns = cell.arm.columns(side)
        self.arm, self.fps, self.image_size = side.arm, cell.fps, cell.image_size
        self.task = "pick_place" if hands_over else cell.task

    def read(self) -> FollowerState:
        """What this arm's servos report."""
        return self._cell.read().part(self.columns)

    def play_rad(self) -> FloatArray:
        """Play of this arm's joints [rad]."""
        return self._cell.play_rad()[self.columns]

    def truth(self) -> dict[str, Any]:
        """Privileged state of the scene, as this arm's person sees it."""
        truth: dict[str, Any] = self._cell.truth()
        base = np.array([*self._side.at_m, 0.0])
        tool = self._cell.data.site(self._side.prefix + TCP_SITE).xpos
        thing = np.asarray(truth["object_pos_m"])
        truth["held"] = truth["held"] and bool(np.allclose(tool, truth["tool_pos_m"]))
        truth["tool_pos_m"] = tool.copy()
        if self._hands_over:
            truth["goal_xy_m"] = list(self._cell.arm.relay_m)
            truth["target_pos_m"] = [*self._cell.arm.relay_m, truth["table_z_m"]]
            away_m = float(np.linalg.norm(thing[:2] - truth["goal_xy_m"]))
            rest_m = truth["table_z_m"] + truth["object_half_size_m"][2]
            lies = thing[2] < rest_m + REST_SLACK_M and not truth["held"]
            truth["success"] = away_m < GOAL_TOLERANCE_M and lies
        for key in ("object_pos_m", "target_pos_m", "goal_xy_m", "tool_pos_m", "hand_pos_m"):
            if truth[key] is not None:
                truth[key] = np.asarray(truth[key]) - base[: len(truth[key])]
        return truth


class RelayLeader:
    """Implements core's `Leader` for a pair: read() gives the next command of all joints."""

    def __init__(self, cell: SimCell, seed: int = 0) -> None:
        """Drive `cell`; the arguments are those of `ScriptedLeader`."""
        self._cell = cell
        last = len(cell.arm.arms) - 1
        self._sides = [
            _Side(cell, side, hands_over=k < last) for k, side in enumerate(cell.arm.arms)
        ]
        self._hands = [
            ScriptedLeader(cast(SimCell, side), 2 * seed + k) for k, side in enumerate(self._sides)
        ]
        self._home = np.asarray(cell.arm.home_q_rad)
        self._last_t_s: float | None = None
        self._turn = 0
        self.reset()

    def reset(self) -> None:
        """Get ready for a new take, which the cell has already been reset to."""
        for hand in self._hands:
            hand.reset()
        self._begin()

    def take_over(self) -> None:
        """Go on in the middle of a take that somebody else has driven so far."""
        self._begin()
        self._hands[self._turn].take_over()

    @property
    def stage(self) -> ExpertStage:
        """Where the arm whose turn it is stands in its attempt."""
        return self._hands[self._turn].stage

    def done(self) -> bool:
        """Say whether the attempt is over."""
        return self._done

    def read(self, t_s: float) -> LeaderSample:
        """Return the command of all joints for loop time `t_s` [s]."""
        period_s = 1.0 / self._cell.fps
        if self._last_t_s is not None:
            period_s = float(np.clip(t_s - self._last_t_s, 0.0, 0.1))
        self._last_t_s = t_s
        hand, columns = self._hands[self._turn], self._sides[self._turn].columns
        if not hand.done():
            self._q[columns] = hand.read(t_s).q_rad
        elif self._cell.success():
            self._done = True
        elif not self._done:
            step_rad = HOME_RAD_S * period_s
            left = self._home[columns] - self._q[columns]
            self._q[columns] += np.clip(left, -step_rad, step_rad)
            if float(np.abs(left).max()) < AT_HOME_RAD:
                self._turns += 1
                self._done = self._turns > MOST_TURNS
                if not self._done:
                    self._turn = self._whose()
                    self._hands[self._turn].reset()
        return LeaderSample(t_s, self._q.copy())

    def _begin(self) -> None:
        self._q: NDArray[np.float64] = self._cell.read().position_rad.copy()
        self._last_t_s = None
        self._turns, self._done = 1, False
        self._turn = self._whose()

    def _whose(self) -> int:
        """Return whose turn it is, by where the object lies."""
        across_m = float(cast(Any, self._cell.truth())["object_pos_m"][1])
        return 0 if across_m > self._cell.arm.relay_m[1] + OWN_SIDE_M else 1


def scripted(cell: SimCell, seed: int = 0) -> ScriptedLeader | RelayLeader:
    """Return the scripted teleoperator that fits a cell, for one arm or a pair."""
    return RelayLeader(cell, seed) if cell.arm.mounted else ScriptedLeader(cell, seed)
