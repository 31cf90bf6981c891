"""Random faults and ends of sessions on emulated arms that have weight: is the law kept?

The law is in docs/teleoperate/teleoperation.md, "However it ends". The emulated servos are asked,
not the program: which of them drive, brake or are limp, where the tip is, and how fast the joints
turn.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.emulated_time import SharedTime, shared_time
from gaploop.core.arms import ARM_MODELS
from gaploop.core.errors import GaploopError
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray, LeaderSample, SafetyReason
from gaploop.core.protocols import Follower, Leader
from gaploop.core.station import Station
from gaploop.teleop import control as control_module
from gaploop.teleop.control import ControlThread
from gaploop.teleop.descent import HELD_KEY_S, Descent, take_torque_off
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.lerobot_devices.make import make_follower, make_leader
from gaploop.teleop.loop import Rates
from gaploop.teleop.safety import make_safety

WITHIN_S: Final = 0.2
"""What is to be let go of doesn't drive any more this long after the trip or the press [s]."""
DROP_M: Final = 0.03
"""The tip of an arm that is held or lowered falls no further [m]."""
LOWER_RAD_S: Final = 0.3
"""No joint of an arm that is lowered is faster [rad/s], over `WINDOW_S`."""
SPEED_TOLERANCE_RAD_S: Final = 0.03
"""How exactly that is measured: an encoder's step within the window is worth 0.015 [rad/s]."""
LOSSY_TOLERANCE_RAD_S: Final = 0.1
"""The same on a wire that loses or spoils packets: a lost goal comes with the next one [rad/s]."""
_LOSSY: Final = ("drop", "corrupt", "garbage", "slow")
WINDOW_S: Final = 0.1
DRIVE_S: Final = 1.5
"""Faults and presses begin within this time of the start [s]; then the session is ended."""
HOLD_S: Final = 1.0
"""An e-stop that nobody presses again is held so long; then the session is ended [s]."""
LONGEST_S: Final = 90.0
AFTER_S: Final = 2.0
"""The arm is watched for so long after all is over [s]."""
CONTROL_HZ: Final = 50.0
MODELS: Final = ("so101", "koch", "openmanipulator")
CASES: Final = {
    "1": "orderly end, error, leader lost",
    "2": "one servo hot or faulty",
    "3": "lost servo, stall, not following",
    "4": "e-stop, held, then ended",
    "5": "second press",
    "7": "no bus, or no power",
}
"""The cases of the law that a schedule can end in; 6 is the supervisor's."""
_FOLLOWER_FAULTS: Final = (
    "vanish", "overheat", "overload", "stuck", "reboot", "corrupt", "drop", "garbage", "slow",
    "unplug", "voltage",
)  # fmt: skip
_OUT_OF_REACH: Final = ("unplug", "voltage")
"""Without its supply an arm falls, whatever anybody does."""
_LEADER_FAULTS: Final = ("vanish", "corrupt", "drop", "garbage", "slow", "unplug")
_PRESSES: Final = ("estop", "leave", "raise")
_OF_ONE: Final = ("vanish", "overheat", "overload", "stuck", "reboot")


@dataclass(frozen=True)
class Schedule:
    """What happens in one run; times count from the start of the loop.

    Attributes:
        seed: draws it all, and the pose that the arm starts from.
        follower: faults of the follower's bus.
        leader: faults of the leader's bus.
        presses: when the e-stop is pressed, the session ended, or the leader raises [s].
        again_s: how long after the first press somebody presses again [s], or None.
    """

    seed: int
    model: str
    follower: tuple[Fault, ...] = ()
    leader: tuple[Fault, ...] = ()
    presses: tuple[tuple[float, str], ...] = ()
    again_s: float | None = None

    def __str__(self) -> str:
        def said(side: str, fault: Fault) -> str:
            servo = f" {fault.id}" if fault.id is not None else ""
            return f"{side} {fault.fault}{servo} at {fault.at_s:.2f} s"

        parts = [said("follower", f) for f in self.follower]
        parts += [said("leader", f) for f in self.leader]
        parts += [f"{kind} at {at_s:.2f} s" for at_s, kind in self.presses]
        parts += [] if self.again_s is None else [f"again after {self.again_s:.2f} s"]
        return f"seed {self.seed}, {self.model}: {', '.join(parts) or 'nothing'}"


@dataclass(frozen=True)
class ScheduleOutcome:
    """How one run went.

    Attributes:
        case: which case of the law it ended in, of `CASES`.
        trip: what tripped the filter, or why it ended.
        drop_m: how far the tip fell, from the end of the driving on, while a joint was faster than
            `LOWER_RAD_S` or nothing drove the arm [m].
        peak_rad_s: the fastest joint from then on, over `WINDOW_S` [rad/s].
        rest_s: from then until torque was off for good and nothing moved [s].
        off_s: from the trip or press that asks for it to the last reachable servo letting go [s].
        violations: what the law forbids.
        said: what the operator was told at the end.
    """

    schedule: Schedule
    case: str
    trip: str
    drop_m: float
    peak_rad_s: float
    rest_s: float
    off_s: float
    violations: tuple[str, ...]
    said: str

    @property
    def holds(self) -> bool:
        """Say whether the law was kept."""
        return not self.violations


def draw(seed: int) -> Schedule:
    """Draw a schedule: one to three things that happen."""
    rng = random.Random(seed)
    kinds = [(True, kind) for kind in _FOLLOWER_FAULTS] + [(False, kind) for kind in _LEADER_FAULTS]
    kinds += [(True, kind) for kind in _PRESSES for _ in range(3)]
    chosen = rng.choices(kinds, k=rng.choice((1, 1, 1, 2, 3)))
    faults = [(side, _fault(kind, rng)) for side, kind in chosen if kind not in _PRESSES]
    presses = [(rng.uniform(0.1, DRIVE_S), kind) for _, kind in chosen if kind in _PRESSES]
    return Schedule(
        seed,
        rng.choice(MODELS),
        tuple(fault for is_follower, fault in faults if is_follower),
        tuple(fault for is_follower, fault in faults if not is_follower),
        tuple(sorted(presses)),
        rng.uniform(0.3, 4.0) if rng.random() < 0.3 else None,
    )


def _fault(kind: str, rng: random.Random) -> Fault:
    endless = rng.random() < 0.5
    return Fault(
        kind,
        at_s=rng.uniform(0.1, DRIVE_S),
        for_s=3600.0 if endless else rng.uniform(0.01, 0.5),
        id=rng.randint(1, 6) if kind in _OF_ONE else None,
        rate=rng.uniform(0.01, 0.3),
        latency_s=rng.uniform(0.001, 0.06),
        jitter_s=rng.uniform(0.0, 0.02),
        value=rng.uniform(3.0, 5.0) if kind == "voltage" else None,
    )


class TorqueOffAtOnce(Descent):
    """What was done before this law: torque off after every trip, error and end."""

    def run(self) -> tuple[str, ...]:
        """Take torque off."""
        self.is_limp = True
        return take_torque_off(self._follower)


def run(
    schedule: Schedule,
    change: Callable[[Follower], Follower] = lambda arm: arm,
    descent: type[Descent] = Descent,
) -> ScheduleOutcome:
    """Drive an emulated pair through a schedule and watch the follower's servos.

    Args:
        schedule: what happens.
        change: stands between program and arm; a test spoils something with it.
        descent: what becomes of the arm; `TorqueOffAtOnce` for how it was.
    """
    with contextlib.ExitStack() as stack:
        module: Any = control_module
        stack.callback(setattr, module, "Descent", Descent)
        module.Descent = descent
        clock, buses = stack.enter_context(shared_time())
        follower_bus, follower, leader = stack.enter_context(_pair(schedule, clock, buses))
        rates, station = Rates.near(50.0, CONTROL_HZ), Station("emulated")
        safety = make_safety(station, follower, rates.period_s)
        raising = _Raising(leader)
        control = ControlThread(change(follower), raising, safety, rates, clock=clock)
        watch = _Watch(follower_bus, clock)
        script = _Script(schedule, control, safety, raising, clock.now_s(), clock)

        def turn() -> None:
            watch.sample()
            script.turn()

        for side, faults in (("follower", schedule.follower), ("leader", schedule.leader)):
            _schedule(buses[side], faults)
        clock.on_sleep = turn
        control.start()
        give_up_s = time.monotonic() + 120.0
        while not script.is_over and control.alive and time.monotonic() < give_up_s:
            time.sleep(0.002)
        clock.on_sleep = watch.sample
        said = ""
        try:
            control.finish()
        except (GaploopError, RuntimeError) as error:
            said = str(error)
        over_s = clock.now_s()
        while clock.now_s() < over_s + AFTER_S:
            clock.sleep_until(clock.now_s() + 1.0 / CONTROL_HZ)
            watch.sample()
        return _judge(schedule, script, watch, said)


class _Raising:
    """A leader that raises when it is told to, as a policy may."""

    def __init__(self, leader: Leader) -> None:
        self._leader, self.raises = leader, False
        self.reset, self.done = leader.reset, leader.done

    def read(self, t_s: float) -> LeaderSample:
        if self.raises:
            raise RuntimeError("the policy failed")
        return self._leader.read(t_s)


class _Script:
    """Presses what a schedule says, turn by turn, and takes note of what tripped when."""

    def __init__(
        self,
        schedule: Schedule,
        control: ControlThread,
        safety: Any,
        leader: _Raising,
        start_s: float,
        clock: SharedTime,
    ) -> None:
        self._schedule, self._control, self._safety = schedule, control, safety
        self._leader, self._start_s, self._clock = leader, start_s, clock
        self._left = list(schedule.presses)
        self._pressed = ""
        self._kinds = dict[str, float]()
        self._pressed_s = -1.0
        self.ends_s: float | None = None
        """When driving ended: the first trip, press or error [s]."""
        self.again_s: float | None = None
        """When somebody pressed a second time."""
        self.let_go_s: float | None = None
        """When what tripped asked to let go."""
        self.trip = SafetyReason.NONE
        self.ill: frozenset[int] = frozenset()
        self.held_s = math.inf
        """When an e-stop began to hold the arm."""
        self.is_over = False

    def turn(self) -> None:
        now_s, control, safety = self._clock.now_s(), self._control, self._safety
        mode = control.snapshot().mode.value
        if mode == "held":
            self.held_s = min(self.held_s, now_s)
        while self._left and now_s >= self._start_s + self._left[0][0] and mode != "tripped":
            self._press(self._left.pop(0)[1], now_s, mode)
        if safety.tripped:
            self.trip = safety.tripped
            if self.ends_s is None:
                self.ends_s = safety.tripped_at_s
            if safety.response.value == "let go" and self.let_go_s is None:
                self.let_go_s = now_s
        self.ill |= safety.ill
        again = self._schedule.again_s
        is_due = again is not None and self._pressed and now_s >= self._pressed_s + again
        if is_due and mode in ("held", "lowering") and self.again_s is None:
            self.again_s = now_s
            (control.estop if self._pressed == "estop" else control.leave)()
        held_s = now_s - max(self._pressed_s, self._start_s)
        if mode == "held" and held_s > HOLD_S + (again or 0.0):
            self._press("leave", now_s, mode)
        if now_s >= self._start_s + DRIVE_S and mode == "running" and self._pressed != "leave":
            self._press("leave", now_s, mode)
        self.is_over = mode in ("tripped", "ended") or now_s > self._start_s + LONGEST_S

    def _press(self, kind: str, now_s: float, mode: str) -> None:
        if kind == "raise":
            self._leader.raises = True
        else:
            (self._control.estop if kind == "estop" else self._control.leave)()
            is_new = now_s - self._kinds.get(kind, now_s) >= HELD_KEY_S  # else one press
            if kind == "leave" and mode == "held":  # the arm is lowered on
                is_new = False
            if is_new and self.again_s is None:
                self.again_s = now_s
            self._kinds[kind] = now_s
            self._pressed, self._pressed_s = kind, now_s
        if self.ends_s is None:
            self.ends_s = now_s


class _Watch:
    """Notes where an arm is, and which of its servos drive, at every turn."""

    def __init__(self, bus: EmulatedBus, clock: SharedTime) -> None:
        self._bus, self._clock = bus, clock
        self._arm = ArmModel.load(bus.plan.model)
        self.times_s: list[float] = []
        self.q_rad: list[list[float]] = []
        self.drives: list[list[bool]] = []
        self.load: list[list[float]] = []
        self.reachable = True

    def sample(self) -> None:
        """Look once."""
        bus = self._bus
        with bus.lock:
            bus.move_on()
            self.reachable &= not any(f.fault in _OUT_OF_REACH for f in bus.faults.active)
            self.times_s.append(self._clock.now_s())
            self.q_rad.append([servo.joint.q_rad for servo in bus.all_servos])
            self.load.append([servo.joint.duty for servo in bus.all_servos])
            self.drives.append(
                [s.torque and s.memory["Torque_Enable"] == 1 for s in bus.all_servos]
            )

    def tip_m(self, q_rad: FloatArray) -> FloatArray:
        """Return the tip's height at each of some poses [m]."""
        return np.array([self._arm.points_m(q)[0, 2] for q in q_rad])


def _judge(schedule: Schedule, script: _Script, watch: _Watch, said: str) -> ScheduleOutcome:
    ends_s = script.ends_s if script.ends_s is not None else watch.times_s[-1]
    times = np.array(watch.times_s)
    keep = times >= ends_s
    times, q = times[keep], np.array(watch.q_rad)[keep]
    load, driven = np.array(watch.load)[keep], np.array(watch.drives)[keep]
    # Speed over a window, of every joint at every look; the gripper's is the object's business.
    early = np.searchsorted(times, times - WINDOW_S)
    span = np.maximum(times - times[early], WINDOW_S)
    speed = np.abs(q - q[early]) / span[:, None]
    arm = slice(0, q.shape[1] - 1)
    fast = speed[:, arm].max(axis=1)
    # The arm comes to a stand from what it was doing first.
    in_charge = driven[:, arm].any(axis=1)
    settled = (times >= ends_s + 0.4) | ~in_charge
    peak = float(fast[settled].max(initial=0.0))
    tip = watch.tip_m(q)
    falls = np.concatenate([[0.0], np.maximum(tip[:-1] - tip[1:], 0.0)])
    counts = settled & ((fast > LOWER_RAD_S + SPEED_TOLERANCE_RAD_S) | ~in_charge)
    drop = float(falls[counts].sum())
    moves = np.flatnonzero((fast > 0.02) | in_charge)
    rest_s = float(times[min(moves[-1] + 1, len(times) - 1)] - ends_s) if len(moves) else 0.0
    reachable = np.full(q.shape[1], watch.reachable)
    let_go_s, because = script.again_s, "5"
    if script.let_go_s is not None and (let_go_s is None or script.let_go_s < let_go_s):
        let_go_s, because = script.let_go_s, "3"
    if not watch.reachable:
        case = "7"
    elif let_go_s is not None:
        case = because
    elif script.ill:
        case = "2"
    else:
        case = "4" if script.trip & SafetyReason.ESTOP else "1"
    violations = []
    lossy = any(fault.fault in _LOSSY for fault in schedule.follower)
    most = LOWER_RAD_S + (LOSSY_TOLERANCE_RAD_S if lossy else SPEED_TOLERANCE_RAD_S)
    off_s = 0.0
    if case in ("3", "5"):
        assert let_go_s is not None
        still = times[driven[:, reachable].any(axis=1)]
        off_s = max(float(still.max(initial=let_go_s)) - let_go_s, 0.0)
        if off_s > WITHIN_S:
            violations.append(f"let go after {1e3 * off_s:.0f} ms")
    if case in ("1", "4"):
        if drop > DROP_M:
            violations.append(f"the tip fell {100 * drop:.1f} cm")
        if peak > most:
            violations.append(f"{peak:.2f} rad/s")
    if case == "2":
        others = [k for k in range(q.shape[1]) if k not in script.ill]
        first_off = times[~driven[:, others].all(axis=1)].min(initial=times[-1])
        ill_off = times[~driven[:, list(script.ill)].any(axis=1)].min(initial=times[-1])
        if first_off < ill_off - 1e-6:
            violations.append("others were released before the servo that is ill")
    if case == "4":
        held = (times >= script.held_s + 0.3) & (times < script._pressed_s)
        if held.any():
            turned = float(np.abs(q[held] - q[held][0])[:, arm].max())
            grown = float((np.abs(load[held]) - np.abs(load[held][0]))[:, arm].max())
            if turned > 0.03 or grown > 0.03:
                violations.append(f"held: moved {turned:.3f} rad, load grew {100 * grown:.0f} %")
            if not driven[held].all():
                violations.append("held without torque")
    if watch.reachable and driven[-1].any():
        violations.append("torque stays on")
    trip = (script.trip & ~SafetyReason.TRIPPED).name or "none"
    return ScheduleOutcome(schedule, case, trip, drop, peak, rest_s, off_s, tuple(violations), said)


def _schedule(bus: EmulatedBus, faults: tuple[Fault, ...]) -> None:
    """Let faults begin, timed from now; their ids count the servos from 1."""
    ids = list(bus.servos)
    for fault in faults:
        servo = None if fault.id is None else ids[fault.id - 1]
        bus.faults.add(replace(fault, at_s=bus.age_s() + fault.at_s, id=servo))


def random_pose(model: str, rng: np.random.Generator) -> FloatArray:
    """Return a pose of an arm [rad] whose points are in its workspace box, 4 cm above the table."""
    arm = ArmModel.load(model)
    low, high = np.array(ARM_MODELS[model].workspace_m).T
    low_rad, high_rad = arm.joint_limits_rad.T
    while True:
        q: FloatArray = rng.uniform(0.95 * low_rad, 0.95 * high_rad)
        points = arm.points_m(q)
        if (points > low).all() and (points[:, 2] > 0.04).all() and (points < high).all():
            return q


type Pair = tuple[EmulatedBus, Any, Any]


@contextlib.contextmanager
def _pair(schedule: Schedule, clock: SharedTime, buses: dict[str, EmulatedBus]) -> Iterator[Pair]:
    """Connect an emulated follower in a random pose and its leader, which a hand waves."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, seed = schedule.model, schedule.seed
        for i, (role, hand) in enumerate((("follower", "still"), ("leader", "wave"))):
            bus = EmulatedBus(model, role, hand=hand, seed=seed + i, clock=clock, serve=False)
            buses[role] = stack.enter_context(bus)
            bus.wire_time = False  # connecting is not what is measured
            (folder / f"{role}.json").write_text(json.dumps(bus.plan.calibration()))
        start_rad = random_pose(model, np.random.default_rng(seed))
        own = buses["follower"]
        for servo, q_rad in zip(own.all_servos, start_rad.tolist(), strict=True):
            servo.joint.q_rad = q_rad
            servo.hold_here()
        own.hand.pose(start_rad.tolist())  # until it holds itself
        robot, teleop = _configs(model)
        follower = make_follower(
            robot(port="follower", id="follower", calibration_dir=folder), Station("e"), clock
        )
        stack.callback(_quietly_close, follower)
        leader = make_leader(
            teleop(port="leader", id="leader", calibration_dir=folder), follower, clock
        )
        stack.callback(_quietly_close, leader)
        for bus in buses.values():
            bus.wire_time = True
        follower.torque_on()
        own.hand.set_mode("none")
        yield own, follower, leader


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
