"""A leader that turns what an operator wants into joint angles: the tool moves, the arm follows.

Nothing moves unless the dead-man button is held: without it `read` returns the same joint angles
for ever, whatever else is pressed. Releasing it stops at once; only starting is gradual.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import mink
import mujoco
import numpy as np

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ArmModel, Box
from gaploop.core.messages import FloatArray, LeaderSample, SafetyReason, Tick
from gaploop.teleop.leaders.controls import SPEED_STEPS, STALE_S, Intent, IntentSource

AT_LIMIT_RAD: Final = 0.01
"""A joint nearer its limit than this has come to its end [rad]."""
YIELD_S: Final = 0.1
"""Where a joint has come to its end, the orientation held until then is given up in this time [s]:
a gripper that points down tilts so that the arm can still be raised."""
UNREACHED_M: Final = 0.006
"""Directions that gain less than this count as out of reach [m/rad]."""
POSITION_SHARE: Final = 0.02
"""How much position gives way, against orientation, where not both can be had."""
LEAD_M: Final = 0.01
"""How far the tool may be off its target [m]; along axes that it is asked to move on, one step."""
LEAD_RAD: Final = 0.1
"""The same of its orientation [rad]."""
DAMPING: Final = 1e-4
"""[m²/rad²], of the squared joint step: motion fades out towards a singularity instead of
speeding up. 0.2 % of what an arm's length of lever weighs."""
LEVER_M: Final = 0.1
"""One radian of the tool counts as this much position [m/rad], about the length of a gripper."""
SCALE: Final = np.array([1.0, 1.0, 1.0, LEVER_M, LEVER_M, LEVER_M])[:, None]
"""Makes rows of the Jacobian comparable [m/rad]."""
STRETCHED_M: Final = 0.012
"""The arm stays away from poses where some motion of the tool gains less than this per radian of
joint motion [m/rad]. It keeps the elbow some 15° from straight, which costs 1 % of the reach; past
straight the elbow would bend the other way, and pulling back would run into its limit."""
STRETCHED_NEAR_M: Final = 0.025
"""Below this the arm is watched for it [m/rad]."""
NEAR_M: Final = 0.03
"""Faces of the workspace box nearer than this become constraints [m]."""
BOX_MARGIN_M: Final = 0.001
"""Kept off the box, so that the safety filter behind has nothing to do [m]."""
_DIFFERENCE_RAD: Final = 1e-4


class ToolServo:
    """Joint angles that follow a tool moved by twists.

    `box` is the workspace of every guarded point of the arm in the base frame, or None.
    """

    def __init__(
        self, arm: ArmModel, limits_rad: FloatArray, velocity_rad_s: float, box: Box | None = None
    ) -> None:
        self._arm, self._limits_rad = arm, np.array(limits_rad, dtype=np.float64)
        model = arm.kinematics()
        self._moving, self._dofs = arm.moving, arm.moving_dofs
        names = [arm.joint_names[k] for k in self._moving]
        for name, (low, high) in zip(names, self._limits_rad[self._moving], strict=True):
            model.joint(name).range[:] = low, high
        self._configuration = mink.Configuration(model)
        self._site = arm.site_name
        self._task = mink.FrameTask(self._site, "site", 1.0, LEVER_M / 3, lm_damping=1e-6)
        posture_cost = np.zeros(model.nv)
        posture_cost[self._dofs] = 1e-4  # decides only what the tool leaves open
        self._posture = mink.PostureTask(model, posture_cost)
        self._limits = [
            mink.ConfigurationLimit(model, gain=0.5),
            mink.VelocityLimit(model, dict.fromkeys(names, velocity_rad_s)),
            StretchLimit(arm, model),
        ]
        if box is not None:
            self._limits.append(BoxLimit(arm, model, box))
        self._yield = np.diag([POSITION_SHARE] * 3 + [1.0] * 3)
        self._q_rad: FloatArray = np.zeros(len(arm.joint_names))

    @property
    def q_rad(self) -> FloatArray:
        """Joint angles asked for now [rad], shape (n_joints,)."""
        return self._q_rad.copy()

    @property
    def T_base_tcp(self) -> FloatArray:  # noqa: N802
        """Pose of the tool asked for now, shape (4, 4)."""
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = self._tool()
        return pose

    def reset(self, q_rad: FloatArray) -> None:
        """Go on from joint positions [rad], shape (n_joints,); the tool's target is there."""
        low, high = self._limits_rad.T
        self._q_rad = np.clip(np.asarray(q_rad, dtype=np.float64), low, high)
        self._configuration.update(self._arm.qpos(self._q_rad))
        self._posture.set_target_from_configuration(self._configuration)
        self._turn_m, self._at_m = self._tool()

    def set_gripper(self, angle_rad: float) -> None:
        """Set the gripper's angle [rad], where there is one; it is clipped to its limits."""
        if (grip := self._arm.grip) is None:
            return
        low, high = self._limits_rad[grip]
        self._q_rad[grip] = min(max(angle_rad, low), high)
        self._configuration.update(self._arm.qpos(self._q_rad))

    def step(self, twist: FloatArray, duration_s: float) -> FloatArray:
        """Move the tool's target by a twist, (6,), in the base frame [m/s, rad/s], and follow it.

        `duration_s` is above 0. Returns joint angles [rad], shape (n_joints,), inside the limits.
        """
        low, high = self._limits_rad.T
        moves = twist * duration_s
        self._at_m = self._at_m + moves[:3]
        self._turn_m = mink.SO3.exp(moves[3:]).as_matrix() @ self._turn_m
        target = np.eye(4)
        target[:3, :3], target[:3, 3] = self._turn_m, self._at_m
        self._task.set_target(mink.SE3.from_matrix(target))
        with contextlib.suppress(mink.NoSolutionFound):  # hold; the target is pulled back to here
            velocity = mink.solve_ik(
                self._configuration,
                [self._task, self._posture],
                duration_s,
                solver="daqp",
                damping=DAMPING,
                limits=self._limits,
            )
            step = np.asarray(velocity)[self._dofs] * duration_s
            if np.isfinite(step).all():
                q = self._q_rad.copy()
                q[self._moving] += step
                self._q_rad = np.clip(q, low, high)
                self._configuration.update(self._arm.qpos(self._q_rad))
        # What the arm couldn't do is forgotten: beyond its reach, or against a limit or the box.
        turned, at_m = self._tool()
        error = np.empty(6)
        error[:3] = turned.T @ (self._at_m - at_m)
        error[3:] = mink.SO3.from_matrix(turned.T @ self._turn_m).log() * LEVER_M
        jacobian = self._configuration.get_frame_jacobian(self._site, "site")[:, self._dofs]
        # Directions that the Jacobian doesn't reach are dropped, position before orientation.
        directions, gains, _ = np.linalg.svd(jacobian * SCALE)
        lost = directions[:, int((gains > UNREACHED_M).sum()) :]
        give = self._yield @ lost
        kept = error - give @ np.linalg.solve(lost.T @ give, lost.T @ error)
        q = self._q_rad
        if np.minimum(q - low, high - q)[self._moving].min() < AT_LIMIT_RAD:
            kept[3:] *= np.exp(-duration_s / YIELD_S)
        self._at_m = at_m + _no_further(turned @ kept[:3], moves[:3], LEAD_M)
        turn = _no_further(kept[3:] / LEVER_M, turned.T @ moves[3:], LEAD_RAD)
        self._turn_m = turned @ mink.SO3.exp(turn).as_matrix()
        return self.q_rad

    def _tool(self) -> tuple[FloatArray, FloatArray]:
        data = self._configuration.data
        site = data.site(self._site)
        return site.xmat.reshape(3, 3).copy(), site.xpos.copy()


def _no_further(error: FloatArray, moves: FloatArray, lead: float) -> FloatArray:
    """Cut `error` to `lead`, and on axes that were to move to the step that was asked for."""
    step = np.abs(moves)
    most = np.where(step > 1e-9, step, lead)
    cut = np.minimum(np.maximum(error, -most), most)
    return np.asarray(cut * min(1.0, lead / max(float(np.sqrt(cut @ cut)), 1e-12)))


class BoxLimit(mink.Limit):  # type: ignore[misc]
    """Every guarded point stays in the box, as linear constraints on the joint step.

    A point that is outside already may come back, but not go further out.
    """

    def __init__(self, arm: ArmModel, model: Any, box: Box) -> None:
        self._model = model
        site = model.site(arm.site_name)
        self._points = [(int(site.bodyid[0]), np.array(site.pos))]
        self._points += [(int(model.body(p.body).id), np.array(p.offset_m)) for p in arm.points]
        # Of each face axis, sign and bound: sign * coordinate stays below it.
        self._faces = [(a, -1.0, -low - BOX_MARGIN_M) for a, (low, _) in enumerate(box)]
        self._faces += [(a, 1.0, high - BOX_MARGIN_M) for a, (_, high) in enumerate(box)]
        self._jacobian = np.zeros((3, model.nv))
        self._arm_dofs = np.zeros(model.nv)
        self._arm_dofs[arm.moving_dofs] = 1.0

    def compute_qp_inequalities(self, configuration: Any, dt: float) -> Any:
        """Return the rows for points near a face."""
        del dt
        data, rows, room_m = configuration.data, [], []
        for body, offset_m in self._points:
            at_m = data.xpos[body] + data.xmat[body].reshape(3, 3) @ offset_m
            left_m = [
                (axis, sign, bound_m - sign * at_m[axis]) for axis, sign, bound_m in self._faces
            ]
            near = [face for face in left_m if face[2] < NEAR_M]
            if near:
                mujoco.mj_jac(self._model, data, self._jacobian, None, at_m, body)
                # The gripper's own columns stay out: only the arm may keep its fingers in.
                rows += [sign * self._jacobian[axis] * self._arm_dofs for axis, sign, _ in near]
                # Half the way at most in one step: the rows are a linear view of curved motion.
                room_m += [max(0.5 * away_m, 0.0) for *_, away_m in near]
        return mink.Constraint(np.array(rows), np.array(room_m)) if rows else mink.Constraint()


class StretchLimit(mink.Limit):  # type: ignore[misc]
    """The Jacobian's least gain stays above `STRETCHED_M`; where it isn't, it may only grow."""

    def __init__(self, arm: ArmModel, model: Any) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        self._site = model.site(arm.site_name).id
        self._dofs = arm.moving_dofs
        self._jacobian = np.zeros((6, model.nv))

    def compute_qp_inequalities(self, configuration: Any, dt: float) -> Any:
        """Return one row where the arm is nearly stretched."""
        del dt
        gain_m = self._gain(configuration.q)
        if gain_m > STRETCHED_NEAR_M:
            return mink.Constraint()
        row, q = np.zeros((1, self._model.nv)), configuration.q.copy()
        for dof in self._dofs:
            address = self._model.jnt_qposadr[self._model.dof_jntid[dof]]
            q[address] += _DIFFERENCE_RAD
            row[0, dof] = (gain_m - self._gain(q)) / _DIFFERENCE_RAD
            q[address] -= _DIFFERENCE_RAD
        return mink.Constraint(row, np.array([max(0.5 * (gain_m - STRETCHED_M), 0.0)]))

    def _gain(self, qpos: FloatArray) -> float:
        model, data, jacobian = self._model, self._data, self._jacobian
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._site)
        return float(np.linalg.svd(jacobian[:, self._dofs] * SCALE, compute_uv=False)[-1])


SPEED_M_S: Final = 0.15
"""Fastest motion of the tool, at the highest speed step [m/s]."""
TURN_RAD_S: Final = 1.2
"""Fastest turn of the tool, at the highest speed step [rad/s]."""
GRIPPER_S: Final = 1.0
"""Time from closed to open, at the highest speed step [s]."""
JOINT_RAD_S: Final = 2.0
"""Fastest motion of any joint [rad/s]; the station's limit holds as well."""
ACCELERATION_M_S2: Final = 0.8
"""How fast motion builds up [m/s²]; stopping is at once."""
LONGEST_STEP_S: Final = 0.04
"""A loop that stood still doesn't make up for it in one leap [s]."""
APART_RAD: Final = 0.15
"""Where what is sent is further than this from what was asked, the asking goes back to it [rad]."""
HOME_RAD_S: Final = 1.0
"""Fastest joint on the way home, at the highest speed step [rad/s]."""
STOOD_STILL_S: Final = 0.25
"""A loop that asks nothing for this long has stood still, as after a trip: the arm may have sunk,
and is asked where it is [s]."""
BEHIND: Final = np.array([0.05, 0.05, 0.05, 0.2, 0.2])
"""The tool is no further behind a hand than this [m, m, m, rad, rad]: what a hand does faster than
the arm may move isn't made up for."""
OVER_AXIS_M: Final = 0.03
"""Nearer the base's vertical axis than this, "sideways" stays what it was [m]."""


class CartesianLeader:
    """Drives an arm's tool by an input device. A `Leader`; also a `TakeSink` of the loop's ticks.

    Attach it to the loop that it leads, so that it learns what is really sent; without that it
    goes by what it asked for.

    Args:
        limits_rad: the follower's joint limits [rad], shape (n_joints, 2), gripper last.
        start: returns the follower's joint positions [rad]; called by `reset`.
        joint_velocity_rad_s: fastest motion of any joint [rad/s].
    """

    def __init__(
        self,
        arm: ArmModel,
        limits_rad: FloatArray,
        source: IntentSource,
        start: Callable[[], FloatArray],
        box: Box | None = None,
        joint_velocity_rad_s: float = JOINT_RAD_S,
    ) -> None:
        self._arm, limits_rad = arm, common_limits(arm, limits_rad)
        self._servo = ToolServo(arm, limits_rad, joint_velocity_rad_s, box)
        ends: Sequence[float] = arm.grip_rad or limits_rad[arm.grip or 0].tolist()
        self._closed, self._open = ends
        self._source, self._start = source, start
        # Where nobody pumps, the input grows old and the arm stops.
        self.listen, self.host = source.listen, source.host
        self.pump = source.pump
        self.close: Callable[[], object] = source.close
        self.has_window = source.has_window
        self._home_rad: FloatArray | None = None
        self._told: Tick | None = None
        """The loop's last turn: what it sent and where the arm is."""
        self._sideways = np.array([0.0, 1.0, 0.0])
        self._hand: FloatArray = np.zeros(5)
        """Where a hand-held device was when the tool was where it is now."""
        self._q_rad: FloatArray = np.zeros(len(arm.joint_names))
        self._ease = 0.0
        self._driving = False
        self._last_s: float | None = None

    def reset(self) -> None:
        """Get ready for a take: ask for the pose that the arm is in; DeviceError without one."""
        self._stay()
        self._last_s = None
        if self._home_rad is None:
            self._home_rad = self._q_rad.copy()

    def keep_open(self) -> Callable[[], object]:
        """Outlive the arm: `close` does nothing any more; return what closes the input device."""
        closes = self.close
        self.close = lambda: None
        return closes

    def lead(self, start: Callable[[], FloatArray]) -> None:
        """Lead the arm as it is connected now; `start` returns its joint positions [rad]."""
        self._start = start

    def tick(self, tick: Tick) -> None:
        """Take note of what was sent; called from any thread."""
        self._told = tick

    def _followed_rad(self, told: Tick) -> FloatArray:
        """Return where the arm goes on from: where it is, if it isn't where it was sent [rad]."""
        here, sent_rad = told.state.position_rad, told.command.sent_rad
        if not np.isfinite(here).all():
            return sent_rad.copy()
        off = np.abs(here - sent_rad)[self._arm.moving].max() > APART_RAD
        return (here if off or _is_limp(told) else sent_rad).copy()

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s].

        The sample is as old as the input: a device that is gone or isn't heard any more trips
        the safety filter.
        """
        heard = self._source.latest()
        fresh = heard.age_s <= STALE_S
        since_s = 0.0 if self._last_s is None else t_s - self._last_s
        self._last_s = t_s
        if since_s > STOOD_STILL_S:
            self._stay()
        self._move(heard.intent if fresh else Intent(), min(since_s, LONGEST_STEP_S))
        return LeaderSample(t_s - (0.0 if fresh else heard.age_s), self._q_rad)

    def done(self) -> bool:
        """Say whether the operator has closed the window."""
        return self._source.latest().closed

    def _stay(self) -> None:
        self._q_rad, self._told = reported_pose(self._start, len(self._q_rad)), None
        self._driving, self._ease = False, 0.0

    def _move(self, intent: Intent, duration_s: float) -> None:
        told = self._told
        if not intent.drives:
            self._driving, self._ease = False, 0.0
            if told is not None and _is_limp(told):
                self._q_rad = self._followed_rad(told)  # stay where the arm has sunk to
            return
        apart = told is not None and (
            _is_limp(told) or np.abs(self._q_rad - told.command.sent_rad).max() > 2 * APART_RAD
        )
        if apart or not self._driving:  # start from where the arm is, without a jump
            if told is not None:
                self._q_rad = self._followed_rad(told)
            self._servo.reset(self._q_rad)
            self._driving, self._ease = True, 0.0
            self._hand = np.array(intent.hand or np.zeros(5))
        if duration_s <= 0.0:
            return
        self._ease = min(1.0, self._ease + ACCELERATION_M_S2 / SPEED_M_S * duration_s)
        share = self._ease * SPEED_STEPS[intent.step - 1]
        if intent.home and self._home_rad is not None:
            away = self._home_rad - self._servo.q_rad
            furthest = max(float(np.abs(away).max()), 1e-12)
            part = min(1.0, HOME_RAD_S * share * duration_s / furthest)
            self._servo.reset(self._servo.q_rad + away * part)
            self._q_rad = self._servo.q_rad
            return
        wanted = [intent.forward, intent.left, intent.up, intent.roll, intent.pitch]
        if intent.hand is not None:  # the tool comes after a device in a hand, scaled by the step
            scale = SPEED_STEPS[intent.step - 1]
            most = np.array([SPEED_M_S] * 3 + [TURN_RAD_S] * 2) * (scale * duration_s)
            behind = scale * (np.array(intent.hand) - self._hand)
            shares = np.clip(behind, -BEHIND, BEHIND) / most
            for some in (shares[:3], shares[3:]):
                some /= max(1.0, float(np.linalg.norm(some)))
            left = np.clip(behind - self._ease * shares * most, -BEHIND, BEHIND)
            self._hand = np.array(intent.hand) - left / scale
            wanted = shares.tolist()
        forward, aside, up, roll, pitch = wanted
        pose = self._servo.T_base_tcp
        fingers, at_m = pose[:3, 2], pose[:3, 3]
        radius = float(np.hypot(at_m[0], at_m[1]))
        if radius > OVER_AXIS_M:
            self._sideways = np.array([-at_m[1] / radius, at_m[0] / radius, 0.0])
        axes = np.eye(3)
        if intent.frame == "tool":
            axes = np.array([fingers, self._sideways, np.cross(fingers, self._sideways)])
        linear = forward * axes[0] + aside * axes[1] + up * axes[2]
        angular = roll * fingers - pitch * self._sideways
        twist = np.empty(6)
        twist[:3] = linear / max(1.0, float(np.linalg.norm(linear))) * SPEED_M_S
        twist[3:] = angular / max(1.0, float(np.linalg.norm(angular))) * TURN_RAD_S
        self._servo.step(twist * share, duration_s)
        way = (self._open - self._closed) / GRIPPER_S * (intent.gripper * share * duration_s)
        if way and self._arm.grip is not None:
            self._servo.set_gripper(float(self._servo.q_rad[self._arm.grip]) + way)
        self._q_rad = self._servo.q_rad


def _is_limp(told: Tick) -> bool:
    return bool(told.command.reasons & SafetyReason.TRIPPED)


def reported_pose(start: Callable[[], FloatArray], count: int) -> FloatArray:
    """Return where an arm of `count` joints says that it is [rad]; DeviceError where it doesn't."""
    q = np.array(start(), dtype=np.float64)
    if q.shape != (count,) or not np.isfinite(q).all():
        raise DeviceError(f"The follower reports {q.tolist()} as joint positions. Check its bus.")
    return q


def common_limits(arm: ArmModel, limits_rad: FloatArray) -> FloatArray:
    """Return limits that model and follower allow [rad], (n, 2); UnusableInputError without any."""
    limits = np.asarray(limits_rad, dtype=np.float64)
    if limits.shape != arm.joint_limits_rad.shape:
        raise UnusableInputError(
            f"The arm has {len(limits)} joints, its model '{arm.name}' {len(arm.joint_names)}: "
            f"{', '.join(arm.joint_names)}. Name the right model in the station file."
        )
    low = np.maximum(limits[:, 0], arm.joint_limits_rad[:, 0])
    high = np.minimum(limits[:, 1], arm.joint_limits_rad[:, 1])
    for name, a, b in zip(arm.joint_names, low, high, strict=True):
        if not a < b:
            raise UnusableInputError(
                f"Joint {name}: its limits and those of the model '{arm.name}' don't overlap. "
                "Recalibrate the arm with lerobot-calibrate."
            )
    return np.column_stack([low, high])
