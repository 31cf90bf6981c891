"""LeRobot arms on servo buses as our Follower and Leader, with all telemetry in one exchange."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.messages import (
    NO_REPLY,
    SPEED,
    FloatArray,
    FollowerState,
    LeaderSample,
    SafeCommand,
    SafetyReason,
    Tick,
    leader_joint,
)
from gaploop.core.protocols import BaseDriver, Follower
from gaploop.teleop.lerobot_devices.arm import ConnectedArm, joined
from gaploop.teleop.lerobot_devices.generic import OwnUnits
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.calibration import WHOLE_TURN_TICKS
from gaploop.teleop.servos.exchange import Script, run, send_ahead
from gaploop.teleop.servos.port import is_emulated_here
from gaploop.teleop.servos.registers import RAD_PER_TICK, TICKS_PER_TURN, BusState, describe_error
from gaploop.teleop.servos.torque import DAMPED, torque_off, torque_on
from gaploop.teleop.stopping import undisturbed
from gaploop.teleop.supervisor import SupervisedBus

FRESH_S: Final = 0.1
"""A reading that waited for longer than this is read again [s]."""
AHEAD_S: Final = 0.01
"""In turns no further apart than this, readings are asked for once the goals are out, and fetched
in the next turn [s]."""
LOCK_S: Final = 0.1
"""An exchange has its own deadline, far below this; torque-off doesn't wait longer [s]."""
DAMP_TRIES: Final = 2
BEYOND_RAD: Final = 0.15
"""A joint may stand so far beyond its range: a servo whose goal is there goes to the end [rad]."""
HALF_TURN_TICKS: Final = TICKS_PER_TURN / 2


class ServoArms:
    """What a follower and a leader made of servo arms have in common."""

    may_hold_words = limp_words = "Torque off isn't confirmed by {}. Switch the arm's power off."
    """What is said of joints that didn't confirm it."""

    def __init__(self, device: Any, arms: Sequence[ConnectedArm], group: BusGroup) -> None:
        self.device = device
        """LeRobot's device as a whole: a pair that nobody refers to disconnects its arms."""
        self.arms = tuple(arms)
        self.group = group
        self.buses = [arm.bus for arm in arms]
        self.ports = tuple(arm.port.path for arm in arms)
        """Paths of the serial ports."""
        self.convert = joined([arm.units for arm in arms], [arm.prefix for arm in arms])
        self.joint_names = self.convert.names
        ends = itertools.accumulate((len(bus.ids) for bus in self.buses), initial=0)
        self.spans = [slice(a, b) for a, b in itertools.pairwise(ends)]
        for arm in arms:
            units = arm.units
            arm.bus.decoder.set_angles(
                units.middle_ticks.tolist(), units.middle_rad.tolist(), units.rad_per_tick.tolist()
            )
        self._closed = self._holding = False
        self._may_hold = False
        """Some motor was told to hold and hasn't confirmed since that it doesn't."""
        group.add(self.buses)

    def fault_counts(self) -> dict[str, int]:
        """Return what went wrong so far on all buses together: kind to count."""
        total = Counter[str]()
        for bus in self.buses:
            counts = asdict(bus.line.faults)
            servos = counts.pop("servos")
            for one in (*(servos[servo_id] for servo_id in bus.ids), counts):
                total.update(one)
        return {kind.replace("_", " "): count for kind, count in total.items()}

    def state(self, t_s: float, states: Sequence[BusState]) -> FollowerState:
        """Put the buses' readings together as one arm's."""
        values = states[0].values if len(states) == 1 else np.hstack([s.values for s in states])
        status = states[0].status if len(states) == 1 else np.hstack([s.status for s in states])
        _, speed, current, load, heat, volts, angle = values
        return FollowerState(t_s, angle, speed, current, load, heat, volts, status)

    def set_goals(self, ticks: Sequence[float], *, if_holding: Callable[[], bool]) -> None:
        """Set every servo's goal position [ticks] if, with the buses ours, that is still wanted."""
        with self.group.held:
            if if_holding():
                self.group.fetch()
                for bus, span in zip(self.buses, self.spans, strict=True):
                    bus.set_goals(ticks[span])

    def named(self, left: Sequence[Sequence[int]]) -> list[str]:
        """Return the joints behind each bus's servo ids; where it is all of them, just that."""
        names = []
        for arm, ids in zip(self.arms, left, strict=True):
            if len(ids) == len(arm.bus.ids):
                names.append(f"any servo on {arm.port.path}")
                continue
            joints = (arm.prefix + arm.units.names[arm.bus.ids.index(i)] for i in ids)
            found = zip(joints, ids, strict=True)
            names += [f"{joint} (servo {i} on {arm.port.path})" for joint, i in found]
        return names

    @undisturbed()
    def torque_off(self, *, damped: bool = False) -> None:
        """Take torque off every servo that can be reached; safe to call at any time, and twice.

        With `damped` their motors brake what moves the joints, where they can.

        Raises:
            DeviceError: names the joints that didn't confirm it, after all have been tried.
        """
        self._holding = False
        self._may_hold |= any(bus.holding for bus in self.buses)
        off = functools.partial(torque_off, damped=damped)
        found = self.group.each(self.buses, off)
        again = damped and not any(bus.line.is_slow for bus in self.buses)
        for _ in range(DAMP_TRIES if again else 0):  # a lossy bus confirms late
            found = self.group.each(self.buses, off) if any(found) else found
        if damped:  # what can't brake lets go plainly
            found = [
                run([(bus.line, torque_off(bus, ids))])[0] if ids else ids
                for bus, ids in zip(self.buses, found, strict=True)
            ]
        left = self.named(found)
        if left:
            words = self.may_hold_words if self._may_hold else self.limp_words
            raise DeviceError(words.format(", ".join(left)))
        self._may_hold = False

    def close(self) -> None:
        """Take torque off and close the ports; safe to call twice. DeviceError as `torque_off`."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:
            stack.callback(self.group.remove, self.buses)
            for arm in self.arms:
                stack.callback(arm.close)
            self.torque_off()


class ServoFollower(ServoArms):
    """A follower made of one servo arm, or of a left and a right one. Implements `Follower`.

    Sends goals only between `torque_on` and `torque_off`: a Feetech servo that is sent a goal
    while limp turns its own torque on.
    """

    name = "follower"

    def __init__(self, device: Any, arms: Sequence[ConnectedArm], group: BusGroup) -> None:
        super().__init__(device, arms, group)
        self.robot_type: str = device.name
        self.units = self.convert.label
        self.damps = any(DAMPED[bus.protocol] for bus in self.buses)
        """Whether its servos can brake a joint that they let go of."""
        units = self.convert
        self.joint_limits_rad: FloatArray = units.joint_limits_rad
        if (name := model_of(self.robot_type)) is not None:  # what the arm can reach, too
            model = ArmModel.load(name)
            reach = dict(zip(model.joint_names, model.joint_limits_rad.tolist(), strict=True))
            for joint, own in zip(self.joint_names, self.joint_limits_rad, strict=True):
                ends = reach.get(joint.removeprefix("left_").removeprefix("right_"), own)
                low, high = max(own[0], ends[0]), min(own[1], ends[1])
                if low < high:
                    own[:] = low, high
        limits = np.concatenate([_relative_limits(arm) for arm in arms])
        self.max_relative_rad: FloatArray | None = None
        """LeRobot's `max_relative_target` [rad], shape (n_joints,), for the safety filter."""
        if np.isfinite(limits).any():
            self.max_relative_rad = limits * units.rad_per_unit
        ways = (units.middle_ticks, units.middle_rad, units.rad_per_tick)
        self._goal_ticks = _rows(*ways, units.low_ticks, units.high_ticks)

    def supervised(self) -> list[SupervisedBus]:
        """Return its buses and its leader's, as a supervisor has to know them.

        None that are emulated in this very program, and end with it.
        """
        return [
            SupervisedBus(
                handle=bus.line.port.fileno(),
                path=bus.line.port.path,
                baud=bus.line.port.baud,
                protocol=bus.protocol,
                ids=list(bus.ids),
                models=list(bus.models),
                angles=bus.decoder.angles,
                reply_s=bus.line.reply_s,
                is_follower=bus in self.buses,
            )
            for bus in self.group.buses
            if not is_emulated_here(bus.line.port.path)
        ]

    def read(self) -> FollowerState:
        """Return what the servos report; reads the leader's in the same exchange."""
        t_s, states = self.group.read(self.buses)
        return self.state(t_s, states)

    def send(self, command: SafeCommand) -> None:
        """Set the goal positions; does nothing while torque is off."""
        goals = zip(command.sent_rad.tolist(), self._goal_ticks, strict=True)
        ticks = [
            min(max(middle + (q_rad - rad) / slope, low), high)
            for q_rad, (middle, rad, slope, low, high) in goals
        ]
        if not all(map(math.isfinite, ticks)):
            raise DeviceError(f"Goals must be finite, got {command.sent_rad.tolist()}.")
        self.set_goals(ticks, if_holding=lambda: self._holding)
        self.group.ask_ahead()

    def release(self, joints: Collection[int], *, damped: bool = True) -> None:
        """Take torque off some joints alone, `damped` where their motors can; the others hold on.

        Raises:
            DeviceError: names those that didn't confirm it.
        """
        left = []
        with self.group.held:
            self.group.fetch()
            for bus, span in zip(self.buses, self.spans, strict=True):
                ids = [bus.ids[k - span.start] for k in joints if span.start <= k < span.stop]
                bus.released.update(ids)
                found = run([(bus.line, torque_off(bus, ids, damped=damped))])[0] if ids else ()
                left.append(found)
        if names := self.named(left):
            raise DeviceError(self.may_hold_words.format(", ".join(names)))

    def torque_on(self) -> None:
        """Hold the arm where it is: goals to the measured positions, then torque on.

        Raises:
            DeviceError: names the joints that don't take it; torque is off again. Or a joint that
                is far beyond its range: its servo would go back at once, as fast as it can.
        """
        low, high = self.convert.joint_limits_rad.T
        at = self.read().position_rad[: len(low)]
        beyond = np.nan_to_num(np.maximum(low - at, at - high))
        if (beyond > BEYOND_RAD).any() and not self._holding:
            worst = int(beyond.argmax())
            raise DeviceError(
                f"{self.joint_names[worst]} stands {math.degrees(beyond[worst]):.0f}° beyond the "
                "range that it was calibrated over, and would go back at full speed. Put it there "
                "by hand; if it can't get there, or is there already: lerobot-calibrate"
            )
        for bus in self.buses:
            bus.released.clear()
        left = self.group.each(self.buses, torque_on)
        if not any(left):
            self._holding = True
            return
        words = []
        status = self.read().status
        for arm, span, ids in zip(self.arms, self.spans, left, strict=True):
            bits = {i: int(status[span][arm.bus.ids.index(i)]) for i in ids}
            silent = [i for i in ids if bits[i] & NO_REPLY]
            if len(silent) == len(arm.bus.ids):
                words.append(f"no servo on {arm.port.path} answers: check its cable and power")
                continue
            for servo_id in ids:
                name = f"{arm.prefix}{arm.units.names[arm.bus.ids.index(servo_id)]}"
                cause = "doesn't take torque"
                if bits[servo_id] & NO_REPLY:
                    cause = "doesn't answer: check its cable and the arm's power"
                elif bits[servo_id] & 0xFF:
                    error = describe_error(arm.bus.protocol, bits[servo_id] & 0xFF)
                    cause = f"reports {error}: fix that, then switch the arm's power off and on"
                words.append(f"{name} (servo {servo_id} on {arm.port.path}) {cause}")
        with contextlib.suppress(DeviceError):
            self.torque_off()
        raise DeviceError(f"The arm doesn't hold: {'; '.join(words)}.")

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad], shape (n_joints,), to the robot's LeRobot units."""
        return self.convert.ticks_to_units(self.convert.rad_to_ticks(q_rad))

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert the robot's LeRobot units, shape (n_joints,), to joint angles [rad]."""
        return self.convert.ticks_to_rad(self.convert.units_to_ticks(np.asarray(values)))


class ServoLeader(ServoArms):
    """A leader made of one servo arm, or of a left and a right one. Implements `Leader`.

    Its joints reach the follower through LeRobot's units, as in LeRobot's own loop. `t_s` of a
    sample is when its oldest joint was heard, so that a silent servo makes it stale.
    """

    may_hold_words = "Torque off isn't confirmed by {}. Switch the leader's power off."
    limp_words = "The leader doesn't answer ({}). Check its cable and power; it was limp."

    def __init__(
        self,
        device: Any,
        arms: Sequence[ConnectedArm],
        group: BusGroup,
        follower: Follower | OwnUnits,
    ) -> None:
        super().__init__(device, arms, group)
        led = [name for name in follower.joint_names if not name.endswith(SPEED)]
        self.base_stands = follower.joint_names[len(led) :]
        """A base's speeds, which an arm doesn't ask for."""
        self.base: BaseDriver | None = None
        """Who asks for them instead."""
        if not set(led) <= set(self.joint_names):
            led = [leader_joint(name) for name in led]
        if set(self.joint_names) != set(led):
            own, theirs = ", ".join(self.joint_names), ", ".join(follower.joint_names)
            raise UnusableInputError(
                f"The leader's joints ({own}) aren't those of the follower ({theirs}). Choose "
                "a leader made for it; a tool is moved by --teleop.type=keyboard or gamepad."
            )
        self.servo_joints = self.joint_names
        """The joints whose servos report in `LeaderSample.state`, in its order."""
        self.own_joints = [self.joint_names.index(name) for name in led]
        """For each joint of the follower, which of the leader's own it is."""
        # Within its clamps the way through LeRobot's units is a straight line: found once.
        units = self.convert
        low, high = units.low_ticks[self.own_joints], units.high_ticks[self.own_joints]
        ends = [
            units.ticks_to_units(t)[self.own_joints] for t in (units.low_ticks, units.high_ticks)
        ]
        at_low, at_high = map(follower.from_units, ends)
        # A simulated arm's joints needn't reach as far as the leader's: they go by both's ranges.
        if (by_range := getattr(follower, "from_ranges", None)) is not None:
            share = ~units.degrees[self.own_joints] & (units.least[self.own_joints] < 0.0)
            at_low, at_high = (
                np.where(share, by_range(end), at)
                for end, at in zip(ends, (at_low, at_high), strict=True)
            )
        self.slope_rad_per_tick: FloatArray = (at_high - at_low) / (high - low)
        """Follower angle for each of the leader's ticks [rad/tick], in the follower's order."""
        self._offset = at_low - self.slope_rad_per_tick * low
        free = units.degrees[self.own_joints]
        low, high = np.where(free, -np.inf, low), np.where(free, np.inf, high)
        self._way = _rows(
            np.array(self.own_joints), low, high, self.slope_rad_per_tick, self._offset
        )
        has_stops = units.high_ticks - units.low_ticks < WHOLE_TURN_TICKS
        middles = (units.low_ticks + units.high_ticks) / 2.0
        self._middle_ticks = np.where(has_stops, middles, np.nan).tolist()
        self.reset()

    def ticks_at(self, q_rad: FloatArray) -> FloatArray:
        """Return its own goals [ticks], within its range, where it would ask for `q_rad` [rad]."""
        ticks = np.empty(len(self.own_joints))
        q = np.asarray(q_rad)[: len(self.own_joints)]
        ticks[self.own_joints] = (q - self._offset) / self.slope_rad_per_tick
        return np.asarray(np.clip(ticks, self.convert.low_ticks, self.convert.high_ticks))

    def send_ticks(self, ticks: FloatArray) -> None:
        """Set its own goal positions [ticks]; a Feetech servo that is limp takes torque by it."""
        self._may_hold = True
        self.set_goals(ticks.tolist(), if_holding=lambda: True)

    def reset(self) -> None:
        """Take the arm as it stands now: nobody looked while it was turned."""
        self._seen_ticks = [math.nan] * len(self.joint_names)
        self._turned_ticks = [0] * len(self.joint_names)

    def done(self) -> bool:
        """Say whether who drives the base is done; who leads the arm never is."""
        return self.base is not None and self.base.done()

    def read(self, t_s: float) -> LeaderSample:
        """Return where the leader asks the follower to be; `t_s` [s] is not needed."""
        del t_s
        read_s, states = self.group.take(self.buses)
        state = self.state(read_s, states)
        places = [tick for one in states for tick in one.position_ticks.tolist()]
        if (newer := self.group.places(self.buses)) is not None:
            read_s, places = newer
        ticks = self._unwrapped(places)
        # A NaN stays one: it comes first in both comparisons.
        wanted = [
            min(max(ticks[own], low), high) * slope + offset
            for own, low, high, slope, offset in self._way
        ]
        oldest_s = min(min(bus.heard_s) for bus in self.buses)
        base = np.zeros(len(self.base_stands)) if self.base is None else self.base.speeds()
        q_rad = np.concatenate([wanted, base])
        return LeaderSample(min(read_s, oldest_s), q_rad, state=state)

    def _unwrapped(self, ticks: list[float]) -> list[float]:
        """Return positions [ticks] that go on where an encoder begins again at 0.

        A joint with end stops is in the turn that its range is in. A wrist that is turned on past
        4095 asks for more of the same, not for the other end of its range: no hand turns it by half
        a turn between two readings.
        """
        for k, (tick, seen) in enumerate(zip(ticks, self._seen_ticks, strict=True)):
            if tick - seen > HALF_TURN_TICKS:
                self._turned_ticks[k] -= TICKS_PER_TURN
            elif seen - tick > HALF_TURN_TICKS:
                self._turned_ticks[k] += TICKS_PER_TURN
        if not any(map(math.isnan, ticks)):
            self._seen_ticks = ticks
        return [
            tick + turned
            if middle != middle
            else (tick - middle + HALF_TURN_TICKS) % TICKS_PER_TURN + middle - HALF_TURN_TICKS
            for tick, turned, middle in zip(
                ticks, self._turned_ticks, self._middle_ticks, strict=True
            )
        ]


def _relative_limits(arm: ConnectedArm) -> FloatArray:
    """Return an arm's `max_relative_target` in its LeRobot units, infinity where there is none."""
    names, given = arm.units.names, getattr(arm.device.config, "max_relative_target", None)
    if given is None:
        return np.full(len(names), np.inf)
    each = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    values = [each.get(name, math.nan) for name in names]
    if set(each) != set(names) or not all(
        isinstance(value, int | float) and value > 0 for value in values
    ):
        side = f"{arm.prefix}arm_config." if arm.prefix else ""
        raise UnusableInputError(
            f"--robot.{side}max_relative_target must be a number above 0 in the robot's units, or "
            f"one for each of {', '.join(names)}; got {given!r}."
        )
    return np.array(values, dtype=np.float64)


def _rows(*columns: NDArray[Any]) -> list[tuple[Any, ...]]:
    """Return what each joint needs as plain numbers, joint by joint."""
    return list(zip(*(column.tolist() for column in columns), strict=True))


class BusGroup:
    """Reads all its buses in one exchange; each reading is handed out once.

    The follower's turn reads everybody, so that the leader, asked a moment later, finds its
    reading made. A leader that is asked alone reads its own buses.

    In a fast loop goals don't wait for readings: all buses are asked as soon as the goals are out,
    and the next turn finds the answers there. Only where a leader stands is read anew in that turn.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.buses: list[ServoBus] = []
        self.held = _Patience()
        """Keeps other threads off the buses for a `with` block."""
        self._made: dict[ServoBus, tuple[float, BusState]] = {}
        self._ahead: tuple[float, list[tuple[ServoBus, Script[BusState]]]] | None = None
        """When the buses were asked whose answers nobody has fetched [s], and their scripts."""
        self._is_ahead = False
        """Whether what was read last had been asked for a turn before."""
        self._read_s, self._turn_s = -math.inf, math.inf

    def add(self, buses: Sequence[ServoBus]) -> None:
        """Read these buses too."""
        with self.held:
            self.fetch()
            self.buses += buses

    def remove(self, buses: Sequence[ServoBus]) -> None:
        """Stop reading these."""
        with self.held:
            self.fetch()
            self.buses = [bus for bus in self.buses if bus not in buses]

    def read(self, buses: Sequence[ServoBus]) -> tuple[float, list[BusState]]:
        """Read every bus of the group; return when, and what `buses` say."""
        with self.held:
            now_s = self.clock.now_s()
            self._turn_s, self._read_s = now_s - self._read_s, now_s
            asked_s = self.fetch()
            if asked_s is None or now_s - asked_s > AHEAD_S:
                return self._read(self.buses, buses)
            self._is_ahead = True
            return asked_s, [self._made.pop(bus)[1] for bus in buses]

    def take(self, buses: Sequence[ServoBus]) -> tuple[float, list[BusState]]:
        """Return what the group's last exchange read of `buses`, once; else read them now."""
        with self.held:
            made = [self._made.pop(bus, None) for bus in buses]
            found = [one for one in made if one is not None]
            if len(found) == len(buses):
                oldest_s = min(t_s for t_s, _ in found)
                if self.clock.now_s() - oldest_s <= FRESH_S:
                    return oldest_s, [state for _, state in found]
            self.fetch()
            return self._read(buses, buses)

    def places(self, buses: Sequence[ServoBus]) -> tuple[float, list[float]] | None:
        """Return when and where [ticks] the servos are now, if they were read a turn before."""
        with self.held:
            if not self._is_ahead:
                return None
            now_s = self.clock.now_s()
            found = run([(bus.line, bus.read_places(now_s)) for bus in buses])
            if any(places is None for places in found):
                return None
            return now_s, [float(tick) for places in found for tick in places]

    def ask_ahead(self) -> None:
        """Ask all buses for what the next turn will want, if that comes soon enough."""
        with self.held:
            if self._turn_s > AHEAD_S or self._ahead is not None:
                return
            if not all(bus.is_well for bus in self.buses):  # whoever asks then deals with it
                return
            now_s = self.clock.now_s()
            scripts = [(bus, bus.read(now_s)) for bus in self.buses]
            send_ahead([(bus.line, script) for bus, script in scripts])
            self._ahead = now_s, scripts

    def fetch(self) -> float | None:
        """Fetch what was asked ahead, so that the buses are free; return when it was asked [s]."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        asked_s, scripts = ahead
        states = run([(bus.line, script) for bus, script in scripts], is_sent=True)
        self._made = {
            bus: (asked_s, state) for (bus, _), state in zip(scripts, states, strict=True)
        }
        return asked_s

    def _read(
        self, asked: Sequence[ServoBus], wanted: Sequence[ServoBus]
    ) -> tuple[float, list[BusState]]:
        self._is_ahead = False
        now_s = self.clock.now_s()
        states = run([(bus.line, bus.read(now_s)) for bus in asked])
        self._made = {bus: (now_s, state) for bus, state in zip(asked, states, strict=True)}
        return now_s, [self._made.pop(bus)[1] for bus in wanted]

    def each(
        self, buses: Sequence[ServoBus], script: Callable[[ServoBus], Script[Any]]
    ) -> list[Any]:
        """Run a script on several buses at once and return their results."""
        with self.held:
            self.fetch()
            return run([(bus.line, script(bus)) for bus in buses])


class _Patience:
    """A lock that isn't waited for without end: torque must go off though a thread died with it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire(timeout=LOCK_S)

    def __exit__(self, *_: object) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # it was another's all the time
            return


SPEED_RAD_S: Final = 1.0
"""How fast it is brought there: no faster than a hand would [rad/s]."""
THERE_RAD: Final = 0.06
"""A joint this near is in place: servos without a load stop within a few degrees [rad]."""
LONGEST_TURN_S: Final = 0.05
"""A turn that was late doesn't move it further than this [s] would."""


class AligningLeader:
    """A leader arm that is brought to its follower's pose before somebody takes over with it.

    Only while it is being brought there do its motors hold; a hand feels them and they yield
    slowly. As LeRobot's `teleop_smooth_move_to`, but within the loop's turns: the follower goes on
    being driven, and a leader that is held back ends the attempt to align instead of pulling
    harder. A `Leader` that can be moved; a `TakeSink`, to let go.
    """

    def __init__(self, leader: ServoLeader) -> None:
        self._leader = leader
        self.servo_joints, self.ports, self.done = leader.servo_joints, leader.ports, leader.done
        self.fault_counts, self.base = leader.fault_counts, leader.base
        self._goal: FloatArray | None = None
        self._last_s = 0.0
        self._here_rad: FloatArray | None = None
        self._is_barred = False  # the loop goes on for a moment after a trip

    def reset(self) -> None:
        """Be limp: whoever leads is ready."""
        self.let_go()
        self._is_barred = False
        self._leader.reset()

    def read(self, t_s: float) -> LeaderSample:
        """Return where the leader asks the follower to be."""
        sample = self._leader.read(t_s)
        self._here_rad = sample.q_rad
        return sample

    def align(self, q_rad: FloatArray, t_s: float) -> bool:
        """Move on towards the follower's `q_rad` [rad], shape (n_joints,); say if it is there.

        Raises:
            DeviceError: a motor doesn't take torque; all are limp.
        """
        leader = self._leader
        if self._is_barred:
            return True
        here = self.read(t_s).q_rad if self._here_rad is None else self._here_rad
        if self._goal is None:
            self._goal, self._last_s = leader.ticks_at(here), t_s
            if any(leader.group.each(leader.buses, torque_on)):
                self.let_go()
                raise DeviceError(
                    f"The leader arm on {', '.join(leader.ports)} doesn't hold. Check its power."
                )
        step = SPEED_RAD_S * min(t_s - self._last_s, LONGEST_TURN_S) / RAD_PER_TICK
        self._last_s = t_s
        self._goal = self._goal + np.clip(leader.ticks_at(q_rad) - self._goal, -step, step)
        leader.send_ticks(self._goal)
        led = len(leader.own_joints)  # the last ones are speeds of a base
        return bool(np.abs(here - q_rad)[:led].max() <= THERE_RAD)

    def let_go(self) -> None:
        """Be limp; DeviceError where a motor didn't confirm that its torque is off."""
        if self._goal is not None:
            self._goal = None
            self._leader.torque_off()

    def tick(self, tick: Tick) -> None:
        """Let go where the follower has tripped: nobody asks for turns any more."""
        if tick.command.reasons & SafetyReason.TRIPPED:
            self._is_barred = True
            self.let_go()

    def close(self) -> None:
        """Take torque off and disconnect; safe to call twice. DeviceError as of `let_go`."""
        self._goal = None
        self._leader.close()


def aligning(leader: object) -> AligningLeader | None:
    """Return a leader arm that can be moved, or None where a leader has no motors of its own."""
    return AligningLeader(leader) if isinstance(leader, ServoLeader) else None
