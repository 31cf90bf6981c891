"""The workspace box: an arm's finger tips, wrist and elbow stay in it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from gaploop.core.arms import model_of
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.messages import FloatArray
from gaploop.core.protocols import Follower
from gaploop.core.station import Station, Workspace
from gaploop.teleop.alignment import Room

ALMOST: Final = 0.97
"""A step that would leave the box is let through to so much of the way to its face."""
LEAST: Final = 1.0 / 32.0
"""Less of a step isn't worth a look: half a milliradian."""
HALVINGS: Final = 4
"""Where that is too far, the points having gone round a curve, half of it is tried so often."""
ARM_PREFIXES: Final = (("",), ("left_", "right_"))
"""How joints of one arm and of a pair are told apart; the pair's as in LeRobot."""


class WorkspaceGuard:
    """Keeps one arm's points in a box.

    Where the arm stands outside already, the box reaches out to where each point stands and
    shrinks as it comes back: no point ever gets further out on any axis.

    Args:
        points_m: joint positions [rad] to guarded points [m], shape (k, 3), in the box's frame.
        joints: which of the follower's joints this arm's are, in the order `points_m` wants.
        reach_m: for each of them, how far at most any point moves when it turns [m/rad]: away
            from the box's faces the points need not be found on every turn.
        joint_names: what the joints are called, and the points. With these and the reach ways
            round can be found.
        model: the arm model that `points_m` is of, as `ArmModel.load` takes it; "" for none.
    """

    def __init__(
        self,
        box: Workspace,
        points_m: Callable[[FloatArray], FloatArray],
        joints: Sequence[int],
        reach_m: Sequence[float] | None = None,
        joint_names: Sequence[str] = (),
        point_names: Sequence[str] = (),
        model: str = "",
    ) -> None:
        self.box, self.joints, self.model = box, [int(joint) for joint in joints], model
        self.shortened = False
        """The box shortened the last step."""
        self._names = tuple(joint_names), tuple(point_names)
        self._points_of = points_m
        self._reach_m = [math.inf] * len(self.joints) if reach_m is None else list(reach_m)
        self._box_low, self._box_high = box.bounds_m()
        self._low: FloatArray = self._box_low
        self._high: FloatArray = self._box_high
        self._is_outside = False
        self._clear_rad: Sequence[float] = [math.nan] * len(self.joints)
        self._stuck: tuple[Sequence[float], Sequence[float]] | None = None
        """From where to where the box let nothing through in the turn before."""
        self._clear_m = 0.0
        """At `_clear_rad`, the points were this far from every face of the box [m]."""

    def room(self, limits_rad: FloatArray) -> Room | None:
        """Return where the arm may be, by its joints' limits [rad]; None without reach or names."""
        if not (np.isfinite(self._reach_m).all() and all(self._names)):
            return None
        reach_m = np.array(self._reach_m)
        corners = self._box_low, self._box_high
        return Room(self._points_of, reach_m, *corners, limits_rad, *self._names)

    def start(self, q_rad: Sequence[float]) -> None:
        """Take note of where the arm stands; `q_rad` [rad] as `points_m` wants it."""
        self._clear_m, self._stuck = 0.0, None
        self._reach_out(self._points_m(q_rad))

    def limit(self, start_rad: Sequence[float], wanted_rad: Sequence[float]) -> Sequence[float]:
        """Return where the arm may be sent: `wanted_rad`, or as far towards it as the box lets.

        First the largest part of the whole step, then what single joints can still do, so that
        an arm pressed against a face slides along it. Every joint ends between its start and
        what was wanted.
        """
        self.shortened = False
        if list(wanted_rad) == list(start_rad):
            return wanted_rad
        if self._clear_m > 0.0:
            ways = zip(wanted_rad, self._clear_rad, self._reach_m, strict=True)
            # How far from where they then were the points may be at most.
            if sum(abs(q - was) * reach_m for q, was, reach_m in ways) < self._clear_m:
                return wanted_rad
        points = self._points_m(wanted_rad)
        self._clear_m, self._clear_rad = 0.0, wanted_rad
        if self._holds(points):
            reached = wanted_rad
            if not self._is_outside:
                self._clear_m = float(min((points - self._low).min(), (self._high - points).min()))
        else:
            self.shortened = True
            if self._stuck == (start_rad, wanted_rad):  # as in the turn before
                return start_rad
            # Points go nearly straight in one step: this is where the first one meets its face.
            near, start_points = list(start_rad), self._points_m(start_rad)
            way_m, ends = points - start_points, np.clip(points, self._low, self._high)
            left = np.divide(
                ends - start_points, way_m, out=np.ones_like(way_m), where=ends != points
            )
            part, points = ALMOST * float(left.min()), start_points
            for _ in range(HALVINGS):
                if part < LEAST:
                    break
                tried = [
                    min(
                        max(start + part * (wanted - start), min(start, wanted)), max(start, wanted)
                    )
                    for start, wanted in zip(start_rad, wanted_rad, strict=True)
                ]
                if self._holds(tried_points := self._points_m(tried)):
                    near, points = tried, tried_points
                    break
                part /= 2.0
            for joint, wanted in enumerate(wanted_rad):
                before = near[joint]
                if before == wanted:
                    continue
                near[joint] = wanted
                turned = self._points_m(near)
                if self._holds(turned):
                    points = turned
                else:
                    near[joint] = before
            reached = near
            self._stuck = (start_rad, wanted_rad) if near == list(start_rad) else None
        if self._is_outside:
            self._reach_out(points)
        return reached

    def _points_m(self, q_rad: Sequence[float]) -> FloatArray:
        return self._points_of(np.array(q_rad))

    def _holds(self, points: FloatArray) -> bool:
        return bool((points >= self._low).all() and (points <= self._high).all())

    def _reach_out(self, points: FloatArray) -> None:
        self._low = np.minimum(self._box_low, points)
        self._high = np.maximum(self._box_high, points)
        self._is_outside = bool((self._low < self._box_low).any()) or bool(
            (self._high > self._box_high).any()
        )


def guard_of(
    model: str, box: Workspace, joints: Sequence[int], names: Sequence[str] = ()
) -> WorkspaceGuard:
    """Return the guard of an arm of a model, as `ArmModel.load` takes it; raises as that does."""
    arm = ArmModel.load(model)
    names = names or arm.joint_names
    return WorkspaceGuard(box, arm.points_m, joints, arm.reach_m, names, arm.point_names, model)


def guards_for(station: Station, follower: Follower) -> tuple[WorkspaceGuard, ...]:
    """Return a guard for every arm of `follower`: two for a pair, none for an unknown arm.

    The model is the station's, else the robot type's; the box is the station's, else the
    model's own. Both arms of a pair have the same box, each in its own base frame.

    Raises:
        UnusableInputError: a model that doesn't fit the robot, or a box without a model.
    """
    name = station.robot_model or model_of(follower.robot_type)
    if not name:
        if station.workspace is not None:
            raise UnusableInputError(
                f"{station.where}: workspace needs an arm model, and none is known for "
                f"{follower.robot_type}. Name one: robot_model: {', '.join(ARM_MODELS)}, or "
                "the path of an MJCF file."
            )
        return ()
    model = ArmModel.load(name)
    box = station.workspace
    if box is None:
        if name not in ARM_MODELS:
            raise UnusableInputError(
                f"{station.where}: the arm model {name} has no workspace of its own. Add one in m: "
                "workspace: {x: [lower, upper], y: [lower, upper], z: [lower, upper]}."
            )
        box = Workspace(*ARM_MODELS[name].workspace_m)
    own = list(follower.joint_names)
    for prefixes in ARM_PREFIXES:
        arms = [[prefix + joint for joint in model.joint_names] for prefix in prefixes]
        if all(joint in own for joints in arms for joint in joints):
            known = name if name in ARM_MODELS else os.path.abspath(name)
            return tuple(
                guard_of(known, box, [own.index(joint) for joint in joints], joints)
                for joints in arms
            )
    raise UnusableInputError(
        f"{station.where}: robot_model {model.name} has the joints "
        f"{', '.join(model.joint_names)}, but the {follower.robot_type} has {', '.join(own)}. "
        f"Name the model that fits: {', '.join(ARM_MODELS)}, or the path of an MJCF file."
    )
