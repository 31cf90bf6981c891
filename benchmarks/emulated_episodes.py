"""Demonstrations on emulated arms, over their bus, on a clock of their own: command and reading.

A made-up person moves a leader: smooth ways between places, pauses, a hand's tremor. Each turn
reads the follower's positions and writes its goals, as LeRobot's recording loop does, byte for
byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from gaploop.core.clock import ManualClock
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray
from gaploop.teleop.emulator.arms import arm_plan
from gaploop.teleop.emulator.bus import EmulatedBus
from gaploop.teleop.emulator.joint import Joint
from gaploop.teleop.emulator.servo import ServoPlan
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.registers import Protocol

BAUD: Final = 1_000_000
DEG_PER_TICK: Final = 360.0 / 4096.0
TREMOR_DEG: Final = 0.05
"""Physiological tremor of a resting hand, 8 to 12 Hz."""
CLEAR_M: Final = 0.04
"""Places that the arm is led to leave this much above the table."""
# Name: register, its address, size: Feetech's memory table, ROBOTIS e-manual (X series).
_GOAL: Final = {Protocol.FEETECH: (42, 2), Protocol.DYNAMIXEL: (116, 4)}
_PRESENT: Final = {Protocol.FEETECH: (56, 2), Protocol.DYNAMIXEL: (132, 4)}
_TORQUE: Final = {Protocol.FEETECH: (40, 1), Protocol.DYNAMIXEL: (64, 1)}


def leader_motion(
    rng: np.random.Generator,
    low: FloatArray,
    high: FloatArray,
    seconds: float,
    fps: float,
    is_free: Callable[[FloatArray], bool] = lambda _q_deg: True,
) -> FloatArray:
    """Return a hand's motion within limits [deg], shape (n, joints): reach, wait, reach on.

    Places, and the middles of ways, are such that `is_free` says yes to.
    """
    n, joints = round(seconds * fps), len(low)
    middle, half = (low + high) / 2, (high - low) / 2
    at = middle
    while not is_free(at := middle + half * rng.uniform(-0.75, 0.75, joints)):
        pass
    rows = list[FloatArray]()
    while sum(map(len, rows)) < n:
        while True:
            moving = rng.random(joints) < 0.7
            goal = np.where(moving, middle + half * rng.uniform(-0.75, 0.75, joints), at)
            if is_free(goal) and is_free((goal + at) / 2):
                break
        way_s = max(0.4, float(np.abs(goal - at).max()) / rng.uniform(35.0, 80.0))
        steps = max(2, round(way_s * fps))
        s = np.arange(1, steps + 1)[:, None] / steps
        rows.append(at + (goal - at) * (10 * s**3 - 15 * s**4 + 6 * s**5))  # minimum jerk
        rows.append(np.repeat(goal[None], round(rng.uniform(0.2, 1.2) * fps), axis=0))
        at = goal
    q = np.concatenate(rows)[:n]
    t = np.arange(n)[:, None] / fps
    hz, phase = rng.uniform(8.0, 12.0, joints), rng.uniform(0, math.tau, joints)
    wander = np.cumsum(rng.normal(0.0, 0.02, (n, joints)), axis=0)
    q = q + TREMOR_DEG * np.sin(math.tau * hz * t + phase) + wander
    return np.asarray(np.round(np.clip(q, low, high) / DEG_PER_TICK) * DEG_PER_TICK)


def record(
    model: str,
    seed: int,
    *,
    episodes: int = 10,
    seconds: float = 8.0,
    fps: float = 30.0,
    sent: Callable[[FloatArray, int], FloatArray] = lambda command, _episode: command,
    prepare: Callable[[Mapping[str, Joint]], None] = lambda _joints: None,
) -> tuple[tuple[str, ...], list[tuple[FloatArray, FloatArray]]]:
    """Return joint names, and of each episode commands and readings [deg], shape (n, joints).

    Args:
        sent: changes an episode's commands before they reach the bus, as a follower does that was
            calibrated otherwise; told the episode's number.
        prepare: changes the emulated joints, by name, once they hold.
    """
    rng, clock = np.random.default_rng(seed), ManualClock(100.0)
    plan = arm_plan(model).calibrated()
    wire: Any = feetech if plan.protocol is Protocol.FEETECH else dynamixel
    bus = EmulatedBus(plan=plan, hand="none", clock=clock, serve=False)
    ids = list(bus.servos)
    names = tuple(s.name for s in plan.servos)
    low, high = (np.array([_degrees(s, e) for s in plan.servos]) for e in (0.12, 0.88))

    def write(register: tuple[int, int], values: list[int]) -> None:
        address, size = register
        data = b"".join(
            bytes([i]) + int(v).to_bytes(size, "little") for i, v in zip(ids, values, strict=True)
        )
        bus.hear(wire.sync_write(address, size, data), BAUD)

    def positions() -> FloatArray:
        address, size = _PRESENT[plan.protocol]
        parser, raw = wire.Parser(), bus.hear(wire.sync_read(address, size, ids), BAUD)[1]
        parser.expect(size, len(ids)) if hasattr(parser, "expect") else None
        data = [wire.reply_of(f).data for f in parser.feed(raw)]
        return np.array([int.from_bytes(d, "little") - 2047 for d in data]) * DEG_PER_TICK

    arm = ArmModel.load(model)
    zero = np.array([(s.low_rad + s.high_rad) / 2 for s in plan.servos])

    def is_free(q_deg: FloatArray) -> bool:
        return bool((arm.points_m(zero + np.radians(q_deg))[:, 2] > CLEAR_M).all())

    made = []
    try:
        write(_GOAL[plan.protocol], [round(v / DEG_PER_TICK) + 2047 for v in (low + high) / 2])
        write(_TORQUE[plan.protocol], [1] * len(ids))
        bus.move_on()
        prepare({s.plan.name: s.joint for s in bus.all_servos})
        for episode in range(episodes):
            command = leader_motion(rng, low, high, seconds, fps, is_free)
            ticks = np.clip(np.round(sent(command, episode) / DEG_PER_TICK) + 2047, 0, 4095).astype(
                int
            )
            reading = np.empty_like(command)
            for k in range(-round(fps), len(command)):  # a second to get to the start
                clock.sleep_until(clock.now_s() + 1 / fps)
                bus.move_on()
                if k >= 0:
                    reading[k] = positions()
                write(_GOAL[plan.protocol], ticks[max(k, 0)].tolist())
            made.append((command, reading))
    finally:
        bus.stop()
    return names, made


def _degrees(servo: ServoPlan, share: float) -> float:
    """Return a place in a servo's travel, from its middle [deg]."""
    return math.degrees((servo.high_rad - servo.low_rad) * (share - 0.5))
