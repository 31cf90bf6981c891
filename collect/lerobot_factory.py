"""From `--robot.*` and `--teleop.*` to connected devices: the one place where they are made.

LeRobot's `make_robot_from_config` and `make_teleoperator_from_config` make what is LeRobot's; the
embedded cell, tools that an input device moves and scripted motions are gaploop's own. Which types
there are, and what a type tells of a device, is in `lerobot_types`, which imports nothing heavy.
"""

import contextlib
import logging
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from gaploop.collect import lerobot_types
from gaploop.collect.lerobot_types import kind
from gaploop.collect.rig import (
    EmbeddedRig,
    LedArm,
    Rig,
    SimulatedRig,
    embedded_rig,
    world_rig,
)
from gaploop.collect.rollout import RolloutDriver
from gaploop.core.clock import Clock, PacedClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel, Box, model_of
from gaploop.core.protocols import CameraSource, Follower, Leader
from gaploop.core.station import Station
from gaploop.sim.cell import PacedCellClock
from gaploop.sim.randomise import cell_arguments
from gaploop.teleop.calibration.store import calibration_path, load_calibration
from gaploop.teleop.leaders.cartesian import JOINT_RAD_S, CartesianLeader, common_limits
from gaploop.teleop.leaders.controls import Controls, IntentSource, MotionOptions
from gaploop.teleop.leaders.motion import MotionLeader
from gaploop.teleop.lerobot_devices.identity import Identities
from gaploop.teleop.lerobot_devices.make import (
    camera_configs,
    make_cameras,
    make_follower,
    make_leader,
    refuse_options,
)
from gaploop.teleop.lerobot_devices.servo_arm import aligning
from gaploop.teleop.loop import Rates
from gaploop.teleop.sensors import connect_sensors, observed
from gaploop.teleop.stopping import disconnect

log = logging.getLogger(__name__)


class ArmConnection(contextlib.ExitStack):
    """Connects a session's robot, leader, cameras and sensors, as often as they are lost.

    A leader with a window, which belongs to a thread, outlives the arms: it ends with the block.

    Args:
        config: as of `DriveOptions`, perhaps with `sensors`.
        leads: somebody leads the arm by hand.
        records: cameras, sensors and the calibration, which lies beside the station's file, are
            looked at, too.
        driver: the policy that the person takes over from, if one drives.
        is_watched: somebody is there, who may drive a base by a window's keys.
    """

    def __init__(
        self,
        config: Any,
        station: Station,
        rates: Rates,
        *,
        leads: bool = True,
        records: bool = True,
        driver: RolloutDriver | None = None,
        is_watched: bool = True,
    ) -> None:
        super().__init__()
        self._config, self._station, self._rates = config, station, rates
        self._is_watched = is_watched
        self._leads, self._records, self._driver = leads, records, driver
        self._identities = Identities()
        self._panel: Any = None
        """The leader that has a window."""
        self._base: Any = None
        """The keys that drive the base."""

    @property
    def title(self) -> str:
        """Follower and leader by type and id."""
        ends = (self._config.robot, self._config.teleop)
        return " ← ".join(f"{kind(c)} '{c.id}'" if c.id else kind(c) for c in ends)

    def connect(self) -> tuple[Rig, Leader | None]:
        """Connect everything, torque off; all or nothing.

        Raises:
            DeviceError: a device doesn't answer, or isn't what it should be.
            UnusableInputError: options or a calibration that can't be used.
        """
        config, station, robot = self._config, self._station, self._config.robot
        more: dict[str, Any] = {}
        with contextlib.ExitStack() as undo:
            made = simulated(robot, looks=False) if robot.type == lerobot_types.EMBEDDED else None
            follower, clock = follower_of(robot, station, made, self._identities)
            undo.callback(disconnect, follower)
            leader = self._leader(follower, clock, made) if self._leads else None
            undo.callback(disconnect, leader)
            if self._records:
                cameras = more["cameras"] = cameras_of(robot, clock, station, self._identities)
                undo.callback(disconnect, *cameras)
                asked = getattr(config, "sensors", {})
                sensors = more["sensors"] = connect_sensors(asked)
                more["observed"] = observed(asked, sensors)
                undo.callback(disconnect, *sensors)
                if self._driver is not None:
                    more["tracker"] = self._driver.tracker(cameras, station)
                if made is None:
                    path = calibration_path(config.station)
                    calibration = load_calibration(path, missing_ok=True)
                    own = getattr(getattr(follower, "device", None), "calibration_fpath", None)
                    for line in calibration.doubts(own):
                        log.warning("%s", line)
                    more["calibration"] = calibration.id
            rig = Rig.of(follower, clock, station, self._rates, **more)
            undo.pop_all()
        return rig, leader

    def _leader(self, follower: Follower, clock: Clock, made: SimulatedRig | None) -> Leader:
        config = self._config
        if self._panel is not None:
            self._panel.lead(lambda: follower.read().position_rad)
            return self._panel  # type: ignore[no-any-return]
        expert: Leader | None = None
        if made is not None:
            follower = cast(Follower, LedArm(follower))
            if kind(config.teleop) == lerobot_types.EXPERT:
                expert = made.scripted_leader(config.robot.seed)
        leader = leader_of(
            config, follower, self._station, clock, expert=expert, identities=self._identities
        )
        if kind(config.teleop) in lerobot_types.TOOL:
            self._panel = leader
            self.callback(self._panel.keep_open())
            return leader
        if self._is_watched and getattr(leader, "base_stands", None):
            self._drive_base(leader, follower)
        if self._driver is None:
            return leader
        return aligning(leader) or leader  # a leader arm comes to the arm's pose first

    def _drive_base(self, leader: Any, follower: Follower) -> None:
        """Open the keys that drive a base, if there can be a window; they outlive the arms."""
        if self._base is None:
            from gaploop.teleop.leaders.panel import BaseKeyboard

            limits = self._station.joint_limits(follower.joint_names, follower.joint_limits_rad)
            speeds = leader.base_stands
            try:
                self._base = BaseKeyboard(speeds, limits[-len(speeds) :], f"gaploop: {self.title}")
            except DeviceError as error:
                log.warning("The base stands still, for its keys need a window. %s", error)
                return
            self.callback(self._base.close)
        leader.base = self._base


def follower_of(
    robot: Any,
    station: Station,
    made: SimulatedRig | None = None,
    identities: Identities | None = None,
) -> tuple[Follower, Clock]:
    """Connect a robot without anybody who leads it; the clock is the time it lives on.

    Args:
        made: what is simulated, in real time, where the robot is that and it was made already.

    Raises:
        DeviceError: it doesn't answer, or isn't what it should be.
        UnusableInputError: options or calibration that can't be used.
    """
    if robot.type == lerobot_types.EMBEDDED:
        made = made or simulated(robot)
        return made.follower, PacedCellClock(made.cell)
    clock = PacedClock()
    return make_follower(robot, station, clock, identities), clock


def leader_of(
    config: Any,
    follower: Follower,
    station: Station,
    clock: Clock,
    *,
    expert: Leader | None = None,
    identities: Identities | None = None,
) -> Leader:
    """Connect who leads a follower, by options as of `DriveOptions`.

    A leader with a window belongs to the thread that calls.

    Raises:
        DeviceError: it doesn't answer, or no window can be opened.
        UnusableInputError: it doesn't fit the follower.
    """
    teleop, chosen = config.teleop, kind(config.teleop)
    if chosen in (lerobot_types.KEYBOARD, lerobot_types.GAMEPAD):
        ours = f"--teleop.type={chosen} is gaploop's own and has no options"
        others = {f.name: ours for f in fields(teleop) if f.name != "id"}
        refuse_options(teleop, "teleop", others)
    if chosen == lerobot_types.MOTION:
        return make_motion_leader(follower, station, teleop)
    if chosen in lerobot_types.TOOL:
        page = (teleop.host, teleop.port) if chosen == lerobot_types.BROWSER else None
        return make_tool_leader(chosen, follower, station, page)
    if teleop.type != lerobot_types.EXPERT:
        return make_leader(teleop, follower, clock, identities)
    if expert is not None:
        return expert
    raise UnusableInputError(
        f"--teleop.type={lerobot_types.EXPERT} drives the embedded cell only, not "
        f"{follower.robot_type}. Use --robot.type={lerobot_types.EMBEDDED}, or a leader: "
        "so101_leader, keyboard, motion, …"
    )


def cell_rig(
    robot: Any,
    fps: float | None,
    conditions: Mapping[str, object],
    sensors: Mapping[str, Mapping[str, Any]] | None = None,
) -> EmbeddedRig:
    """Build the embedded cell that `--robot.*` describes, with something set up, for takes."""
    camera = {n: getattr(robot, n) for n in ("image_size", "camera_hz") if hasattr(robot, n)}
    given = cell_arguments(robot, robot.model, "--robot.model") | camera
    there = {**robot.conditions, **conditions}
    return embedded_rig(**given, conditions=there, fps=fps, sensors=sensors)


def simulated_rig(
    robot: Any,
    fps: float | None,
    conditions: Mapping[str, object],
    sensors: Mapping[str, Mapping[str, Any]] | None = None,
    looks: bool = True,
) -> SimulatedRig:
    """Build the scene file, or else the embedded cell, that `--robot.*` describe.

    Nobody looks at pictures of the scene unless it `looks`.
    """
    if robot.scene is None:
        return cell_rig(robot, fps, conditions, sensors)
    return world_rig(
        robot.scene,
        gaps=robot.gaps,
        gap_seed=robot.gap_seed,
        conditions={**robot.conditions, **conditions},
        fps=fps,
        looks=looks,
    )


def simulated(robot: Any, *, looks: bool = True) -> SimulatedRig:
    """Return `simulated_rig`, set up."""
    rig = simulated_rig(robot, None, {}, looks=looks)
    rig.reset(robot.seed)
    return rig


def cameras_of(
    robot: Any, clock: Clock, station: Station, identities: Identities | None = None
) -> tuple[CameraSource, ...]:
    """Connect a robot's cameras, the one that shows the scene first; none of the embedded cell.

    Raises:
        DeviceError: one can't be opened, or gives no picture.
        UnknownChoiceError: the station's camera is none of them.
    """
    if robot.type == lerobot_types.EMBEDDED:
        return ()
    names = list(camera_configs(robot))
    first = station.scene.camera_among(names, "--robot.cameras") if names else ""
    cameras = make_cameras(robot, clock, identities)
    return tuple(sorted(cameras, key=lambda camera: camera.name != first))


# -- leaders that need to know the arm they lead -----------------------------------------------


def make_tool_leader(
    device: str, follower: Follower, station: Station, page: tuple[str, int] | None = None
) -> CartesianLeader:
    """Open the operator's window and return a leader that drives the tool from an input device.

    Call it on the main thread, and there `leader.pump(trip)` 30 times a second or more. Attach
    the leader to the control loop as a sink.

    Args:
        page: of a browser: host and port that its page is served on.

    Raises:
        UnusableInputError: no model of this arm is known, or it doesn't fit.
        DeviceError: nobody opens the page, there is no gamepad, or no window can be opened.
    """
    arm = arm_of(follower, station, f"--teleop.type={device}")
    title = f"gaploop: {follower.robot_type}"
    source: IntentSource
    if page is not None:
        from gaploop.teleop.leaders.browser import Browser

        source = Browser(title, *page)
    else:
        from gaploop.teleop.leaders import panel

        made = panel.Keyboard if device == "keyboard" else panel.Gamepad
        source = made(Controls(), title)
    return CartesianLeader(
        arm,
        station.joint_limits(follower.joint_names, follower.joint_limits_rad),
        source,
        lambda: follower.read().position_rad,
        box_of(arm, station),
        joint_velocity_rad_s=min(JOINT_RAD_S, station.safety.velocity_rad_s),
    )


def make_motion_leader(
    follower: Follower,
    station: Station,
    options: MotionOptions | None = None,
    *,
    clear_m: float = -math.inf,
    whose: str = "--teleop.type=motion",
) -> MotionLeader:
    """Return a leader that runs a scripted motion. Its `reset` builds the script and may refuse.

    Attach the leader to the control loop as a sink, so that a trip ends the script.

    Args:
        clear_m: least height of every guarded point, where the workspace reaches lower [m].

    Raises:
        UnusableInputError: no model of this arm is known, or it doesn't fit.
    """
    arm = arm_of(follower, station, whose)
    limits_rad = station.joint_limits(follower.joint_names, follower.joint_limits_rad)
    box = box_of(arm, station)
    if box is not None:
        x, y, (low_m, high_m) = box
        box = (x, y, (max(low_m, clear_m), high_m))
    return MotionLeader(
        arm,
        common_limits(arm, limits_rad),
        lambda: follower.read().position_rad,
        within_limits(options or MotionOptions(), station),
        box,
    )


def within_limits(options: MotionOptions, station: Station) -> MotionOptions:
    """Return a script as fast as the station allows, so that its filter has nothing to change."""
    safety = station.safety
    return replace(
        options,
        velocity_rad_s=min(options.velocity_rad_s, 0.9 * safety.velocity_rad_s),
        acceleration_rad_s2=min(options.acceleration_rad_s2, 0.9 * safety.acceleration_rad_s2),
    )


def arm_of(follower: Follower, station: Station, whose: str) -> ArmModel:
    """Return the model of an arm: the station's, or the one known for its robot type.

    Raises:
        UnusableInputError: there is none, or it has other joints; `whose` needs it.
    """
    if (own := getattr(follower, "arm_model", None)) is not None:  # a scene file's
        return cast(ArmModel, own())
    name = station.robot_model or model_of(follower.robot_type)
    if not name:
        raise UnusableInputError(
            f"{whose} needs a model of the arm and none is known for "
            f"{follower.robot_type}. Name one in the station file as robot_model "
            f"({', '.join(ARM_MODELS)}, or the path of an MJCF file), or use a leader arm."
        )
    arm = ArmModel.load(name)
    if arm.joint_names != tuple(follower.joint_names):
        raise UnusableInputError(
            f"{whose} drives one arm with the joints of the model '{arm.name}' "
            f"({', '.join(arm.joint_names)}); {follower.robot_type} has "
            f"{', '.join(follower.joint_names)}. Use a leader arm, or name the right robot_model "
            "in the station file."
        )
    return arm


def box_of(arm: ArmModel, station: Station) -> Box | None:
    """Return the box that an arm is kept in: the station's, or that of its model [m]."""
    if station.workspace is not None:
        return (station.workspace.x, station.workspace.y, station.workspace.z)
    spec = ARM_MODELS.get(arm.name)
    return None if spec is None else spec.workspace_m
