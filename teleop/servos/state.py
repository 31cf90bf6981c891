"""What the servos of a bus report, from register bytes to SI units.

Dynamixel registers are two's complement. Feetech's are sign and magnitude: bit 15 is the sign of
position, speed and current, bit 10 that of load (memory table; LeRobot decodes them alike). Homing
offset and drive mode work inside the servo, so what is read already contains them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FloatArray
from gaploop.teleop.servos import registers as reg

_DYNAMIXEL_BLOCK: Final = np.dtype(
    [
        ("effort", "<i2"),  # Present Current or Present Load
        ("velocity", "<i4"),
        ("position", "<i4"),
        ("trajectories", "V8"),
        ("voltage", "<u2"),
        ("temperature", "u1"),
    ]
)
_FEETECH_BLOCK: Final = np.dtype(
    [
        ("position", "<u2"),
        ("velocity", "<u2"),
        ("load", "<u2"),
        ("voltage", "u1"),
        ("temperature", "u1"),
        ("written", "u1"),
        ("status", "u1"),
        ("moving", "u1"),
        ("reserved", "V2"),
        ("current", "<u2"),
    ]
)


@dataclass(frozen=True)
class BusState:
    """What the servos of one bus reported; every array has shape (n_servos,).

    Attributes:
        position_ticks: encoder positions as LeRobot reads them [ticks].
        velocity_rad_s: with the sign of the position's growth [rad/s].
        current_a: NaN where the model doesn't measure it [A].
        load_pct: NaN where the model doesn't report it [%].
        temperature_c: [°C].
        voltage_v: [V].
        status: hardware error bits of the servo's own register.
    """

    position_ticks: FloatArray
    velocity_rad_s: FloatArray
    current_a: FloatArray
    load_pct: FloatArray
    temperature_c: FloatArray
    voltage_v: FloatArray
    status: NDArray[np.int64]


class Decoder:
    """Decodes the state blocks of one bus.

    Args:
        protocol: what the bus speaks.
        models: the servos' models, in order.
    """

    def __init__(self, protocol: reg.Protocol, models: Sequence[str]) -> None:
        self.protocol = protocol
        known = [reg.MODELS[name] for name in models]
        self._current_step_a = np.array([model.current_step_a for model in known])
        load = [math.nan if model.has_current else reg.LOAD_STEP_PCT for model in known]
        self._load_step_pct = np.array(load)
        self.velocity_ticks_s = np.full(len(known), reg.FEETECH_SLOW_TICKS_S)
        """Worth of one step of a Feetech's speed, which its Phase register decides [ticks/s]."""

    @property
    def size(self) -> int:
        """Bytes of one servo's block."""
        return reg.STATE_SPAN[self.protocol].size

    def decode(self, blocks: bytes) -> BusState:
        """Decode one block for each servo, in order."""
        if self.protocol is reg.Protocol.DYNAMIXEL:
            return self._dynamixel(np.frombuffer(blocks, _DYNAMIXEL_BLOCK))
        return self._feetech(np.frombuffer(blocks, _FEETECH_BLOCK))

    def _dynamixel(self, block: NDArray[np.void]) -> BusState:
        effort = block["effort"]
        return BusState(
            block["position"].astype(np.float64),
            block["velocity"] * reg.DYNAMIXEL_VELOCITY_RAD_S,
            effort * self._current_step_a,
            effort * self._load_step_pct,
            block["temperature"].astype(np.float64),
            block["voltage"] * reg.VOLTAGE_STEP_V,
            np.zeros(len(block), dtype=np.int64),
        )

    def _feetech(self, block: NDArray[np.void]) -> BusState:
        speed = _signed(block["velocity"], 15) * self.velocity_ticks_s
        return BusState(
            _signed(block["position"], 15),
            speed * reg.RAD_PER_TICK,
            _signed(block["current"], 15) * self._current_step_a,
            _signed(block["load"], 10) * reg.LOAD_STEP_PCT,
            block["temperature"].astype(np.float64),
            block["voltage"] * reg.VOLTAGE_STEP_V,
            (block["status"] & reg.FEETECH_STATUS_BITS).astype(np.int64),
        )


def _signed(values: NDArray[np.uint16], bit: int) -> FloatArray:
    """Decode sign and magnitude with the sign in `bit`."""
    raw = values.astype(np.int64)
    magnitude = raw & ((1 << bit) - 1)
    return np.where(raw >> bit & 1, -magnitude, magnitude).astype(np.float64)


def encode_goals(protocol: reg.Protocol, ids: Sequence[int], ticks: FloatArray) -> bytes:
    """Return id and goal bytes of each servo for a sync write of Goal Position.

    Args:
        ticks: goals, rounded to whole ticks [ticks], shape (n_servos,).
    """
    whole = np.rint(ticks).astype(np.int64)
    out = bytearray()
    if protocol is reg.Protocol.DYNAMIXEL:
        for servo_id, goal in zip(ids, whole.tolist(), strict=True):
            out.append(servo_id)
            out += (goal & 0xFFFFFFFF).to_bytes(4, "little")
        return bytes(out)
    for servo_id, goal in zip(ids, whole.tolist(), strict=True):
        out.append(servo_id)
        out += (min(abs(goal), 0x7FFF) | (0x8000 if goal < 0 else 0)).to_bytes(2, "little")
    return bytes(out)
