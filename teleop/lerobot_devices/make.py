"""From LeRobot's configs to connected devices."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from gaploop.core.clock import Clock, MonotonicClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.protocols import Follower
from gaploop.core.station import Station
from gaploop.teleop.lerobot_devices.arm import ConnectedArm, arms_of, let_go, open_arm
from gaploop.teleop.lerobot_devices.cameras import LerobotCamera, LerobotDepth, camera_configs
from gaploop.teleop.lerobot_devices.faults import (
    LEROBOT_FAULTS,
    connect,
    first_line,
    is_uncalibrated,
)
from gaploop.teleop.lerobot_devices.generic import GenericFollower, GenericLeader, OwnUnits
from gaploop.teleop.lerobot_devices.servo_arm import BusGroup, ServoArms, ServoFollower, ServoLeader
from gaploop.teleop.servos.port import is_emulated_here
from gaploop.teleop.servos.registers import Protocol
from gaploop.teleop.supervisor import prepare

LEADER_MIN_V: Final = 9.5
FOLLOWER_MAX_V: Final = 8.5
"""A leader arm on a 12 V supply with a follower on a 5 or 7.4 V one is taken for a swap [V]."""
SAME_UNITS: Final = 5.0
"""A limp arm moves this little between two readings [degrees or percent]."""


def make_follower(
    robot_config: Any, station: Station | None = None, clock: Clock | None = None
) -> ServoFollower | GenericFollower:
    """Connect the robot that a LeRobot `RobotConfig` describes; its torque is off.

    Arms on a Feetech or Dynamixel bus report everything, in one exchange a turn; any other robot
    works through LeRobot's own methods. Cameras are `make_cameras`'s.

    Args:
        station: joint limits of a robot that has none of its own.

    Raises:
        DeviceError: it can't be connected, or isn't what it should be.
        UnusableInputError: an option that can't be used.
    """
    from lerobot.robots import make_robot_from_config

    clock, station = clock or MonotonicClock(), station or Station(name="unnamed")
    config = copy.deepcopy(robot_config)
    sides = (getattr(config, f"{side}_arm_config", None) for side in ("left", "right"))
    for owner in (config, *sides):  # LeRobot skips torque-off where a camera is closed
        if getattr(owner, "cameras", None):
            owner.cameras = {}
    device = _build(make_robot_from_config, config, "robot")
    found = arms_of(device)
    if not found:
        with _connected(device):
            return GenericFollower(device, station, clock)
    if not all(is_emulated_here(one.bus.port) for _, one in found):
        prepare()  # it is up before the arm is
    with _opened(found, limp=True) as arms:
        arm = ServoFollower(device, arms, BusGroup(clock))
        if _hands_through(device, "get_observation", arm):
            return arm
        return GenericFollower(device, station, clock)


def make_leader(
    teleop_config: Any, follower: Follower | None, clock: Clock | None = None
) -> ServoLeader | GenericLeader:
    """Connect the teleoperator that a LeRobot `TeleoperatorConfig` describes.

    Args:
        follower: the arm it leads. A leader arm is read in the same exchange as it. None where it
            leads nobody here: its samples are then in its own LeRobot units.

    Raises:
        DeviceError: it can't be connected, or isn't what it should be.
        UnusableInputError: it doesn't fit the follower.
    """
    from lerobot.teleoperators import make_teleoperator_from_config

    clock = clock or MonotonicClock()
    device = _build(make_teleoperator_from_config, teleop_config, "teleop")
    found = arms_of(device)
    if not found:
        with _connected(device):
            return GenericLeader(device, follower or OwnUnits(device), clock)
    if isinstance(follower, ServoFollower):
        _check_ports([arm.bus.port for _, arm in found], follower.ports)
    group = follower.group if isinstance(follower, ServoFollower) else BusGroup(clock)
    with _opened(found, limp=False) as arms, contextlib.ExitStack() as undo:
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
        if _hands_through(device, "get_action", leader):
            undo.pop_all()
            return leader
        return GenericLeader(device, follower or OwnUnits(device), clock)


def connected_teleoperator(teleop_config: Any) -> Any:
    """Connect and return a LeRobot teleoperator that is no `Leader`; raises as `make_leader`."""
    from lerobot.teleoperators import make_teleoperator_from_config

    device = _build(make_teleoperator_from_config, teleop_config, "teleop")
    with _connected(device):
        return device


def make_cameras(
    robot_config: Any, clock: Clock | None = None
) -> tuple[LerobotCamera | LerobotDepth, ...]:
    """Connect a robot config's cameras, depth streams last: all, or none and DeviceError."""
    from lerobot.cameras import make_cameras_from_configs

    clock = clock or MonotonicClock()
    cameras = _build(make_cameras_from_configs, camera_configs(robot_config), "camera")
    with contextlib.ExitStack() as undo:
        sources: list[LerobotCamera] = []
        for name, camera in cameras.items():
            sources.append(LerobotCamera(name, camera, clock))
            undo.callback(sources[-1].close)
        undo.pop_all()
    return (*sources, *(s.depth for s in sources if s.depth is not None))


def _build(make: Any, config: Any, kind: str) -> Any:
    try:
        return make(config)
    except LEROBOT_FAULTS as error:
        # LeRobot puts the whole configuration before what is wrong.
        cause = error.__cause__ if isinstance(error.__cause__, LEROBOT_FAULTS) else error
        raise UnusableInputError(f"--{kind}.*: {first_line(cause)}") from error


@contextlib.contextmanager
def _connected(device: Any) -> Iterator[None]:
    """Connect a device; disconnect it again if anything goes wrong before the block is left."""

    def disconnect() -> None:
        with contextlib.suppress(*LEROBOT_FAULTS):
            device.disconnect()

    with contextlib.ExitStack() as undo:
        undo.callback(disconnect)
        try:
            connect(device)
            uncalibrated = is_uncalibrated(device)
        except LEROBOT_FAULTS as error:
            raise DeviceError(f"{device.name} can't be connected: {first_line(error)}") from error
        if uncalibrated:
            kind = "robot" if hasattr(device, "send_action") else "teleop"
            raise DeviceError(
                f"The {device.name} isn't calibrated. Run: lerobot-calibrate --{kind}.type="
                f"{device.config.type} --{kind}.id={device.id} and its other options."
            )
        yield
        undo.pop_all()


@contextlib.contextmanager
def _opened(found: Iterable[tuple[str, Any]], *, limp: bool) -> Iterator[list[ConnectedArm]]:
    """Open every arm; if anything goes wrong before the block is left, make all limp and close."""
    with contextlib.ExitStack() as undo:
        arms: list[ConnectedArm] = []
        paths: list[str] = []
        for prefix, device in found:
            _check_ports([device.bus.port], paths)
            paths.append(device.bus.port)
            arms.append(open_arm(device, prefix, limp=limp))
            undo.callback(arms[-1].close)
            undo.callback(let_go, arms[-1].bus)
        yield arms
        undo.pop_all()


def _hands_through(device: Any, method: str, arms: ServoArms) -> bool:
    """Say whether a third party's class hands its bus's normalised positions through unchanged.

    One that does more, such as coupling joints, is used through its own methods.
    """
    if type(device).__module__.startswith("lerobot."):
        return True
    try:
        theirs = getattr(device, method)()
        values = np.array([float(theirs[f"{name}.pos"]) for name in arms.joint_names])
    except LEROBOT_FAULTS as error:
        raise DeviceError(f"{device.name}: {first_line(error)}") from error
    _, states = arms.group.take(arms.buses)
    ticks = np.hstack([state.position_ticks for state in states])
    ours = arms.convert.ticks_to_units(ticks)
    return bool((np.abs(values - ours) <= SAME_UNITS).all())


def _check_ports(ports: Iterable[str], taken: Iterable[str]) -> None:
    used = {os.path.realpath(path) for path in taken}
    for path in ports:
        if os.path.realpath(path) in used:
            raise UnusableInputError(
                f"{path} is given twice. Every arm has a port of its own; lerobot-find-port shows "
                "which is which."
            )


def _supply_v(arms: ServoArms) -> float:
    _, states = arms.group.take(arms.buses)
    volts = np.concatenate([state.voltage_v for state in states])
    known = volts[np.isfinite(volts)].tolist()
    return statistics.median(known) if known else math.nan
