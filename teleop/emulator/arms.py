"""Which servos the arms have, as LeRobot drives them, and how they sit on the joints."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gaploop.core.arm import SIX_JOINTS
from gaploop.core.arms import ARMS
from gaploop.core.errors import unknown_choice
from gaploop.core.kinematics import ArmModel
from gaploop.teleop.emulator import dynamixel, feetech
from gaploop.teleop.emulator.dynamixel import DynamixelServo
from gaploop.teleop.emulator.feetech import FeetechServo, sign_magnitude
from gaploop.teleop.emulator.joint import TICKS_PER_RAD
from gaploop.teleop.emulator.servo import EmulatedServo, ServoPlan
from gaploop.teleop.servos.ranges import DYNAMIXEL_MOST, FEETECH_MOST
from gaploop.teleop.servos.registers import Protocol

JOINTS: Final = SIX_JOINTS
ROLES: Final = ("follower", "leader")

CALIBRATION_FAULTS: Final[Mapping[str, str]] = {
    "straddles": "its horn stands so that its travel runs across the encoder's end; the sweep over "
    "it left the whole turn as its range, in motor and file",
    "saturated": "the homing offset that it needs didn't fit, and was cut, in motor and file",
    "differs": "the motor holds another homing offset than the file",
}
"""What may be wrong with one motor's calibration, and what that is."""
_HALF_TURN: Final = 2048
_OFF_TICKS: Final = 150


@dataclass(frozen=True)
class ArmPlan:
    """An arm that can be emulated, its servos from the base to the gripper.

    `homing_offset` is as in `core.arm.ServoChain`.
    """

    model: str
    role: str
    protocol: Protocol
    servos: tuple[ServoPlan, ...]
    homing_offset: int | None = None

    def with_servo(self, name: str, **changes: object) -> ArmPlan:
        """Return the arm with one servo changed, as `id=2` does; UnusableInputError without it."""
        if name not in {s.name for s in self.servos}:
            raise unknown_choice("servo", name, [s.name for s in self.servos])
        changed = (
            replace(s, **changes) if s.name == name else s  # type: ignore[arg-type]
            for s in self.servos
        )
        return replace(self, servos=tuple(changed))

    def without(self, names: Iterable[str]) -> ArmPlan:
        """Return the arm with servos missing."""
        gone = set(names)
        return replace(self, servos=tuple(s for s in self.servos if s.name not in gone))

    def calibrated(self) -> ArmPlan:
        """Return the arm with offsets and limits in its servos, as `lerobot-calibrate` leaves."""
        servos = []
        for servo in self.servos:
            found = self._calibration(servo)
            offset = found["homing_offset"] + _OFF_TICKS * (servo.calibration_fault == "differs")
            if self.protocol is Protocol.FEETECH:
                offset = sign_magnitude(offset, 11)
            settings = {
                **servo.settings,
                "Homing_Offset": offset,
                **({"Drive_Mode": 1} if found["drive_mode"] else {}),
                "Min_Position_Limit": found["range_min"],
                "Max_Position_Limit": found["range_max"],
            }
            servos.append(replace(servo, settings=settings))
        return replace(self, servos=tuple(servos))

    def calibration(self) -> dict[str, dict[str, int]]:
        """Return LeRobot's calibration file of this arm, motor name to its fields."""
        return {s.name: self._calibration(s) for s in self.servos}

    def with_calibration_fault(self, name: str, fault: str) -> ArmPlan:
        """Return the arm with a motor whose calibration is wrong, as `calibrated` will write it."""
        if fault not in CALIBRATION_FAULTS:
            raise unknown_choice("calibration fault", fault, CALIBRATION_FAULTS)
        plan = self.with_servo(name, calibration_fault=fault)
        if fault != "straddles":
            return plan
        (servo,) = (s for s in plan.servos if s.name == name)
        return plan.with_servo(name, zero_ticks=servo.zero_ticks + _HALF_TURN)

    def factory_new(self) -> ArmPlan:
        """Return the arm with its servos as shipped: all id 1, the maker's bit rate."""
        fresh = (
            replace(s, id=1, settings={k: v for k, v in s.settings.items() if k != "Baud_Rate"})
            for s in self.servos
        )
        return replace(self, servos=tuple(fresh))

    def _calibration(self, servo: ServoPlan) -> dict[str, int]:
        middle = (servo.low_rad + servo.high_rad) / 2
        straddles = servo.calibration_fault == "straddles"
        zero_ticks = servo.zero_ticks - _HALF_TURN * straddles  # the offset is as it was before
        encoder = round(zero_ticks + servo.direction * middle * TICKS_PER_RAD)
        half = round((servo.high_rad - servo.low_rad) / 2 * TICKS_PER_RAD)
        turns = servo.full_turn or straddles
        low, high = (0, 4095) if turns else (2047 - half, 2047 + half)
        drive = int(servo.direction < 0)  # mounted the other way round, LeRobot inverts it
        if self.homing_offset is not None:
            offset = self.homing_offset if drive else 0
        elif self.protocol is Protocol.FEETECH:
            offset = encoder - 2047
        else:
            offset = 2047 - (-encoder % 4096 if drive else encoder)
        if servo.calibration_fault == "saturated":
            offset = FEETECH_MOST if self.protocol is Protocol.FEETECH else DYNAMIXEL_MOST
        return {
            "id": servo.id,
            "drive_mode": drive,
            "homing_offset": offset,
            "range_min": max(0, low),
            "range_max": min(4095, high),
        }


def build_servo(plan: ServoPlan) -> EmulatedServo:
    """Return a servo at rest, just switched on."""
    kinds: dict[str, type[DynamixelServo] | type[FeetechServo]] = {
        **dict.fromkeys(dynamixel.MOTORS, DynamixelServo),
        **dict.fromkeys(feetech.MOTORS, FeetechServo),
    }
    if plan.model not in kinds:
        raise unknown_choice("servo model", plan.model, kinds)
    servo = kinds[plan.model](plan)
    for name in plan.settings:
        if name not in servo.memory.table.by_name:
            raise unknown_choice("register", name, servo.memory.table.by_name, plan.name)
    return servo


def arm_plan(model: str, role: str = "follower") -> ArmPlan:
    """Return the plan of one of `core.arms`; UnusableInputError where there is none such."""
    known = {name: arm for name, arm in ARMS.items() if arm.emulated}
    if model not in known:
        raise unknown_choice("arm model", model, known)
    if role not in ROLES:
        raise unknown_choice("role", role, ROLES)
    chain = known[model].emulated[role]
    full_turn, joints = known[model].full_turn, ArmModel.load(model)
    ends = zip(joints.joint_names, joints.joint_limits_rad.tolist(), strict=True)
    servos = tuple(
        ServoPlan(
            name,
            chain.first_id + n,
            chain.models[n],
            chain.zero_ticks[n],
            low_rad,
            high_rad,
            direction=-1 if name in chain.inverted else 1,
            full_turn=full_turn is None or name in full_turn,
            settings=dict(chain.settings),
        )
        for n, (name, (low_rad, high_rad)) in enumerate(ends)
    )
    return ArmPlan(model, role, Protocol(chain.protocol), servos, chain.homing_offset)


so101 = functools.partial(arm_plan, "so101")
koch = functools.partial(arm_plan, "koch")
openmanipulator = functools.partial(arm_plan, "openmanipulator")
