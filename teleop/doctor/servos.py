"""Servos on a serial port: who answers, at which speed, in which state. Only asks, never writes.

Every packet sent here is a ping or a read. The other protocol's servos don't take them for
anything: a Feetech servo finds no valid length in a Dynamixel packet, and the other way round.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.teleop.doctor import calibrations
from gaploop.teleop.doctor.finding import DoctorFinding, Level
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.frames import BROADCAST_ID, FrameParser, Reply
from gaploop.teleop.servos.ranges import FIX, MotorRange, unusable
from gaploop.teleop.servos.registers import (
    MODEL_NAMES,
    STATE_SPAN,
    TABLES,
    TICKS_PER_TURN,
    VOLTAGE_STEP_V,
    Protocol,
    ServoRegister,
    describe_error,
)

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
    """One servo as it answers.

    Attributes:
        id: its id.
        model: its name, or its model number where it isn't known.
        firmware: its version.
        voltage_v: supply voltage [V].
        temperature_c: motor temperature [°C].
        torque: whether it holds.
        error: hardware errors in words, or `none`.
    """

    id: int
    model: str
    firmware: str
    voltage_v: float
    temperature_c: int
    torque: bool
    error: str


@dataclass(frozen=True)
class _Names:
    """What the two makers call the same thing."""

    firmware: tuple[str, ...]
    voltage: str
    error: str


_NAMES: Final = {
    Protocol.FEETECH: _Names(
        ("Firmware_Major_Version", "Firmware_Minor_Version"), "Present_Voltage", "Status"
    ),
    Protocol.DYNAMIXEL: _Names(
        ("Firmware_Version",), "Present_Input_Voltage", "Hardware_Error_Status"
    ),
}
_CALIBRATION: Final = (
    "Homing_Offset",
    "Min_Position_Limit",
    "Max_Position_Limit",
    "Operating_Mode",
)
_JOINTS: Final = (
    "shoulder_pan",
    "shoulder_lift",
    "elbow_flex",
    "wrist_flex",
    "wrist_roll",
    "gripper",
)
_ARM_OF: Final = {
    (Protocol.FEETECH, tuple(range(1, 7))): ("so101", dict(enumerate(_JOINTS, 1))),
    (Protocol.DYNAMIXEL, tuple(range(11, 17))): ("omx", dict(enumerate(_JOINTS, 11))),
}
"""LeRobot's arms that can be told by what is on the bus; ids 1 to 6 of Dynamixel are Koch's or the
OMX leader's, whose joints turn freely."""
_HEAD: Final = ServoRegister(0, 7)
"""Model and firmware of either maker."""


class _Bus:
    """A port opened at one speed, talking one protocol."""

    def __init__(self, port: Any, protocol: Protocol) -> None:
        self._port, self.protocol = port, protocol
        self._wire = feetech if protocol is Protocol.FEETECH else dynamixel

    def ask(self, packet: bytes, replies: int, quiet_s: float = QUIET_S) -> list[Reply]:
        """Send a packet; return its replies when there are enough or it stays quiet [s]."""
        return self.hear(packet, replies, quiet_s)[0]

    def hear(self, packet: bytes, replies: int, quiet_s: float) -> tuple[list[Reply], bool]:
        """As `ask`, and say whether something came that no servo says when it speaks alone."""
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

        All are asked at once; where that leaves a doubt, each of the usual ids alone.
        """
        packet = self._wire.ping(BROADCAST_ID)
        replies, garbled = self.hear(packet, 2 * BROADCAST_ID, QUIET_S)
        seen = Counter(reply.id for reply in replies)
        twice = {servo_id for servo_id, count in seen.items() if count > 1}
        if garbled or (seen and set(seen) != set(range(min(seen), max(seen) + 1))):
            for servo_id in sorted(set(USUAL_IDS) - set(seen)):
                answers, garbled = self._alone(servo_id)
                if answers:
                    seen[servo_id] = answers
                if garbled or answers > 1:
                    twice.add(servo_id)
        return sorted(seen), sorted(twice)

    def _alone(self, servo_id: int) -> tuple[int, bool]:
        """Return how many answer to one id, and whether they do so at the same time."""
        for _ in range(2):
            replies, garbled = self.hear(self._wire.ping(servo_id), 2, ALONE_S)
            if replies or garbled:
                return sum(reply.id == servo_id for reply in replies), garbled
        return 0, False

    def read(self, servo_id: int, span: ServoRegister) -> bytes:
        """Return registers of one servo, or nothing where it doesn't answer."""
        packet = self._wire.read(servo_id, span.address, span.size)
        for _ in range(3):
            for reply in self.ask(packet, 1, QUIET_S):
                if reply.id == servo_id and len(reply.data) == span.size:
                    return reply.data
        return b""

    def seconds_per_turn(self, ids: Sequence[int]) -> float:
        """Return how long one read of all servos' state takes [s], or NaN where none is whole."""
        span = STATE_SPAN[self.protocol]
        packet = self._wire.sync_read(span.address, span.size, ids)
        spent_s = []
        for _ in range(TURNS):
            start_s = time.perf_counter()
            if len(self.ask(packet, len(ids), QUIET_S)) == len(ids):
                spent_s.append(time.perf_counter() - start_s)
        return statistics.median(spent_s) if spent_s else float("nan")

    def servo(self, servo_id: int) -> AnsweringServo | None:
        """Return how a servo is, or None where it stops answering."""
        table, state = TABLES[self.protocol], STATE_SPAN[self.protocol]
        head = self.read(servo_id, _HEAD)
        now = self.read(servo_id, state)
        torque = self.read(servo_id, table["Torque_Enable"])
        error = self.read(servo_id, table[_NAMES[self.protocol].error])
        if not (head and now and torque and error):
            return None
        names = _NAMES[self.protocol]
        firmware = [str(_at(table[name], head, 0)) for name in names.firmware]
        number = _at(table["Model_Number"], head, 0)
        return AnsweringServo(
            servo_id,
            MODEL_NAMES.get(number, f"model {number}"),
            ".".join(firmware),
            _at(table[names.voltage], now, state.address) * VOLTAGE_STEP_V,
            _at(table["Present_Temperature"], now, state.address),
            bool(torque[0]),
            describe_error(self.protocol, error[0]),
        )


def _at(register: ServoRegister, data: bytes, start: int) -> int:
    """Return a register's value from bytes that were read from address `start` on."""
    place = register.address - start
    return int.from_bytes(data[place : place + register.size], "little")


def look(port: str, folder: Path | None = None) -> Iterator[DoctorFinding]:
    """Yield which servos answer on `port` and how they are.

    Args:
        port: the serial port.
        folder: LeRobot's calibrations, to compare with what the motors hold; None doesn't.
    """
    import serial

    try:
        with serial.Serial(port, exclusive=True) as opened:
            yield from _scan(opened, port, folder)
    except (serial.SerialException, OSError) as error:
        words = " ".join(str(error).split())
        yield DoctorFinding(AREA, port, Level.FAIL, words, "Unplug it, plug it in again.")


def _scan(opened: Any, port: str, folder: Path | None) -> Iterator[DoctorFinding]:
    rates = {protocol: list(bauds) for protocol, bauds in BAUDS.items()}
    tries = [(p, baud) for p, bauds in rates.items() for baud in bauds[:1]]
    tries += [(p, baud) for p, bauds in rates.items() for baud in bauds[1:]]
    for protocol, baud in tries:
        opened.baudrate = baud
        bus = _Bus(opened, protocol)
        ids, twice = bus.ids()
        if ids or twice:
            yield from _report(bus, ids, port, baud) if ids else ()
            yield from _doubled(twice, port)
            yield from () if twice else _calibrated(bus, ids, port, folder)
            return
    mend = (
        "Check the power supply and the three-wire cable to the first servo. New servos: "
        "lerobot-setup-motors"
    )
    yield DoctorFinding(AREA, port, Level.FAIL, "no servo answers, at any speed", mend)


def _report(bus: _Bus, ids: Sequence[int], port: str, baud: int) -> Iterator[DoctorFinding]:
    asked = {servo_id: bus.servo(servo_id) for servo_id in ids}
    servos = [servo for servo in asked.values() if servo is not None]
    volts, heat = [s.voltage_v for s in servos], [s.temperature_c for s in servos]
    models = ", ".join(f"{n}× {model}" for model, n in Counter(s.model for s in servos).items())
    found = f"{bus.protocol} at {baud} baud: ids {_spans(ids)}; {models}"
    if servos:
        found += f"; {min(volts):.1f} to {max(volts):.1f} V; {min(heat)} to {max(heat)} °C"
    found += "; torque on" if any(s.torque for s in servos) else ""
    data: dict[str, Any] = {"protocol": bus.protocol.value, "baud": baud, "ids": list(ids)}
    data["servos"] = [vars(servo) for servo in servos]
    yield DoctorFinding(AREA, port, Level.OK, found, data=data)
    yield from _missing(ids, port)
    yield from _half_dead(asked, port)
    yield from _mixed(servos, port)
    yield from _unwell(servos, port)
    yield _speed(bus, ids, port)


def _calibrated(
    bus: _Bus, ids: Sequence[int], port: str, folder: Path | None
) -> Iterator[DoctorFinding]:
    """Yield what is wrong with the calibration in the motors, and whose it is."""
    table = TABLES[bus.protocol]
    held, modes = {}, {}
    for servo_id in ids:
        raw = {name: bus.read(servo_id, table[name]) for name in _CALIBRATION}
        if not all(raw.values()):
            return  # told already
        *numbers, mode = (_number(bus.protocol, name, data) for name, data in raw.items())
        held[servo_id], modes[servo_id] = MotorRange(*numbers), mode
    arm, names = _ARM_OF.get((bus.protocol, tuple(ids)), ("", {}))
    named = {names.get(i, f"id {i}"): one for i, one in held.items()}
    by_name = {names.get(i, f"id {i}"): mode for i, mode in modes.items()}
    is_new = all(one == MotorRange(0, 0, TICKS_PER_TURN - 1) for one in held.values())
    found = [] if is_new else list(unusable(bus.protocol, arm, named, by_name))
    data = {"calibration": {name: vars(one) for name, one in named.items()}}
    if found:
        mend = f"{FIX}: lerobot-calibrate --help"
        yield DoctorFinding(AREA, port, Level.FAIL, "; ".join(found), mend, data)
    if folder is None:
        return
    same, near, differs = calibrations.held_by(folder, held)
    if same is not None:
        words = f"holds the calibration of {same.parent.name} '{same.stem}'"
        yield DoctorFinding(AREA, port, Level.OK, words, data={**data, "file": str(same)})
    elif near is not None:
        words = f"holds no calibration of {folder}; nearest is {near.parent.name} '{near.stem}'"
        mend = (
            "Bring the file of this arm here; or, if it was never calibrated: "
            + calibrations.command_for(near).replace("PORT", port)
        )
        yield DoctorFinding(AREA, port, Level.FAIL, f"{words} ({differs})", mend, data)


def _number(protocol: Protocol, name: str, raw: bytes) -> int:
    """Return a register's value; a Feetech servo's homing offset has its sign in bit 11."""
    value = int.from_bytes(raw, "little", signed=protocol is Protocol.DYNAMIXEL and len(raw) == 4)
    if protocol is Protocol.FEETECH and name == "Homing_Offset" and value & 0x800:
        return -(value & 0x7FF)
    return value


def _spans(ids: Sequence[int]) -> str:
    if list(ids) == list(range(ids[0], ids[-1] + 1)) and len(ids) > 2:
        return f"{ids[0]} to {ids[-1]}"
    return ", ".join(map(str, ids))


def _doubled(twice: Sequence[int], port: str) -> Iterator[DoctorFinding]:
    if twice:
        found = f"several servos answer to id {', '.join(map(str, twice))} at once"
        mend = "Give each its own, one servo plugged in at a time: lerobot-setup-motors"
        yield DoctorFinding(AREA, port, Level.FAIL, found, mend, {"doubled": list(twice)})


def _missing(ids: Sequence[int], port: str) -> Iterator[DoctorFinding]:
    gaps = sorted(set(range(ids[0], ids[-1])) - set(ids))
    if gaps:
        found = f"id {', '.join(map(str, gaps))} doesn't answer, while those around it do"
        mend = "Check that servo's cable; if it was replaced: lerobot-setup-motors"
        yield DoctorFinding(AREA, port, Level.WARN, found, mend, {"missing": gaps})


def _half_dead(asked: dict[int, AnsweringServo | None], port: str) -> Iterator[DoctorFinding]:
    lost = [servo_id for servo_id, servo in asked.items() if servo is None]
    if lost:
        found = f"id {', '.join(map(str, lost))} answers a ping but can't be read"
        mend = "Two servos may share that id (lerobot-setup-motors), or its cable is loose."
        yield DoctorFinding(AREA, port, Level.FAIL, found, mend, {"unreadable": lost})


def _mixed(servos: Sequence[AnsweringServo], port: str) -> Iterator[DoctorFinding]:
    for model in sorted({s.model for s in servos}):
        versions: dict[str, list[int]] = {}
        for servo in servos:
            if servo.model == model:
                versions.setdefault(servo.firmware, []).append(servo.id)
        if len(versions) > 1:
            words = "; ".join(f"{v}: id {', '.join(map(str, i))}" for v, i in versions.items())
            mend = "Bring all to one version with the maker's program (Feetech FD, or Wizard 2)."
            found = f"{model} with different firmware ({words}); LeRobot refuses that"
            level = Level.FAIL if model.startswith("st") else Level.WARN
            yield DoctorFinding(AREA, port, level, found, mend, {"firmware": versions})


def _unwell(servos: Sequence[AnsweringServo], port: str) -> Iterator[DoctorFinding]:
    for servo in servos:
        data = {"id": servo.id, "error": servo.error, "temperature_c": servo.temperature_c}
        if servo.error != "none":
            found = f"id {servo.id} reports: {servo.error}"
            mend = "See to its cause, then cut the power for 5 s: the servo forgets it so."
            yield DoctorFinding(AREA, port, Level.FAIL, found, mend, data)
        elif servo.temperature_c > HOT_C:
            found = f"id {servo.id} is at {servo.temperature_c} °C"
            yield DoctorFinding(
                AREA, port, Level.WARN, found, "Let it cool for some minutes.", data
            )


def _speed(bus: _Bus, ids: Sequence[int], port: str) -> DoctorFinding:
    turn_s = bus.seconds_per_turn(ids)
    data = {"read_all_s": turn_s}
    if turn_s != turn_s:
        found = "reads of all servos at once are never whole"
        mend = "Check cables and that every id is there once; set Return Delay Time to 0."
        return DoctorFinding(AREA, port, Level.FAIL, found, mend, data)
    found = f"all servos read in {turn_s * 1e3:.2f} ms"
    if turn_s <= SLOW_S:
        return DoctorFinding(AREA, port, Level.OK, found, data=data)
    mend = "For 200 Hz: 1 Mbaud, latency timer 1 ms, Return Delay Time 0; or a lower --fps."
    return DoctorFinding(AREA, port, Level.WARN, found, mend, data)
