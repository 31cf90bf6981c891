"""What the servos of a bus report, from register bytes to SI units.

Dynamixel registers are two's complement. Feetech's are sign and magnitude: bit 15 is the sign of
position, speed and current, bit 10 that of load (memory table; LeRobot decodes them alike). Homing
offset and drive mode work inside the servo, so what is read already contains them.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.teleop.servos import registers as reg

_DYNAMIXEL_BLOCK: Final = "hii8xHB"
"""Current or load, velocity, position, trajectories (not used), voltage, temperature."""
_FEETECH_BLOCK: Final = "HHHBBxBx2xH"
"""Position, velocity, load, voltage, temperature, status, current."""


@dataclass(frozen=True)
class BusState:
    """What the servos of one bus reported.

    Attributes:
        values: position [ticks], velocity [rad/s], current [A], load [%], temperature [°C],
            supply [V] and the joint's angle [rad], one row each, shape (7, n_servos); NaN where
            a model lacks it. Velocity is that of the angle.
        status: hardware error bits of the servo's own register, shape (n_servos,).
    """

    values: FloatArray
    status: NDArray[np.int64]

    @property
    def position_ticks(self) -> FloatArray:
        """Encoder positions as LeRobot reads them [ticks], shape (n_servos,)."""
        row: FloatArray = self.values[0]
        return row

    @property
    def voltage_v(self) -> FloatArray:
        """Supplies [V], shape (n_servos,)."""
        row: FloatArray = self.values[5]
        return row


class Decoder:
    """Decodes the state blocks of one bus's servos, in order."""

    def __init__(self, protocol: reg.Protocol, models: Sequence[str]) -> None:
        self.protocol = protocol
        known = [reg.MODELS[name] for name in models]
        count = len(known)
        is_feetech = protocol is reg.Protocol.FEETECH
        self._blocks = struct.Struct(
            "<" + (_FEETECH_BLOCK if is_feetech else _DYNAMIXEL_BLOCK) * count
        )
        self._current_a = [model.current_step_a for model in known]
        self._load_pct = [math.nan if model.has_current else reg.LOAD_STEP_PCT for model in known]
        self._speed_ticks_s = [reg.FEETECH_SLOW_TICKS_S] * count
        self.set_angles([0.0] * count, [0.0] * count, [reg.RAD_PER_TICK] * count)

    def set_angles(
        self,
        middle_ticks: Sequence[float],
        middle_rad: Sequence[float],
        rad_per_tick: Sequence[float],
    ) -> None:
        """Say what each joint's angle is [rad]: `middle_rad` at `middle_ticks`, and its slope."""
        self.angles = list(zip(middle_ticks, middle_rad, rad_per_tick, strict=True))
        """What `set_angles` was told of each joint."""
        if self.protocol is reg.Protocol.FEETECH:
            self.set_speed_steps(self._speed_ticks_s)
        else:
            scale = reg.DYNAMIXEL_VELOCITY_RAD_S / reg.RAD_PER_TICK
            self._speed_rad_s = [slope * scale for slope in rad_per_tick]

    def set_speed_steps(self, ticks_s: Sequence[float]) -> None:
        """Say what a step of each Feetech servo's speed is worth [ticks/s]."""
        self._speed_ticks_s = list(ticks_s)
        angles = zip(ticks_s, self.angles, strict=True)
        self._speed_rad_s = [step * slope for step, (_, _, slope) in angles]

    def decode(self, data: bytes) -> BusState:
        """Decode the blocks of all servos, in order and in one piece."""
        # Six servos in plain Python and one array at the end. Called after every sleep, from
        # cold caches, array arithmetic on six numbers takes longer.
        numbers: Sequence[int] = self._blocks.unpack(data)
        load: Sequence[float]
        if self.protocol is reg.Protocol.DYNAMIXEL:
            current, speed, place = numbers[0::5], numbers[1::5], numbers[2::5]
            load = [step * one for step, one in zip(self._load_pct, current, strict=True)]
            volts, heat, status = numbers[3::5], numbers[4::5], [0] * len(self.angles)
        else:  # sign and magnitude; written out, because this runs 2,400 times a second
            place = [one if one < 0x8000 else 0x8000 - one for one in numbers[0::7]]
            speed = [one if one < 0x8000 else 0x8000 - one for one in numbers[1::7]]
            tenths = [-(one & 0x3FF) if one & 0x400 else one & 0x3FF for one in numbers[2::7]]
            load = [reg.LOAD_STEP_PCT * one for one in tenths]
            current = [one if one < 0x8000 else 0x8000 - one for one in numbers[6::7]]
            volts, heat = numbers[3::7], numbers[4::7]
            status = [one & reg.FEETECH_STATUS_BITS for one in numbers[5::7]]
        rows: list[Sequence[float]] = [
            place,
            [step * one for step, one in zip(self._speed_rad_s, speed, strict=True)],
            [step * one for step, one in zip(self._current_a, current, strict=True)],
            load,
            heat,
            [reg.VOLTAGE_STEP_V * one for one in volts],
            [
                rad + (tick - middle) * slope
                for tick, (middle, rad, slope) in zip(place, self.angles, strict=True)
            ],
        ]
        values = np.array(list(itertools.chain(*rows)), dtype=np.float64)
        return BusState(values.reshape(len(rows), -1), np.array(status, dtype=np.int64))


def encode_goals(protocol: reg.Protocol, ids: Sequence[int], ticks: Iterable[float]) -> bytes:
    """Return each servo's id and goal for a sync write of Goal Position; [ticks] are rounded."""
    words: list[int] = []
    feetech = protocol is reg.Protocol.FEETECH
    for servo_id, goal in zip(ids, ticks, strict=True):
        whole = round(goal)
        if feetech:  # sign and magnitude
            whole = min(abs(whole), 0x7FFF) | (0x8000 if whole < 0 else 0)
        words += (servo_id, whole)
    return struct.pack("<" + ("BH" if feetech else "Bi") * len(ids), *words)


def decode_goal(protocol: reg.Protocol, data: bytes) -> int:
    """Return the goal [ticks] that a servo's Goal Position holds."""
    if protocol is not reg.Protocol.FEETECH:
        return int.from_bytes(data, "little", signed=True)
    whole = int.from_bytes(data, "little")
    return whole if whole < 0x8000 else 0x8000 - whole
