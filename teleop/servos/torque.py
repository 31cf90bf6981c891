"""Torque on, off and damped, confirmed by every servo.

Off is sent to all at once, several times, before anything is confirmed; then each servo that hasn't
confirmed is told again on its own. One that is dead or unplugged never keeps the others from being
tried.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gaploop.core.messages import NO_REPLY
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import Script
from gaploop.teleop.servos.registers import Protocol, encode_goals

OFF_BUDGET_S: Final = 0.03
"""After this long no servo is tried again, but each has been tried [s]."""
ROUNDS: Final = 3
LATE_S: Final = 0.1
"""Where answers come late, they are waited for so long, once: each servo on its own would take so
long that the program counts as hung [s]."""
OFF_REPEATS: Final = 8
"""So often all are told in a row, 0.2 ms each: of ten packets a bad wire may lose three, and asking
who has heard takes most of the time that torque may stay on."""
BY_CURRENT: Final = 5
"""Dynamixel's Operating_Mode in which Goal_Current limits the torque: current-based position."""
FEETECH_WHOLE: Final = 1000
"""Torque_Limit of a servo that gives all that it has."""


DAMPED: Final = {Protocol.FEETECH: 2, Protocol.DYNAMIXEL: 0}
"""What Torque_Enable is set to where the motor is to brake what moves the joint: Feetech's "damping
output" (memory table, address 40). For DYNAMIXEL X the e-manual describes nothing of the kind."""


def torque_off(
    bus: ServoBus, ids: Sequence[int] | None = None, *, damped: bool = False
) -> Script[tuple[int, ...]]:
    """Take torque off all servos, or some; return the ids of those that didn't confirm it.

    With `damped` their motors brake, where they can.
    """
    started_s, wanted = time.monotonic(), DAMPED[bus.protocol] if damped else 0
    ids = bus.ids if ids is None else ids
    register, data = bus.register("Torque_Enable"), bytes((wanted,))
    bus.holding.difference_update(ids)
    bus.rebooted.difference_update(ids)
    for _ in range(OFF_REPEATS):
        yield bus.store_all(register, each_of(ids, data))
    left = yield from _where_not(bus, ids, wanted)
    if bus.line.is_slow and len(left) == len(ids):
        return left
    for attempt in range(ROUNDS):
        if not left or (attempt and time.monotonic() - started_s > OFF_BUDGET_S):
            break
        told = []
        for servo_id in left:
            if servo_id in (yield bus.store(servo_id, register, data)):
                told.append(servo_id)
        # They are asked again: one that says it took a write may hold all the same.
        hold = (yield from _where_not(bus, told, wanted)) if told else ()
        left = tuple(i for i in left if i not in told or i in hold)
    if left:  # one that never answers a write may still answer a read
        left = yield from _where_not(bus, left, wanted)
    return left


def torque_on(bus: ServoBus) -> Script[tuple[int, ...]]:
    """Hold every servo where it is; return the ids of those that don't.

    The goals are set to the measured positions first, so that nothing jumps. Servos that lost
    power get their settings back.
    """
    for _ in range(ROUNDS):
        state = yield from bus.read(time.monotonic())
        silent = np.flatnonzero(state.status & NO_REPLY)
        if not len(silent):
            break
    if len(silent):
        return tuple(bus.ids[k] for k in silent)
    goal = bus.register("Goal_Position")
    for servo_id in tuple(bus.rebooted):
        for register, data in bus.settings.get(servo_id, []):
            if register != goal:
                yield bus.store(servo_id, register, data)
    if unlimited := (yield from _write_limits(bus)):
        return unlimited
    yield bus.store_all(goal, encode_goals(bus.protocol, bus.ids, state.position_ticks))
    register = bus.register("Torque_Enable")
    yield bus.store_all(register, each_of(bus.ids, b"\x01"))
    left = yield from _where_not(bus, bus.ids, 1)
    for _ in range(ROUNDS):
        for servo_id in left:
            yield bus.store(servo_id, register, b"\x01")
        if not left:
            break
        left = yield from _where_not(bus, left, 1)
    if not left:
        bus.rebooted.clear()
        yield from bus.note_holding(bus.ids)
    return left


def limit_torque(bus: ServoBus, ids: Sequence[int], pct: float) -> Script[tuple[int, ...]]:
    """Let servos push with at most `pct` of what they can, whenever they take torque from now on.

    A Feetech servo heeds a share of its whole torque, and its Max_Torque_Limit where that is less.
    It gets less than its Overload_Torque, which LeRobot sets to 25 % in grippers: one that pushes
    harder for Protection_Time (2 s) reports an error until it backs off.
    A Dynamixel heeds a share of its Current_Limit where its mode is limited by current, else of its
    PWM_Limit. None of it is kept without power: it is written again before each torque on.

    Returns:
        The servos that don't confirm it.
    """
    names = dict.fromkeys(ids, ("Max_Torque_Limit", "Torque_Limit"))
    if bus.protocol is Protocol.DYNAMIXEL:
        modes = yield from bus.collect(bus.register("Operating_Mode"), ids)
        by_current = {i for i, mode in modes.items() if mode[0] == BY_CURRENT}
        names = {
            i: ("Current_Limit", "Goal_Current") if i in by_current else ("PWM_Limit", "Goal_PWM")
            for i in modes
        }
    for servo_id, (most, limit) in names.items():
        register = bus.register(most)
        found = (yield from bus.collect(register, [servo_id])).get(servo_id)
        if found is None:
            continue
        whole = register.value_in(found, register.address)
        share = pct / 100.0 * (whole if bus.protocol is Protocol.DYNAMIXEL else FEETECH_WHOLE)
        value = min(round(share), whole)
        if bus.protocol is Protocol.FEETECH:
            overload = bus.register("Overload_Torque")
            if kept := (yield from bus.collect(overload, [servo_id])).get(servo_id):
                bears = (overload.value_in(kept, overload.address) - 1) * FEETECH_WHOLE // 100
                value = min(value, bears) if bears > 0 else value
        bus.torque_limits[servo_id] = bus.register(limit), value.to_bytes(2, "little")
    left = yield from _write_limits(bus)
    return tuple(i for i in ids if i in left or i not in bus.torque_limits)


def _write_limits(bus: ServoBus) -> Script[tuple[int, ...]]:
    """Write the torque limits of those that have one; return who doesn't confirm it."""
    left = dict(bus.torque_limits)
    for _ in range(ROUNDS):
        for servo_id, (register, data) in left.items():
            yield bus.store(servo_id, register, data)
        for servo_id, (register, data) in tuple(left.items()):
            if (yield from bus.collect(register, [servo_id])).get(servo_id) == data:
                del left[servo_id]
        if not left:
            break
    return tuple(left)


def _where_not(bus: ServoBus, ids: Sequence[int], wanted: int) -> Script[tuple[int, ...]]:
    """Return the servos whose torque isn't `wanted`, or that don't say; silent ones asked last."""
    silent = set(bus.silent)
    order = sorted(ids, key=lambda servo_id: servo_id in silent)
    wait_s = LATE_S if bus.line.is_slow else None
    answers = yield replace(bus.ask(bus.register("Torque_Enable"), order), wait_s=wait_s)
    return tuple(
        i for i in ids if i not in answers or not answers[i].data or answers[i].data[0] != wanted
    )


def each_of(ids: Sequence[int], data: bytes) -> bytes:
    """Return the bytes of a sync write that tells all of `ids` the same."""
    return b"".join(bytes((servo_id,)) + data for servo_id in ids)
