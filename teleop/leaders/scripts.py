"""Builds scripted motions that fit an arm: inside its limits and its workspace, start to end.

A script is checked whole before the arm moves. Swings that don't fit are made smaller, joints and
points that can't be reached are left out, and a note says so; where nothing is left it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.kinematics import ArmModel, Box
from gaploop.core.types import FloatArray
from gaploop.teleop.leaders.options import MotionOptions
from gaploop.teleop.leaders.trajectory import (
    Chirp,
    Dwell,
    MotionSegment,
    Smooth,
    Stroke,
    Trajectory,
)

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
"""A point of the grid counts as reached from this distance [m]."""
PAUSE_S: Final = 0.3
"""Rest between two parts of a script [s]."""


@dataclass(frozen=True)
class Script:
    """A motion that fits.

    Attributes:
        notes: what was made smaller or left out, and why.
    """

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
            if self.box is not None and (said := _outside(self.arm, q, self.box)):
                return said
        return ""

    def smooth(self, start_rad: FloatArray, end_rad: FloatArray) -> Smooth:
        """Return the way between two poses."""
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
        arm: kinematics.
        limits_rad: joint limits [rad], shape (n_joints, 2).
        box: workspace of every guarded point, or None.
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
    if options.script == "grid":
        pieces = _grid(stage, rng)
    else:
        swing = _chirp if options.script == "chirp" else _reverse
        pieces = [p for joint in _joints(stage) for p in _fitted(stage, joint, swing, rng)]
    if not pieces:
        raise UnusableInputError(
            f"Nothing of --teleop.script={options.script} fits the arm from here: "
            f"{'; '.join(stage.notes)}. Move the arm to the middle of its workspace, or give a "
            "smaller --teleop.amplitude_rad or --teleop.size_m."
        )
    return Script(Trajectory(pieces), tuple(stage.notes))


type _Swing = Callable[
    [_Stage, int, FloatArray, float, np.random.Generator], Iterator[MotionSegment]
]


def _fitted(
    stage: _Stage, joint: int, swing: _Swing, rng: np.random.Generator
) -> list[MotionSegment]:
    """Return one joint's part of a script, made smaller until it fits; empty if it never does."""
    name, options = stage.arm.joint_names[joint], stage.options
    order = rng.spawn(1)[0]
    state = order.bit_generator.state
    centre, amplitude_rad = stage.middle(joint, options.amplitude_rad)
    why = "its range is small" if amplitude_rad < options.amplitude_rad else ""
    while amplitude_rad >= LEAST_RAD:
        order.bit_generator.state = state  # made smaller, it is otherwise the same
        pieces: list[MotionSegment] = [stage.smooth(stage.start_rad, centre)]
        pieces += swing(stage, joint, centre, amplitude_rad, order)
        pieces += [stage.smooth(centre, stage.start_rad), Dwell(stage.start_rad, PAUSE_S)]
        reason = stage.reason_against(pieces)
        if not reason:
            if why:
                stage.notes.append(f"{name}: swings {amplitude_rad:.2f} rad, because {why}")
            return pieces
        why = reason
        centre, amplitude_rad = stage.middle(joint, SMALLER * amplitude_rad)
    stage.notes.append(f"{name} is left out, because {why}")
    return []


def _chirp(
    stage: _Stage,
    joint: int,
    centre: FloatArray,
    amplitude_rad: float,
    order: np.random.Generator,
) -> Iterator[MotionSegment]:
    del order
    o = stage.options
    # Fading and growing frequency add a little to a sine's own speed.
    speed, change = 0.8 * o.velocity_rad_s, 0.7 * o.acceleration_rad_s2
    yield Chirp(centre, joint, amplitude_rad, o.low_hz, o.high_hz, o.seconds, speed, change)


def _reverse(
    stage: _Stage,
    joint: int,
    centre: FloatArray,
    amplitude_rad: float,
    order: np.random.Generator,
) -> Iterator[MotionSegment]:
    o = stage.options
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


def _grid(stage: _Stage, rng: np.random.Generator) -> list[MotionSegment]:
    offsets = _offsets(stage.options)
    rng.shuffle(offsets)
    poses = _solved(stage, offsets)
    here, pieces, visited = stage.start_rad, list[MotionSegment](), 0
    for offset, pose in zip(offsets, poses, strict=True):
        away = f"point {_millimetres(offset)} is left out, because"
        if pose is None:
            stage.notes.append(f"{away} the arm can't reach it")
            continue
        part: list[MotionSegment] = [stage.smooth(here, pose), Dwell(pose, stage.options.dwell_s)]
        if said := stage.reason_against([*part, stage.smooth(pose, stage.start_rad)]):
            stage.notes.append(f"{away} on the way {said}")
            continue
        pieces, here, visited = [*pieces, *part], pose, visited + 1
    return [*pieces, stage.smooth(here, stage.start_rad)] if visited > 1 else []


def _offsets(options: MotionOptions) -> FloatArray:
    """Return the grid's points about its middle [m], shape (k, 3)."""
    half = 0.5 * options.size_m
    axes = [np.linspace(-half, half, n) if n > 1 else np.zeros(1) for n in options.points]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def _solved(stage: _Stage, offsets: FloatArray) -> list[FloatArray | None]:
    """Return a pose for each point, or None where the tool doesn't get there."""
    from gaploop.teleop.leaders.tool_servo import ToolServo

    servo = ToolServo(stage.arm, stage.limits_rad, 5.0, stage.box)
    centre_m = stage.arm.T_base_tcp(stage.start_rad)[:3, 3]
    poses: list[FloatArray | None] = []
    for offset in offsets:
        servo.reset(stage.start_rad)
        for _ in range(150):
            away = centre_m + offset - servo.T_base_tcp[:3, 3]
            if np.linalg.norm(away) < 0.1 * NEAR_M:
                break
            servo.step(
                np.concatenate([away / max(0.02, np.linalg.norm(away) / 0.4), [0, 0, 0]]), 0.02
            )
        near = np.linalg.norm(centre_m + offset - servo.T_base_tcp[:3, 3]) < NEAR_M
        poses.append(servo.q_rad if near else None)
    return poses


def _joints(stage: _Stage) -> list[int]:
    names = stage.arm.joint_names
    for name in stage.options.joints:
        if name not in names:
            raise unknown_choice("joint", name, names, "--teleop.joints")
    return [names.index(name) for name in stage.options.joints or names]


def _outside(arm: ArmModel, q_rad: FloatArray, box: Box) -> str:
    points = arm.points_m(q_rad)
    for axis, (low, high) in enumerate(box):
        for bound, over in ((low, low - points[:, axis]), (high, points[:, axis] - high)):
            if over.max() > 1e-6:
                name = arm.point_names[int(over.argmax())]
                return f"the {name} would leave the workspace ({'xyz'[axis]} = {bound:g} m)"
    return ""


def _millimetres(offset_m: FloatArray) -> str:
    return f"({', '.join(f'{1000 * value:+.0f}' for value in offset_m)}) mm"
