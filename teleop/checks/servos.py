"""Servos on a serial port: who answers, at which speed, in which state. Only asks, never writes.

Every packet sent here is a ping or a read. The other protocol's servos don't take them for
anything: a Feetech servo finds no valid length in a Dynamixel packet, and the other way round.
"""

import functools
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.arm import SIX_JOINTS
from gaploop.core.arms import ARMS
from gaploop.teleop.checks import CheckResult, Level
from gaploop.teleop.checks.calibrations import arm_of, command_for, nearest, owners, role_of
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos import registers as reg
from gaploop.teleop.servos.calibration import (
    FIX,
    SWAP_FIX,
    MotorRange,
    all_files,
    arm_folder,
    bring_over,
    kept_motors,
    place_today,
    swapped_ids,
    unusable,
    usual_folder,
)
from gaploop.teleop.servos.frames import BROADCAST_ID, FrameParser, Reply
from gaploop.teleop.servos.registers import Protocol
from gaploop.teleop.servos.survey import ECHO, LATE_S, NO_ECHO, NOBODY, ailments

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
    vitals: reg.Vitals


_CALIBRATION: Final = (
    "Homing_Offset",
    "Min_Position_Limit",
    "Max_Position_Limit",
    "Operating_Mode",
)
_LEKIWI: Final = (
    *(f"arm_{name}" for name in SIX_JOINTS),
    *(f"base_{side}_wheel" for side in ("left", "back", "right")),
)
_EIGHT: Final = (*(f"joint_{n}" for n in range(1, 8)), "gripper")
type Shape = Mapping[int, tuple[str, str]]
"""An arm's servos: id to joint and model."""
_SHAPES: Final[Mapping[str, Shape]] = {
    **{
        kind: dict(enumerate(zip(SIX_JOINTS, chain.models, strict=True), chain.first_id))
        for arm in ARMS.values()
        for role, chain in arm.emulated.items()
        for kind in arm.robot_types
        if kind.endswith(role) and kind.split("_")[0] not in ("bi", "so", "so100")
    },
    "openarm_mini": dict(enumerate(((name, "sts3215") for name in _EIGHT), 1)),
    "lekiwi": dict(enumerate(((name, "sts3215") for name in _LEKIWI), 1)),
}
"""LeRobot's arms: id to joint and servo model. Leader and follower of an SO-101 are alike."""
LEROBOT_BAUD: Final = 1_000_000
RATED_12_V: Final = 12.0
WEAK_V: Final = 9.5
"""Servos that bear 12 V or more are made for it, and weak on less than this [V]."""
_FOLLOWERS: Final = {"Max_Torque_Limit": 500, "Protection_Current": 250, "Overload_Torque": 25}
"""What LeRobot's `so_follower` keeps in its gripper, and a leader doesn't."""
_TOO_WEAK: Final = {"Max_Torque_Limit": 300, "Torque_Limit": 300, "Overload_Torque": 25}
"""A Feetech servo that may not use more doesn't carry an arm: shares of its torque [0.1 %, 0.1 %,
%]. The last is what a gripper keeps, which gives up where it pushes with more for 2 s."""
_DEAD_ZONES: Final = ("CW_Dead_Zone", "CCW_Dead_Zone")
_DEAD_TICKS: Final = 6
"""Half a degree, 3 mm at the end of an arm's reach; servos leave the factory with 1."""
DOUBTS: Final = 5
"""How often a servo is asked again whose answer was garbled: two that share an id garble nearly
all of them, a bad cable some."""


class _Bus:
    """A port opened at one speed, talking one protocol."""

    def __init__(self, port: Any, protocol: Protocol, quiet_s: float = QUIET_S) -> None:
        self._port, self.protocol = port, protocol
        self.reads = self.garbled = 0
        self.error = 0
        """Error byte of the reply that was read last."""
        self._quiet_s = quiet_s
        """How long an answer is waited for [s]."""
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
        ping = self._wire.ping(BROADCAST_ID)
        replies, garbled = self.ask(ping, 2 * BROADCAST_ID, self._quiet_s)
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
                if answers > 1 or (garbled and self._is_doubled(servo_id)):
                    twice.add(servo_id)
        return sorted(seen), sorted(twice)

    def _is_doubled(self, servo_id: int) -> bool:
        asked = [self.ask(self._wire.ping(servo_id), 2, ALONE_S) for _ in range(DOUBTS)]
        return sum(garbled or len(replies) > 1 for replies, garbled in asked) >= DOUBTS - 1

    def speak_at(self, baud: int) -> None:
        """Change the speed [baud]."""
        self._port.baudrate = baud

    def echoes(self) -> bool:
        """Say whether the adapter, or whatever is on that port, repeats what it is told."""
        packet = self._wire.ping(NOBODY)
        self._port.reset_input_buffer()
        self._port.write(packet)
        self._port.timeout = ALONE_S
        return bool(self._port.read(len(packet)) == packet)

    def answers(self, servo_id: int) -> bool:
        """Say whether a servo answers when it is asked alone, twice where it keeps silent."""
        tries = (self.ask(self._wire.ping(servo_id), 1, ALONE_S)[0] for _ in range(2))
        return any(reply.id == servo_id for replies in tries for reply in replies)

    def read(self, servo_id: int, span: reg.ServoRegister) -> bytes:
        """Return registers of one servo, or nothing where it doesn't answer."""
        packet = self._wire.read(servo_id, span.address, span.size)
        for _ in range(3):
            replies, garbled = self.ask(packet, 1, self._quiet_s)
            self.reads, self.garbled = self.reads + 1, self.garbled + garbled
            for reply in replies:
                if reply.id == servo_id and len(reply.data) == span.size:
                    self.error = reply.error
                    return reply.data
            if not garbled:  # what comes late would be taken for the next answer
                self._quiet_s = LATE_S
                time.sleep(LATE_S)
        return b""

    def servo(self, servo_id: int) -> AnsweringServo | None:
        """Return how a servo is, or None where it stops answering."""
        if not (head := self.read(servo_id, reg.IDENTITY_SPAN)):
            return None
        parts = [self.read(servo_id, span) for span in reg.VITAL_SPANS[self.protocol]]
        torque = self.read(servo_id, reg.TABLES[self.protocol]["Torque_Enable"])
        if not (torque and all(parts)):
            return None
        number, firmware = reg.read_identity(self.protocol, head)
        vitals = reg.read_vitals(self.protocol, *parts, error=self.error)
        return AnsweringServo(
            servo_id,
            reg.MODEL_NAMES.get(number, f"model {number}"),
            firmware,
            vitals.supply_v,
            vitals.temperature_c,
            bool(torque[0]),
            reg.describe_error(self.protocol, vitals.errors),
            vitals,
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
            if len(self.ask(packet, len(ids), self._quiet_s)[0]) == len(ids):
                spent_s.append(time.perf_counter() - start_s)
        return statistics.median(spent_s) if spent_s else math.nan


def check_servos(port: str, folder: Path | None = None) -> Iterator[CheckResult]:
    """Yield which servos answer on `port` and how they are.

    What the motors hold is compared with LeRobot's calibrations in `folder`, unless None.
    """
    import serial

    roots, has_echo = [folder] if folder else [], False
    if folder == arm_folder():  # LeRobot's variables may point elsewhere by now
        roots.append(usual_folder())
    usual = [(protocol, bauds[0]) for protocol, bauds in BAUDS.items()]
    rest = [(protocol, baud) for protocol, bauds in BAUDS.items() for baud in bauds[1:]]
    tries = [(*one, QUIET_S) for one in (*usual, *rest)] + [(*one, LATE_S) for one in usual]
    try:
        with serial.Serial(port, exclusive=True) as opened:
            for protocol, baud, quiet_s in tries:
                opened.baudrate = baud
                bus = _Bus(opened, protocol, quiet_s)
                if protocol is Protocol.FEETECH and bus.echoes():  # a Dynamixel's answers differ
                    has_echo = True
                    continue
                ids, twice = bus.ids()
                asked = {servo_id: bus.servo(servo_id) for servo_id in ids}
                files = all_files(roots)
                kind, shape = _arm(bus, asked, files)
                for servo_id in sorted(set(shape) - set(ids)) if not twice else ():
                    if bus.answers(servo_id):  # it was overheard
                        asked[servo_id] = bus.servo(servo_id)
                if ids:
                    yield from _who_answers(bus, asked, port, baud, kind, shape, not twice)
                    readable = [servo for servo in asked.values() if servo is not None]
                    yield from _state(bus, readable, port, shape)
                    yield _speed(bus, sorted(asked), port)
                if twice:
                    found = f"several servos answer to id {', '.join(map(str, twice))} at once"
                    fix = "Give each its own, one servo plugged in at a time: lerobot-setup-motors"
                    yield CheckResult(AREA, Level.FAIL, found, fix, {"doubled": twice}, port)
                elif bus.garbled > max(2, bus.reads / 20):
                    found = f"{bus.garbled} of {bus.reads} answers came garbled"
                    fix = "Check the cables from servo to servo, the adapter and the supply."
                    yield CheckResult(AREA, Level.FAIL, found, fix, subject=port)
                elif ids and not any(servo is None for servo in asked.values()):
                    yield from _calibration(bus, sorted(asked), port, folder, files, kind, shape)
                if ids or twice:
                    return
            fix = (
                "Check the power supply and the three-wire cable to the first servo. New servos: "
                "lerobot-setup-motors"
            )
            found = "no servo answers, at any speed"
            if has_echo:
                found, fix = ECHO, NO_ECHO
            yield CheckResult(AREA, Level.FAIL, found, fix, subject=port)
    except (serial.SerialException, OSError) as error:
        words = " ".join(str(error).split())
        fix = "Unplug it, plug it in again."
        yield CheckResult(AREA, Level.FAIL, words, fix, subject=port)


def _who_answers(
    bus: _Bus,
    asked: Mapping[int, AnsweringServo | None],
    port: str,
    baud: int,
    kind: str,
    shape: Shape,
    is_clear: bool,
) -> Iterator[CheckResult]:
    """Yield who answers at `baud`, and who doesn't; where `is_clear`, no id is there twice."""
    result = functools.partial(CheckResult, AREA, subject=port)
    ids = sorted(asked)
    servos = [servo for servo in asked.values() if servo is not None]
    models = Counter(servo.model for servo in servos)
    found = f"{bus.protocol} at {baud} baud: ids {_listed(ids)}; "
    found += ", ".join(f"{count}× {model}" for model, count in models.items())
    if servos:
        volts, heat = [s.voltage_v for s in servos], [s.temperature_c for s in servos]
        found += f"; {min(volts):.1f} to {max(volts):.1f} V; {min(heat)} to {max(heat)} °C"
    data: dict[str, Any] = {"protocol": bus.protocol.value, "baud": baud, "ids": list(ids)}
    rows = [{k: v for k, v in vars(servo).items() if k != "vitals"} for servo in servos]
    if not shape:
        found += "; which arm it is isn't known, nor whether one before or behind these is silent"
    yield result(Level.OK, found, data={**data, "arm": kind, "servos": rows})

    named = functools.partial(_named, shape)
    if baud != LEROBOT_BAUD:
        found = f"servos speak at {baud} baud; LeRobot and gaploop at {LEROBOT_BAUD}"
        fix = "Set them, one servo plugged in at a time: lerobot-setup-motors"
        yield result(Level.FAIL, found, fix, {"baud": baud})
    silent = sorted(set(shape) - set(ids)) if is_clear else []
    elsewhere = _at_other_bauds(bus, silent, baud)
    for servo_id, other in elsewhere.items():
        found = f"{named([servo_id])} speaks at {other} baud, the others at {baud}"
        fix = "Plug in that servo alone, and set it: lerobot-setup-motors"
        yield result(Level.FAIL, found, fix, {"missing": [servo_id], "baud": other})
    silent = [servo_id for servo_id in silent if servo_id not in elsewhere]
    if silent:
        found = f"{named(silent)} {'are' if len(silent) > 1 else 'is'} silent; "
        found += f"{_listed(ids)} answer{'' if len(ids) > 1 else 's'}"
        chain = sorted(shape)
        fix = (
            "Check the cables there; a servo that was replaced has another id: lerobot-setup-motors"
        )
        if silent == chain[-len(silent) :]:
            fix = (
                f"Check the cable from servo {max(ids)} to servo {silent[0]}; a servo that was "
                "replaced has another id: lerobot-setup-motors"
            )
        yield result(Level.FAIL, found, fix, {"missing": silent})
    gaps = sorted(set(range(ids[0], ids[-1])) - set(ids)) if is_clear and not shape else []
    if gaps:
        found = f"id {', '.join(map(str, gaps))} doesn't answer, while those around it do"
        fix = "Check that servo's cable; if it was replaced: lerobot-setup-motors"
        yield result(Level.WARN, found, fix, {"missing": gaps})
    wrong = [s.id for s in servos if s.id in shape and s.model != shape[s.id][1]]
    if wrong:
        found = "; ".join(
            f"{named([i])} is a {s.model}, a {kind} has a {shape[i][1]} there"
            for i in wrong
            if (s := asked[i]) is not None
        )
        swapped = Counter(s.model for s in servos) == Counter(model for _, model in shape.values())
        fix = (
            "LeRobot refuses that. Put the right servo there, and set its id: lerobot-setup-motors"
        )
        if swapped and len(wrong) == 2:
            found += ": their ids are swapped"
            fix = SWAP_FIX
        yield result(Level.FAIL, found, fix, {"wrong": wrong})
    lost = [servo_id for servo_id, servo in asked.items() if servo is None]
    if lost:
        found = f"id {', '.join(map(str, lost))} answers a ping but can't be read"
        fix = "Two servos may share that id (lerobot-setup-motors), or its cable is loose."
        yield result(Level.FAIL, found, fix, {"unreadable": lost})


def _state(
    bus: _Bus, servos: Sequence[AnsweringServo], port: str, shape: Shape
) -> Iterator[CheckResult]:
    """Yield what is wrong with servos that answer: torque, firmware, ailments, supply, limits."""
    result = functools.partial(CheckResult, AREA, subject=port)
    named = functools.partial(_named, shape)
    on = [servo.id for servo in servos if servo.torque]
    if on:
        found = f"torque on at {named(on)}: a program that is gone left it on"
        fix = "Hold the arm, it falls without it, and switch its power off and on."
        yield result(Level.WARN, found, fix, {"torque": on})
    for model in sorted({servo.model for servo in servos}):
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
    vitals = {servo.id: servo.vitals for servo in servos}
    ill: set[int] = set()
    for found, fix, which in ailments(bus.protocol, vitals, named):
        ill.update(which)
        yield result(Level.FAIL, found, f"{fix}.", {"ids": which})
    for servo in servos:
        if servo.temperature_c > HOT_C and servo.id not in ill:
            found = f"{named([servo.id])} is at {servo.temperature_c} °C"
            data = {"id": servo.id, "temperature_c": servo.temperature_c}
            yield result(Level.WARN, found, "Let it cool for some minutes.", data)
    weak = [i for i, v in vitals.items() if v.most_v >= RATED_12_V and v.supply_v < WEAK_V]
    weak = [servo_id for servo_id in weak if servo_id not in ill]
    if weak:
        least_v = min(vitals[servo_id].supply_v for servo_id in weak)
        found = f"{least_v:.1f} V on {named(weak)}, made for 12 V: weak and slow"
        yield result(Level.WARN, found, "Use a 12 V supply with enough amperes.", {"ids": weak})
    carry = [i for i in sorted(vitals) if i in shape and shape[i][0] in SIX_JOINTS[:-1]]
    for i in carry if bus.protocol is Protocol.FEETECH else ():
        read = {name: bus.read(i, reg.FEETECH[name]) for name in (*_TOO_WEAK, *_DEAD_ZONES)}
        held = {n: int.from_bytes(raw, "little") for n, raw in read.items() if raw}
        low = {n: value for n, value in held.items() if value <= _TOO_WEAK.get(n, -1)}
        if low:
            found = ", ".join(f"{name} {value}" for name, value in low.items())
            found = f"{named([i])} may not use its torque ({found}): it won't carry the arm"
            fix = "Torque_Limit comes back with a power cycle; others: Feetech's FD program."
            yield result(Level.WARN, found, fix, {"id": i, **low})
        deaf = {n: held[n] for n in _DEAD_ZONES if held.get(n, 0) > _DEAD_TICKS}
        if deaf:
            zone = ", ".join(f"{name} {value}" for name, value in deaf.items())
            found = f"{named([i])} ignores goals that are less than {max(deaf.values())} steps of "
            fix = "Set both to 1: Feetech's FD program."
            yield result(Level.WARN, f"{found}0.088° away ({zone})", fix, {"id": i, **deaf})


def _speed(bus: _Bus, ids: Sequence[int], port: str) -> CheckResult:
    """Return how long one read of all servos takes, and whether that is fast enough."""
    result = functools.partial(CheckResult, AREA, subject=port)
    turn_s = bus.seconds_per_turn(ids)
    data = {"read_all_s": turn_s}
    found = f"all servos read in {turn_s * 1e3:.2f} ms"
    if math.isnan(turn_s):
        found = "reads of all servos at once are never complete"
        fix = "Check cables and that every id is there once; set Return Delay Time to 0."
        return result(Level.FAIL, found, fix, data)
    if turn_s <= SLOW_S:
        return result(Level.OK, found, data=data)
    fix = "For 200 Hz: 1 Mbaud, latency timer 1 ms, Return Delay Time 0; or a lower --fps."
    return result(Level.WARN, found, fix, data)


def _named(shape: Shape, some: Sequence[int]) -> str:
    words = [f"{i} ({shape[i][0]})" if i in shape else str(i) for i in some]
    return f"servo{'s' if len(some) > 1 else ''} {', '.join(words)}"


def _listed(ids: Sequence[int]) -> str:
    if len(ids) > 2 and list(ids) == list(range(ids[0], ids[-1] + 1)):
        return f"{ids[0]} to {ids[-1]}"
    return ", ".join(map(str, ids))


def _arm(
    bus: _Bus, asked: Mapping[int, AnsweringServo | None], files: Sequence[Path]
) -> tuple[str, Shape]:
    """Return what arm a bus is, with its id to joint and model; ("", {}) where that isn't known.

    Servos that are silent are in it, too. A calibration file knows best, where all who answer hold
    what it says of them; else LeRobot's smallest arm that has all of them, with at most two others.
    """
    models = {i: "" if servo is None else servo.model for i, servo in asked.items()}
    known: dict[int, MotorRange] = {}
    for servo_id in asked if files else ():
        if (kept := bus.calibration(servo_id)) is not None:
            known[servo_id] = kept[0]

    def others(shape: Shape) -> int:
        return sum(model != shape[i][1] for i, model in models.items() if model)

    feetech = bus.protocol is Protocol.FEETECH
    fitting = [
        (others(shape), len(shape), kind)
        for kind, shape in _SHAPES.items()
        if set(asked) <= set(shape) and feetech == shape[min(shape)][1].startswith("st")
    ]
    fewest, _, kind = min(fitting, default=(len(asked), 0, ""))
    most = 0 if len(asked) < len(_SHAPES.get(kind, {})) else min(2, len(asked) - 1)
    shape: Shape
    kind, shape = (kind, _SHAPES[kind]) if kind and fewest <= most else ("", {})
    if not _is_new(known):
        for file in owners(files, known):
            motors = kept_motors(file)
            if len(motors) > len(shape):
                guess = {
                    i: shape.get(i, ("", ""))[1] or models.get(i, "") for i, _ in motors.values()
                }
                return file.parent.name, {i: (name, guess[i]) for name, (i, _) in motors.items()}
    return kind, shape


def _is_new(held: Mapping[int, MotorRange]) -> bool:
    return all(one == MotorRange(0, 0, reg.TICKS_PER_TURN - 1) for one in held.values())


def _at_other_bauds(bus: _Bus, ids: Sequence[int], baud: int) -> dict[int, int]:
    """Return which of some silent servos answer at another speed, and at which [baud]."""
    found: dict[int, int] = {}
    for other in BAUDS[bus.protocol] if ids else ():
        if other != baud:
            bus.speak_at(other)
            found |= {i: other for i in ids if i not in found and bus.answers(i)}
    bus.speak_at(baud)
    return found


def _role(bus: _Bus, kind: str, ids: Sequence[int]) -> str:
    """Return follower or leader, as far as the servos tell; "" where they don't.

    Dynamixel arms have other servos; the gripper of an SO-101 follower other limits, once LeRobot
    has connected it, which it does before it calibrates.
    """
    if bus.protocol is Protocol.DYNAMIXEL:
        return next((role for role in ("follower", "leader") if kind.endswith(role)), "")
    table, gripper = reg.TABLES[bus.protocol], 6
    if gripper not in ids:
        return ""
    kept = {n: int.from_bytes(bus.read(gripper, table[n]), "little") for n in _FOLLOWERS}
    return "follower" if sum(kept[n] == value for n, value in _FOLLOWERS.items()) > 1 else ""


def _calibration(
    bus: _Bus,
    ids: Sequence[int],
    port: str,
    folder: Path | None,
    files: Sequence[Path],
    kind: str,
    shape: Shape,
) -> Iterator[CheckResult]:
    """Yield what is wrong with the calibration in the motors, and whose it is."""
    names = {servo_id: joint for servo_id, (joint, _) in shape.items()}
    held: dict[int, MotorRange] = {}
    modes: dict[str, int] = {}
    for servo_id in ids:
        kept = bus.calibration(servo_id)
        if kept is None:
            return  # told already
        held[servo_id], modes[names.get(servo_id, f"id {servo_id}")] = kept
    named = dict(zip(modes, held.values(), strict=True))
    wrong = "" if _is_new(held) else "; ".join(unusable(bus.protocol, kind, named, modes))
    data: dict[str, Any] = {"calibration": {name: vars(one) for name, one in named.items()}}
    if wrong:
        fix = f"{FIX}: lerobot-calibrate --help"
        yield CheckResult(AREA, Level.FAIL, wrong, fix, data, port)
    if folder is None:
        return
    result = functools.partial(CheckResult, AREA, subject=port, data=data)
    own, role = owners(files, held), "" if set(shape) - set(ids) else _role(bus, kind, ids)
    of_role = [file for file in own if role_of(file) == role]
    if not own:
        near, differs = nearest(all_files([folder]), held)
        if near is not None:
            found = f"holds no calibration of {folder}; nearest is {arm_of(near)} ({differs[0]})"
            fix = "Bring the file of this arm here; or, if it was never calibrated, calibrate it "
            fix += "under an id that no other arm has: lerobot-calibrate --help"
            if len(differs) <= len(held) / 2:  # else it is another arm
                again = command_for(near).replace("PORT", port)
                fix = f"If it is this arm, calibrate it anew: {again}"
            if swapped_ids(kept_motors(near), held):
                fix = SWAP_FIX
            yield result(Level.FAIL, found, fix)
        return
    file = (of_role or own)[0]
    data["file"] = str(file)
    words = f"holds the calibration of {arm_of(file)}"
    silent = len(kept_motors(file)) - len(held)
    if silent or set(shape) - set(ids):
        words = f"{len(ids)} servos hold what the calibration of {arm_of(file)} says of them"
    if role and not of_role:
        found = f"is a {role} by its servos, but {words}"
        fix = (
            "If leader and follower are swapped, swap --robot.port and --teleop.port; else "
            f"calibrate this arm as a {role}: lerobot-calibrate --help"
        )
        is_sure = bus.protocol is Protocol.DYNAMIXEL
        yield result(Level.FAIL if is_sure else Level.WARN, found, fix)
        return
    rivals = own if not role else of_role
    if len(rivals) > 1 and not _is_new(held):  # an OMX's is what its servos come with
        both = " and ".join(arm_of(one) for one in rivals)
        found = f"{both} have the same calibration, which this arm holds: can't tell which it is"
        fix = "No two arms are alike: calibrate the one anew whose file is a copy: " + " or ".join(
            command_for(one) for one in rivals
        )
        yield result(Level.WARN, found, fix)
        return
    today = place_today(file, folder)
    if file != today:
        found = f"{words}, which lies in {file.parent}; LeRobot looks for {today}"
        if today.exists():
            today = today.with_stem(f"{today.stem}_former")
        fix = (
            "Don't calibrate anew, that moves the zeros under every dataset and policy of this "
            f"arm. Bring it over, with the id {today.stem}: {bring_over(file, today)}"
        )
        yield result(Level.FAIL, found, fix)
        return
    yield result(Level.OK, words)
