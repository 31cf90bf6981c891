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
        self._current_a = [model.current_step_a for model in known]
        self._load_pct = [math.nan if model.has_current else reg.LOAD_STEP_PCT for model in known]
        self._speed_rad_s = [reg.FEETECH_SLOW_TICKS_S * reg.RAD_PER_TICK] * len(known)

    def set_speed_steps(self, ticks_s: Sequence[float]) -> None:
        """Say what a step of each Feetech servo's speed is worth [ticks/s]."""
        self._speed_rad_s = [step * reg.RAD_PER_TICK for step in ticks_s]

    def decode(self, blocks: Sequence[bytes]) -> BusState:
        """Decode one block for each servo, in order."""
        # Six servos in plain Python and one array at the end: half the time of array arithmetic.
        if self.protocol is reg.Protocol.DYNAMIXEL:
            rows, status = self._dynamixel(blocks), [0] * len(blocks)
        else:
            rows, status = self._feetech(blocks)
        return BusState(np.array(list(zip(*rows, strict=True))), np.array(status, dtype=np.int64))

    def _dynamixel(self, blocks: Sequence[bytes]) -> list[tuple[float, ...]]:
        rows: list[tuple[float, ...]] = []
        steps = zip(blocks, self._current_a, self._load_pct, strict=True)
        for block, current_a, load_pct in steps:
            effort, speed, place, volts, heat = _DYNAMIXEL_BLOCK.unpack(block)
            speed_rad_s = speed * reg.DYNAMIXEL_VELOCITY_RAD_S
            volts_v = volts * reg.VOLTAGE_STEP_V
            row = (float(place), speed_rad_s, effort * current_a, effort * load_pct, heat, volts_v)
            rows.append(row)
        return rows

    def _feetech(self, blocks: Sequence[bytes]) -> tuple[list[tuple[float, ...]], list[int]]:
        rows: list[tuple[float, ...]] = []
        bits: list[int] = []
        steps = zip(blocks, self._speed_rad_s, self._current_a, strict=True)
        for block, speed_rad_s, current_a in steps:
            place, speed, load, volts, heat, status, current = _FEETECH_BLOCK.unpack(block)
            # Sign and magnitude; written out, because this runs 2,400 times a second.
            place = float(place if place < 0x8000 else 0x8000 - place)
            speed = speed_rad_s * (speed if speed < 0x8000 else 0x8000 - speed)
            current = current_a * (current if current < 0x8000 else 0x8000 - current)
            load = reg.LOAD_STEP_PCT * (-(load & 0x3FF) if load & 0x400 else load & 0x3FF)
            rows.append((place, speed, current, load, heat, volts * reg.VOLTAGE_STEP_V))
            bits.append(status & reg.FEETECH_STATUS_BITS)
        return rows, bits


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
