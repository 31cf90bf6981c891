"""An emulated servo bus on a pseudo-terminal, served by a thread."""

import contextlib
import logging
import math
import os
import random
import select
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, Self

from gaploop.core import platform_calls
from gaploop.core.arms import ARMS
from gaploop.core.clock import Clock, MonotonicClock
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.protocols import Plant
from gaploop.core.schema import number
from gaploop.teleop.emulator.arms import UNHELD, ArmPlan, ManualHand, arm_plan, build_servo
from gaploop.teleop.emulator.dynamixel import DynamixelChain
from gaploop.teleop.emulator.feetech import FeetechChain
from gaploop.teleop.emulator.joint import ArmWeight, JointMechanics, PlantJoints
from gaploop.teleop.emulator.servo import Chain, EmulatedServo
from gaploop.teleop.servos.registers import Protocol

KINDS: Final[Mapping[str, str]] = {
    "drop": "packets are lost, each with probability `rate` (0.1)",
    "corrupt": "answers have a byte changed, each with probability `rate` (0.1)",
    "garbage": "noise comes before answers, each with probability `rate` (0.1)",
    "slow": "answers come `latency_s` (0.02) later, and up to `jitter_s` (0) more",
    "vanish": "servo `id` loses power; it comes back with torque off and its RAM forgotten",
    "reboot": "servo `id` restarts in an instant: it answers, with torque off and RAM forgotten",
    "stuck": "the motor of servo `id` is dead: no current, the joint stays, all else as usual",
    "slip": "the encoder of servo `id` reads `value` (1024) ticks more; 4096 change nothing",
    "overheat": "servo `id` measures `value` °C (95)",
    "overload": "servo `id` measures `value` of its stall load (1.0)",
    "voltage": "the supply gives `value` V (4.0)",
    "unplug": "the USB cable is pulled: the port is closed and its link gone",
}
"""Faults by name, and what each does."""

_NEEDS_ID: Final = ("vanish", "reboot", "stuck", "slip", "overheat", "overload")


_RANGES: Final = {
    "rate": (0.0, 1.0),
    "at_s": (0.0, math.inf),
    "for_s": (0.0, math.inf),
    "latency_s": (0.0, 10.0),
    "jitter_s": (0.0, 10.0),
    "id": (0, 253),
    "value": (-math.inf, math.inf),
}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        fault: one of KINDS.
        at_s: when it begins, since the emulator started [s].
        for_s: how long it lasts [s]; endless unless given.
        id: the servo it strikes.
        rate: probability for each packet.
        latency_s: added to every answer [s].
        jitter_s: most that is added on top, evenly drawn [s].
        value: temperature [°C], share of stall, voltage [V], or ticks.
    """

    fault: str
    at_s: float = 0.0
    for_s: float = math.inf
    id: int | None = None
    rate: float = 0.1
    latency_s: float = 0.02
    jitter_s: float = 0.0
    value: float | None = None

    def __post_init__(self) -> None:
        if self.fault not in KINDS:
            raise unknown_choice("fault", self.fault, KINDS)
        if self.fault in _NEEDS_ID and self.id is None:
            raise UnusableInputError(f"Fault {self.fault} needs the id of a servo, such as id: 3.")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None:
                number(value, f"Fault {self.fault}: {name}", low, high)


def parse_faults(entries: object, where: str) -> tuple[Fault, ...]:
    """Return the faults in a list of mappings; UnusableInputError names the entry that is wrong."""
    if not isinstance(entries, list):
        raise UnusableInputError(
            f"{where} must be a list such as [{{at_s: 5, fault: vanish, id: 3, for_s: 2}}]."
        )
    names = [f.name for f in fields(Fault)]
    faults = []
    for nth, entry in enumerate(entries, 1):
        place = f"{where}, entry {nth}"
        if not isinstance(entry, Mapping) or "fault" not in entry:
            raise UnusableInputError(f"{place} needs `fault`, one of: {', '.join(KINDS)}.")
        for name in entry:
            if name not in names:
                raise unknown_choice("field", name, names, place)
        try:
            given = {str(name): value for name, value in entry.items()}
            if isinstance(given.get("id"), float):  # as the console has it
                given["id"] = round(given["id"])
            faults.append(Fault(**given))
        except UnusableInputError as error:
            raise UnusableInputError(f"{place}: {error}") from error
    return tuple(faults)


@dataclass
class WireFaults:
    """What befalls packets just now: probabilities, and what delays every answer [s]."""

    drop: float = 0.0
    corrupt: float = 0.0
    garbage: float = 0.0
    latency_s: float = 0.0
    jitter_s: float = 0.0

    def delay_s(self, rng: random.Random) -> float:
        """Draw what is added to an answer's delay [s]."""
        return self.latency_s + (rng.uniform(0.0, self.jitter_s) if self.jitter_s else 0.0)

    def spoil(self, answer: bytes, rng: random.Random) -> bytes:
        """Return what arrives of an answer."""
        if self.drop and rng.random() < self.drop:
            return b""
        if self.corrupt and rng.random() < self.corrupt:
            place = rng.randrange(len(answer))
            changed = answer[place] ^ rng.randrange(1, 256)
            answer = answer[:place] + bytes((changed,)) + answer[place + 1 :]
        if self.garbage and rng.random() < self.garbage:
            answer = rng.randbytes(rng.randrange(1, 12)) + answer
        return answer


def wire_faults(active: Iterable[Fault]) -> WireFaults:
    """Combine the active faults of the wire; the strongest of a kind counts."""
    wire = WireFaults()
    for fault in active:
        if fault.fault in ("drop", "corrupt", "garbage"):
            setattr(wire, fault.fault, max(getattr(wire, fault.fault), fault.rate))
        elif fault.fault == "slow":
            wire.latency_s = max(wire.latency_s, fault.latency_s)
            wire.jitter_s = max(wire.jitter_s, fault.jitter_s)
    return wire


log = logging.getLogger(__name__)

IDLE_S: Final = 0.02
"""How often the arm moves on while no host asks [s]."""
_HELD_UP_S: Final = 0.005
"""An answer that is due later than this is held up, as by a slow adapter: the servos hear on
meanwhile, and a goal or torque-off takes effect at once [s]."""
_REAL_TIME: Final = 1  # below any control loop's
_PRIORITY: Final = -15
_SWITCH_S: Final = 0.0005
"""A host in this process may spin while it waits, as the makers' SDKs do, and hold the
interpreter for as long as it switches threads [s]."""
_SILENCE_S: Final = 0.1  # a packet that paused for so long is not going on


class PseudoTerminal:
    """The servos' end of a pseudo-terminal; `fd` is non-blocking."""

    def __init__(self, link: Path | None = None) -> None:
        """Open a terminal and point `link` to it; UnusableInputError where that can't be done."""
        platform_calls.require_posix("Emulated arms")
        # Our own hold on the host's end keeps the terminal alive between hosts.
        self.fd, self._host_fd, self.name = platform_calls.open_terminals()
        self._link = link
        self.path = self.name if link is None else str(link)
        """What a host opens."""
        if link is None:
            return
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_fds)
            if not link.is_symlink() and link.exists():
                raise UnusableInputError(
                    f"--link={link} exists and is not a link. Name another path, or remove it."
                )
            try:  # in one step, over an older link
                with tempfile.TemporaryDirectory(dir=link.absolute().parent, prefix=".link") as new:
                    fresh = Path(new, "link")
                    fresh.symlink_to(self.name)
                    fresh.replace(link)
            except OSError as error:
                raise UnusableInputError(
                    f"--link={link} can't be made: {error.strerror}. Name a path in a folder that "
                    "exists and that you may write to."
                ) from error
            undo.pop_all()

    def baud(self) -> int:
        """Return the bit rate that the host has set [bit/s]."""
        return platform_calls.terminal_baud(self.fd)

    def send(self, data: bytes) -> None:
        """Send bytes to the host; what doesn't fit is lost, as a UART has no flow control."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.fd, data)

    def receive(self) -> bytes:
        """Return what the host has sent, without waiting."""
        try:
            return os.read(self.fd, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Remove the link and close the terminal; safe to call twice."""
        if self._link is not None and self.fd >= 0:
            with contextlib.suppress(OSError):
                if os.readlink(self._link) == self.name:
                    self._link.unlink()
        self._close_fds()

    def _close_fds(self) -> None:
        for fd in (self.fd, self._host_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self._host_fd = -1


@dataclass
class WireCounts:
    """What went over the wire: hosts' bytes and inputs, servos' answers, and those spoiled."""

    received_bytes: int = 0
    exchanges: int = 0
    answers: int = 0
    spoiled: int = 0


class EmulatedBus:
    """An arm's servos on a pseudo-terminal, by the ids they had at the start; a context manager.

    A thread serves them: hold `lock` to look at or change them.
    """

    def __init__(
        self,
        model: str = "so101",
        role: str = "follower",
        *,
        calibrated: bool = True,
        plan: ArmPlan | None = None,
        link: Path | str | None = None,
        hand: str = "still",
        wire_time: bool = True,
        faults: Iterable[Fault] = (),
        seed: int = 0,
        plant: Plant | None = None,
        clock: Clock | None = None,
        serve: bool = True,
    ) -> None:
        """Build an arm, switch it on and serve its port.

        Args:
            calibrated: its servos hold what `lerobot-calibrate` would have written.
            plan: an arm changed by hand, instead of all the above.
            link: where to put a link to the port.
            wire_time: answers take as long as their bytes on a real wire.
            plant: the mechanics behind the servos; joints on their own unless given.
            serve: on a pseudo-terminal, in a thread; else whoever calls `hear` is the host.

        Raises:
            UnusableInputError: an unknown arm, role or hand; or the link can't be made.
        """
        if plan is None:
            plan = arm_plan(model, role)
            plan = plan.calibrated() if calibrated else plan
        self.plan = plan
        self.lock = threading.RLock()
        built = [build_servo(servo) for servo in plan.servos]
        joints = [servo.joint for servo in built]
        park = ARMS[plan.model].park_rad if plan.model in ARMS else {}
        rest_rad = [park.get(servo.name, 0.0) for servo in plan.servos]
        weight = None  # a leader is in somebody's hand
        if plan.role == "follower":
            weight = ArmWeight(plan.model, [servo.name for servo in plan.servos])
            if hand in UNHELD:  # without power, an arm lies folded
                for joint, q_rad in zip(joints, rest_rad, strict=True):
                    joint.q_rad = min(max(q_rad, joint.low_rad), joint.high_rad)
        mechanics = JointMechanics(joints, weight)
        if plant is not None:
            mechanics = PlantJoints(joints, plant)
        kind = FeetechChain if plan.protocol is Protocol.FEETECH else DynamixelChain
        self.chain: Chain = kind(built, mechanics)
        for servo in built:
            servo.power_up()  # where the joints are, not where they were built
        self.all_servos = tuple(built)
        self.servos: Mapping[int, EmulatedServo] = {servo.id: servo for servo in built}
        self.hand = ManualHand(built, hand, leads=plan.role == "leader", rest_rad=rest_rad)
        self.counts = WireCounts()
        self.wire_time = wire_time
        self._link = None if link is None else Path(link)
        self._clock = clock or MonotonicClock()
        self._start_s = self.chain.now_s = self._heard_s = self._clock.now_s()
        self._late: deque[tuple[float, bytes]] = deque()
        self._stop = threading.Event()
        self.faults = InjectedBusFaults(self, faults, seed)
        self._port: PseudoTerminal | None = PseudoTerminal(self._link) if serve else None
        self.port = self._port.path if self._port is not None else ""
        """What a host opens."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self._thread = threading.Thread(target=self._serve, name="emulated-bus", daemon=True)
        if serve:
            self._thread.start()

    def age_s(self) -> float:
        """Return the time since the start [s]."""
        return self._clock.now_s() - self._start_s

    def servo(self, name: str) -> EmulatedServo:
        """Return a servo by the name of its motor; UnknownChoiceError where there is none."""
        by_name = {servo.plan.name: servo for servo in self.all_servos}
        if name not in by_name:
            raise unknown_choice("motor", name, by_name)
        return by_name[name]

    def plug(self, names: Iterable[str] | None = None) -> None:
        """Connect only the named motors to the bus, or all."""
        wanted = self.all_servos if names is None else [self.servo(name) for name in names]
        with self.lock:
            for servo in self.all_servos:
                servo.connected = servo in wanted

    def stop(self) -> None:
        """End the thread, close the port and remove its link; safe to call twice."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with self.lock:
            self._close_port()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- the thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        raise_priority()
        while not self._stop.is_set():
            port = self._port
            heard = self._wait(port)
            with self.lock:
                due_s, answer = self.move_on(), b""
                if heard and port is not None and port is self._port:
                    due_s, answer = self.hear(port.receive(), port.baud() or 1)
            while self._late and self._late[0][0] <= self._clock.now_s():
                self._say(self._late.popleft()[1], 0.0)
            if answer and (self._late or due_s - self._clock.now_s() > _HELD_UP_S):
                self._late.append((due_s, answer))
            elif answer:
                self._say(answer, due_s)

    def _wait(self, port: PseudoTerminal | None) -> bool:
        """Wait until the host has sent something, or for a while; return whether it has."""
        waiting, idle_s = [] if port is None else [port.fd], IDLE_S
        if self._late:
            idle_s = min(max(self._late[0][0] - self._clock.now_s(), 0.0), IDLE_S)
        try:
            ready, _, _ = select.select(waiting, [], [], idle_s)
        except (OSError, ValueError):  # another thread pulled the cable just now
            return False
        return bool(ready)

    def move_on(self) -> float:
        """Let the arm move until now; return that time [s]."""
        now_s = self._clock.now_s()
        age_s = now_s - self._start_s
        self.faults.update(age_s)
        self.hand.update(age_s)
        self.chain.advance(now_s)
        if now_s - self._heard_s > _SILENCE_S:
            self.chain.silence()
        return now_s

    def hear(self, data: bytes, baud: int) -> tuple[float, bytes]:
        """Work on bytes that came at `baud` [bit/s]; return when what is to be answered."""
        now_s = self._heard_s = self._clock.now_s()
        self.counts.received_bytes += len(data)
        self.counts.exchanges += 1
        wire, rng = self.faults.wire, self.faults.rng
        if wire.drop and rng.random() < wire.drop:
            self.counts.spoiled += 1
            return now_s, b""
        answers = self.chain.hear(data, baud)
        self.counts.answers += len(answers)
        if wire.drop or wire.corrupt or wire.garbage:
            spoiled = [wire.spoil(answer, rng) for answer in answers]
            self.counts.spoiled += sum(a != b for a, b in zip(answers, spoiled, strict=True))
            answers = spoiled
        answer = b"".join(answers)
        delay_s = self.chain.delay_s() + wire.delay_s(rng)
        if self.wire_time:
            delay_s += (len(data) + len(answer)) * 10 / baud  # 8 bits, start and stop
        return now_s + delay_s, answer

    def _say(self, answer: bytes, due_s: float) -> None:
        """Send an answer when it is due; the wire is busy until then."""
        self._clock.sleep_until(due_s)
        with self.lock:
            if self._port is not None:
                self._port.send(answer)

    # --- faults ----------------------------------------------------------------------------

    def require_servo(self, identity: int | None) -> None:
        """Raise `UnusableInputError` where there is no servo of that id."""
        if identity is not None and identity not in self.servos:
            ids = ", ".join(str(i) for i in self.servos)
            raise UnusableInputError(f"No servo has id {identity}. There are: {ids}.")

    def inflict(self, fault: Fault, on: bool = True) -> None:
        """Begin or end a fault of a servo, the supply or the cable."""
        log.info("fault%s: %s", "" if on else " over", fault)
        value = fault.value
        match fault.fault:
            case "unplug" if on:
                self._close_port()
            case "unplug" if self._port is None and self._thread.is_alive():
                self._port = PseudoTerminal(self._link)
                self.port = self._port.path
            case "voltage":
                rail_v = max(s.joint.motor.nominal_v for s in self.all_servos)
                left = (4.0 if value is None else value) / rail_v
                self.chain.mechanics.brown_out = left if on else 1.0
        if fault.id is None:
            return
        servo = self.servos[fault.id]
        match fault.fault:
            case "vanish" if on:
                servo.power_down()
            case "vanish":
                servo.power_up()
            case "reboot" if on:
                servo.power_up()
            case "stuck":
                servo.joint.stuck = on
            case "slip":
                servo.slip_ticks = round(1024 if value is None else value) if on else 0
            case "overheat":
                servo.forced_temperature_c = (95.0 if value is None else value) if on else None
            case "overload":
                servo.forced_load = (1.0 if value is None else value) if on else None

    def _close_port(self) -> None:
        if self._port is not None:
            with contextlib.suppress(OSError):
                self._port.close()
        self._port = None


class InjectedBusFaults:
    """What goes wrong on one bus, now or on schedule; safe to use from any thread.

    `active` faults have struck and aren't over; `wire` is what befalls packets just now.
    """

    def __init__(self, bus: EmulatedBus, scheduled: Iterable[Fault], seed: int) -> None:
        self._bus = bus
        self.rng = random.Random(seed)
        self._planned = list(scheduled)
        """Those that aren't over."""
        for fault in self._planned:
            bus.require_servo(fault.id)
        self.active: list[Fault] = []
        self.wire = WireFaults()

    def add(self, fault: Fault) -> None:
        """Let a fault strike now, or when its `at_s` [s] comes."""
        with self._bus.lock:
            self._bus.require_servo(fault.id)
            age_s = self._bus.age_s()
            self._planned.append(replace(fault, at_s=max(fault.at_s, age_s)))
            self.update(age_s)

    def clear(self, kind: str | None = None) -> None:
        """End all faults, or those of a kind, scheduled ones included."""
        with self._bus.lock:
            self._planned = [f for f in self._planned if kind not in (None, f.fault)]
            self.update(self._bus.age_s())

    def update(self, now_s: float) -> None:
        """Begin and end what is due at `now_s` [s] since the start."""
        if not self._planned and not self.active:
            return
        before = self.active
        self._planned = [f for f in self._planned if f not in before or f.at_s + f.for_s > now_s]
        self.active = [f for f in self._planned if f.at_s <= now_s]
        if self.active == before:
            return
        lasting = {(f.fault, f.id) for f in self.active}
        for fault in before:
            if (fault.fault, fault.id) not in lasting:
                self._bus.inflict(fault, False)
        for fault in self.active:
            if fault not in before:
                self._bus.inflict(fault)
        self.wire = wire_faults(self.active)


def raise_priority() -> None:
    """Put the calling thread before others where that is allowed.

    Real servos don't wait for the host's processor; the makers' SDKs give up after 34 ms.
    """
    if not platform_calls.realtime(_REAL_TIME):
        platform_calls.nice(_PRIORITY, threading.get_native_id())
