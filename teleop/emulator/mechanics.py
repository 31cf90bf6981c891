"""What the servos' motors turn: joints on their own, or a `Plant` behind all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gaploop.core.protocols import Plant
from gaploop.teleop.emulator.joint import Drive, Joint


class Mechanics(Protocol):
    """Moves the joints."""

    brown_out: float

    def advance(self, duration_s: float) -> None:
        """Let time pass [s]."""
        ...

    def settle(self, duration_s: float) -> None:
        """Bring what changes slowly, heat and supply voltage, up to date [s]."""
        ...


class JointMechanics:
    """Every joint on its own; those of one nominal voltage share a supply.

    Attributes:
        joints: all of them.
        brown_out: what is left of the supply voltages, 1 where all is well.
    """

    def __init__(self, joints: Sequence[Joint], resistance_ohm: float = 0.15) -> None:
        """Connect the joints to supplies behind `resistance_ohm` [Ω] of leads."""
        self.joints = tuple(joints)
        self.resistance_ohm = resistance_ohm
        self.brown_out = 1.0

    def advance(self, duration_s: float) -> None:
        """Let time pass [s]."""
        for joint in self.joints:
            if not joint.resting:
                joint.advance(duration_s)

    def settle(self, duration_s: float) -> None:
        """Bring what changes slowly, heat and supply voltage, up to date [s]."""
        drawn_a: dict[float, float] = {}
        for joint in self.joints:
            joint.warm(duration_s)
            rail = joint.motor.nominal_v
            drawn_a[rail] = drawn_a.get(rail, 0.0) + joint.motor.standby_a + abs(joint.current_a)
        for joint in self.joints:
            rail = joint.motor.nominal_v
            joint.voltage_v = rail * self.brown_out - self.resistance_ohm * drawn_a[rail]


class PlantJoints(JointMechanics):
    """Joints that a `Plant`, such as a MuJoCo arm, moves together."""

    def __init__(self, joints: Sequence[Joint], plant: Plant) -> None:
        super().__init__(joints)
        self.plant = plant
        self.take()

    def take(self) -> None:
        """Copy the plant's state to the joints."""
        state = self.plant.read()
        for n, joint in enumerate(self.joints):
            joint.q_rad = float(state.position_rad[n])
            joint.v_rad_s = float(state.velocity_rad_s[n])
            joint.duty = float(state.load_pct[n]) / 100.0
            joint.current_a = joint.duty * joint.motor.stall_a

    def advance(self, duration_s: float) -> None:
        """Let time pass [s]. A hand counts as a motor that holds where the hand is."""
        held = [joint.hand_rad is not None for joint in self.joints]
        driven = [joint.drive is not Drive.LIMP for joint in self.joints]
        goals = [
            joint.hand_rad if joint.hand_rad is not None and not on else joint.goal_rad
            for joint, on in zip(self.joints, driven, strict=True)
        ]
        self.plant.power(np.array(held) | np.array(driven))
        self.plant.command(np.array(goals, dtype=np.float64))
        self.plant.advance(duration_s)
        self.take()
