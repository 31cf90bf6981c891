"""What the servos of a bus report, from register bytes to SI units.

Dynamixel registers are two's complement. Feetech's are sign and magnitude: bit 15 is the sign of
position, speed and current, bit 10 that of load (memory table; LeRobot decodes them alike). Homing
offset and drive mode work inside the servo, so what is read already contains them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FloatArray
from gaploop.teleop.servos import registers as reg

_DYNAMIXEL_BLOCK: Final = struct.Struct("<hii8xHB")
"""Current or load, velocity, position, trajectories (not used), voltage, temperature."""
_FEETECH_BLOCK: Final = struct.Struct("<HHHBBxBx2xH")
"""Position, velocity, load, voltage, temperature, status, current."""
_FEETECH_SIGN_BITS: Final = np.array([1 << 15, 1 << 15, 1 << 10, 0, 0, 0, 1 << 15])
_FEETECH_MAGNITUDES: Final = np.array([0x7FFF, 0x7FFF, 0x03FF, 0xFF, 0xFF, 0xFF, 0x7FFF])
_FEETECH_ORDER: Final = [0, 1, 6, 2, 4, 3]


@dataclass(frozen=True)
class BusState:
    """What the servos of one bus reported.

    Attributes:
        values: position [ticks], velocity [rad/s], current [A], load [%], temperature [°C] and
            supply [V], one row each, shape (6, n_servos); NaN where a model lacks it. Velocity
            has the sign of the position's growth.
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
    """Decodes the state blocks of one bus.

    Args:
        protocol: what the bus speaks.
        models: the servos' models, in order.
    """

    def __init__(self, protocol: reg.Protocol, models: Sequence[str]) -> None:
        self.protocol = protocol
        known = [reg.MODELS[name] for name in models]
        current = [model.current_step_a for model in known]
        if protocol is reg.Protocol.FEETECH:
            load, velocity = [reg.LOAD_STEP_PCT] * len(known), [0.0] * len(known)
        else:
            load = [math.nan if model.has_current else reg.LOAD_STEP_PCT for model in known]
            velocity = [reg.DYNAMIXEL_VELOCITY_RAD_S] * len(known)
        ones = [1.0] * len(known)
        volts = [reg.VOLTAGE_STEP_V] * len(known)
        self._steps: FloatArray = np.array([ones, velocity, current, load, ones, volts])
        if protocol is reg.Protocol.FEETECH:
            self.set_speed_steps([reg.FEETECH_SLOW_TICKS_S] * len(known))

    def set_speed_steps(self, ticks_s: Sequence[float]) -> None:
        """Say what a step of each Feetech servo's speed is worth [ticks/s]."""
        self._steps[1] = np.array(ticks_s) * reg.RAD_PER_TICK

    def decode(self, blocks: Sequence[bytes]) -> BusState:
        """Decode one block for each servo, in order."""
        if self.protocol is reg.Protocol.DYNAMIXEL:
            rows = [
                (place, speed, effort, effort, heat, volts)
                for effort, speed, place, volts, heat in map(_DYNAMIXEL_BLOCK.unpack, blocks)
            ]
            values = np.array(rows, dtype=np.float64).T * self._steps
            return BusState(values, np.zeros(len(rows), dtype=np.int64))
        raw = np.array([_FEETECH_BLOCK.unpack(block) for block in blocks])
        signed = raw & _FEETECH_MAGNITUDES
        np.negative(signed, out=signed, where=(raw & _FEETECH_SIGN_BITS) != 0)
        values = signed.T[_FEETECH_ORDER] * self._steps
        return BusState(values, raw[:, 5] & reg.FEETECH_STATUS_BITS)


def encode_goals(protocol: reg.Protocol, ids: Sequence[int], ticks: FloatArray) -> bytes:
    """Return id and goal bytes of each servo for a sync write of Goal Position.

    Args:
        ticks: goals, rounded to whole ticks [ticks], shape (n_servos,).
    """
    out = bytearray()
    if protocol is reg.Protocol.DYNAMIXEL:
        for servo_id, goal in zip(ids, ticks.tolist(), strict=True):
            out.append(servo_id)
            out += round(goal).to_bytes(4, "little", signed=True)
        return bytes(out)
    for servo_id, goal in zip(ids, ticks.tolist(), strict=True):
        whole = round(goal)
        out.append(servo_id)
        out += (min(abs(whole), 0x7FFF) | (0x8000 if whole < 0 else 0)).to_bytes(2, "little")
    return bytes(out)
