"""A leader that runs a scripted motion: `--teleop.type=motion`.

A script is checked whole before the arm moves. Swings that do not fit inside the limits and the
workspace are made smaller, joints and poses that don't fit are left out, and a note says so; where
nothing is left it is refused.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.kinematics import ARM_MODELS, ArmModel, Box
from gaploop.core.messages import FloatArray, LeaderSample, SafetyReason, Tick
from gaploop.teleop.leaders.cartesian import STOOD_STILL_S, ToolServo, reported_pose
from gaploop.teleop.leaders.controls import MotionOptions

log = logging.getLogger(__name__)

CHECK_S: Final = 0.01
"""A script is checked at this spacing [s]; a joint moves 1° at most between."""
MARGIN_RAD: Final = 0.03
"""Kept off the joint limits [rad]."""
SMALLER: Final = 0.8
"""A swing that doesn't fit is made smaller by this factor, until it does."""
LEAST_RAD: Final = 0.05
"""A swing smaller than this shows nothing beyond gear play [rad]."""
AT_STOP_RAD: Final = 0.1
"""A joint that starts beyond its limit by less than this counts as being on it [rad]."""
NEAR_M: Final = 0.003
"""A place of the tool counts as reached from this distance [m]."""
OPENED: Final = 0.6
"""How far grip opens the gripper, of its travel."""
PAUSE_S: Final = 0.3
"""Rest between two parts of a script [s]."""


class MotionLeader:
    """Moves the arm by a script, from where it is and back to there. A `Leader` and `TakeSink`.

    A script that was interrupted, by a trip or a loop that stood still, isn't gone on with: the
    leader is done, and asks for the pose it had come to.
    """

    def __init__(
        self,
        arm: ArmModel,
        limits_rad: FloatArray,
        start: Callable[[], FloatArray],
        options: MotionOptions,
        box: Box | None = None,
    ) -> None:
        self._arm, self._limits_rad, self._box = arm, limits_rad, box
        self._start, self._options = start, options
        self._script: Script | None = None
        self._next: Script | None = None
        self._began_s = self._last_s = math.nan
        self._q_rad: FloatArray = np.zeros(len(arm.joint_names))
        self.interrupted = False

    @property
    def duration_s(self) -> float:
        """How long the script takes [s]; 0 before `reset`."""
        return 0.0 if self._script is None else self._script.trajectory.duration_s

    def reset(self) -> None:
        """Read the arm's pose, and build and check the whole script from there.

        Raises:
            UnusableInputError: nothing of the script fits.
            DeviceError: the follower doesn't say where it is.
        """
        q = reported_pose(self._start, len(self._q_rad))
        self._script, self._next = self._built(q), None
        self._q_rad, self._began_s, self._last_s = q, math.nan, math.nan
        self.interrupted = False

    def follow(self, options: MotionOptions) -> None:
        """Run another script next: from the pose that is asked for now, or else from `reset` on.

        May be called while another thread drives, at the end of a script; raises as `reset` does.
        """
        self._options = options
        if self._script is not None:
            self._next = self._built(self._q_rad)

    def _built(self, start_rad: FloatArray) -> Script:
        script = build_script(self._arm, self._limits_rad, self._box, start_rad, self._options)
        for note in script.notes:
            log.warning("%s", note)
        return script

    def tick(self, tick: Tick) -> None:
        """Take note of a trip; called from any thread."""
        if tick.command.reasons & SafetyReason.TRIPPED:
            self.interrupted = True

    def read(self, t_s: float) -> LeaderSample:
        """Return the script's pose at loop time `t_s` [s]; the first call starts it."""
        if self._script is None:
            self.reset()
        if self._next is not None:
            self._script, self._next = self._next, None
            self._began_s, self.interrupted = math.nan, False
        if math.isnan(self._began_s):
            self._began_s = t_s
        elif t_s - self._last_s > STOOD_STILL_S:
            self.interrupted = True
        self._last_s = t_s
        if self._script is not None and not self.interrupted:
            self._q_rad = self._script.trajectory.at(t_s - self._began_s)
        return LeaderSample(t_s, self._q_rad)

    def done(self) -> bool:
        """Say whether the script has ended or was interrupted."""
        if self._next is not None:
            return False
        return self.interrupted or self._last_s - self._began_s >= self.duration_s > 0.0


@dataclass(frozen=True)
class Script:
    """A motion that fits, with notes on what was made smaller or left out, and why."""

    trajectory: Trajectory
    notes: tuple[str, ...]


@dataclass
class _Stage:
    """The arm, its bounds, and what was left out so far."""

    arm: ArmModel
    limits_rad: FloatArray
    box: Box | None
    options: MotionOptions
    start_rad: FloatArray
    notes: list[str] = field(default_factory=list)

    def reason_against(self, pieces: list[MotionSegment]) -> str:
        """Say why the arm can't do this, or ""."""
        low, high = self.limits_rad.T
        for q in Trajectory(pieces).sampled(CHECK_S):
            if (q < low - 1e-9).any() or (q > high + 1e-9).any():
                joint = int(np.argmax(np.maximum(low - q, q - high)))
                return f"{self.arm.joint_names[joint]} would pass its limit"
            points_m = self.arm.points_m(q)
            for axis, bounds_m in enumerate(self.box or ()):
                for bound_m, sign in zip(bounds_m, (-1.0, 1.0), strict=True):
                    over_m = sign * (points_m[:, axis] - bound_m)
                    if over_m.max() > 1e-6:
                        name = self.arm.point_names[int(over_m.argmax())]
                        at = f"{'xyz'[axis]} = {bound_m:g} m"
                        return f"the {name} would leave the workspace ({at})"
        return ""

    def smooth(self, start_rad: FloatArray, end_rad: FloatArray) -> Smooth:
        return Smooth.within(
            start_rad, end_rad, self.options.velocity_rad_s, self.options.acceleration_rad_s2
        )

    def middle(self, joint: int, amplitude_rad: float) -> tuple[FloatArray, float]:
        """Return a pose near the start about which `joint` has room to swing, and how far."""
        low, high = self.limits_rad[joint] + (MARGIN_RAD, -MARGIN_RAD)
        amplitude_rad = min(amplitude_rad, 0.5 * (high - low))
        centre = self.start_rad.copy()
        room = (low + amplitude_rad, high - amplitude_rad)
        centre[joint] = min(max(centre[joint], room[0]), room[1])
        return centre, amplitude_rad


def build_script(
    arm: ArmModel,
    limits_rad: FloatArray,
    box: Box | None,
    start_rad: FloatArray,
    options: MotionOptions,
) -> Script:
    """Return the motion that `options` ask for, from `start_rad` and back to it.

    Args:
        limits_rad: joint limits [rad], shape (n_joints, 2).
        start_rad: where the arm is [rad], shape (n_joints,).
        options: speed and acceleration in them are what the arm may do.

    Raises:
        UnusableInputError: the arm stands outside its bounds, or nothing of the script fits.
    """
    # Joints at rest on their stops read a little beyond them.
    within = np.clip(start_rad, *np.asarray(limits_rad).T)
    near = np.where(np.abs(within - start_rad) <= AT_STOP_RAD, within, start_rad)
    stage = _Stage(arm, limits_rad, box, options, near)
    if said := stage.reason_against([Dwell(stage.start_rad, CHECK_S)]):
        raise UnusableInputError(
            f"The arm stands outside its bounds: {said}. Move it to the middle of its workspace "
            "by hand (torque off) and start again."
        )
    rng = np.random.default_rng(options.seed)
    if options.script in _WHOLE:
        pieces = _WHOLE[options.script](stage)
    else:
        names, pieces = arm.joint_names, []
        for name in options.joints:
            if name not in names:
                raise unknown_choice("joint", name, names, "--teleop.joints")
        for name in options.joints or names:
            # Made smaller until it fits; left out if it never does.
            order, joint = rng.spawn(1)[0], names.index(name)
            state = order.bit_generator.state
            centre, amplitude_rad = stage.middle(joint, options.amplitude_rad)
            why = "its range is small" if amplitude_rad < options.amplitude_rad else ""
            while amplitude_rad >= LEAST_RAD:
                order.bit_generator.state = state  # made smaller, it is otherwise the same
                part: list[MotionSegment] = [stage.smooth(near, centre)]
                part += _swings(stage, joint, centre, amplitude_rad, order)
                part += [stage.smooth(centre, near), Dwell(near, PAUSE_S)]
                if said := stage.reason_against(part):
                    why = said
                    centre, amplitude_rad = stage.middle(joint, SMALLER * amplitude_rad)
                    continue
                if why:
                    stage.notes.append(f"{name}: swings {amplitude_rad:.2f} rad, because {why}")
                pieces += part
                break
            else:
                stage.notes.append(f"{name} is left out, because {why}")
    if not pieces:
        raise UnusableInputError(
            f"Nothing of --teleop.script={options.script} fits the arm from here: "
            f"{'; '.join(stage.notes)}. Move the arm to the middle of its workspace, or give a "
            "smaller --teleop.amplitude_rad or --teleop.size_m."
        )
    return Script(Trajectory(pieces), tuple(stage.notes))


def _swings(
    stage: _Stage, joint: int, centre: FloatArray, amplitude_rad: float, order: np.random.Generator
) -> Iterator[MotionSegment]:
    o = stage.options
    if o.script == "chirp":
        # Fading and growing frequency add a little to a sine's own speed.
        speed, change = 0.8 * o.velocity_rad_s, 0.7 * o.acceleration_rad_s2
        yield Chirp(centre, joint, amplitude_rad, o.low_hz, o.high_hz, o.seconds, speed, change)
        return
    if o.script == "step":
        at = centre.copy()
        for way_rad in (amplitude_rad, -2.0 * amplitude_rad, amplitude_rad):
            yield Stroke(at.copy(), joint, way_rad, o.velocity_rad_s, o.acceleration_rad_s2)
            at[joint] += way_rad
            yield Dwell(at.copy(), o.dwell_s)
        return
    low, high = centre.copy(), centre.copy()
    low[joint] -= amplitude_rad
    high[joint] += amplitude_rad
    for speed in order.permutation(np.array(o.speeds_rad_s)):
        fast = min(float(speed), o.velocity_rad_s)
        yield stage.smooth(centre, low)
        for _ in range(o.cycles):
            yield Stroke(low, joint, 2 * amplitude_rad, fast, o.acceleration_rad_s2)
            yield Stroke(high, joint, -2 * amplitude_rad, fast, o.acceleration_rad_s2)
        yield stage.smooth(low, centre)
        yield Dwell(centre, PAUSE_S)


def _grip(stage: _Stage) -> list[MotionSegment]:
    """Open, rest, close as far as the gripper goes, rest, and open again."""
    spec, o, grip = ARM_MODELS.get(stage.arm.name), stage.options, stage.arm.grip
    if grip is None:
        return []
    low, high = stage.limits_rad[grip]
    ends = stage.arm.grip_rad or (spec.gripper_percent_rad if spec else (low, high))
    closed, opened = np.clip(ends, low, high)
    wide, shut = stage.start_rad.copy(), stage.start_rad.copy()
    wide[grip], shut[grip] = closed + OPENED * (opened - closed), closed
    return [
        stage.smooth(stage.start_rad, wide),
        Dwell(wide, o.dwell_s),
        stage.smooth(wide, shut),
        Dwell(shut, o.dwell_s),
        stage.smooth(shut, wide),
        Dwell(wide, o.dwell_s),
        stage.smooth(wide, stage.start_rad),
    ]


def _poses(stage: _Stage) -> list[MotionSegment]:
    """Turn the first joint to the middle and to either side, with the tool low and high."""
    o, start = stage.options, stage.start_rad
    middle = start.copy()
    low, high = stage.limits_rad[0]
    middle[0] = min(max(0.0, low + MARGIN_RAD), high - MARGIN_RAD)
    here, pieces = start, list[MotionSegment]()
    for name, pose in (("low", middle), ("high", _raised(stage, middle))):
        if pose is None:
            stage.notes.append("poses with the tool high are left out: the arm can't reach them")
            continue
        for turn_rad in (-o.amplitude_rad, 0.0, o.amplitude_rad):
            turned = pose.copy()
            turned[0] = min(max(pose[0] + turn_rad, low + MARGIN_RAD), high - MARGIN_RAD)
            part: list[MotionSegment] = [stage.smooth(here, turned), Dwell(turned, o.dwell_s)]
            if said := stage.reason_against([*part, stage.smooth(turned, start)]):
                which = f"{name}, turned by {turn_rad:+.2f} rad"
                stage.notes.append(f"the pose {which}, is left out, because {said}")
                continue
            pieces, here = [*pieces, *part], turned
    return [*pieces, stage.smooth(here, start)] if pieces else []


_WHOLE: Final[dict[str, Callable[[_Stage], list[MotionSegment]]]] = {
    "poses": _poses,
    "grip": _grip,
    "rest": lambda stage: [Dwell(stage.start_rad, stage.options.seconds)],
}
"""Scripts that move the arm as a whole."""


def _raised(stage: _Stage, start_rad: FloatArray) -> FloatArray | None:
    """Return a pose with the tool `size_m` above its place at `start_rad`; None out of reach."""
    servo = ToolServo(stage.arm, stage.limits_rad, 5.0, stage.box)
    servo.reset(start_rad)
    goal_m = servo.T_base_tcp[:3, 3] + (0.0, 0.0, stage.options.size_m)
    for _ in range(150):
        away = goal_m - servo.T_base_tcp[:3, 3]
        if np.linalg.norm(away) < 0.1 * NEAR_M:
            break
        linear = away / max(0.02, np.linalg.norm(away) / 0.4)
        servo.step(np.concatenate([linear, np.zeros(3)]), 0.02)
    is_near = np.linalg.norm(goal_m - servo.T_base_tcp[:3, 3]) < NEAR_M
    return servo.q_rad if is_near else None


@dataclass(frozen=True)
class Dwell:
    """Rest at `q_rad` [rad]."""

    q_rad: FloatArray
    duration_s: float

    def at(self, t_s: float) -> FloatArray:
        """Return the pose."""
        del t_s
        return self.q_rad


@dataclass(frozen=True)
class Smooth:
    """From one pose to another with the least jerk (Flash and Hogan 1985), rest to rest."""

    start_rad: FloatArray
    end_rad: FloatArray
    duration_s: float

    @classmethod
    def within(
        cls, start_rad: FloatArray, end_rad: FloatArray, velocity: float, acceleration: float
    ) -> Smooth:
        """Return the fastest one within a speed [rad/s] and an acceleration [rad/s²]."""
        way = float(np.abs(end_rad - start_rad).max())
        # The profile peaks at 15/8 of its mean speed and at 10/sqrt(3) of way / duration².
        slow = max(1.875 * way / velocity, math.sqrt(10 / math.sqrt(3) * way / acceleration))
        return cls(start_rad, end_rad, max(slow, 1e-3))

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]."""
        s = min(max(t_s / self.duration_s, 0.0), 1.0)
        share = s**3 * (10.0 - 15.0 * s + 6.0 * s * s)
        return np.asarray(self.start_rad + share * (self.end_rad - self.start_rad))


@dataclass(frozen=True)
class Stroke:
    """One joint from `start_rad` by `way_rad` [rad] at a steady speed, with sharp ends."""

    start_rad: FloatArray
    joint: int
    way_rad: float
    speed_rad_s: float
    acceleration_rad_s2: float

    @property
    def _ramp_s(self) -> float:
        reached = math.sqrt(abs(self.way_rad) / self.acceleration_rad_s2)
        return min(self.speed_rad_s / self.acceleration_rad_s2, reached)

    @property
    def duration_s(self) -> float:
        """How long it takes [s]."""
        ramp_s = self._ramp_s
        return ramp_s + abs(self.way_rad) / (self.acceleration_rad_s2 * ramp_s)

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]."""
        ramp_s, a = self._ramp_s, self.acceleration_rad_s2
        t_s = min(max(t_s, 0.0), self.duration_s)
        left_s = self.duration_s - t_s
        if t_s < ramp_s:
            way = 0.5 * a * t_s**2
        elif left_s < ramp_s:
            way = abs(self.way_rad) - 0.5 * a * left_s**2
        else:
            way = a * ramp_s * (t_s - 0.5 * ramp_s)
        q = self.start_rad.copy()
        q[self.joint] += math.copysign(way, self.way_rad)
        return q


@dataclass(frozen=True)
class Chirp:
    """One joint swings about `centre_rad`, ever faster; the swing shrinks to keep the limits."""

    centre_rad: FloatArray
    joint: int
    amplitude_rad: float
    low_hz: float
    high_hz: float
    duration_s: float
    velocity_rad_s: float
    acceleration_rad_s2: float

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]."""
        t_s = min(max(t_s, 0.0), self.duration_s)
        growth = math.log(self.high_hz / self.low_hz)
        turns_s = self.duration_s / growth if growth > 1e-9 else 0.0
        rate = 2.0 * math.pi * self.low_hz * math.exp(growth * t_s / self.duration_s)
        phase = (rate - 2.0 * math.pi * self.low_hz) * turns_s if turns_s else rate * t_s
        most = (self.amplitude_rad, self.velocity_rad_s / rate, self.acceleration_rad_s2 / rate**2)
        # Below the least of the three, without the corner where one takes over from another.
        swing = sum(bound**-4.0 for bound in most) ** -0.25
        # Fades in and out over a period of the lowest frequency: it starts and ends at rest.
        fade_s = min(1.0 / self.low_hz, 0.25 * self.duration_s)
        near = min(t_s, self.duration_s - t_s, fade_s) / fade_s
        q = self.centre_rad.copy()
        q[self.joint] += swing * math.sin(0.5 * math.pi * near) ** 2 * math.sin(phase)
        return q


type MotionSegment = Dwell | Smooth | Stroke | Chirp
"""A stretch of joint motion: how long it takes, and the pose at any time since its start."""


class Trajectory:
    """Pieces one after the other."""

    def __init__(self, pieces: Sequence[MotionSegment]) -> None:
        self._pieces = tuple(pieces)
        self._ends_s = list(itertools.accumulate(piece.duration_s for piece in pieces))

    @property
    def duration_s(self) -> float:
        """How long it takes [s]."""
        return self._ends_s[-1] if self._ends_s else 0.0

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]; before and after it, that of its start and end."""
        index = min(bisect.bisect_right(self._ends_s, t_s), len(self._pieces) - 1)
        start_s = self._ends_s[index - 1] if index else 0.0
        return self._pieces[index].at(t_s - start_s)

    def sampled(self, period_s: float) -> FloatArray:
        """Return poses [rad] every `period_s` [s], its end included, shape (k, n_joints)."""
        steps = math.ceil(self.duration_s / period_s)
        return np.array([self.at(index * period_s) for index in range(steps + 1)])
