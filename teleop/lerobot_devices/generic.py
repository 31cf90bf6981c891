"""Any LeRobot robot or teleoperator as our Follower and Leader, through its own methods.

What it doesn't report is NaN. Its values are taken for degrees unless it is known to use radians;
a robot of other units is scaled alike everywhere, so that nothing but the names is wrong.

A base that drives (LeKiwi) has its speeds, such as `x.vel`, after the arm's joints: the safety
filter limits them, and where it would hold an arm it has the base stand still.

Some classes go on serving the last state they heard after the robot behind them has died: LeRobot's
LeKiwi client, a bridge, a simulator's client. Nothing raises, so nothing seems wrong.

- Where the class keeps the newest message, that is what tells: the same object again is nothing
  new, whatever an arm at rest reports. LeRobot's CAN buses keep one for each motor, and go on with
  that of a motor that is dead.
- Otherwise only the readings can tell. An arm at rest with quiet encoders repeats itself to the
  last bit, and so does one that holds a weight, or pushes with one joint on what doesn't give. So
  not one reading may have changed while the goals moved where no arm could have stayed: two joints
  off by more than `off_rad` after that much of travel, or one that is sent back to where it has
  just been, or that was sent past on both sides of where it says it is. A gripper that holds
  something and the speeds of a base aren't asked.
"""

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import SIX_JOINTS
from gaploop.core.arms import ARM_MODELS
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import (
    NO_REPLY,
    SPEED,
    FloatArray,
    FollowerState,
    LeaderSample,
    SafeCommand,
    leader_joint,
)
from gaploop.core.protocols import BaseDriver, Follower
from gaploop.core.station import Station
from gaploop.teleop.stopping import undisturbed

LEROBOT_FAULTS: Final = (
    OSError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    SystemExit,
    TypeError,
    ValueError,
)
"""What a LeRobot device may raise for a device or a setting that is wrong. A class that calls
sys.exit() must not end a program that holds an arm."""


def first_line(error: BaseException) -> str:
    """Return what an error says first, on one line."""
    if isinstance(error, SystemExit):
        return "its code tried to end the program (SystemExit)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def connect(device: Any) -> None:
    """Connect a device without calibrating it, as far as its class can be told so.

    LeRobot's base classes have `connect(calibrate=True)`; its own LeKiwi client, phone, gamepad and
    keyboard leave the argument out, and some calibrate themselves.
    """
    parameters = inspect.signature(device.connect).parameters.values()
    if any(p.name == "calibrate" or p.kind is p.VAR_KEYWORD for p in parameters):
        device.connect(calibrate=False)
    else:
        device.connect()


def is_uncalibrated(device: Any) -> bool:
    """Say whether a device reports that it isn't calibrated.

    LeKiwi's client, which has nothing to calibrate, reports None; a gamepad's is a method.
    """
    answer = getattr(device, "is_calibrated", None)
    return (answer() if callable(answer) else answer) is False


REACTION_S: Final = 0.3
"""No arm needs longer to show that it has begun to move [s]; 0.19 s was the slowest of those
measured (a Piper, from rest)."""
NEWS_S: Final = 0.1
"""A class that keeps its newest message has heard nothing for so long: it is silent [s]. Three
messages of LeKiwi's 30 a second."""
FORGET_RAD_S: Final = 0.2
"""Where a joint has been counts as free for a while: that range shrinks towards it [rad/s]."""
SEVERAL: Final = 2
"""So many joints at once aren't blocked without one reading of the arm that changes."""
_NEWEST: Final = ("last_remote_state", "_lowstate")
"""Where classes keep the newest message: LeKiwi's client and those made after it; Unitree's G1."""


_NEWEST_OF_MOTORS: Final = "_last_known_states"
"""Where LeRobot's CAN buses (Damiao, RobStride) keep the newest answer of each motor."""


class NewestMessages:
    """When a class that keeps its newest messages has heard them: they are made anew each time."""

    def __init__(self, device: Any, joints: Sequence[str]) -> None:
        self._device, self._joints = device, joints
        self._messages: list[Any] = [None] * len(joints)
        self._heard_s: FloatArray = np.full(len(joints), np.nan)

    def heard_s(self, now_s: float, *, is_new: bool = False) -> FloatArray | None:
        """Return when each joint's was heard [s], shape (n_joints,); None where none is kept.

        Args:
            is_new: what is read isn't what it was, though the message may be the same object.
        """
        device, by_motor = self._device, dict[str, Any]()
        found = (getattr(device, name, None) for name in _NEWEST)
        whole = next((message for message in found if message is not None), None)
        for side in ("", "left_", "right_"):
            bus = getattr(getattr(device, f"{side}arm", device if not side else None), "bus", None)
            states: Mapping[str, Any] = getattr(bus, _NEWEST_OF_MOTORS, {})
            by_motor |= {f"{side}{motor}": state for motor, state in states.items()}
        messages = [by_motor.get(joint, whole) for joint in self._joints]
        if all(message is None for message in messages):
            return None
        for k, (message, before) in enumerate(zip(messages, self._messages, strict=True)):
            if message is None or message is not before or (is_new and message is whole):
                self._heard_s[k] = now_s
        self._messages = messages
        return self._heard_s


class SilenceWatch:
    """Watches what a robot reports against where it is sent.

    Args:
        names: of all its joints, as its class calls them.
        joints: places of those that go where they are sent, grippers left out.
        off_rad: a joint this far from where it was sent should be under way [rad].
    """

    def __init__(
        self, device: Any, names: Sequence[str], joints: Sequence[int], off_rad: float
    ) -> None:
        self._newest, self._joints = NewestMessages(device, names), np.asarray(joints, np.intp)
        self._off_rad, self._n = off_rad, len(names)
        self._readings = b""
        self._since_s = self._changed_s = math.nan
        self._been: FloatArray = np.full((2, len(joints)), np.nan)
        self._is_dry = bool(getattr(getattr(device, "config", None), "dry_run", False))
        self.forget()

    def forget(self) -> None:
        """Nothing was sent so far, or the arm isn't held any more."""
        self._goals: FloatArray | None = None

    def sent(self, goals_rad: FloatArray) -> None:
        """Take note of goals, shape (n_joints,) [rad]."""
        goals = goals_rad[self._joints]
        if self._goals is None:
            self._goals = np.stack([goals, goals, goals])
        else:
            low, high, _ = self._goals
            self._goals = np.stack([np.minimum(low, goals), np.maximum(high, goals), goals])

    def silent(self, q_rad: FloatArray, readings: bytes, now_s: float) -> NDArray[np.bool_]:
        """Say whose `readings`, with the positions `q_rad` [rad], are memory and no answer.

        Returns shape (n_joints,).
        """
        heard_s = self._newest.heard_s(now_s, is_new=readings != self._readings)
        if heard_s is not None:
            self._readings = readings
            return np.asarray(now_s - heard_s >= NEWS_S)
        return np.full(self._n, self._stays(q_rad, readings, now_s))

    def _stays(self, q_rad: FloatArray, readings: bytes, now_s: float) -> bool:
        """Say whether nothing has changed though the goals moved where no arm could have stayed."""
        q, off_rad = q_rad[self._joints], self._off_rad
        if readings != self._readings:
            forgotten = FORGET_RAD_S * (now_s - self._changed_s)
            lowest, highest = self._been + np.array([[forgotten], [-forgotten]])
            self._been = np.stack([np.fmin(lowest, q), np.fmax(highest, q)])
            self._readings, self._changed_s, self._since_s = readings, now_s, math.nan
            self.forget()
        if self._goals is None:
            return False
        low, high, goal = self._goals
        moved = (high - low > off_rad) & (np.abs(goal - q) > off_rad)
        lowest, highest = self._been
        up = (goal - q > off_rad) & ((q - low > off_rad) | (highest - q > off_rad))
        down = (q - goal > off_rad) & ((high - q > off_rad) | (q - lowest > off_rad))
        free = up | down
        if self._is_dry or (np.count_nonzero(moved) < SEVERAL and not free.any()):
            self._since_s = math.nan
            return False
        if math.isnan(self._since_s):
            self._since_s = now_s
        return now_s - self._since_s >= REACTION_S


log = logging.getLogger(__name__)

WINDOW_RAD: Final = math.radians(20.0)
"""A joint whose limits nobody gave stays this near to where it was at connection [rad]."""
IN_RADIANS: Final = ("unitree_g1", "unitree_g1_dex3")
"""Robot types whose positions are radians."""
LOST_S: Final = 0.4
"""A robot that isn't ours to poll is lost once it is silent for so long [s], or for `lost_servo_s`
where that is more. With `silence.NEWS_S` it is half a second, LeKiwi's own patience with its
client: a wireless link pauses for a tenth or two every day."""
LINGER_MS: Final = 100
"""The last goals may wait so long for the network once the robot is let go of [ms]."""
SEND_TRIES: Final = 20
"""So many sends in a row may fail before the loop is told: 0.1 s at 200 Hz."""
_POSITION: Final = ".pos"
_TURNS: Final = "theta"
"""A base's speed of turning is called so; the others are in m/s."""
MOST_M_S: Final = 0.2
MOST_RAD_S: Final = math.radians(60.0)
"""Highest speeds of a base, unless the station allows less [m/s, rad/s]: the middle ones of the
three that LeRobot drives a LeKiwi at."""
LEKIWI_JOINTS: Final = tuple(f"arm_{name}" for name in SIX_JOINTS)
GRIPPER_RAD: Final = (0.0, math.radians(100.0))
"""A LeKiwi's gripper goes from 0 to 100, counted as degrees are."""
_READINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "velocity_rad_s": (".vel", ".velocity"),
    "current_a": (".current",),
    "load_pct": (".load",),
    "temperature_c": (".temp", ".temperature"),
    "voltage_v": (".voltage",),
}


def number_keys(features: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the features that are single numbers; the others are pictures."""
    return tuple(key for key, kind in features.items() if kind in (float, int))


class OwnUnits:
    """Stands for the follower of a leader that leads nobody here: same joints, its own units."""

    def __init__(self, device: Any) -> None:
        self.robot_type: str = device.name
        keys = number_keys(device.action_features)
        self.joint_names = tuple(key.removesuffix(_POSITION) for key in keys)

    def from_units(self, values: FloatArray) -> FloatArray:
        """Return LeRobot units as they are."""
        return np.asarray(values, dtype=np.float64)


class GenericFollower:
    """A LeRobot robot of any type, or DeviceError if it doesn't say where it is. A `Follower`.

    The station's `joint_limits_rad` says how far each joint may go.
    """

    name = "follower"
    lost_s = LOST_S

    def __init__(self, device: Any, station: Station, clock: Clock) -> None:
        self.device, self._clock = device, clock
        self.robot_type: str = device.name
        keys = number_keys(device.action_features)
        arm = tuple(key for key in keys if not key.endswith(SPEED))
        speeds = tuple(key for key in keys if key.endswith(SPEED))
        if not arm:
            raise UnusableInputError(f"{device.name} takes no joint positions; it can't follow.")
        self._keys, self._n_arm = arm + speeds, len(arm)
        self.joint_names = tuple(key.removesuffix(_POSITION) for key in self._keys)
        self.units = "rad" if device.name in IN_RADIANS else "deg"
        degree = 1.0 if self.units == "rad" else math.pi / 180.0
        self._rad_per_unit = np.array(
            [1.0 if k in speeds and not k.startswith(_TURNS) else degree for k in self._keys]
        )
        self._position: FloatArray = np.full(len(self._keys), np.nan)
        self._failed_reads = self._failed_sends = self._failed_in_a_row = 0
        self._is_failing = False
        self._connected, self._holding = True, False
        moves = [
            k for k, name in enumerate(self.joint_names[: self._n_arm]) if "gripper" not in name
        ]
        self._silence = SilenceWatch(device, self.joint_names, moves, station.safety.following_rad)
        self._is_silent = False
        _give_up_sending(device)
        start = self.read().position_rad
        if not np.isfinite(start).all():
            lacking = [
                n for n, q in zip(self.joint_names, start, strict=True) if not np.isfinite(q)
            ]
            raise DeviceError(f"{device.name} doesn't report where {', '.join(lacking)} is.")
        is_lekiwi = self.joint_names[: self._n_arm] == LEKIWI_JOINTS
        given = (_lekiwi_limits_rad() if is_lekiwi else {}) | dict(station.joint_limits_rad)
        near = zip(self.joint_names, start.tolist(), strict=True)
        ends = {name: (q - WINDOW_RAD, q + WINDOW_RAD) for name, q in near}
        for name in self.joint_names[self._n_arm :]:
            most = MOST_RAD_S if name.startswith(_TURNS) else MOST_M_S
            ends[name] = -most, most
        ends |= {name: given[name] for name in self.joint_names if name in given}
        self.joint_limits_rad: FloatArray = np.array([*ends.values()], dtype=np.float64)
        free = [name for name in self.joint_names[: self._n_arm] if name not in given]
        if free:
            log.warning(
                "%s gives no joint limits: %s may move %.0f° either way from here. Set "
                "joint_limits_rad in the station file (--station=FILE).",
                self.robot_type,
                ", ".join(free),
                math.degrees(WINDOW_RAD),
            )

    def fault_counts(self) -> dict[str, int]:
        """Return what went wrong so far: kind to count; what fails in a row counts once."""
        return {"failed reads": self._failed_reads, "failed sends": self._failed_sends}

    def read(self) -> FollowerState:
        """Return what the robot reports; NO_REPLY and the last positions where it doesn't.

        That is where its class raises, and where it answers from memory (see `silence`).
        """
        t_s, seen = self._clock.now_s(), dict[str, Any]()
        try:
            seen = dict(self.device.get_observation())
            self._is_failing = False
        except LEROBOT_FAULTS as error:
            self._failed_reads += not self._is_failing
            self._is_failing = True
            log.debug("%s: %s", self.robot_type, first_line(error))
        position = self._column(seen, "") * self._rad_per_unit
        if not np.isfinite(position).all():
            position = np.where(np.isfinite(position), position, self._position)
        missing = np.array([key not in seen for key in self._keys])
        self._position = position
        readings = {}
        for name, ends in _READINGS.items():
            columns = [self._column(seen, end) for end in ends]
            readings[name] = next((c for c in columns if np.isfinite(c).any()), columns[0])
        readings["velocity_rad_s"] = readings["velocity_rad_s"] * self._rad_per_unit
        bits = np.stack([position, *readings.values()])
        silent = self._silence.silent(position, bits.tobytes(), t_s) & bool(seen)
        is_silent = bool(silent.any())
        if is_silent:
            missing |= silent
            readings = {name: np.where(silent, np.nan, q) for name, q in readings.items()}
            if not self._is_silent:
                self._failed_reads += 1
                who = [n for n, is_one in zip(self.joint_names, silent, strict=True) if is_one]
                log.warning(
                    "%s is silent: its class answers, but with what it had heard before.",
                    self.robot_type if silent.all() else f"{self.robot_type}, {', '.join(who)},",
                )
        self._is_silent = is_silent
        flags = np.where(missing, NO_REPLY, 0).astype(np.int64)
        return FollowerState(t_s, position, **readings, status=flags)

    def _column(self, seen: Mapping[str, Any], end: str) -> FloatArray:
        keys = [key.removesuffix(_POSITION) + end for key in self._keys] if end else self._keys
        return np.array([_number(seen.get(key)) for key in keys])

    def send(self, command: SafeCommand) -> None:
        """Hand goals to the robot while torque is on; DeviceError once it refused 20 in a row."""
        if not self._holding:
            return
        values = self.to_units(command.sent_rad).tolist()
        self._silence.sent(command.sent_rad)
        try:
            self.device.send_action(self._action(values))
            self._failed_in_a_row = 0
        except LEROBOT_FAULTS as error:
            self._failed_sends += not self._failed_in_a_row
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= SEND_TRIES:
                raise DeviceError(
                    f"{self.robot_type} takes no goals: {first_line(error)}"
                ) from error

    def _action(self, values: Sequence[float]) -> dict[str, float]:
        return dict(zip(self._keys, values, strict=True))

    def _standing(self) -> dict[str, float]:
        """Return the action that holds the arm where it is, with a base that stands still."""
        values = self.to_units(self.read().position_rad)
        values[self._n_arm :] = 0.0
        return self._action(values.tolist())

    def torque_on(self) -> None:
        """Hold the robot where it is, as far as its class can; DeviceError where it refuses."""
        try:
            if not self._connected:
                connect(self.device)
                self._connected = True
            self.device.send_action(self._standing())
            for switch in _switches(self.device, "enable_torque"):
                switch()
        except LEROBOT_FAULTS as error:
            raise DeviceError(f"{self.robot_type} doesn't hold: {first_line(error)}") from error
        self._holding = True

    @undisturbed()
    def torque_off(self) -> None:
        """Take torque off as the class offers it, or disconnect; DeviceError if neither works."""
        self._holding = False
        self._silence.forget()
        if not self._connected:
            return
        failed = []
        if self._n_arm < len(self._keys):
            with contextlib.suppress(*LEROBOT_FAULTS):  # one that isn't heard stops by itself
                self.device.send_action(self._standing())
        switches = _switches(self.device, "disable_torque")
        for switch in switches:
            try:
                switch()
            except LEROBOT_FAULTS as error:
                failed.append(first_line(error))
        if failed or not switches:
            failed += self._disconnect()
        if failed:
            raise DeviceError(
                f"{self.robot_type}: torque off isn't confirmed ({'; '.join(failed)}). Switch the "
                "robot's power off."
            )

    def _disconnect(self) -> list[str]:
        self._connected = False
        try:
            self.device.disconnect()
        except LEROBOT_FAULTS as error:
            return [first_line(error)]
        return []

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        """Convert joint angles [rad], shape (n_joints,), to the robot's LeRobot units."""
        q = np.asarray(q_rad, dtype=np.float64)
        return np.asarray(q / self._rad_per_unit[: q.shape[-1]])

    def from_units(self, values: FloatArray) -> FloatArray:
        """Convert the robot's LeRobot units, shape (n_joints,), to joint angles [rad]."""
        q = np.asarray(values, dtype=np.float64)
        return np.asarray(q * self._rad_per_unit[: q.shape[-1]])

    def close(self) -> None:
        """Take torque off and disconnect; safe to call twice. DeviceError if torque may be on."""
        if not self._connected:
            return
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: self._disconnect() if self._connected else [])
            self.torque_off()


class GenericLeader:
    """A LeRobot teleoperator of any type that gives joint positions. Implements `Leader`.

    Raises:
        UnusableInputError: its action isn't joint positions of the follower.
    """

    def __init__(self, device: Any, follower: Follower | OwnUnits, clock: Clock) -> None:
        self.device, self._clock = device, clock
        self.where = str(getattr(device, "where", ""))
        """Host and port of a leader on another machine, or ""."""
        keys = number_keys(device.action_features)
        own = {key.removesuffix(_POSITION): key for key in keys}
        led = {leader_joint(name): name for name in follower.joint_names}
        by_joint = {led.get(name, name): key for name, key in own.items()}
        wanted = set(follower.joint_names)
        speeds = tuple(name for name in follower.joint_names if name.endswith(SPEED))
        self.base_stands = () if by_joint.keys() & {*speeds} else speeds
        """A base's speeds, where it asks for none of them."""
        self.base: BaseDriver | None = None
        """Who asks for them instead; without one they are 0."""
        lacking = {name for name in wanted - set(by_joint) if not name.endswith(SPEED)}
        if lacking or not set(by_joint) <= wanted:
            features = dict(device.action_features)
            names = features.get("names")  # as the keyboard's and gamepad's: a tool's steps
            says = map(str, names if isinstance(names, Mapping | list | tuple) else features)
            gives = ", ".join(own) or f"no joint positions but {', '.join(says)}"
            raise UnusableInputError(
                f"{device.name} gives {gives}; {follower.robot_type} "
                f"takes {', '.join(follower.joint_names)}. Choose a leader made for it; a tool "
                "is moved by --teleop.type=keyboard or gamepad."
            )
        self._keys = [by_joint.get(name, "") for name in follower.joint_names]
        self._from_units: Callable[[FloatArray], FloatArray] = follower.from_units
        self._last = LeaderSample(-math.inf, np.full(len(self._keys), np.nan))
        self._newest = NewestMessages(device, list(own))
        self._failed = 0
        self._is_failing = False
        self._connected = True

    def reset(self) -> None:
        """Nothing to get ready: the operator is."""

    def done(self) -> bool:
        """Say whether who drives the base is done; who leads the arm never is."""
        return self.base is not None and self.base.done()

    def fault_counts(self) -> dict[str, int]:
        """Return what went wrong so far: kind to count; what fails in a row counts once."""
        return {"failed reads": self._failed}

    def read(self, t_s: float) -> LeaderSample:
        """Return where the teleoperator asks to be; the last answer, with its age, if it raises."""
        del t_s
        now_s = self._clock.now_s()
        try:
            action = self.device.get_action()
            values = np.array([_number(action.get(key)) if key else 0.0 for key in self._keys])
            self._is_failing = False
        except LEROBOT_FAULTS as error:
            self._failed += not self._is_failing
            self._is_failing = True
            log.debug("%s: %s", self.device.name, first_line(error))
            return self._last
        heard_s = self._newest.heard_s(now_s)  # its class may say once more what it heard before
        oldest_s = now_s if heard_s is None else float(heard_s.min())
        age_s = float(getattr(self.device, "age_s", 0.0))  # as that of a leader elsewhere
        q_rad = self._from_units(values)
        if self.base is not None:
            q_rad[-len(self.base_stands) :] = self.base.speeds()
        self._last = LeaderSample(oldest_s - age_s, q_rad)
        return self._last

    def close(self) -> None:
        """Disconnect; safe to call twice."""
        if self._connected:
            self._connected = False
            with contextlib.suppress(*LEROBOT_FAULTS):
                self.device.disconnect()


def _lekiwi_limits_rad() -> dict[str, tuple[float, float]]:
    """Return how far an SO-101's joints go to either side of their middle, which is LeRobot's 0.

    Its servos know their own ends better and stop there.
    """
    half_rad = ARM_MODELS["so101"].half_range_rad
    ends = [*((-half_rad[name], half_rad[name]) for name in SIX_JOINTS[:-1]), GRIPPER_RAD]
    return dict(zip(LEKIWI_JOINTS, ends, strict=True))


def _give_up_sending(device: Any) -> None:
    """Let no message to a robot that is gone keep its client from closing: ZeroMQ waits for ever.

    LeKiwi's client hung in `disconnect()` once its host had died, and the session with it.
    """
    for socket in vars(device).values():
        if callable(getattr(socket, "setsockopt", None)) and hasattr(socket, "linger"):
            socket.linger = LINGER_MS


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ArithmeticError, TypeError, ValueError):
        return math.nan


def _switches(device: Any, name: str) -> list[Callable[[], Any]]:
    """Return every torque switch that the device, its arms or their buses offer."""
    owners = [device, *(getattr(device, f"{side}_arm", None) for side in ("left", "right"))]
    buses = [getattr(owner, "bus", None) for owner in owners if owner is not None]
    found = [getattr(bus, name, None) for bus in buses if bus is not None]
    found = found or [getattr(owner, name, None) for owner in owners if owner is not None]
    return [switch for switch in found if callable(switch)]
