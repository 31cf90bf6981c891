"""Who is on a bus, and what is wrong with those that answer. Writes nothing.

Pings tell a missing servo from two that share an id.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gaploop.teleop.servos import registers
from gaploop.teleop.servos.exchange import BusLine, Request, Script, run
from gaploop.teleop.servos.frames import Reply

TRIES: Final = 3
PATIENCE_S: Final = 0.05
"""A servo that is there may answer this late on a busy machine [s]; one that isn't costs it."""
LATE_S: Final = 0.5
"""Where answers came late: how long the bus is left alone, and then each answer waited for [s]."""
NOBODY: Final = 0xFD
"""Waiting for a servo that isn't there lets a second answer to the same id be heard."""
ECHO: Final = "whatever is sent there comes back"
NO_ECHO: Final = (
    "Use an adapter that doesn't echo; or is it no arm's port? Then see lerobot-find-port"
)


@dataclass(frozen=True)
class ServoReply:
    """How one servo answered: no model where it didn't; `doubled` as if two have the id."""

    model_number: int | None
    firmware: str = ""
    doubled: bool = False


def survey(line: BusLine, ids: Iterable[int]) -> dict[int, ServoReply]:
    """Ask each of `ids` who it is.

    A machine that stalls hears answers after their time, which looks like a servo that is missing
    and like two that talk at once. So who is in doubt is asked again where anything came late.
    """
    before = _trouble(line)
    seen = {servo_id: _look(line, servo_id, PATIENCE_S) for servo_id in ids}
    doubtful = [i for i, servo in seen.items() if servo.doubled or servo.model_number is None]
    if doubtful:
        _settle(line)
        if _trouble(line) > before:
            seen |= {servo_id: _look(line, servo_id, LATE_S) for servo_id in doubtful}
    return seen


def surely[T](line: BusLine, script: Callable[[], Script[T]]) -> T:
    """Return what a script reads, once nothing came late or not at all that had come before."""
    for _ in range(TRIES):
        before = _trouble(line) + line.faults.timeouts
        found: T = run([(line, script())])[0]
        if _trouble(line) + line.faults.timeouts == before:
            break
        _settle(line)
    return found


def _settle(line: BusLine) -> None:
    """Leave the line alone until what is late has come."""
    time.sleep(LATE_S)
    with contextlib.suppress(OSError):  # unplugged: nothing comes
        line.faults.stale_bytes += line.port.discard()


def _trouble(line: BusLine) -> int:
    """Return how often answers were spoiled or came late."""
    late = sum(servo.late for servo in line.faults.servos.values())
    return _noise(line, *line.faults.servos) + line.faults.stale_bytes + late


def vitals(line: BusLine, ids: Iterable[int]) -> dict[int, registers.Vitals]:
    """Return how each of `ids` is, as far as it answers."""
    found = {}
    for servo_id in ids:
        parts, error = list[bytes](), 0
        for span in registers.VITAL_SPANS[line.protocol]:
            tries = (
                run([(line, _reply(line, servo_id, span, PATIENCE_S))])[0] for _ in range(TRIES)
            )
            reply = next((one for one in tries if one.data), Reply(servo_id, error, b""))
            parts, error = [*parts, reply.data], reply.error
        if all(parts):
            found[servo_id] = registers.read_vitals(line.protocol, *parts, error=error)
    return found


def echoes(line: BusLine) -> bool:
    """Say whether the adapter, or whatever is on that port, repeats what it is told."""
    packet, heard = line.wire.ping(NOBODY), b""
    line.port.discard()
    line.port.write(packet)
    while line.port.wait(PATIENCE_S):
        heard += line.port.read()
    return packet in heard


def present(line: BusLine) -> list[int]:
    """Return which of ids 1 to 20 answer a ping."""
    size = 3 if line.protocol is registers.Protocol.DYNAMIXEL else 0

    def ping(servo_id: int) -> Script[bool]:
        answers = yield Request(line.wire.ping(servo_id), (servo_id,), size, wait_s=PATIENCE_S)
        return servo_id in answers

    return [i for i in range(1, 21) if run([(line, ping(i))])[0]]


def _look(line: BusLine, servo_id: int, wait_s: float) -> ServoReply:
    before, head = _noise(line, servo_id), b""
    for _ in range(TRIES):
        head = run([(line, _reply(line, servo_id, registers.IDENTITY_SPAN, wait_s))])[0].data
        if head:
            break
    if not head and _noise(line, servo_id) == before:
        return ServoReply(None)
    # Noise spoils an answer now and then; two servos that talk at once spoil most of them.
    spoiled = 0
    for _ in range(TRIES):
        before = _noise(line, servo_id)
        run([(line, _reply(line, servo_id, registers.STATE_SPAN[line.protocol]))])
        spoiled += _noise(line, servo_id) > before
    line.faults.servos.pop(NOBODY, None)
    number, firmware = registers.read_identity(line.protocol, head) if head else (None, "")
    return ServoReply(number, firmware, spoiled > TRIES // 2 or not head)


def _reply(
    line: BusLine, servo_id: int, span: registers.ServoRegister, wait_s: float | None = None
) -> Script[Reply]:
    """Read, as long as the bus needs to hear a second answer, too, or until the first has come."""
    ids = (servo_id, NOBODY) if wait_s is None else (servo_id,)
    packet = line.wire.read(servo_id, span.address, span.size)
    answers = yield Request(packet, ids, span.size, wait_s=wait_s)
    return answers.get(servo_id, Reply(servo_id, 0, b""))


def _noise(line: BusLine, *ids: int) -> int:
    """Return how often these servos' answers were spoiled, and how much came that is nobody's."""
    faults = line.faults
    spoiled = sum(of.corrupt + of.repeated + of.wrong_size for of in map(faults.of, ids))
    return spoiled + faults.corrupt + faults.garbage_bytes + faults.unasked


_VOLTAGE: Final = 0x01
_SLACK_V: Final = 0.05
"""A supply is read in steps of 0.1 V."""
_HEAT: Final = 0x04
_FIXES: Final = (
    (_HEAT, "Switch the arm's power off and let it cool for some minutes"),
    # Overcurrent and overload of a Feetech servo; overload of a Dynamixel.
    (0x28, "Free what holds the joint, then switch the arm's power off for 5 s"),
    (
        _VOLTAGE,
        "Switch the arm's power off for 5 s; if it comes back, the supply's plug is loose or it "
        "gives too few amperes",
    ),
)
_ELSE: Final = "Switch the arm's power off for 5 s; if it comes back, replace the servo"


def ailments(
    protocol: registers.Protocol,
    servos: Mapping[int, registers.Vitals],
    named: Callable[[Sequence[int]], str],
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield what keeps servos from being used, what to do, and their ids; the worst first.

    `named` says what some are called, such as `servos 1 (shoulder_pan), 2 (shoulder_lift)`.
    """
    high = [i for i, one in servos.items() if one.supply_v > one.most_v + _SLACK_V]
    low = [i for i, one in servos.items() if one.supply_v < one.least_v - _SLACK_V]
    for most_v in sorted({servos[i].most_v for i in high}):  # an arm may have servos of two kinds
        some = [i for i in high if servos[i].most_v == most_v]
        volts = max(servos[i].supply_v for i in some)
        found = f"{volts:.1f} V on {named(some)} for at most {most_v:.1f} V"
        fix = "Switch the arm's power off now: it destroys them. Use a supply of at most"
        yield found, f"{fix} {most_v:.1f} V", tuple(some)
    for least_v in sorted({servos[i].least_v for i in low}):
        some = [i for i in low if servos[i].least_v == least_v]
        volts = min(servos[i].supply_v for i in some)
        found = f"{volts:.1f} V on {named(some)} for at least {least_v:.1f} V"
        fix = "Check the supply's plug and switch: a USB cable alone doesn't power servos. Use one"
        yield found, f"{fix} of at least {least_v:.1f} V with enough amperes", tuple(some)
    for servo_id, one in servos.items():
        bits = one.errors & ~_VOLTAGE if servo_id in (*high, *low) else one.errors
        if bits:
            fix = next((words for bit, words in _FIXES if bits & bit), _ELSE)
            at = f" ({one.temperature_c} °C)" if bits & _HEAT else ""
            error = registers.describe_error(protocol, bits)
            yield f"{named([servo_id])} reports {error}{at}", fix, (servo_id,)
