"""From LeRobot's configs to connected devices."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from draccus.utils import DraccusException
from lerobot.cameras import make_cameras_from_configs
from lerobot.robots import make_robot_from_config
from lerobot.teleoperators import make_teleoperator_from_config
from lerobot.utils.constants import HF_LEROBOT_CALIBRATION

from gaploop.core.arms import ARMS
from gaploop.core.clock import Clock, MonotonicClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import CameraFrame, Image
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.teleop.checks.cameras import video_identity
from gaploop.teleop.lerobot_devices.arm import ConnectedArm, arms_of, let_go, open_arm
from gaploop.teleop.lerobot_devices.generic import (
    LEROBOT_FAULTS,
    GenericFollower,
    GenericLeader,
    OwnUnits,
    connect,
    first_line,
    is_uncalibrated,
)
from gaploop.teleop.lerobot_devices.identity import Identities, session_name
from gaploop.teleop.lerobot_devices.servo_arm import BusGroup, ServoArms, ServoFollower, ServoLeader
from gaploop.teleop.servos.calibration import kept_motors, put_away
from gaploop.teleop.servos.port import Usb, is_emulated_here
from gaploop.teleop.servos.registers import Protocol
from gaploop.teleop.supervisor import prepare

LEADER_MIN_V: Final = 9.5
FOLLOWER_MAX_V: Final = 8.5
"""A leader arm on a 12 V supply with a follower on a 5 or 7.4 V one is taken for a swap [V]."""
_GOAL: Final = "Goal_Position"
_THROUGH: Final = frozenset(kind for arm in ARMS.values() for kind in arm.robot_types)
"""LeRobot's types whose class hands its bus's positions and goals through unchanged."""
_NEVER: Final = {
    "disable_torque_on_disconnect": "in the end gaploop lowers the arm to its park pose, and "
    "takes "
    'torque off once it rests there (docs/teleoperate/teleoperation.md, "However it ends")',
}
_BY_US: Final = {
    "num_read_retries": "gaploop asks a silent servo again in each turn, and trips where one is "
    "silent for longer than safety.lost_servo_s of the station file",
}
"""LeRobot's options that aren't followed, with what is done instead: by no arm, and by those that
gaploop's own exchange drives."""


def make_follower(
    robot_config: Any,
    station: Station | None = None,
    clock: Clock | None = None,
    identities: Identities | None = None,
) -> ServoFollower | GenericFollower:
    """Connect the robot that a LeRobot `RobotConfig` describes; its torque is off.

    Arms on a Feetech or Dynamixel bus report everything, in one exchange a turn; any other robot
    works through LeRobot's own methods. Cameras are `make_cameras`'s.

    Args:
        station: joint limits of a robot that has none of its own.
        identities: what the session's devices were before, where this is a reconnection.

    Raises:
        DeviceError: it can't be connected, or isn't what it should be.
        UnusableInputError: an option that can't be used.
    """
    clock, station = clock or MonotonicClock(), station or Station(name="unnamed")
    config = copy.deepcopy(robot_config)
    refuse_options(config, "robot", _NEVER)
    for _, owner in _parts(config):  # LeRobot skips torque-off where a camera is closed
        if getattr(owner, "cameras", None):
            owner.cameras = {}
    device = _build(make_robot_from_config, config, "robot")
    found = arms_of(device)
    if not found:
        with _connected(device, identities):
            return GenericFollower(device, station, clock)
    if not all(is_emulated_here(one.bus.port) for _, one in found):
        prepare()  # it is up before the arm is
    grip_pct = station.safety.gripper_torque_pct
    with _opened(found, limp=True, identities=identities, gripper_torque_pct=grip_pct) as arms:
        if _hands_through(device, arms):
            refuse_options(config, "robot", _BY_US)
            return ServoFollower(device, arms, BusGroup(clock))
        return GenericFollower(device, station, clock)


def make_leader(
    teleop_config: Any,
    follower: Follower | None,
    clock: Clock | None = None,
    identities: Identities | None = None,
) -> ServoLeader | GenericLeader:
    """Connect the teleoperator that a LeRobot `TeleoperatorConfig` describes.

    Args:
        follower: the arm it leads. A leader arm is read in the same exchange as it. None where it
            leads nobody here: its samples are then in its own LeRobot units.
        identities: what the session's devices were before, where this is a reconnection.

    Raises:
        DeviceError: it can't be connected, or isn't what it should be.
        UnusableInputError: it doesn't fit the follower.
    """
    clock = clock or MonotonicClock()
    device = _build(make_teleoperator_from_config, teleop_config, "teleop")
    found = arms_of(device)
    if not found:
        with _connected(device, identities):
            return GenericLeader(device, follower or OwnUnits(device), clock)
    if isinstance(follower, ServoFollower):
        _check_ports([arm.bus.port for _, arm in found], follower.ports)
    group = follower.group if isinstance(follower, ServoFollower) else BusGroup(clock)
    with _opened(found, limp=False, identities=identities) as arms, contextlib.ExitStack() as undo:
        if not _hands_through(device, arms):
            return GenericLeader(device, follower or OwnUnits(device), clock)
        refuse_options(teleop_config, "teleop", _BY_US)
        undo.callback(group.remove, [arm.bus for arm in arms])
        leader = ServoLeader(device, arms, group, follower or OwnUnits(device))
        if isinstance(follower, ServoFollower):
            # Both must speak of joints in the same units, and not be swapped.
            order = [leader.joint_names.index(name) for name in follower.joint_names]
            theirs, ours = leader.convert, follower.convert
            same = (theirs.degrees[order] == ours.degrees) & (theirs.span[order] == ours.span)
            if not same.all():
                is_degrees = theirs.degrees[order][~same][0]
                raise UnusableInputError(
                    f"The leader gives {'degrees' if is_degrees else '-100 to 100'}, the "
                    "follower takes something else. Set --robot.use_degrees="
                    f"{'true' if is_degrees else 'false'}, or --teleop.use_degrees where the "
                    "leader has it."
                )
            if all(bus.protocol is Protocol.FEETECH for bus in leader.buses + follower.buses):
                # NaN is in neither range.
                follower_v, leader_v = _supply_v(follower), _supply_v(leader)
                if leader_v > LEADER_MIN_V and follower_v < FOLLOWER_MAX_V:
                    raise DeviceError(
                        "Leader and follower look swapped: the leader on "
                        f"{', '.join(leader.ports)} has {leader_v:.1f} V, the follower on "
                        f"{', '.join(follower.ports)} {follower_v:.1f} V. Swap --robot.port "
                        "and --teleop.port."
                    )
        undo.pop_all()
        return leader


def make_cameras(
    robot_config: Any, clock: Clock | None = None, identities: Identities | None = None
) -> tuple[LerobotCamera | LerobotDepth, ...]:
    """Connect a robot config's cameras, depth streams last: all, or none and DeviceError."""
    sources = connect_cameras(camera_configs(robot_config), clock, identities)
    return (*sources, *(s.depth for s in sources if s.depth is not None))


def connect_cameras(
    configs: Mapping[str, Any], clock: Clock | None = None, identities: Identities | None = None
) -> list[LerobotCamera]:
    """Connect cameras of LeRobot's `CameraConfig`s, by name: all, or none and DeviceError."""
    clock = clock or MonotonicClock()
    sources: list[LerobotCamera] = []
    with contextlib.ExitStack() as undo:
        for name, camera in _build(make_cameras_from_configs, configs, "camera").items():
            sources.append(LerobotCamera(name, camera, clock, identities))
            undo.callback(sources[-1].close)
        undo.pop_all()
    return sources


def _build(make: Any, config: Any, kind: str) -> Any:
    try:
        device = make(config)
        return getattr(device, "lerobot_device", device)  # of our types for LeRobot's commands
    except (*LEROBOT_FAULTS, DraccusException) as error:
        _check_calibration_file(config, kind)
        # LeRobot puts the whole configuration before what is wrong.
        cause = error.__cause__ if isinstance(error.__cause__, LEROBOT_FAULTS) else error
        raise UnusableInputError(f"--{kind}.*: {first_line(cause)}") from error


def _check_calibration_file(config: Any, kind: str) -> None:
    """Raise UnusableInputError where a device can't be made of its calibration file."""
    name, folder = getattr(config, "id", None), getattr(config, "calibration_dir", None)
    kinds = "robots" if kind == "robot" else "teleoperators"
    found = (
        folder.glob("*.json")
        if folder is not None
        else Path(HF_LEROBOT_CALIBRATION).glob(f"{kinds}/*/*.json")
    )
    for file in sorted(found):
        if file.stem not in (f"{name}", f"{name}_left", f"{name}_right"):
            continue
        try:
            kept_motors(file)
        except UnusableInputError as error:
            raise UnusableInputError(
                f"{str(error).rstrip('.')}. Move it away, then run lerobot-calibrate with this "
                f"{kind}'s options: {put_away(file)}"
            ) from None


@contextlib.contextmanager
def _connected(device: Any, identities: Identities | None = None) -> Iterator[None]:
    """Connect a device; disconnect it again if anything goes wrong before the block is left."""

    def disconnect() -> None:
        with contextlib.suppress(*LEROBOT_FAULTS):
            device.disconnect()

    port = getattr(getattr(device, "config", None), "port", None)
    if identities is not None and port:
        identities.check_port(session_name(device), str(port))
    with contextlib.ExitStack() as undo:
        undo.callback(disconnect)
        try:
            connect(device)
            uncalibrated = is_uncalibrated(device)
        except LEROBOT_FAULTS as error:
            raise DeviceError(f"{device.name} can't be connected: {first_line(error)}") from error
        if uncalibrated:
            kind = session_name(device)
            raise DeviceError(
                f"The {device.name} isn't calibrated. Run: lerobot-calibrate --{kind}.type="
                f"{device.config.type} --{kind}.id={device.id} and its other options."
            )
        yield
        undo.pop_all()


@contextlib.contextmanager
def _opened(
    found: Iterable[tuple[str, Any]], *, limp: bool, **given: Any
) -> Iterator[list[ConnectedArm]]:
    """Open every arm; if anything goes wrong before the block is left, make all limp and close."""
    with contextlib.ExitStack() as undo:
        arms: list[ConnectedArm] = []
        paths: list[str] = []
        for prefix, device in found:
            _check_ports([device.bus.port], paths)
            paths.append(device.bus.port)
            arms.append(open_arm(device, prefix, limp=limp, **given))
            undo.callback(arms[-1].close)
            undo.callback(let_go, arms[-1].bus)
        yield arms
        undo.pop_all()


def _parts(config: Any) -> list[tuple[str, Any]]:
    """Return a config and those of a pair's arms, each with what its options begin with."""
    sides = [(f"{side}_arm_config.", f"{side}_arm_config") for side in ("left", "right")]
    found = [(prefix, getattr(config, name, None)) for prefix, name in sides]
    return [("", config), *((prefix, part) for prefix, part in found if part is not None)]


def refuse_options(config: Any, kind: str, instead: Mapping[str, str]) -> None:
    """Raise UnusableInputError where an option that isn't followed is given.

    Args:
        kind: robot or teleop.
        instead: the options, with what is done instead of following them.
    """
    for prefix, part in _parts(config):
        for one in fields(part):
            usual = one.default if one.default_factory is MISSING else one.default_factory()
            given = getattr(part, one.name)
            if one.name not in instead or given == usual or (one.name in _NEVER and given):
                continue  # torque that goes off is as we have it, whatever is usual
            raise UnusableInputError(
                f"--{kind}.{prefix}{one.name}={given} isn't followed: {instead[one.name]}. Leave "
                "the option out."
            )


def _hands_through(device: Any, arms: Sequence[ConnectedArm]) -> bool:
    """Say whether a device's class does nothing but hand its buses' positions and goals through.

    One that does more, such as coupling joints, or turning some by an option, is used through its
    own methods. Other classes than LeRobot's known arms are tried, on numbers in place of the bus.
    """
    if device.name in _THROUGH and type(device).__module__.startswith("lerobot."):
        return True
    at: dict[str, float] = {}
    written: dict[str, Any] = {}
    with contextlib.ExitStack() as restore:
        for n, arm in enumerate(arms):
            bus, names = arm.device.bus, arm.units.names
            own = {name: 3.0 + 7.0 * k + n for k, name in enumerate(names)}
            at |= {f"{arm.prefix}{name}.pos": value for name, value in own.items()}

            def read(_: str, asked: Any = None, *, own: Any = own, **__: Any) -> Any:
                chosen = own if asked is None else asked
                return own[chosen] if isinstance(chosen, str) else {k: own[k] for k in chosen}

            def write(
                name: str, to: Any, value: Any = None, *, p: str = arm.prefix, **_: Any
            ) -> None:
                given = {to: value} if isinstance(to, str) else to
                written.update({f"{p}{k}.pos": v for k, v in given.items() if name == _GOAL})

            for method, ours in (("read", read), ("write", write)):
                for called in (method, f"sync_{method}"):
                    setattr(bus, called, ours)
                    restore.callback(delattr, bus, called)
        wanted = {key: value + 0.5 for key, value in at.items()}
        try:
            if not hasattr(device, "send_action"):
                return bool(device.get_action() == at)
            device.send_action(dict(wanted))
            seen = device.get_observation()
            return written == wanted and {key: seen.get(key) for key in at} == at
        except LEROBOT_FAULTS:
            return False


def _check_ports(ports: Iterable[str], taken: Iterable[str]) -> None:
    used = {os.path.realpath(path) for path in taken}
    for path in ports:
        if os.path.realpath(path) in used:
            raise UnusableInputError(
                f"{path} is given twice. Every arm has a port of its own; lerobot-find-port shows "
                "which is which."
            )


def _supply_v(arms: ServoArms) -> float:
    volts = arms.state(*arms.group.take(arms.buses)).voltage_v
    known = volts[np.isfinite(volts)].tolist()
    return statistics.median(known) if known else math.nan


def camera_configs(robot_config: Any) -> dict[str, Any]:
    """Return the cameras of a robot config, those of its arms prefixed as LeRobot does it."""
    return {
        prefix.removesuffix("arm_config.") + name: config
        for prefix, part in _parts(robot_config)
        for name, config in (getattr(part, "cameras", None) or {}).items()
    }


# -- cameras -----------------------------------------------------------------------------------

log = logging.getLogger(__name__)

WAIT_MS: Final = 500.0
"""A picture that takes longer is a fault [ms]."""
AGAIN_S: Final = 1.0
"""Pause before a dead camera is connected again [s]."""
FIRST_S: Final = 5.0
"""The first picture must come within this [s]."""
SAME_S: Final = 0.005
"""A class that doesn't wait for a new picture is asked again after this [s]."""
SPARSE: Final = 16
"""Two pictures are compared in every so many-th row and column first."""
MOST_COUNTED: Final = 1000
RECENT_S: Final = 2.0
"""How many pictures a camera gives is counted over this time [s]."""
STOP_S: Final = 2.0
"""A thread that hangs in its driver is left behind after this [s]; it is a daemon."""


class LerobotCamera:
    """One LeRobot camera, or DeviceError where it gives no picture. Implements `CameraSource`."""

    def __init__(
        self, name: str, camera: Any, clock: Clock, identities: Identities | None = None
    ) -> None:
        self.name = name
        self._identities = identities or Identities()
        self.faults = 0
        self.fault = ""
        """What went wrong last, or empty."""
        self.pictures = 0
        """How many it has given so far."""
        self.same_since_s = math.nan
        """Since when every picture has been the newest one to the last bit, by its capture [s]."""
        self._camera, self._clock = camera, clock
        self._taken_at_s: deque[float] = deque(maxlen=MOST_COUNTED)
        self._began_s = math.inf
        self._newest: CameraFrame | None = None
        self._newest_depth: CameraFrame | None = None
        self.fps: float | None = None
        """Pictures a second that it was asked for or promises, where it says so [Hz]."""
        self._first, self._stop = threading.Event(), threading.Event()
        self._check_identity()
        if callable(loop := getattr(camera, "_read_loop", None)):
            camera._read_loop = _quiet(loop)
        try:
            camera.connect()
        except _faults() as error:
            place = getattr(camera, "index_or_path", 0)
            named = sys.platform == "darwin" and not str(place).isdigit()
            fix = "On macOS index_or_path is a number, not a name; " if named else ""
            said = first_line(error).partition("Run `lerobot-find-cameras")[0]  # said below
            raise DeviceError(
                f"Camera {name!r} can't be opened: {said} {fix}lerobot-find-cameras lists what "
                "there is."
            ) from error
        self.fps = getattr(camera, "fps", None)
        self._thread = threading.Thread(target=self._watch, name=f"camera {name}", daemon=True)
        self._thread.start()
        if not self._first.wait(FIRST_S):
            self.close()
            raise DeviceError(f"Camera {name!r} gives no picture: {self.fault or 'it is silent'}.")

    def frame(self) -> CameraFrame:
        """Return the newest picture without waiting; after the camera died, its last."""
        assert self._newest is not None  # the first was waited for
        return self._newest

    @property
    def depth(self) -> LerobotDepth | None:
        """The camera's depth stream, where its config has `use_depth`."""
        return LerobotDepth(self) if self._newest_depth is not None else None

    def depth_frame(self) -> CameraFrame:
        """Return the newest depth picture [mm], taken with `frame`'s; as it does."""
        assert self._newest_depth is not None  # else there is no `depth`
        return self._newest_depth

    def close(self) -> None:
        """Stop the thread and disconnect; safe to call twice, never raises."""
        self._stop.set()
        self._thread.join(STOP_S)
        with contextlib.suppress(*_faults()):
            self._camera.disconnect()

    def rate_hz(self) -> float:
        """Return how many pictures a second it gave lately [Hz]; NaN before that can be told."""
        lately_s = self._clock.now_s() - RECENT_S
        if not lately_s >= self._began_s:
            return math.nan
        return sum(t_s > lately_s for t_s in tuple(self._taken_at_s)) / RECENT_S

    def _watch(self) -> None:
        stamp_s: float | None = None
        read_s = -math.inf
        while not self._stop.is_set():
            try:
                image = self._camera.async_read(timeout_ms=WAIT_MS)
                # LeRobot stamps pictures with time.perf_counter(); age is the same on any clock.
                taken_s = getattr(self._camera, "latest_timestamp", None)
                age_s = time.perf_counter() - taken_s if taken_s is not None else 0.0
                at_s = self._clock.now_s() - age_s
                image, before = np.asarray(image), self._newest
                is_same = before is not None and same_picture(before.image, image)
                waited_s, read_s = time.monotonic() - read_s, time.monotonic()
                at_once = taken_s is None and is_same and waited_s < SAME_S
                if at_once or (taken_s is not None and taken_s == stamp_s):
                    self._stop.wait(SAME_S)  # its class answers with what it has, without waiting
                    read_s = time.monotonic()
                    continue
                stamp_s = taken_s
                if getattr(self._camera, "use_depth", False):
                    depth = np.asarray(self._camera.read_latest_depth())
                    depth = np.ascontiguousarray(depth.reshape(depth.shape[:2]))
                    self._newest_depth = CameraFrame(depth, at_s)
                self._newest = CameraFrame(image, at_s)
                if not is_same:
                    self.same_since_s = at_s
                self.pictures += 1
                self._taken_at_s.append(self._clock.now_s())
                if not self._first.is_set():
                    self._began_s = self._clock.now_s()
                    self._first.set()
                self.fault = ""
            except _faults() as error:
                self._note(error)
                if isinstance(error, TimeoutError) or self._stop.wait(AGAIN_S):
                    continue
                with contextlib.suppress(*_faults()):
                    self._camera.disconnect()
                lost: tuple[type[BaseException], ...] = (DeviceError, *_faults())
                while not self._stop.is_set():
                    try:
                        self._check_identity()
                        self._camera.connect(warmup=False)
                        break
                    except lost as again:
                        self._note(again)
                        self._stop.wait(AGAIN_S)

    def _check_identity(self) -> None:
        """Raise DeviceError where the camera that has the name now isn't the one of before."""
        self._identities.check_camera(self.name, camera_identity(self._camera))

    def _note(self, error: BaseException) -> None:
        self.faults += 1
        if first_line(error) != self.fault:
            log.warning("camera %s: %s", self.name, first_line(error))
        self.fault = first_line(error)


class LerobotDepth:
    """The depth stream of a camera, called as LeRobot calls it. Implements `CameraSource`."""

    def __init__(self, camera: LerobotCamera) -> None:
        self.name = f"{camera.name}_depth"
        self.frame, self.close = camera.depth_frame, camera.close


def camera_identity(camera: Any) -> Usb | None:
    """Return by what a LeRobot camera can be known again; None where nothing tells."""
    if serial := getattr(camera, "serial_number", ""):  # RealSense
        return Usb(type(camera).__name__, str(serial))
    return video_identity(getattr(camera, "index_or_path", None))


def same_picture(one: Image, two: Image) -> bool:
    """Say whether two pictures are equal to the last bit; two of a real sensor never are."""
    sparse = (slice(None, None, SPARSE),) * 2
    return np.array_equal(one[sparse], two[sparse]) and np.array_equal(one, two)


def _quiet(loop: Callable[[], None]) -> Callable[[], None]:
    """Return a loop of LeRobot's own thread that ends without a traceback: `_watch` says why."""

    def run() -> None:
        with contextlib.suppress(*_faults()):
            loop()

    return run


def _faults() -> tuple[type[BaseException], ...]:
    """What LeRobot's cameras raise, OpenCV's own error included."""
    return (*LEROBOT_FAULTS, cv2.error)
