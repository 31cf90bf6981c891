"""Random faults on an emulated pair of arms: is torque off in time after every trip?

The emulated servos are asked, not the program: what counts is when their motors let go.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import GaploopError
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.teleop.control import ControlThread
from gaploop.teleop.emulator import EmulatedBus, Fault
from gaploop.teleop.lerobot_devices import make_follower, make_leader
from gaploop.teleop.loop import Rates
from gaploop.teleop.realtime import PacedClock
from gaploop.teleop.safety import SafetyFilter, make_safety

WITHIN_S: Final = 0.2
"""Torque is to be off this long after a trip [s]."""
BUSY_S: Final = 0.02
"""Looks further apart than this say that the machine was too busy to time anything [s]."""
DRIVE_S: Final = 0.6
"""Faults begin within this time of the start [s]."""
LASTS_S: Final = 1.2
"""A schedule without a trip ends after this time [s]."""
SAMPLE_S: Final = 0.001
MODELS: Final = ("so101", "koch", "openmanipulator")
_FOLLOWER_FAULTS: Final = (
    "vanish",
    "overheat",
    "overload",
    "corrupt",
    "drop",
    "garbage",
    "slow",
    "unplug",
    "voltage",
)
_LEADER_FAULTS: Final = ("vanish", "corrupt", "drop", "garbage", "slow", "unplug")


@dataclass(frozen=True)
class Schedule:
    """What goes wrong in one run.

    Attributes:
        seed: draws it all.
        model: the arms.
        follower: faults of the follower's bus, timed from the start of the loop.
        leader: faults of the leader's bus.
        estop_s: when the e-stop is pressed [s], or None.
    """

    seed: int
    model: str
    follower: tuple[Fault, ...]
    leader: tuple[Fault, ...]
    estop_s: float | None

    def __str__(self) -> str:
        def said(side: str, fault: Fault) -> str:
            servo = f" {fault.id}" if fault.id is not None else ""
            return f"{side} {fault.fault}{servo} at {fault.at_s:.2f} s"

        parts = [said("follower", f) for f in self.follower]
        parts += [said("leader", f) for f in self.leader]
        parts += [] if self.estop_s is None else [f"e-stop at {self.estop_s:.2f} s"]
        return f"seed {self.seed}, {self.model}: {', '.join(parts) or 'nothing'}"


@dataclass(frozen=True)
class ScheduleOutcome:
    """How one run went.

    Attributes:
        trip: what tripped the filter, `error` where the loop failed, `none` where it was stopped.
        off_s: from the trip, the error or the stop to the last reachable servo letting go [s],
            as the next look saw it.
        gap_s: longest time between two looks while it was waited for [s]: how busy the machine was.
        stall_s: the same of the whole run [s]: a stall before makes servos that are well look lost.
        lets_go: torque went off before the loop was ended, in time or not.
        reachable: servos whose torque could be taken off.
        stays_off: torque stayed off afterwards, through disconnecting.
        said: what the operator was told at the end.
    """

    schedule: Schedule
    trip: str
    off_s: float
    gap_s: float
    stall_s: float
    lets_go: bool
    reachable: int
    stays_off: bool
    said: str

    @property
    def holds(self) -> bool:
        """Say whether torque was off in time on every servo that could be reached."""
        return self.stays_off and self.off_s <= WITHIN_S

    @property
    def tells_nothing(self) -> bool:
        """Say whether it seems late on a machine that was too busy to time it."""
        return not self.holds and self.gap_s > BUSY_S


def draw(seed: int) -> Schedule:
    """Draw a schedule: one to three things that go wrong."""
    rng = random.Random(seed)
    kinds = [(True, kind) for kind in _FOLLOWER_FAULTS] + [(False, kind) for kind in _LEADER_FAULTS]
    chosen = rng.choices([*kinds, (True, "estop")], k=rng.randint(1, 3))
    faults = [(is_follower, _fault(kind, rng)) for is_follower, kind in chosen if kind != "estop"]
    return Schedule(
        seed,
        rng.choice(MODELS),
        tuple(fault for is_follower, fault in faults if is_follower),
        tuple(fault for is_follower, fault in faults if not is_follower),
        rng.uniform(0.0, DRIVE_S) if (True, "estop") in chosen else None,
    )


def _fault(kind: str, rng: random.Random) -> Fault:
    endless = rng.random() < 0.5
    return Fault(
        kind,
        at_s=rng.uniform(0.05, DRIVE_S),
        for_s=3600.0 if endless else rng.uniform(0.01, 0.5),
        id=rng.randint(1, 6) if kind in ("vanish", "overheat", "overload") else None,
        rate=rng.uniform(0.01, 0.3),
        latency_s=rng.uniform(0.001, 0.06),
        jitter_s=rng.uniform(0.0, 0.02),
        value=rng.uniform(3.0, 5.0) if kind == "voltage" else None,
    )


def run(
    schedule: Schedule,
    change: Callable[[Follower], Follower] = lambda arm: arm,
    patience_s: float = 0.0,
) -> ScheduleOutcome:
    """Drive an emulated pair through a schedule and watch the follower's motors.

    Args:
        schedule: what goes wrong.
        change: stands between program and arm; a test spoils torque-off with it.
        patience_s: how long torque that is late to go off is waited for [s].
    """
    with _pair(schedule) as (follower_bus, leader_bus, follower, leader, safety, rates):
        control = ControlThread(change(follower), leader, safety, rates, clock=PacedClock())
        with control:
            control.start()
            start_s = time.monotonic()
            _schedule(follower_bus, schedule.follower)
            _schedule(leader_bus, schedule.leader)
            watch = _Watch(follower_bus)
            trip, from_s = _until_it_ends(control, safety, schedule, start_s, watch)
            watch.until(from_s + WITHIN_S + 0.1)
            until_s = time.monotonic() + patience_s
            while watch.holds and time.monotonic() < until_s:
                watch.until(time.monotonic() + WITHIN_S)
            lets_go = not watch.holds
            said = _end(control)
            watch.until(time.monotonic() + 0.02)
        return ScheduleOutcome(
            schedule,
            trip,
            watch.off_after_s(from_s),
            watch.gap_s(from_s, from_s + WITHIN_S),
            watch.gap_s(start_s, from_s + WITHIN_S),
            lets_go,
            len(watch.reachable),
            watch.stays_off(from_s + WITHIN_S),
            said,
        )


def _until_it_ends(
    control: ControlThread,
    safety: SafetyFilter,
    schedule: Schedule,
    start_s: float,
    watch: _Watch,
) -> tuple[str, float]:
    """Watch until a trip, an error or the end of time; return which, and when it was."""
    pressed = schedule.estop_s is None
    while (now_s := time.monotonic()) < start_s + LASTS_S:
        if not pressed and now_s >= start_s + (schedule.estop_s or 0.0):
            control.estop()
            pressed = True
        if safety.tripped:
            return safety.tripped.name or "", safety.tripped_at_s
        if not control.alive:
            return "error", now_s
        watch.sample()
        time.sleep(SAMPLE_S)
    stopped_s = time.monotonic()
    control.stop()
    return "none", stopped_s


def _end(control: ControlThread) -> str:
    try:
        control.finish()
    except GaploopError as error:
        return str(error)
    return ""


class _Watch:
    """Notes which motors of a bus hold their joint, and when.

    A servo counts as reachable unless its bus was unplugged.
    """

    def __init__(self, bus: EmulatedBus) -> None:
        self._bus = bus
        self._held: list[tuple[float, frozenset[str]]] = []
        self.reachable = frozenset(servo.plan.name for servo in bus.all_servos)

    def sample(self) -> None:
        """Look once."""
        bus = self._bus
        with bus.lock:
            if any(fault.fault == "unplug" for fault in bus.faults.active):
                self.reachable = frozenset()
            held = frozenset(servo.plan.name for servo in bus.all_servos if servo.torque)
        self._held.append((time.monotonic(), held))

    def until(self, end_s: float) -> None:
        """Look until `end_s` [s]."""
        while time.monotonic() < end_s:
            self.sample()
            time.sleep(SAMPLE_S)

    @property
    def holds(self) -> bool:
        """Say whether a reachable motor held at the last look."""
        return bool(self._held[-1][1] & self.reachable)

    def off_after_s(self, from_s: float) -> float:
        """Return the time from `from_s` to the first look at which none held any more [s]."""
        held_s = max((at_s for at_s, joints in self._held if joints & self.reachable), default=0.0)
        after = [at_s for at_s, _ in self._held if at_s > max(held_s, from_s)]
        return after[0] - from_s if after and held_s > from_s else 0.0

    def gap_s(self, from_s: float, to_s: float) -> float:
        """Return the longest time between two looks from `from_s` to `to_s` [s]."""
        looks = [at_s for at_s, _ in self._held if from_s <= at_s <= to_s]
        ends = [from_s, *looks, to_s]
        return max(late - early for early, late in itertools.pairwise(ends))

    def stays_off(self, from_s: float) -> bool:
        """Say whether no reachable motor held at any look after `from_s` [s]."""
        return not any(joints & self.reachable for at_s, joints in self._held if at_s >= from_s)


def _schedule(bus: EmulatedBus, faults: tuple[Fault, ...]) -> None:
    """Let faults begin, timed from now; their ids count the servos from 1."""
    ids = list(bus.servos)
    for fault in faults:
        servo = None if fault.id is None else ids[fault.id - 1]
        bus.faults.add(replace(fault, at_s=bus.age_s() + fault.at_s, id=servo))


type Pair = tuple[EmulatedBus, EmulatedBus, Any, Any, SafetyFilter, Rates]


@contextlib.contextmanager
def _pair(schedule: Schedule) -> Iterator[Pair]:
    """Connect an emulated follower and its leader, which a hand waves, as LeRobot's own."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, seed = schedule.model, schedule.seed
        buses = [
            stack.enter_context(EmulatedBus(model, role=role, hand=hand, seed=seed + i))
            for i, (role, hand) in enumerate((("follower", "none"), ("leader", "wave")))
        ]
        for bus, name in zip(buses, ("follower", "leader"), strict=True):
            bus.wire_time = False  # connecting is not what is measured
            (folder / f"{name}.json").write_text(json.dumps(bus.plan.calibration()))
        robot, teleop = _configs(model)
        clock, station = PacedClock(), Station("emulated")
        follower = make_follower(
            robot(port=buses[0].port, id="follower", calibration_dir=folder), station, clock
        )
        stack.callback(_quietly_close, follower)
        leader = make_leader(
            teleop(port=buses[1].port, id="leader", calibration_dir=folder), follower, clock
        )
        stack.callback(_quietly_close, leader)
        for bus in buses:
            bus.wire_time = True
        rates = Rates.near(50.0)
        safety = make_safety(station, follower, rates.period_s)
        yield buses[0], buses[1], follower, leader, safety, rates


def _quietly_close(device: Any) -> None:
    with contextlib.suppress(GaploopError):
        device.close()


def _configs(model: str) -> tuple[Any, Any]:
    """Return LeRobot's config classes of a follower and a leader."""
    if model == "so101":
        from lerobot.robots.so_follower import SOFollowerRobotConfig
        from lerobot.teleoperators.so_leader import SOLeaderTeleopConfig

        return SOFollowerRobotConfig, SOLeaderTeleopConfig
    if model == "koch":
        from lerobot.robots.koch_follower import KochFollowerConfig
        from lerobot.teleoperators.koch_leader import KochLeaderConfig

        return KochFollowerConfig, KochLeaderConfig
    from lerobot.robots.omx_follower import OmxFollowerConfig
    from lerobot.teleoperators.omx_leader import OmxLeaderConfig

    return OmxFollowerConfig, OmxLeaderConfig
