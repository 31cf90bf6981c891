"""A plant behind the bus: what servos report is what the plant does. Any `Plant` will do."""

from __future__ import annotations

import time

import numpy as np
import serial

from gaploop.core.messages import FloatArray, FollowerState
from gaploop.teleop.emulator.arms import JOINTS
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.servos import feetech

PATIENCE_S = 120.0


class Lazy:
    """A plant whose powered joints go to their goals at once; the others drop to -0.5 rad."""

    joint_names = JOINTS

    def __init__(self) -> None:
        self.q = np.zeros(6)
        self.goal = np.zeros(6)
        self.on = np.zeros(6, dtype=np.bool_)

    def command(self, q_rad: FloatArray) -> None:
        self.goal = np.array(q_rad)

    def power(self, share: FloatArray) -> None:
        self.on = share > 0.0

    def advance(self, duration_s: float) -> None:
        del duration_s
        self.q = np.where(self.on, self.goal, -0.5)

    def read(self) -> FollowerState:
        nothing = np.zeros(6)
        return FollowerState(
            0.0, self.q, nothing, nothing, np.full(6, 25.0), nothing, nothing,
            np.zeros(6, dtype=np.int64),
        )  # fmt: skip


def test_the_plant_moves_what_the_servos_show() -> None:
    plant = Lazy()
    with (
        EmulatedBus(plant=plant, hand="none") as bus,
        serial.Serial(bus.port, 1_000_000, timeout=2) as port,
    ):
        goal = bus.servos[2].position_ticks + 500
        port.write(feetech.sync_write(42, 2, bytes((2,)) + goal.to_bytes(2, "little")))
        end_s = time.monotonic() + PATIENCE_S
        while abs(bus.servos[2].position_ticks - goal) > 3 and time.monotonic() < end_s:
            time.sleep(0.01)
        assert abs(bus.servos[2].position_ticks - goal) <= 3
        with bus.lock:
            assert plant.on.tolist() == [False, True, False, False, False, False]
            assert bus.servos[1].joint.q_rad == -0.5


def test_a_hand_holds_a_limp_plant() -> None:
    plant = Lazy()
    with EmulatedBus(plant=plant, hand="still") as bus:
        end_s = time.monotonic() + PATIENCE_S
        while not plant.on.all() and time.monotonic() < end_s:
            time.sleep(0.01)
        with bus.lock:
            assert plant.on.all()
            assert not any(servo.torque for servo in bus.all_servos)
