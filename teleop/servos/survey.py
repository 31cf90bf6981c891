"""Who is on a bus: pings that tell a missing servo from two that share an id. Writes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.exchange import BusLine, Request, Script, run
from gaploop.teleop.servos.faults import ServoFaults
from gaploop.teleop.servos.frames import MAX_ID
from gaploop.teleop.servos.registers import (
    STATE_SPAN,
    TABLES,
    VOLTAGE_STEP_V,
    Protocol,
    ServoRegister,
)

TRIES: Final = 3
PATIENCE_S: Final = 0.05
"""A servo that is there may answer this late on a busy machine [s]; one that isn't costs it."""
LATE_S: Final = 0.5
"""Where answers came late: how long the bus is left alone, and then each answer waited for [s]."""
_HEAD: Final = ServoRegister(0, 7)
"""Firmware and model number of either maker."""
_NOBODY: Final = 0xFD
"""Waiting for a servo that isn't there lets a second answer to the same id be heard."""


@dataclass(frozen=True)
class ServoReply:
    """How one servo answered.

    Attributes:
        id: which was asked.
        model_number: what it says it is, or None where it doesn't answer.
        firmware: its version, such as `3.10`.
        doubled: its answers are garbled or come twice, as if two servos had the id.
        voltage_v: its supply [V], NaN where unknown.
    """

    id: int
    model_number: int | None
    firmware: str = ""
    doubled: bool = False
    voltage_v: float = float("nan")


def survey(line: BusLine, ids: Iterable[int]) -> dict[int, ServoReply]:
    """Ask each of `ids` who it is.

    A machine that stalls hears answers after their time, which looks like a servo that is missing
    and like two that talk at once. So who is in doubt is asked again where anything came late.
    """
    before = _unexpected(line)
    seen = {servo_id: _look(line, servo_id, PATIENCE_S) for servo_id in ids}
    doubtful = [i for i, servo in seen.items() if servo.doubled or servo.model_number is None]
    if doubtful:
        time.sleep(LATE_S)
        _hear(line)
        if _unexpected(line) > before:
            seen |= {servo_id: _look(line, servo_id, LATE_S) for servo_id in doubtful}
    return seen


def present(line: BusLine, ids: Iterable[int] = range(1, 21)) -> list[int]:
    """Return which of `ids` answer a ping."""
    size = 3 if line.protocol is Protocol.DYNAMIXEL else 0
    wire = dynamixel if line.protocol is Protocol.DYNAMIXEL else feetech

    def ping(servo_id: int) -> Script[bool]:
        answers = yield Request(wire.ping(servo_id), (servo_id,), size, wait_s=PATIENCE_S)
        return servo_id in answers

    return [i for i in ids if i <= MAX_ID and run([(line, ping(i))])[0]]


def _look(line: BusLine, servo_id: int, wait_s: float) -> ServoReply:
    before = _noise(line, servo_id)
    head = _patient(line, servo_id, _HEAD, wait_s)
    if not head and _noise(line, servo_id) == before:
        return ServoReply(servo_id, None)
    # Noise spoils an answer now and then; two servos that talk at once spoil most of them.
    spoiled, state = 0, b""
    for _ in range(TRIES):
        before = _noise(line, servo_id)
        (data,) = run([(line, _read(line, servo_id, STATE_SPAN[line.protocol]))])
        spoiled += _noise(line, servo_id) > before
        state = data or state
    line.faults.servos.pop(_NOBODY, None)
    doubled = spoiled > TRIES // 2 or not head
    return ServoReply(servo_id, *_identity(line, head), doubled, _voltage(line, state))


def _patient(line: BusLine, servo_id: int, span: ServoRegister, wait_s: float) -> bytes:
    """Ask until there is an answer, a few times."""
    for _ in range(TRIES):
        (data,) = run([(line, _read(line, servo_id, span, wait_s))])
        if data:
            return bytes(data)
    return b""


def _read(
    line: BusLine, servo_id: int, span: ServoRegister, wait_s: float | None = None
) -> Script[bytes]:
    """Read, as long as the bus needs to hear a second answer, too, or until the first has come."""
    wire = dynamixel if line.protocol is Protocol.DYNAMIXEL else feetech
    ids = (servo_id, _NOBODY) if wait_s is None else (servo_id,)
    packet = wire.read(servo_id, span.address, span.size)
    answers = yield Request(packet, ids, span.size, wait_s=wait_s)
    return answers[servo_id].data if servo_id in answers else b""


def _noise(line: BusLine, servo_id: int) -> int:
    faults, of = line.faults, line.faults.of(servo_id)
    return _spoiled(of) + faults.corrupt + faults.garbage_bytes + faults.unasked


def _hear(line: BusLine) -> None:
    """Count what has come after its time."""
    with contextlib.suppress(OSError):  # unplugged: nothing comes
        line.faults.stale_bytes += line.port.discard()


def _unexpected(line: BusLine) -> int:
    faults = line.faults
    spoiled = sum(map(_spoiled, faults.servos.values()))
    return spoiled + faults.corrupt + faults.garbage_bytes + faults.unasked + faults.stale_bytes


def _spoiled(of: ServoFaults) -> int:
    return of.corrupt + of.repeated + of.wrong_size


def _identity(line: BusLine, head: bytes) -> tuple[int | None, str]:
    if not head:
        return None, ""
    table = TABLES[line.protocol]
    names: Sequence[str] = ("Firmware_Version",)
    if line.protocol is Protocol.FEETECH:
        names = ("Firmware_Major_Version", "Firmware_Minor_Version")
    firmware = ".".join(str(_at(table[name], head, 0)) for name in names)
    return _at(table["Model_Number"], head, 0), firmware


def _voltage(line: BusLine, state: bytes) -> float:
    if not state:
        return float("nan")
    feetech_bus = line.protocol is Protocol.FEETECH
    name = "Present_Voltage" if feetech_bus else "Present_Input_Voltage"
    return VOLTAGE_STEP_V * _at(
        TABLES[line.protocol][name], state, STATE_SPAN[line.protocol].address
    )


def _at(register: ServoRegister, data: bytes, start: int) -> int:
    place = register.address - start
    return int.from_bytes(data[place : place + register.size], "little")
