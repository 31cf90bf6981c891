"""A connected arm, before a policy may move it: limits, each joint, the loop, the emergency stop.

Each joint makes a test motion, a few degrees, slowly, through the safety filter. What the encoders
can tell: the joint that was asked for moves, that way and that far, and no other does. What they
can't: two servos whose ids are swapped answer for each other, command and encoder alike. So
somebody who watches the arm says which joint moved, without being told which one it should have
been, in an order that is drawn.
"""

import itertools
import logging
import math
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import (
    NO_REPLY,
    REBOOTED,
    SPEED,
    FloatArray,
    FollowerState,
    LeaderSample,
    SafetyReason,
    Tick,
)
from gaploop.core.protocols import Follower, TakeSink
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain
from gaploop.teleop.checks import By, CheckResult, Level, Person
from gaploop.teleop.control import ControlThread, LoopMode
from gaploop.teleop.leaders.motion import Dwell, Smooth, Trajectory
from gaploop.teleop.loop import Rates
from gaploop.teleop.safety import make_safety
from gaploop.teleop.stopping import CleanupStep
from gaploop.teleop.trips import say_reasons, say_to_do
from gaploop.teleop.workspace import WorkspaceGuard

log = logging.getLogger(__name__)

LIMITS: Final = "limits"
JOINT_ORDER: Final = "joint_order"
ESTOP: Final = "estop"
MEASURE: Final = "measure"
DAMPING: Final = "damping"
AT_STOP_RAD: Final = 0.1
"""A joint at rest on its stop may read this much beyond its limit [rad]."""
SWING_RAD: Final = 0.1
"""How far a joint moves [rad]: 6°, several times a hobby servo's play and dead zone."""
VELOCITY_RAD_S: Final = 0.25
ACCELERATION_RAD_S2: Final = 2.0
MEASURED_RAD: Final = 0.3
"""How far a joint moves whose delay, play and gain are measured, where it has room [rad]."""
MEASURED_RAD_S: Final = 0.8
MEASURED_ROUNDS: Final = 3
HELD_S: Final = 0.4
"""It stays there this long, to settle and to be seen [s]."""
MOVED: Final = 0.6
"""A joint that came this share of the way has moved."""
STILL: Final = 0.3
"""A joint that came less than this share of the way has not."""
MARGIN_RAD: Final = 0.03
"""Kept off the joint limits [rad]."""
SETTLED_S: Final = 4.0
"""An arm that has begun to hold gets so long to come to rest [s]."""
RESTS_S, RESTS_RAD = 0.4, 0.004
"""What moves by less in so long rests."""
LATE_S: Final = 60.0
"""The motion may take this much longer than it should [s]: a busy machine is told of elsewhere."""
SETTLED_TURNS: Final = 20
"""The loop's first turns are late: caches are cold."""
LOWERED_S: Final = 120.0
"""An arm is down after this long at most [s]."""
SLACK_S: Final = 0.2
"""Torque is off this much after the hold that the station asks for, at most [s]."""
PRESS_S: Final = 30.0
"""How long a press of the switch is waited for [s]."""
SILENT_S: Final = 2.0
"""An arm that reports nothing for this long has lost its power, or its bus [s]."""
SAG: Final = 0.7
"""A supply below this share of what it was has been cut."""
POLL_S: Final = 0.005
DROPS_S: Final = 1.0
"""After this long a limp arm has come to rest [s]."""
HANDS_OFF_S: Final = 3.0
"""Time to let go of an arm that holds by itself [s]."""
FALL_RAD: Final = 0.1
"""A joint that is let go of to see whether it brakes falls this far: 6° [rad]."""
FALL_S: Final = 1.0
"""It is caught after this long at the latest [s]."""
FALL_ROOM_RAD: Final = 0.4
"""Both falls, and what it takes to catch them, have to fit between limits and box [rad]."""
FALLS_PCT: Final = 3.0
"""A joint that holds up less than this is held by its gears [% of stall]."""
DAMPED: Final = 0.5
"""A motor that brakes lets the joint fall at less than this share of its free speed."""
FIX_JOINT: Final = "Look for what holds it, and for a cable or an id that is wrong: gaploop doctor."
FIX_IDS: Final = (
    "Set the ids, one motor at a time: lerobot-setup-motors; then lerobot-calibrate. Episodes that "
    "were recorded with swapped ids have swapped joints, too."
)


# --- limits ------------------------------------------------------------------------------------


def check_limits(
    station: Station, follower: Follower, period_s: float, has_file: bool
) -> Iterator[CheckResult]:
    """Yield what the safety filter will hold the arm to, and whether the arm stands within it.

    `has_file` says that somebody wrote a station file for this cell.
    """
    try:
        safety = make_safety(station, follower, period_s)
    except UnusableInputError as error:
        yield CheckResult(LIMITS, Level.FAIL, str(error), "Correct the station file.")
        return
    limits_rad = station.joint_limits(follower.joint_names, follower.joint_limits_rad)
    q_rad = follower.read().position_rad
    data: dict[str, Any] = {"q_rad": q_rad.tolist()}
    beyond = np.maximum(limits_rad[:, 0] - q_rad, q_rad - limits_rad[:, 1])
    out = [f"{follower.joint_names[j]} by {beyond[j]:.2f} rad"
           for j in np.flatnonzero(beyond > AT_STOP_RAD)]  # fmt: skip
    try:
        safety.reset(q_rad)
    except DeviceError as error:
        yield CheckResult(LIMITS, Level.FAIL, str(error), "Run: lerobot-calibrate", data)
    else:
        found, fix = "the arm stands inside its joint limits", ""
        if out:
            found = f"the arm stands outside its joint limits: {', '.join(out)}"
            fix = "Put it inside by hand; if it is inside, run lerobot-calibrate."
        yield CheckResult(LIMITS, Level.FAIL if out else Level.OK, found, fix, data)

    boxes, limits = len(safety.guards), safety.limits
    found = (
        f"{limits.velocity_rad_s:g} rad/s, {limits.acceleration_rad_s2:g} rad/s², trips at "
        f"{limits.stall_current_a:g} A for {limits.stall_s:g} s, torque off after "
        f"{limits.torque_off_s:g} s; {f'{boxes} workspace box(es)' if boxes else 'no box'}"
    )
    data = {"boxes": boxes, "velocity_rad_s": limits.velocity_rad_s, "station": station.name}
    level, fix = Level.OK, ""
    if not boxes:
        level = Level.WARN
        fix = "Give the station a robot_model, so that the arm can be kept off table and people."
    elif not has_file and station.domain is Domain.REAL:
        level = Level.WARN
        found += "; the arm model's own box, for no station file says what is around the arm"
        fix = "Write a station.yaml with the cell's workspace and name it: --station=FILE"
    yield CheckResult(LIMITS, level, found, fix, data)


# --- what moves the arm ------------------------------------------------------------------------


def check_moving(
    follower: Follower,
    clock: Clock,
    station: Station,
    rates: Rates,
    person: Person,
    checks: Collection[str] = (JOINT_ORDER, ESTOP),
    sinks: Sequence[TakeSink] = (),
) -> Iterator[CheckResult]:
    """Hold the arm, move its joints, stop it, have its power cut; Ctrl-C lowers it.

    `checks` may name `MEASURE`, too: one joint falls twice, before anything else, and all go
    further and faster, several times; the emergency stop is pressed in such a motion. `sinks` are
    told each turn in which the arm is held.
    """
    safety = make_safety(station, follower, rates.period_s)
    limits_rad = station.joint_limits(follower.joint_names, follower.joint_limits_rad)
    speeds = sum(name.endswith(SPEED) for name in follower.joint_names)
    leader, lateness = OneJoint(follower.read().position_rad, limits_rad, speeds), Lateness()
    is_simulated = station.domain is Domain.SIM
    if not is_simulated:
        log.info(
            "The arm now holds, and moves joint by joint. Keep clear. Space is the emergency stop; "
            "Ctrl-C lowers it."
        )
    control = ControlThread(
        follower,
        leader,
        safety,
        rates,
        clock=clock,
        sinks=(leader, lateness, *sinks),
        until_done=False,
    )
    with (
        control,
        control.signals() as stopped,
        person.listening(control.estop, lambda: bool(stopped)),
    ):
        try:
            if MEASURE in checks:
                yield check_damping(follower, clock, limits_rad, safety.guards, person)
        finally:  # whatever became of it, the arm is held from here on, and lowered
            leader.hold(follower.read().position_rad)
            control.start()
        if JOINT_ORDER not in checks:
            control.stop()
            control.wait(LOWERED_S)
            return
        watcher, seed = None if is_simulated else person, secrets.randbelow(2**31)
        try:
            yield from check_joints(control, leader, follower.joint_names, watcher, seed)
        except DeviceError:
            if stopped:
                raise KeyboardInterrupt from None
            raise
        if person.stopped:
            found = "stopped with the emergency stop" if person.is_there else "nobody is there"
            fix = "Check again from the start."
            yield CheckResult(ESTOP, Level.FAIL, found, fix, by=By.PERSON)
            return
        if MEASURE in checks:
            for joint in [*leader.joints] * MEASURED_ROUNDS:
                _move(control, leader, joint, MEASURED_RAD, MEASURED_RAD_S)
        yield lateness.check(rates.period_s, station.domain)
        moved = leader if MEASURE in checks else None
        yield check_estop(control, follower, safety.limits.torque_off_s, moved)
        if not is_simulated:
            yield check_switch(follower, person)
    if stopped:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Moved:
    """What one joint's motion did; `asked_rad` has a sign, and is 0 where there was no room."""

    joint: int
    asked_rad: float
    travel_rad: FloatArray
    tripped: str = ""
    boxed: bool = False

    def fault(self, names: Sequence[str]) -> str:
        """Return what the encoders show to be wrong, or ""."""
        name = names[self.joint]
        if self.tripped:
            return f"{name}: {self.tripped}"
        if self.asked_rad == 0.0:
            return f"{name} has no room to move in its limits"
        share = self.travel_rad / self.asked_rad
        others = [j for j in range(len(names)) if j != self.joint and abs(share[j]) > STILL]
        if others:
            moved = ", ".join(names[j] for j in others)
            stood = abs(share[self.joint]) < STILL
            return (
                f"{name} was asked to move and {moved} moved{' in its place' if stood else ' too'}"
            )
        if self.boxed:
            return f"{name} would leave the workspace box: put the arm into the middle of it"
        if share[self.joint] < -STILL:
            return f"{name} moves the wrong way"
        if share[self.joint] < STILL:
            return f"{name} doesn't move: it is stuck, or its servo is"
        if share[self.joint] < MOVED:
            return f"{name} came only {share[self.joint]:.0%} of the way"
        return ""


class OneJoint:
    """A `Leader` that holds the arm and moves one joint when told to; a `TakeSink` of the loop.

    The last `speeds` are those of a base, which stands.
    """

    def __init__(self, start_rad: FloatArray, limits_rad: FloatArray, speeds: int = 0) -> None:
        low, high = limits_rad.T
        self._room = (low + MARGIN_RAD, high - MARGIN_RAD)
        self.joints = range(len(start_rad) - speeds)
        """Those that may be moved."""
        self.hold(start_rad)
        self._motion: Trajectory | None = None
        self._began_s = math.nan
        self._held: list[FloatArray] = []
        self._before: FloatArray = start_rad
        self.position_rad: FloatArray = start_rad
        """Where the arm was last [rad], shape (n_joints,)."""
        self._told_s = math.nan
        self.finished = True
        self.boxed = False

    def reset(self) -> None:
        """Get ready; there is nothing to do."""

    def hold(self, q_rad: FloatArray) -> None:
        """Hold the arm here from now on [rad], shape (n_joints,), inside its limits."""
        low, high = self._room
        self._home = np.clip(q_rad, low - MARGIN_RAD, high + MARGIN_RAD)
        self._home[len(self.joints) :] = 0.0

    def begin(
        self, joint: int, far_rad: float = SWING_RAD, velocity_rad_s: float = VELOCITY_RAD_S
    ) -> float:
        """Move `joint` out and back from now on; return how far [rad], 0 where it has no room.

        Where it can't go `far_rad` [rad], it goes as far as in the test motion.
        """
        low, high = (bound[joint] for bound in self._room)
        at = self._home[joint]
        side = 1.0 if high - at >= at - low else -1.0
        ways = (side * far_rad, side * SWING_RAD)
        way_rad = next((way for way in ways if low <= at + way <= high), 0.0)
        if way_rad == 0.0:
            return 0.0
        out = self._home.copy()
        out[joint] += way_rad
        there = Smooth.within(self._home, out, velocity_rad_s, ACCELERATION_RAD_S2)
        back = Smooth(out, self._home, there.duration_s)
        self._held_from_s = there.duration_s + 0.5 * HELD_S
        self._held_to_s = there.duration_s + HELD_S
        self._before, self._held, self._began_s = self.position_rad, [], math.nan
        self.finished = self.boxed = False
        self._motion = Trajectory([there, Dwell(out, HELD_S), back])
        return way_rad

    @property
    def is_complete(self) -> bool:
        """Whether it has heard of all turns in which the joint was held."""
        return self._told_s - self._began_s > self._held_to_s

    @property
    def duration_s(self) -> float:
        """How long the motion takes that is on [s]."""
        motion = self._motion
        return 0.0 if motion is None else motion.duration_s + 0.5 * HELD_S

    @property
    def travel_rad(self) -> FloatArray:
        """How far every joint had come while it was held [rad], shape (n_joints,)."""
        held = np.median(self._held, axis=0) if self._held else self._before
        return np.asarray(held - self._before)

    def read(self, t_s: float) -> LeaderSample:
        """Return the goal at loop time `t_s` [s]."""
        motion = self._motion
        if motion is None:
            return LeaderSample(t_s, self._home)
        if math.isnan(self._began_s):
            self._began_s = t_s
        since_s = t_s - self._began_s
        if since_s > self.duration_s:
            self._motion, self.finished = None, True
        return LeaderSample(t_s, motion.at(since_s))

    def tick(self, tick: Tick) -> None:
        """Take note of where the arm is."""
        self.position_rad, self._told_s = tick.state.position_rad, tick.leader.t_s
        self.boxed |= not self.finished and bool(tick.command.reasons & SafetyReason.WORKSPACE)
        if not math.isnan(self._began_s):
            since_s = tick.leader.t_s - self._began_s
            if self._held_from_s <= since_s <= self._held_to_s:
                self._held.append(self.position_rad)

    def done(self) -> bool:
        """Return False: the arm is held between motions."""
        return False


def check_joints(
    control: ControlThread, leader: OneJoint, names: Sequence[str], person: Person | None, seed: int
) -> Iterator[CheckResult]:
    """Move every joint a few degrees and back, in an order drawn by `seed`; say what is wrong.

    `control` runs, led by `leader`, and tells it its turns. `person` watches the arm and says what
    moved; None where there is nothing to watch.

    Raises:
        DeviceError: the control loop has ended, or stands still.
    """
    _settle(control, leader)
    for joint in np.random.default_rng(seed).permutation(len(leader.joints)).tolist():
        moved = _move(control, leader, joint)
        fault = moved.fault(names)
        data = {
            "joint": names[joint],
            "asked_rad": moved.asked_rad,
            "came_rad": moved.travel_rad.tolist(),
        }
        if fault:
            yield CheckResult(JOINT_ORDER, Level.FAIL, fault, FIX_JOINT, data)
            if moved.tripped:
                return
            continue
        found = f"{names[joint]} came {moved.travel_rad[joint] / moved.asked_rad:.0%} of the way"
        found += ", nothing else moved"
        if person is None:
            yield CheckResult(JOINT_ORDER, Level.OK, found, data=data)
            continue
        choices = {str(n + 1): names[n] for n in leader.joints}
        choices |= {"r": "again", "0": "none or several of them"}
        while (answer := person.ask("Which joint has just moved?", choices)) == "r":
            if _move(control, leader, joint).tripped:  # it won't move any more
                answer = None
                break
        level, fix = Level.FAIL, FIX_IDS
        if answer is None:
            level, fix = Level.UNANSWERED, "Run it in a terminal, with somebody who sees the arm."
            found += "; nobody said which joint that was"
        elif answer == str(joint + 1):
            level, fix = Level.OK, ""
            found += "; seen to move"
        else:
            seen = choices.get(answer, answer)
            found = f"{names[joint]} was asked to move, and somebody saw: {seen}"
        yield CheckResult(JOINT_ORDER, level, found, fix, {**data, "answer": answer}, by=By.PERSON)


def _settle(control: ControlThread, leader: OneJoint) -> None:
    """Wait until an arm that has just begun to hold rests: weight pulls it a little from there."""
    give_up_s = time.monotonic() + SETTLED_S
    while control.alive and time.monotonic() < give_up_s:
        before_rad = leader.position_rad
        time.sleep(RESTS_S)
        if np.abs(leader.position_rad - before_rad).max() < RESTS_RAD:
            return


def _move(
    control: ControlThread,
    leader: OneJoint,
    joint: int,
    far_rad: float = SWING_RAD,
    velocity_rad_s: float = VELOCITY_RAD_S,
) -> Moved:
    asked_rad = leader.begin(joint, far_rad, velocity_rad_s)
    if asked_rad == 0.0:
        return Moved(joint, 0.0, np.zeros_like(leader.travel_rad))
    give_up_s = time.monotonic() + leader.duration_s + LATE_S
    while not (leader.finished and leader.is_complete):
        tripped = control.snapshot().tripped
        if tripped:
            said = f"{say_reasons(tripped)} ({say_to_do(tripped)})"
            return Moved(joint, asked_rad, leader.travel_rad, said)
        if not control.alive or time.monotonic() > give_up_s:
            raise DeviceError("The control loop stood still in the test motion. Try again.")
        time.sleep(POLL_S)
    return Moved(joint, asked_rad, leader.travel_rad, boxed=leader.boxed)


def check_damping(
    follower: Follower,
    clock: Clock,
    limits_rad: FloatArray,
    guards: Sequence[WorkspaceGuard],
    person: Person,
) -> CheckResult:
    """Let the joint that carries most fall a few degrees, braked and free, and compare its speeds.

    The arm holds afterwards, as it did in between. `limits_rad` has shape (n_joints, 2).
    """
    device: Any = follower
    if not getattr(device, "damps", False):
        found = "these servos have no mode that brakes: without torque, joints fall freely"
        return CheckResult(DAMPING, Level.OK, found, data={"damps": False})
    again = "Try again with the arm stretched forward, over free space."
    question = (
        "Stretch the arm forward by hand, over free space, nothing under it, and keep it there "
        "until it holds by itself. Then one joint falls twice, by a few degrees. Shall it?"
    )
    if person.ask(question, {"y": "yes", "n": "no"}) != "y":
        found, fix = "nobody said yes", "Run it in a terminal, with somebody beside the arm."
        return CheckResult(DAMPING, Level.UNANSWERED, found, fix, by=By.PERSON)
    follower.torque_on()
    person.instruct(f"It holds: take your hands off ({HANDS_OFF_S:.0f} s).")
    clock.sleep_until(clock.now_s() + HANDS_OFF_S)
    state = follower.read()
    q_rad, load_pct = state.position_rad, np.abs(np.nan_to_num(state.load_pct))
    for joint in np.argsort(-load_pct).tolist():
        ends = q_rad[joint] - FALL_ROOM_RAD, q_rad[joint] + FALL_ROOM_RAD
        has_room = limits_rad[joint, 0] < ends[0] and ends[1] < limits_rad[joint, 1]
        for guard, end in itertools.product(guards, ends):
            wanted = q_rad.copy()
            wanted[joint] = end
            own = guard.joints
            may = guard.limit(q_rad[own].tolist(), wanted[own].tolist())
            has_room &= bool(np.allclose(may, wanted[own]))
        if has_room and load_pct[joint] >= FALLS_PCT:
            break
    else:
        found = "no joint carries weight here and has room to fall"
        return CheckResult(DAMPING, Level.UNANSWERED, found, again)
    name = follower.joint_names[joint]
    speeds_rad_s = []
    for damped in (True, False):
        follower.torque_on()
        clock.sleep_until(clock.now_s() + HELD_S)
        try:
            device.release([joint], damped=damped)
            speeds_rad_s.append(_fall_rad_s(follower, clock, joint, person))
        finally:
            follower.torque_on()
    braked, free = np.degrees(speeds_rad_s).tolist()
    data = {"damps": braked < DAMPED * free, "joint": name, "deg_s": [braked, free]}
    if free == 0.0:
        return CheckResult(DAMPING, Level.UNANSWERED, f"{name} doesn't fall here", again, data)
    found = f"{name} fell at {braked:.0f} deg/s with its motor braking, at {free:.0f} without"
    if data["damps"]:
        return CheckResult(DAMPING, Level.OK, f"damped: {found}", data=data)
    fix = "An arm that is let go of in the air falls: end sessions with q, which lowers it."
    return CheckResult(DAMPING, Level.WARN, f"not damped: {found}", fix, data)


def _fall_rad_s(follower: Follower, clock: Clock, joint: int, person: Person) -> float:
    """Return how fast a joint goes in the second half of a fall of `FALL_RAD` [rad/s]; 0 if not."""
    began_s = clock.now_s()
    start_rad = follower.read().position_rad[joint]
    half_s = half_rad = 0.0
    while (now_s := clock.now_s()) - began_s < FALL_S and not person.stopped:
        fell_rad = abs(follower.read().position_rad[joint] - start_rad)
        if not half_s and fell_rad >= FALL_RAD / 2:
            half_s, half_rad = now_s, fell_rad
        if fell_rad >= FALL_RAD and now_s > half_s:
            return float((fell_rad - half_rad) / (now_s - half_s))
        clock.sleep_until(now_s + POLL_S)
    return float((fell_rad - half_rad) / (now_s - half_s)) if half_s else 0.0


class Lateness:
    """A `TakeSink` that keeps how late the loop's turns began."""

    def __init__(self) -> None:
        self.late_s: list[float] = []

    def tick(self, tick: Tick) -> None:
        """Take note of one turn."""
        self.late_s.append(tick.lateness_s)

    def check(self, period_s: float, domain: Domain) -> CheckResult:
        """Return whether turns began before the next one was due."""
        late_s = self.late_s[SETTLED_TURNS:] or [0.0]
        worst_s = float(np.quantile(late_s, 0.99))
        data = {"late_p99_s": worst_s, "period_s": period_s, "turns": len(late_s)}
        found = f"turns of {period_s * 1e3:.0f} ms began at most {worst_s * 1e3:.2f} ms late (p99)"
        if worst_s <= period_s:
            return CheckResult("loop", Level.OK, found, data=data)
        level = Level.FAIL if domain is Domain.REAL else Level.WARN
        fix = "End other programs; grant real-time rights: gaploop doctor"
        return CheckResult("loop", level, found, fix, data)


def check_estop(
    control: ControlThread, follower: Follower, hold_s: float, leader: OneJoint | None = None
) -> CheckResult:
    """Press the program's emergency stop, the one behind the space bar, and time it.

    It holds the arm, once the trip has lasted `hold_s` [s]; then the arm is lowered, and limp. With
    `leader` it is pressed while a joint moves; how far that goes on is measured, and how far joints
    drop once they are limp.
    """
    if tripped := control.snapshot().tripped:
        found = f"not tried: the arm had tripped before ({tripped.name})"
        return CheckResult(ESTOP, Level.FAIL, found, "Fix that, then check again.")
    clock = control.clock
    joint, before = _in_motion(control, leader) if leader is not None else (-1, None)
    pressed_s = clock.now_s()
    control.estop()
    allowed_s = hold_s + SLACK_S
    while control.snapshot().mode is not LoopMode.HELD:
        if clock.now_s() - pressed_s > 2 * allowed_s + 1.0 or not control.alive:
            break
        time.sleep(POLL_S)
    took_s = clock.now_s() - pressed_s
    is_held = control.snapshot().mode is LoopMode.HELD
    data: dict[str, Any] = {"took_s": took_s, "allowed_s": allowed_s}
    if before is not None and (state := control.snapshot().state) is not None:
        way_rad = state.position_rad[joint] - before.position_rad[joint]
        data["stop"] = {
            "joint": follower.joint_names[joint],
            "from_deg_s": round(float(np.degrees(abs(before.velocity_rad_s[joint]))), 1),
            "way_deg": round(float(np.degrees(abs(way_rad))), 2),
        }
    control.stop()
    if leader is None:
        control.wait(LOWERED_S)
    else:
        data["drop_deg"] = _drop_deg(control, follower)
    try:
        follower.torque_off()
    except DeviceError as error:
        return CheckResult(ESTOP, Level.FAIL, str(error), "Switch the power off.", data)
    found = f"the arm held {took_s * 1e3:.0f} ms after the program's stop, and was then lowered"
    if is_held and took_s <= allowed_s:
        return CheckResult(ESTOP, Level.OK, found, data=data)
    fix = "The machine is too busy, or real-time rights are missing: gaploop doctor"
    return CheckResult(ESTOP, Level.FAIL, found, fix, data)


def _in_motion(control: ControlThread, leader: OneJoint) -> tuple[int, FollowerState | None]:
    """Return a joint half way through its motion, and the arm's state; None if none has room."""
    for joint in leader.joints:
        start, way_rad = control.snapshot().state, leader.begin(joint, MEASURED_RAD, MEASURED_RAD_S)
        give_up_s = time.monotonic() + LATE_S
        while abs(way_rad) == MEASURED_RAD and time.monotonic() < give_up_s and control.alive:
            state = control.snapshot().state
            if start is not None and state is not None:
                went_rad = state.position_rad[joint] - start.position_rad[joint]
                if abs(went_rad) > 0.5 * MEASURED_RAD:
                    return joint, state
            time.sleep(POLL_S / 5)
    return -1, None


def _drop_deg(control: ControlThread, follower: Follower) -> float | None:
    """Wait until the arm was lowered and is limp; return how far joints dropped then [deg].

    None where it wasn't lowered, or nothing answers.
    """
    held_rad, give_up_s = None, time.monotonic() + LOWERED_S
    while control.alive and time.monotonic() < give_up_s:
        state = control.snapshot().state
        if state is not None and control.snapshot().mode is LoopMode.LOWERING:
            held_rad = state.position_rad
        time.sleep(POLL_S)
    if held_rad is None:
        return None
    time.sleep(DROPS_S)
    drop_deg = np.degrees(np.abs(follower.read().position_rad - held_rad))
    return round(float(np.max(drop_deg)), 2) if np.isfinite(drop_deg).all() else None


def _volts(state: FollowerState) -> float:
    """Return the supply's voltage [V]; NaN where no servo reports it."""
    known = state.voltage_v[np.isfinite(state.voltage_v)]
    return float(np.median(known)) if len(known) else math.nan


def check_switch(follower: Follower, person: Person) -> CheckResult:
    """Have the switch pressed that cuts the power of a limp arm, and see it on the bus."""

    def asked() -> FollowerState | None:
        with CleanupStep():
            return follower.read()
        return None

    before = asked()
    volts = _volts(before) if before is not None else math.nan
    what = (
        "Cut the arm's power now, with its emergency stop, or the supply's switch or plug "
        f"({PRESS_S:.0f} s)."
    )
    if not person.instruct(what):
        found = "nobody is there to press the arm's emergency stop"
        fix = "Run it in a terminal, with somebody beside the arm."
        return CheckResult(ESTOP, Level.UNANSWERED, found, fix, by=By.PERSON)
    began_s = heard_s = time.monotonic()
    newest, why = before, ""
    while (now_s := time.monotonic()) - began_s < PRESS_S and not why:
        time.sleep(POLL_S)
        if (state := asked()) is not None:
            newest, heard_s = state, now_s
        if newest is not None:
            if (newest.status & NO_REPLY).all():
                why = "no servo answers"
            elif (newest.status & REBOOTED).any():
                why = "a servo lost power"
            elif (fell_to_v := _volts(newest)) < SAG * volts:
                why = f"the supply fell to {fell_to_v:.1f} V"
        if not why and now_s - heard_s > SILENT_S:
            why = "the bus is silent"
    if not why:
        found = f"the arm's power wasn't cut within {PRESS_S:.0f} s"
        fix = "Put a switch into the supply's lead where the operator reaches it, and press it."
        return CheckResult(ESTOP, Level.FAIL, found, fix)
    # What follows shall find an arm that answers.
    person.instruct(f"That works. Switch it on again ({PRESS_S:.0f} s).")
    give_up_s = time.monotonic() + PRESS_S
    while time.monotonic() < give_up_s:
        state = asked()
        if state is not None and not (state.status & NO_REPLY).any():
            break
        time.sleep(POLL_S)
    found = f"the switch cuts the arm's power: {why}"
    return CheckResult(ESTOP, Level.OK, found, data={"seen": why})
