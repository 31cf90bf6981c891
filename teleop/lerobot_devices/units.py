"""A joint's encoder ticks, its angle, and its value in LeRobot's units.

LeRobot normalises in one of three ways (`MotorNormMode`): degrees about the middle of the
calibrated range, -100 to 100 over it, or 0 to 100. The last two clamp; and only they turn the
sign where the calibration's drive mode says so and the bus applies it (Feetech's does, Dynamixel's
leaves it to the servo). All of that is LeRobot's `SerialMotorsBus._normalize`.

Our angle's zero is the middle of the calibrated range, 4096 ticks to a turn. LeRobot's degrees
divide by 4095: ours are true angles, its are kept in its units. A gripper whose arm model is
known is measured from that model's closed angle, so that simulation and hardware agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lerobot.motors import MotorNormMode
from numpy.typing import NDArray

from gaploop.core.kinematics import ARM_MODELS, model_of
from gaploop.core.messages import FloatArray
from gaploop.teleop.servos.registers import RAD_PER_TICK

GRIPPER = "gripper"


@dataclass(frozen=True)
class JointUnits:
    """Conversions of some joints; every array has shape (n_joints,).

    Attributes:
        low_ticks: lower end of the calibrated range [ticks].
        high_ticks: upper end [ticks].
        degrees: the joint's LeRobot unit is degrees.
        span: else, its unit's range: 200 for -100 to 100, 100 for 0 to 100.
        least: else, its unit's lowest value.
        flip: else, the unit falls where ticks grow.
        ticks_per_360: what LeRobot takes for a turn, 4095 for a 12-bit encoder.
        rad_per_tick: slope of the joint's angle [rad/tick].
        middle_ticks: where the angle is `middle_rad` [ticks].
        middle_rad: 0 but for grippers [rad].
    """

    names: tuple[str, ...]
    low_ticks: FloatArray
    high_ticks: FloatArray
    degrees: NDArray[np.bool_]
    span: FloatArray
    least: FloatArray
    flip: NDArray[np.bool_]
    ticks_per_360: FloatArray
    rad_per_tick: FloatArray
    middle_ticks: FloatArray
    middle_rad: FloatArray

    def ticks_to_rad(self, ticks: FloatArray) -> FloatArray:
        """Convert encoder positions [ticks] to joint angles [rad]."""
        return self.middle_rad + (ticks - self.middle_ticks) * self.rad_per_tick

    def rad_to_ticks(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad] to encoder positions [ticks], not rounded."""
        return self.middle_ticks + (q_rad - self.middle_rad) / self.rad_per_tick

    def ticks_to_units(self, ticks: FloatArray) -> FloatArray:
        """Convert encoder positions [ticks] to LeRobot's units, as it does."""
        share = (np.clip(ticks, self.low_ticks, self.high_ticks) - self.low_ticks) / self._range
        share = np.where(self.flip, 1.0 - share, share)
        middle = (self.low_ticks + self.high_ticks) / 2.0
        angle = (ticks - middle) * 360.0 / self.ticks_per_360
        return np.where(self.degrees, angle, self.least + share * self.span)

    def units_to_ticks(self, values: FloatArray) -> FloatArray:
        """Convert LeRobot's units to encoder positions [ticks], not rounded.

        What isn't finite stays so, as NaN: clipped to the range, infinity would be a joint's end.
        """
        values = np.where(np.isfinite(values), values, np.nan)
        share = np.clip((values - self.least) / self.span, 0.0, 1.0)
        share = np.where(self.flip, 1.0 - share, share)
        middle = (self.low_ticks + self.high_ticks) / 2.0
        angle = values * self.ticks_per_360 / 360.0 + middle
        return np.where(self.degrees, angle, self.low_ticks + share * self._range)

    @property
    def rad_per_unit(self) -> FloatArray:
        """Size of a step of each joint's LeRobot unit [rad], within its range."""
        ticks = np.where(self.degrees, self.ticks_per_360 / 360.0, self._range / self.span)
        return np.abs(ticks * self.rad_per_tick)

    @property
    def _range(self) -> FloatArray:
        return self.high_ticks - self.low_ticks

    @property
    def joint_limits_rad(self) -> FloatArray:
        """Ends of the calibrated ranges [rad], shape (n_joints, 2)."""
        ends = [self.ticks_to_rad(self.low_ticks), self.ticks_to_rad(self.high_ticks)]
        return np.sort(np.stack(ends, axis=1), axis=1)

    @property
    def label(self) -> str:
        """How the units of the joints before the gripper are named."""
        body = [k for k, name in enumerate(self.names) if not name.endswith(GRIPPER)] or [0]
        if self.degrees[body].all():
            return "deg"
        return "m100_100" if (self.least[body] == -100.0).all() else "mixed"


def joint_units(bus: Any, robot_type: str) -> JointUnits:
    """Read the conversions off a calibrated LeRobot `SerialMotorsBus`.

    The gripper's angle follows the arm model of `robot_type`, where it is known.
    """
    names = tuple(bus.motors)
    motors = [bus.motors[name] for name in names]
    calibration = [bus.calibration[name] for name in names]
    low = np.array([float(c.range_min) for c in calibration])
    high = np.array([float(c.range_max) for c in calibration])
    percent = np.array([m.norm_mode is MotorNormMode.RANGE_0_100 for m in motors])
    flip = np.array([bool(bus.apply_drive_mode and c.drive_mode) for c in calibration])
    units = JointUnits(
        names=names,
        low_ticks=low,
        high_ticks=high,
        degrees=np.array([m.norm_mode is MotorNormMode.DEGREES for m in motors]),
        span=np.where(percent, 100.0, 200.0),
        least=np.where(percent, 0.0, -100.0),
        flip=flip,
        ticks_per_360=np.array([bus.model_resolution_table[m.model] - 1.0 for m in motors]),
        rad_per_tick=np.full(len(names), RAD_PER_TICK),
        middle_ticks=(low + high) / 2.0,
        middle_rad=np.zeros(len(names)),
    )
    model = model_of(robot_type)
    if model is not None and GRIPPER in names and percent[names.index(GRIPPER)]:
        k, (closed_rad, open_rad) = names.index(GRIPPER), ARM_MODELS[model].gripper_percent_rad
        slope = (open_rad - closed_rad) / (high[k] - low[k])
        units.rad_per_tick[k] = -slope if flip[k] else slope
        units.middle_rad[k] = (closed_rad + open_rad) / 2.0
    return units


def joined(parts: Sequence[JointUnits], prefixes: Sequence[str]) -> JointUnits:
    """Return the conversions of several arms as one, their names prefixed."""
    fields: Mapping[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in JointUnits.__dataclass_fields__
        if name != "names"
    }
    names = tuple(p + n for p, part in zip(prefixes, parts, strict=True) for n in part.names)
    return JointUnits(names=names, **fields)
