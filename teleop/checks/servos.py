"""Servos on a serial port: who answers, at which speed, in which state. Only asks, never writes.

Every packet sent here is a ping or a read. The other protocol's servos don't take them for
anything: a Feetech servo finds no valid length in a Dynamixel packet, and the other way round.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.arm import SIX_JOINTS
from gaploop.teleop.checks.calibrations import calibration_owner, command_for
from gaploop.teleop.checks.result import CheckResult, Level
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos import registers as reg
from gaploop.teleop.servos.frames import BROADCAST_ID, FrameParser, Reply
from gaploop.teleop.servos.ranges import FIX, MotorRange, unusable
from gaploop.teleop.servos.registers import Protocol

AREA: Final = "servos"

BAUDS: Final[dict[Protocol, tuple[int, ...]]] = {
    Protocol.FEETECH: (1_000_000, 500_000, 115_200, 57_600, 38_400),
    Protocol.DYNAMIXEL: (1_000_000, 57_600, 115_200, 2_000_000, 3_000_000, 4_000_000),
}
"""Speeds to try [baud], LeRobot's and the factory's first."""
QUIET_S: Final = 0.06
"""An answer to all is over when nothing has come for this long [s]: a Dynamixel with id n waits
for n answers of 3 ms (e-manual, Protocol 2.0, "Ping")."""
ALONE_S: Final = 0.02
USUAL_IDS: Final = (*range(1, 9), *range(11, 17))
"""Ids that LeRobot's arms use."""
LONGEST_S: Final = 1.0
HOT_C: Final = 65.0
TURNS: Final = 20
"""The speed of a bus is the median of so many reads of all servos."""
SLOW_S: Final = 0.004
"""A bus that needs longer for one read of all servos [s] doesn't reach 200 Hz with writing."""


@dataclass(frozen=True)
class AnsweringServo:
    """One servo as it answers; `model` is a number where its name isn't known."""

    id: int
    model: str
    firmware: str
    voltage_v: float
    temperature_c: int
    torque: bool
    error: str


_CALIBRATION: Final = (
    "Homing_Offset",
    "Min_Position_Limit",
    "Max_Position_Limit",
    "Operating_Mode",
)
_ARM_OF: Final = {
    (Protocol.FEETECH, tuple(range(1, 7))): ("so101", dict(enumerate(SIX_JOINTS, 1))),
    (Protocol.DYNAMIXEL, tuple(range(11, 17))): ("omx", dict(enumerate(SIX_JOINTS, 11))),
}
"""LeRobot's arms that can be told by what is on the bus; ids 1 to 6 of Dynamixel are Koch's or the
OMX leader's, whose joints turn freely."""


class _Bus:
    """A port opened at one speed, talking one protocol."""

    def __init__(self, port: Any, protocol: Protocol) -> None:
        self._port, self.protocol = port, protocol
        self._wire = feetech if protocol is Protocol.FEETECH else dynamixel

    def ask(
        self, packet: bytes, replies: int, quiet_s: float = QUIET_S
    ) -> tuple[list[Reply], bool]:
        """Send a packet; return its replies when there are enough or it stays quiet [s].

        Also say whether something came that no servo says when it speaks alone.
        """
        parser: FrameParser = self._wire.Parser()
        self._port.reset_input_buffer()
        self._port.write(packet)
        self._port.timeout = quiet_s
        found: list[Reply] = []
        until_s = time.monotonic() + LONGEST_S
        while len(found) < replies and time.monotonic() < until_s:
            data = self._port.read(max(1, self._port.in_waiting))
            frames = parser.feed(data) if data else parser.flush()
            said = (self._wire.reply_of(frame) for frame in frames)
            found += [reply for reply in said if reply is not None and reply.id < BROADCAST_ID]
            if not data:
                break
        return found, parser.rejected_bytes > 0

    def ids(self) -> tuple[list[int], list[int]]:
        """Return the ids that answer, and those whose answers are garbled or come twice.

        All are asked at once; where that leaves a doubt, each of the usual ids alone, twice where
        it keeps silent.
        """
        replies, garbled = self.ask(self._wire.ping(BROADCAST_ID), 2 * BROADCAST_ID)
        seen = Counter(reply.id for reply in replies)
        twice = {servo_id for servo_id, count in seen.items() if count > 1}
        if garbled or (seen and set(seen) != set(range(min(seen), max(seen) + 1))):
            for servo_id in sorted(set(USUAL_IDS) - set(seen)):
                for _ in range(2):
                    replies, garbled = self.ask(self._wire.ping(servo_id), 2, ALONE_S)
                    if replies or garbled:
                        break
                answers = sum(reply.id == servo_id for reply in replies)
                if answers:
                    seen[servo_id] = answers
                if garbled or answers > 1:
                    twice.add(servo_id)
        return sorted(seen), sorted(twice)

    def read(self, servo_id: int, span: reg.ServoRegister) -> bytes:
        """Return registers of one servo, or nothing where it doesn't answer."""
        packet = self._wire.read(servo_id, span.address, span.size)
        for _ in range(3):
            for reply in self.ask(packet, 1)[0]:
                if reply.id == servo_id and len(reply.data) == span.size:
                    return reply.data
        return b""

    def servo(self, servo_id: int) -> AnsweringServo | None:
        """Return how a servo is, or None where it stops answering."""
        table, span = reg.TABLES[self.protocol], reg.STATE_SPAN[self.protocol]
        is_feetech = self.protocol is Protocol.FEETECH
        head = self.read(servo_id, reg.IDENTITY_SPAN)
        state = self.read(servo_id, span)
        torque = self.read(servo_id, table["Torque_Enable"])
        error = self.read(servo_id, table["Status" if is_feetech else "Hardware_Error_Status"])
        if not (head and state and torque and error):
            return None
        number, firmware = reg.read_identity(self.protocol, head)
        return AnsweringServo(
            servo_id,
            reg.MODEL_NAMES.get(number, f"model {number}"),
            firmware,
            reg.read_supply_v(self.protocol, state),
            table["Present_Temperature"].value_in(state, span.address),
            bool(torque[0]),
            reg.describe_error(self.protocol, error[0]),
        )

    def calibration(self, servo_id: int) -> tuple[MotorRange, int] | None:
        """Return the calibration in a servo and its mode, or None where it stops answering."""
        numbers = []
        for name in _CALIBRATION:
            register = reg.TABLES[self.protocol][name]
            raw = self.read(servo_id, register)
            if not raw:
                return None
            value = int.from_bytes(raw, "little", signed=register.signed)
            if self.protocol is Protocol.FEETECH and name == "Homing_Offset" and value & 0x800:
                value = -(value & 0x7FF)  # sign and magnitude
            numbers.append(value)
        *kept, mode = numbers
        return MotorRange(*kept), mode

    def seconds_per_turn(self, ids: Sequence[int]) -> float:
        """Return how long one read of all servos' state takes [s], or NaN where none is whole."""
        span = reg.STATE_SPAN[self.protocol]
        packet = self._wire.sync_read(span.address, span.size, ids)
        spent_s = []
        for _ in range(TURNS):
            start_s = time.perf_counter()
            if len(self.ask(packet, len(ids))[0]) == len(ids):
                spent_s.append(time.perf_counter() - start_s)
        return statistics.median(spent_s) if spent_s else math.nan


def check_servos(port: str, folder: Path | None = None) -> Iterator[CheckResult]:
    """Yield which servos answer on `port` and how they are.

    What the motors hold is compared with LeRobot's calibrations in `folder`, unless None.
    """
    import serial

    tries = [(protocol, bauds[0]) for protocol, bauds in BAUDS.items()]
    tries += [(protocol, baud) for protocol, bauds in BAUDS.items() for baud in bauds[1:]]
    try:
        with serial.Serial(port, exclusive=True) as opened:
            for protocol, baud in tries:
                opened.baudrate = baud
                bus = _Bus(opened, protocol)
                ids, twice = bus.ids()
                if ids:
                    yield from _who_answers(bus, ids, port, baud)
                if twice:
                    found = f"several servos answer to id {', '.join(map(str, twice))} at once"
                    fix = "Give each its own, one servo plugged in at a time: lerobot-setup-motors"
                    yield CheckResult(AREA, Level.FAIL, found, fix, {"doubled": twice}, port)
                elif ids:
                    yield from _calibration(bus, ids, port, folder)
                if ids or twice:
                    return
            fix = (
                "Check the power supply and the three-wire cable to the first servo. New servos: "
                "lerobot-setup-motors"
            )
            found = "no servo answers, at any speed"
            yield CheckResult(AREA, Level.FAIL, found, fix, subject=port)
    except (serial.SerialException, OSError) as error:
        words = " ".join(str(error).split())
        fix = "Unplug it, plug it in again."
        yield CheckResult(AREA, Level.FAIL, words, fix, subject=port)


def _who_answers(bus: _Bus, ids: Sequence[int], port: str, baud: int) -> Iterator[CheckResult]:
    result = functools.partial(CheckResult, AREA, subject=port)
    asked = {servo_id: bus.servo(servo_id) for servo_id in ids}
    servos = [servo for servo in asked.values() if servo is not None]
    models = Counter(servo.model for servo in servos)
    spans = ", ".join(map(str, ids))
    if len(ids) > 2 and list(ids) == list(range(ids[0], ids[-1] + 1)):
        spans = f"{ids[0]} to {ids[-1]}"
    found = f"{bus.protocol} at {baud} baud: ids {spans}; "
    found += ", ".join(f"{count}× {model}" for model, count in models.items())
    if servos:
        volts, heat = [s.voltage_v for s in servos], [s.temperature_c for s in servos]
        found += f"; {min(volts):.1f} to {max(volts):.1f} V; {min(heat)} to {max(heat)} °C"
    found += "; torque on" if any(s.torque for s in servos) else ""
    data: dict[str, Any] = {"protocol": bus.protocol.value, "baud": baud, "ids": list(ids)}
    yield result(Level.OK, found, data={**data, "servos": [vars(servo) for servo in servos]})

    gaps = sorted(set(range(ids[0], ids[-1])) - set(ids))
    if gaps:
        found = f"id {', '.join(map(str, gaps))} doesn't answer, while those around it do"
        fix = "Check that servo's cable; if it was replaced: lerobot-setup-motors"
        yield result(Level.WARN, found, fix, {"missing": gaps})
    lost = [servo_id for servo_id, servo in asked.items() if servo is None]
    if lost:
        found = f"id {', '.join(map(str, lost))} answers a ping but can't be read"
        fix = "Two servos may share that id (lerobot-setup-motors), or its cable is loose."
        yield result(Level.FAIL, found, fix, {"unreadable": lost})
    for model in sorted(models):
        versions: dict[str, list[int]] = {}
        for servo in servos:
            if servo.model == model:
                versions.setdefault(servo.firmware, []).append(servo.id)
        if len(versions) > 1:
            words = "; ".join(f"{v}: id {', '.join(map(str, i))}" for v, i in versions.items())
            found = f"{model} with different firmware ({words}); LeRobot refuses that"
            fix = "Bring all to one version with the maker's program (Feetech FD, or Wizard 2)."
            level = Level.FAIL if model.startswith("st") else Level.WARN
            yield result(level, found, fix, {"firmware": versions})
    for servo in servos:
        data = {"id": servo.id, "error": servo.error, "temperature_c": servo.temperature_c}
        if servo.error != "none":
            found = f"id {servo.id} reports: {servo.error}"
            fix = "Fix its cause, then cut the power for 5 s: that clears the error."
            yield result(Level.FAIL, found, fix, data)
        elif servo.temperature_c > HOT_C:
            found = f"id {servo.id} is at {servo.temperature_c} °C"
            yield result(Level.WARN, found, "Let it cool for some minutes.", data)

    turn_s = bus.seconds_per_turn(ids)
    data = {"read_all_s": turn_s}
    found = f"all servos read in {turn_s * 1e3:.2f} ms"
    if math.isnan(turn_s):
        found = "reads of all servos at once are never complete"
        fix = "Check cables and that every id is there once; set Return Delay Time to 0."
        yield result(Level.FAIL, found, fix, data)
    elif turn_s <= SLOW_S:
        yield result(Level.OK, found, data=data)
    else:
        fix = "For 200 Hz: 1 Mbaud, latency timer 1 ms, Return Delay Time 0; or a lower --fps."
        yield result(Level.WARN, found, fix, data)


def _calibration(
    bus: _Bus, ids: Sequence[int], port: str, folder: Path | None
) -> Iterator[CheckResult]:
    """Yield what is wrong with the calibration in the motors, and whose it is."""
    arm, names = _ARM_OF.get((bus.protocol, tuple(ids)), ("", {}))
    held: dict[int, MotorRange] = {}
    modes: dict[str, int] = {}
    for servo_id in ids:
        kept = bus.calibration(servo_id)
        if kept is None:
            return  # told already
        held[servo_id], modes[names.get(servo_id, f"id {servo_id}")] = kept
    named = dict(zip(modes, held.values(), strict=True))
    is_new = all(one == MotorRange(0, 0, reg.TICKS_PER_TURN - 1) for one in held.values())
    wrong = "" if is_new else "; ".join(unusable(bus.protocol, arm, named, modes))
    data = {"calibration": {name: vars(one) for name, one in named.items()}}
    if wrong:
        fix = f"{FIX}: lerobot-calibrate --help"
        yield CheckResult(AREA, Level.FAIL, wrong, fix, data, port)
    if folder is None:
        return
    same, near, differs = calibration_owner(folder, held)
    if same is not None:
        found = f"holds the calibration of {same.parent.name} '{same.stem}'"
        yield CheckResult(AREA, Level.OK, found, "", {**data, "file": str(same)}, port)
    elif near is not None:
        found = f"holds no calibration of {folder}; nearest is {near.parent.name} '{near.stem}'"
        fix = "Bring the file of this arm here; or, if it was never calibrated: " + command_for(
            near
        ).replace("PORT", port)
        yield CheckResult(AREA, Level.FAIL, f"{found} ({differs})", fix, data, port)
