"""Which servos the arms have, as LeRobot drives them, how they sit on the joints, who holds them.

The hand of a simulated person holds an arm, moves it for calibration, or leads with it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gaploop.core.arm import SIX_JOINTS, Arm
from gaploop.core.arms import ARMS, DEFAULT
from gaploop.core.errors import unknown_choice
from gaploop.core.kinematics import ArmModel
from gaploop.teleop.emulator import dynamixel, feetech
from gaploop.teleop.emulator.dynamixel import DynamixelServo
from gaploop.teleop.emulator.feetech import FeetechServo, sign_magnitude
from gaploop.teleop.emulator.joint import TICKS_PER_RAD, Drive
from gaploop.teleop.emulator.servo import EmulatedServo, ServoPlan
from gaploop.teleop.servos.registers import Protocol

JOINTS: Final = SIX_JOINTS
ROLES: Final = ("follower", "leader")


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
            offset = found["homing_offset"]
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

    def factory_new(self) -> ArmPlan:
        """Return the arm with its servos as shipped: all id 1, the maker's bit rate."""
        fresh = (
            replace(s, id=1, settings={k: v for k, v in s.settings.items() if k != "Baud_Rate"})
            for s in self.servos
        )
        return replace(self, servos=tuple(fresh))

    def _calibration(self, servo: ServoPlan) -> dict[str, int]:
        middle = (servo.low_rad + servo.high_rad) / 2
        encoder = round(servo.zero_ticks + servo.direction * middle * TICKS_PER_RAD)
        half = round((servo.high_rad - servo.low_rad) / 2 * TICKS_PER_RAD)
        low, high = (0, 4095) if servo.full_turn else (2047 - half, 2047 + half)
        drive = int(servo.direction < 0)  # mounted the other way round, LeRobot inverts it
        if self.homing_offset is not None:
            offset = self.homing_offset if drive else 0
        elif self.protocol is Protocol.FEETECH:
            offset = encoder - 2047
        else:
            offset = 2047 - (-encoder % 4096 if drive else encoder)
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
        if name not in servo.memory.registers:
            raise unknown_choice("register", name, servo.memory.registers, plan.name)
    return servo


def arm_plan(model: str, role: str = "follower") -> ArmPlan:
    """Return the plan of one of `core.arms`, or of an MJCF file, which gets the SO-101's servos.

    Raises:
        UnusableInputError: there is none such, or a file that `ArmModel` can't use.
    """
    known = {name: arm for name, arm in ARMS.items() if arm.emulated}
    if model not in known and not model.endswith(".xml"):
        raise unknown_choice("arm model", model, [*known, "PATH.xml"])
    if role not in ROLES:
        raise unknown_choice("role", role, ROLES)
    joints, arm = ArmModel.load(model), known.get(model, Arm(model))
    count = len(joints.joint_names)
    servos_of = known[DEFAULT].emulated[role]
    plain = replace(servos_of, models=servos_of.models[:1] * count, zero_ticks=(2048,) * count)
    chain, full_turn = arm.emulated.get(role, plain), arm.full_turn
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


HANDS: Final = ("none", "still", "rest", "middle_then_ranges", "wave")
UNHELD: Final = ("none", "rest", "middle_then_ranges")
"""With these a follower begins folded, as it lies without power. `rest` lays it down there and lets
go of it; `middle_then_ranges` takes hold only of an arm that has to be calibrated."""

_REACH_RAD_S: Final = 3.0
_WAVE_SHARE: Final = 0.08
"""Of half a joint's range: every arm then stays off the table and inside its workspace box."""
_WAVE_S: Final = (5.0, 6.1, 7.3, 4.7, 6.7, 5.3)
_INSIDE_RAD: Final = 0.01  # a sweep presses against the stops but not past them
_CENTRED_TICKS: Final = 40
_LAID_RAD: Final = 0.02


class ManualHand:
    """Moves the joints that it holds: all limp ones of a follower, every one of a leader.

    `rest_rad` is where a follower lies without anybody's help [rad].
    """

    def __init__(
        self,
        servos: Sequence[EmulatedServo],
        mode: str = "still",
        leads: bool = False,
        rest_rad: Sequence[float] | None = None,
    ) -> None:
        self.servos, self.leads = tuple(servos), leads
        self._middle = [(s.joint.low_rad + s.joint.high_rad) / 2 for s in self.servos]
        self._at = [s.joint.q_rad for s in self.servos]
        self._pose = list(self._at)
        self._rest = self._at if rest_rad is None else rest_rad
        self._since_s = self._now_s = 0.0
        self.sweep_s = 6.0
        self.mode = "still"
        self.set_mode(mode)

    def set_mode(self, mode: str) -> None:
        """Begin another motion; UnknownChoiceError for an unknown one."""
        if mode not in HANDS:
            raise unknown_choice("hand", mode, HANDS)
        self.mode = mode
        self._since_s = self._now_s

    def pose(self, q_rad: Sequence[float]) -> None:
        """Go to a pose [rad] and stay."""
        self._pose = list(q_rad)
        self.mode = "pose"

    def update(self, now_s: float) -> None:
        """Move on to `now_s` [s] since the start."""
        dt, self._now_s = max(0.0, now_s - self._now_s), now_s
        at_s = self._now_s - self._since_s
        goals: Sequence[float] | None = None  # nobody holds the joints
        match self.mode:
            case "still":
                goals = self._at
            case "pose":
                goals = self._pose
            case "rest":
                goals = self._rest
                lies = all(
                    abs(at - goal) < _LAID_RAD for at, goal in zip(self._at, goals, strict=True)
                )
                if lies or any(servo.joint.drive is not Drive.LIMP for servo in self.servos):
                    goals = None
                    self.set_mode("none")
            case "wave":  # smoothly about the middle, each joint at its own pace
                goals = [
                    middle + math.sin(at_s * math.tau / _WAVE_S[n % len(_WAVE_S)]) * half_rad
                    for n, (middle, half_rad) in enumerate(self._ranges(_WAVE_SHARE))
                ]
            case "middle_then_ranges":
                # Hold the middle until it is written down, as a homing offset that makes it read as
                # half a turn; then sweep until the ranges are, as limits narrower than a turn.
                goals, memories = self._middle, [servo.memory for servo in self.servos]
                pairs = zip(self.servos, self._middle, strict=True)
                if any(
                    not servo.memory["Homing_Offset"]
                    or abs(servo.shown_ticks_at(middle_rad) - 2047) > _CENTRED_TICKS
                    for servo, middle_rad in pairs
                ):
                    self._since_s = self._now_s
                elif any(
                    m["Max_Position_Limit"] - m["Min_Position_Limit"] < 4000 for m in memories
                ):
                    self.set_mode("wave" if self.leads else "rest")
                else:
                    phase = math.sin(at_s * math.tau / self.sweep_s)
                    ways = self._ranges(1.0)
                    goals = [middle + phase * (half_rad + _INSIDE_RAD) for middle, half_rad in ways]
        reach = _REACH_RAD_S * dt
        for n, servo in enumerate(self.servos):
            joint = servo.joint
            held = goals is not None and (self.leads or joint.drive is Drive.LIMP)
            if goals is None or not held:
                joint.hand_rad = None
                self._at[n] = joint.q_rad
                continue
            goal = min(max(goals[n], joint.low_rad), joint.high_rad)
            self._at[n] += max(-reach, min(reach, goal - self._at[n]))
            joint.hand_rad = self._at[n]

    def _ranges(self, share: float) -> Iterator[tuple[float, float]]:
        """Yield each joint's middle [rad], and so much of half its range [rad]."""
        for servo, middle in zip(self.servos, self._middle, strict=True):
            yield middle, share * (servo.joint.high_rad - servo.joint.low_rad) / 2
