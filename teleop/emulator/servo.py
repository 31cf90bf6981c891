"""What every emulated servo has: an encoder on a joint, a memory, power, a moving set point."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gaploop.teleop.emulator.joint import TICKS_PER_RAD, Drive, Joint
from gaploop.teleop.emulator.registers import ControlTable, Memory

_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Mount:
    """How a servo sits on its joint.

    Attributes:
        name: LeRobot's name of the motor, such as shoulder_pan.
        zero_ticks: what the bare encoder reads at the joint's zero.
        direction: 1 where ticks grow with the joint angle, else -1.
        settings: registers that were set up before, such as ID.
    """

    name: str
    zero_ticks: int
    direction: int = 1
    settings: Mapping[str, int] = field(default_factory=lambda: _NOTHING)


def approach(
    at: float, speed: float, goal: float, top_speed: float, rate: float, dt: float
) -> tuple[float, float]:
    """Move a set point towards `goal` with a trapezoidal profile.

    Args:
        at: set point [ticks].
        speed: its speed [ticks/s].
        goal: where to [ticks].
        top_speed: highest speed [ticks/s], may be infinite.
        rate: acceleration [ticks/s²], may be infinite.
        dt: how long [s].

    Returns:
        Set point and speed afterwards.
    """
    distance = goal - at
    if not distance and not speed:
        return at, 0.0
    if math.isinf(rate):
        reach = top_speed * dt
        if abs(distance) <= reach:
            return goal, 0.0
        return at + math.copysign(reach, distance), math.copysign(top_speed, distance)
    # The fastest speed from which the goal can still be braked for, one step ahead.
    brake = math.sqrt(rate * rate * dt * dt / 4 + 2 * rate * abs(distance)) - rate * dt / 2
    wanted = math.copysign(min(top_speed, brake), distance)
    change = max(-rate * dt, min(rate * dt, wanted - speed))
    speed += change
    step = speed * dt
    if abs(distance) <= abs(step) + 1e-9 and abs(speed) <= rate * dt * 1.5:
        return goal, 0.0
    return at + step, speed


class EmulatedServo(ABC):
    """One servo on the bus.

    Attributes:
        model: name of the model, such as sts3215.
        mount: how it sits on its joint.
        joint: what it moves.
        memory: its registers.
        powered: it has power; without, it is silent and limp.
        connected: it is plugged into the bus.
        forced_temperature_c: overrides the simulated temperature [°C].
        forced_load: overrides the simulated load, as a share of stall.
        slip_ticks: the encoder reads so much more than it did when it was mounted.
    """

    BAUD_RATES: tuple[int, ...]
    ID: int
    """Address of the id."""
    BAUD: int
    """Address of the number of the bit rate."""

    def __init__(self, model: str, table: ControlTable, mount: Mount, joint: Joint) -> None:
        self.model, self.mount, self.joint = model, mount, joint
        self.memory = Memory(table, mount.settings)
        self.powered = self.connected = True
        self.forced_temperature_c: float | None = None
        self.forced_load: float | None = None
        self.slip_ticks = 0
        self.registered: tuple[int, bytes] | None = None
        self.setpoint = self.setpoint_speed = self.goal = 0.0
        self.turns = 0
        self._strained_s = 0.0
        self.power_up()

    @property
    def id(self) -> int:
        """The id that it answers to."""
        return self.memory["ID"]

    @property
    def baud(self) -> int:
        """The bit rate that it hears and answers at [bit/s]."""
        return self.BAUD_RATES[self.memory["Baud_Rate"]]

    @property
    def listening(self) -> bool:
        """Whether it is there at all."""
        return self.powered and self.connected

    @property
    def position_ticks(self) -> int:
        """Present_Position as a host reads it [ticks]."""
        return round(self.shown_ticks())

    @property
    @abstractmethod
    def torque(self) -> bool:
        """Whether the motor holds or moves the joint, as of the last instruction."""

    @property
    def temperature_c(self) -> float:
        """Temperature that it measures [°C]."""
        forced = self.forced_temperature_c
        return self.joint.temperature_c if forced is None else forced

    @property
    def load(self) -> float:
        """Load that it measures, as a share of stall, positive in its own direction."""
        if self.forced_load is not None:
            return self.forced_load
        return self.joint.duty * self.mount.direction

    @property
    @abstractmethod
    def alarm_bits(self) -> int:
        """The hardware error or status register."""

    def encoder_ticks(self) -> float:
        """What the bare encoder says, turns counted on beyond one [ticks]."""
        mount = self.mount
        zero_ticks = mount.zero_ticks + self.slip_ticks
        return zero_ticks + mount.direction * self.joint.q_rad * TICKS_PER_RAD

    def joint_rad(self, shown: float) -> float:
        """Return the joint angle [rad] at which `shown` [ticks] would be shown."""
        away = (shown - self.shown_ticks()) * self.shown_direction()
        return self.joint.q_rad + away / TICKS_PER_RAD

    @abstractmethod
    def shown_ticks(self) -> float:
        """Present position with offset, direction and turns as the registers ask [ticks]."""

    def shown_ticks_at(self, q_rad: float) -> float:
        """Return what would be shown [ticks] with the joint at `q_rad` [rad], by this turn."""
        away = (q_rad - self.joint.q_rad) * TICKS_PER_RAD
        return self.shown_ticks() + away * self.shown_direction()

    @abstractmethod
    def shown_direction(self) -> int:
        """1 where shown ticks grow with the joint angle, else -1."""

    def count_turns(self) -> None:
        """Forget whole turns: the encoder knows only where within one it is."""
        ticks = self.encoder_ticks() * self.shown_direction() * self.mount.direction
        self.turns = math.floor(ticks / 4096)

    @abstractmethod
    def refresh(self) -> None:
        """Write what is measured into the memory."""

    @abstractmethod
    def control(self, dt: float) -> None:
        """Move the set point by `dt` [s] and set the joint's drive."""

    @abstractmethod
    def protect(self, dt: float) -> None:
        """Check limits `dt` [s] after the last check; shut off where one is passed."""

    @abstractmethod
    def configure(self) -> None:
        """Take over what was written to the memory."""

    @abstractmethod
    def hold_here(self) -> None:
        """Make the present position the goal."""

    def power_down(self) -> None:
        """Lose power: silent and limp."""
        self.powered = False
        self.joint.drive = Drive.LIMP

    def power_up(self) -> None:
        """Begin as after switching on: what isn't kept has its initial value, torque is off."""
        self.memory.power_up()
        self.powered = True
        self.registered = None
        self.joint.drive = Drive.LIMP
        self._strained_s = 0.0
        self.turns = 0
        self.configure()
        self.count_turns()
        self.hold_here()
