"""What moves: joints with motor, gears, friction, weight, end stops, heat and a hand on them.

Each on its own, or all of them with a `Plant` behind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray
from gaploop.core.protocols import Plant

TICKS_PER_RAD: Final = 4096 / math.tau
"""Both makers' encoders count 4096 to a turn."""

AMBIENT_C: Final = 25.0
_COOLING_S: Final = 300.0  # assumed: time constant of a small plastic housing in still air
_HAND_NM_PER_RAD: Final = 100.0  # assumed: a firm grip that watches what it does
_HAND_NM_S_PER_RAD: Final = 2.0
_LONGEST_STEP_S: Final = 0.005
_LEADS_OHM: Final = 0.15  # between the supply and its servos
_TABLE_N_PER_M: Final = 500.0  # assumed: a finger's tip and the arm give way by some millimetres
_TABLE_N_S_PER_M: Final = 10.0


@dataclass(frozen=True)
class MotorSpec:
    """A servo's motor and gears, at the output shaft.

    Attributes:
        stall_nm: torque at standstill at the nominal voltage [N m].
        stall_a: current then [A].
        free_rad_s: speed without load at the nominal voltage [rad/s].
        nominal_v: voltage of those figures, and of the supply [V].
        inertia_kg_m2: of rotor and gears.
        friction_nm: Coulomb friction of the gears [N m].
        heat_c_per_a2_s: heating rate [°C/(A² s)]; 10 minutes at 1.5 kg on 10 cm warm an STS3215
            by 15 °C (TheRobotStudio/SO-ARM100, issue 134).
        current_sensor: reports current; else only load.
    """

    stall_nm: float
    stall_a: float
    free_rad_s: float
    nominal_v: float
    inertia_kg_m2: float
    friction_nm: float
    heat_c_per_a2_s: float = 0.05
    standby_a: float = 0.02
    current_sensor: bool = True


class Drive(Enum):
    """What the servo's controller makes the motor do."""

    LIMP = 0
    POSITION = 1
    DAMP = 2


class Joint:
    """State of one joint; a servo's controller sets the drive, `advance` moves it.

    Angles are about the arm model's zero, as everywhere between devices.
    """

    def __init__(self, motor: MotorSpec, low_rad: float, high_rad: float) -> None:
        """Place the joint at rest mid-travel."""
        self.motor = motor
        self.low_rad, self.high_rad = low_rad, high_rad
        self.push_nm = 0.0
        """How weight and table turn it [N m]."""
        self.inertia = motor.inertia_kg_m2
        self.q_rad = 0.0 if low_rad < 0.0 < high_rad else (low_rad + high_rad) / 2
        self.v_rad_s = self.current_a = self.duty = 0.0
        self.temperature_c = AMBIENT_C + 5.0
        self.voltage_v = motor.nominal_v
        self.drive = Drive.LIMP
        self.stuck = False
        """Its motor draws nothing and its gears don't turn."""
        self.goal_rad = self.q_rad
        self.gain = self.damping = 0.0
        """Duty per radian of error, and per rad/s [1/rad, s/rad]."""
        self.duty_limit = 1.0
        self.hand_rad: float | None = None
        self.hand_nm = 2.0
        """Where a hand holds the joint [rad], and the most it pushes with [N m]."""

    def advance(self, duration_s: float) -> None:
        """Let `duration_s` [s] pass with the drive as it is."""
        motor = self.motor
        if self.stuck:
            self.v_rad_s = self.duty = self.current_a = 0.0
            return
        steps = min(64, max(1, math.ceil(duration_s / _LONGEST_STEP_S)))
        step_s = duration_s / steps
        volts, drive = self.voltage_v / motor.nominal_v, self.drive
        # Semi-implicitly, so that stiff drives and grips stay stable at any step: `implicit` is
        # what of the torque depends on the new speed [N m s/rad].
        for _ in range(steps):
            q, v = self.q_rad, self.v_rad_s
            torque, implicit = self.push_nm, 0.0
            if self.hand_rad is not None:
                push = _HAND_NM_PER_RAD * (self.hand_rad - q - v * step_s) - _HAND_NM_S_PER_RAD * v
                limit = self.hand_nm
                if -limit < push < limit:
                    implicit += _HAND_NM_S_PER_RAD + step_s * _HAND_NM_PER_RAD
                    torque += _HAND_NM_PER_RAD * (self.hand_rad - q)
                else:
                    torque += limit if push > 0 else -limit
            if drive is Drive.LIMP:
                self.duty = 0.0
            else:
                implicit += motor.stall_nm / motor.free_rad_s
                stall, error, most = motor.stall_nm * volts, self.goal_rad - q, self.duty_limit
                duty = 0.0
                if drive is Drive.POSITION:
                    duty = self.gain * (error - v * step_s) - self.damping * v
                if drive is Drive.POSITION and -most < duty < most:
                    implicit += stall * (self.damping + step_s * self.gain)
                    torque += stall * self.gain * error
                else:
                    duty = max(-most, min(most, duty))
                    torque += stall * duty
                self.duty = duty
            k = step_s / self.inertia
            v = (v + k * torque) / (1.0 + k * implicit)
            stop = k * motor.friction_nm
            v = 0.0 if -stop <= v <= stop else v - math.copysign(stop, v)
            q += v * step_s
            if q < self.low_rad:
                q, v = self.low_rad, 0.0
            elif q > self.high_rad:
                q, v = self.high_rad, 0.0
            self.q_rad, self.v_rad_s = q, v
        emf = self.v_rad_s / motor.free_rad_s if drive is not Drive.LIMP else 0.0
        self.current_a = (self.duty * volts - emf) * motor.stall_a if self.duty else 0.0

    @property
    def resting(self) -> bool:
        """Limp, still, and held by its gears alone: nothing will move it."""
        return (
            self.drive is Drive.LIMP
            and self.hand_rad is None
            and not self.v_rad_s
            and not self.duty
            and abs(self.push_nm) <= self.motor.friction_nm
        )

    def warm(self, duration_s: float) -> None:
        """Heat the winding for `duration_s` [s] with the present current."""
        heat = self.motor.heat_c_per_a2_s * self.current_a * self.current_a
        decay = math.exp(-duration_s / _COOLING_S)
        settled = AMBIENT_C + 5.0 + heat * _COOLING_S
        self.temperature_c = settled + (self.temperature_c - settled) * decay


class ArmWeight:
    """Says how weight and table turn each joint of an arm whose joints move one by one.

    The masses are the model's (`core.arms`). The table is the plane z = 0 that the arm stands on;
    it holds the points that a workspace box guards: finger tips, wrist, elbow.
    """

    def __init__(self, model: str, joints: Sequence[str]) -> None:
        self._arm = ArmModel.load(model)
        names = self._arm.joint_names
        self._own = np.array([names.index(name) for name in joints], dtype=np.intp)
        self._q: FloatArray = np.zeros(len(names))
        self._v: FloatArray = np.zeros(len(names))
        self._last: tuple[object, ...] = ()
        self._push_nm: list[float] = []

    def push_nm(
        self, q_rad: Sequence[float], v_rad_s: Sequence[float], *, on_table: bool = True
    ) -> list[float]:
        """Return the torque on each joint [N m] at its angle [rad] and speed [rad/s].

        With `on_table` the table holds what would fall through it.
        """
        asked = (*q_rad, *v_rad_s, on_table)
        if asked == self._last:  # an arm that is held, or lies, stands still for most steps
            return self._push_nm
        arm, q, v = self._arm, self._q, self._v
        q[self._own], v[self._own] = q_rad, v_rad_s
        push = arm.weight_nm(q)
        heights_m = arm.points_m(q)[:, 2]
        for point in np.flatnonzero(heights_m < 0.0).tolist() if on_table else ():
            rises = arm.jacobian_m(q, point)[2]
            force = -_TABLE_N_PER_M * heights_m[point] - _TABLE_N_S_PER_M * float(rises @ v)
            push = push + rises * max(force, 0.0)
        self._last, self._push_nm = asked, push[self._own].tolist()
        return self._push_nm


class JointMechanics:
    """Every joint on its own; those of one nominal voltage share a supply.

    `brown_out` is what is left of the supply voltages, 1 where all is well. `weight` turns the
    joints, where the arm has any.
    """

    def __init__(self, joints: Sequence[Joint], weight: ArmWeight | None = None) -> None:
        self.joints = tuple(joints)
        self.weight = weight
        self.brown_out = 1.0

    def advance(self, duration_s: float) -> None:
        """Let time pass [s]."""
        if self.weight is not None:
            q_rad, v_rad_s = [j.q_rad for j in self.joints], [j.v_rad_s for j in self.joints]
            # Whoever holds all of an arm, as for its calibration, holds it clear of the table.
            lies = any(j.hand_rad is None for j in self.joints)
            pushes = self.weight.push_nm(q_rad, v_rad_s, on_table=lies)
            for joint, push_nm in zip(self.joints, pushes, strict=True):
                joint.push_nm = push_nm
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
            joint.voltage_v = rail * self.brown_out - _LEADS_OHM * drawn_a[rail]


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
        driven = [joint.drive is not Drive.LIMP for joint in self.joints]
        goals, share = list[float](), list[float]()
        for joint, on in zip(self.joints, driven, strict=True):
            hand_rad = None if on else joint.hand_rad
            goals.append(joint.goal_rad if hand_rad is None else hand_rad)
            share.append(min(joint.duty_limit, 1.0) if on else float(hand_rad is not None))
        self.plant.power(np.array(share))
        self.plant.command(np.array(goals, dtype=np.float64))
        self.plant.advance(duration_s)
        self.take()
