"""From `--robot.*` and `--teleop.*` to connected devices: the one place where they are made.

LeRobot's `make_robot_from_config` and `make_teleoperator_from_config` make what is LeRobot's; the
embedded cell, tools that an input device moves and scripted motions are gaploop's own. Every type
that LeRobot ships, those of third-party plugins and gaploop's own register themselves when their
package is imported; nothing here lists them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import draccus

from gaploop.core.clock import Clock
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ArmModel, model_of
from gaploop.core.protocols import CameraSource, Follower, Leader
from gaploop.core.station import SIM_STATION, Station, load_station
from gaploop.core.vocabulary import Domain
from gaploop.teleop.realtime import PacedClock
from gaploop.teleop.sensors import connect_sensors, observed
from gaploop.teleop.stopping import disconnect

if TYPE_CHECKING:
    from gaploop.collect.rig import EmbeddedRig, Rig
    from gaploop.collect.rollout import RolloutDriver
    from gaploop.sim.cell import SimCell
    from gaploop.teleop.lerobot_devices.identity import Identities
    from gaploop.teleop.loop import Rates

log = logging.getLogger(__name__)

EMBEDDED: Final = "so101_sim"
EXPERT: Final = "scripted"
KEYBOARD: Final = "keyboard"
GAMEPAD: Final = "gamepad"
MOTION: Final = "motion"
BROWSER: Final = "browser"
TOOL: Final = (KEYBOARD, GAMEPAD, BROWSER)
"""Those that move the arm's tool, by an input device."""
OWN: Final = (EXPERT, MOTION, *TOOL)
"""Those that need the arm that they lead."""


def calibration_of(file: Path | None, follower: Follower) -> str:
    """Return the id that takes carry, "" where nothing is calibrated; say what may be out of date.

    The calibration lies beside the station's `file`; the arm is at rest, and its pose is compared
    with the stored one.

    Raises:
        UnusableInputError: the calibration file can't be read.
    """
    from gaploop.teleop.calibration.drift import CalibrationSighting, before_recording
    from gaploop.teleop.calibration.store import calibration_path, load_calibration

    calibration = load_calibration(calibration_path(file), missing_ok=True)
    model = model_of(follower.robot_type)
    now = CalibrationSighting(follower.read().position_rad, follower.joint_names)
    own_file = getattr(getattr(follower, "device", None), "calibration_fpath", None)
    arm = ArmModel.load(model) if model else None
    for line in before_recording(calibration, now, arm=arm, arm_file=own_file):
        log.warning("%s", line)
    return calibration.id


def station_for(robot: Any, path: Path | None) -> Station:
    """Return the station of `--station=FILE`, or the one that a robot has without it.

    An arm whose port is a pseudo-terminal is emulated: its domain is `sim_target`, whatever the
    file says, for what is recorded on it must never pass for a real robot's.

    Raises:
        UnusableInputError: what is wrong in the file.
    """
    known = SIM_STATION if robot.type == EMBEDDED else Station(name="unnamed")
    station = known if path is None else load_station(path)
    if station.domain is Domain.REAL and _is_emulated(robot):
        return replace(station, domain=Domain.SIM_TARGET)
    return station


def session_station(robot: Any, path: Path | None) -> Station:
    """Return `station_for` a session that records: the embedded cell has its own.

    Raises:
        UnusableInputError: a file is named for the embedded cell, or what is wrong in it.
    """
    if robot.type == EMBEDDED and path is not None:
        raise UnusableInputError(
            "--station names the cell of an arm; the embedded cell has its own. Leave it out, or "
            "choose an arm with --robot.type."
        )
    return station_for(robot, path)


def _is_emulated(robot: Any) -> bool:
    ports = [str(value) for name, value in vars(robot).items() if name.endswith("port") and value]
    for arm in ("left_arm_config", "right_arm_config"):
        ports += [str(getattr(getattr(robot, arm, None), "port", "") or "")]
    return any(os.path.realpath(port).startswith("/dev/pts/") for port in ports if port)


class ArmConnection(contextlib.ExitStack):
    """Connects a session's robot, leader, cameras and sensors, as often as they are lost.

    A leader with a window, which belongs to a thread, outlives the arms: it ends with the block.

    Args:
        config: as of `DriveOptions`, perhaps with `sensors`.
        leads: somebody leads the arm by hand.
        records: cameras, sensors and the calibration, which lies beside the station's file, are
            looked at, too.
        driver: the policy that the person takes over from, if one drives.
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
    ) -> None:
        super().__init__()
        from gaploop.teleop.lerobot_devices.identity import Identities

        self._config, self._station, self._rates = config, station, rates
        self._leads, self._records, self._driver = leads, records, driver
        self._identities = Identities()
        self._panel: Any = None
        """The leader that has a window."""

    @property
    def title(self) -> str:
        """Follower and leader by type and id."""
        return f"{_name(self._config.robot)} ← {_name(self._config.teleop)}"

    def connect(self) -> tuple[Rig, Leader | None]:
        """Connect everything, torque off; all or nothing.

        Raises:
            DeviceError: a device doesn't answer, or isn't what it should be.
            UnusableInputError: options or a calibration that can't be used.
        """
        from gaploop.collect.rig import arm_rig

        config, station, robot = self._config, self._station, self._config.robot
        more: dict[str, Any] = {}
        with contextlib.ExitStack() as undo:
            cell = cell_of(robot) if robot.type == EMBEDDED else None
            follower, clock = follower_of(robot, station, cell, self._identities)
            undo.callback(disconnect, follower)
            leader = self._leader(follower, clock, cell) if self._leads else None
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
                if cell is None:
                    more["calibration"] = calibration_of(config.station, follower)
            rig = arm_rig(follower, clock, station, self._rates, **more)
            undo.pop_all()
        return rig, leader

    def _leader(self, follower: Follower, clock: Clock, cell: SimCell | None) -> Leader:
        config = self._config
        if self._panel is not None:
            self._panel.lead(lambda: follower.read().position_rad)
            return self._panel  # type: ignore[no-any-return]
        expert: Leader | None = None
        if cell is not None:
            from gaploop.sim.expert import scripted

            expert = scripted(cell, config.robot.seed)
        leader = leader_of(
            config, follower, self._station, clock, expert=expert, identities=self._identities
        )
        if kind(config.teleop) in TOOL:
            self._panel = leader
            self.callback(self._panel.keep_open())
            return leader
        if self._driver is None:
            return leader
        from gaploop.teleop.lerobot_devices.servo_arm import aligning

        return aligning(leader) or leader  # a leader arm comes to the arm's pose first


def follower_of(
    robot: Any,
    station: Station,
    cell: SimCell | None = None,
    identities: Identities | None = None,
) -> tuple[Follower, Clock]:
    """Connect a robot without anybody who leads it; the clock is the time it lives on.

    Args:
        cell: the embedded cell, in real time, where the robot is that and it was made already.

    Raises:
        DeviceError: it doesn't answer, or isn't what it should be.
        UnusableInputError: options or calibration that can't be used.
    """
    if robot.type == EMBEDDED:
        from gaploop.sim.cell import CellFollower, PacedCellClock

        cell = cell or cell_of(robot)
        return CellFollower(cell), PacedCellClock(cell)
    from gaploop.teleop.lerobot_devices import make_follower

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
    leader: Leader
    if chosen in (KEYBOARD, GAMEPAD):
        from gaploop.teleop.lerobot_devices.make import refuse_options

        ours = f"--teleop.type={chosen} is gaploop's own and has no options"
        others = {f.name: ours for f in fields(teleop) if f.name != "id"}
        refuse_options(teleop, "teleop", others)
    if chosen in (MOTION, *TOOL):  # runs a script, or moves the arm's tool
        from gaploop.teleop.leaders import make

        if chosen == MOTION:
            leader = make.make_motion_leader(follower, station, teleop.options())
        else:
            page = (teleop.host, teleop.port) if chosen == BROWSER else None
            leader = make.make_tool_leader(chosen, follower, station, page)
    elif teleop.type != EXPERT:
        from gaploop.teleop.lerobot_devices import make_leader

        leader = make_leader(teleop, follower, clock, identities)
    elif expert is not None:
        leader = expert
    else:
        raise UnusableInputError(
            f"--teleop.type={EXPERT} drives the embedded cell only, not {follower.robot_type}. Use "
            f"--robot.type={EMBEDDED}, or a leader: so101_leader, keyboard, motion, …"
        )
    return leader


def evidence_of(robot: Any, station: Station, *, as_of_plan: bool = False) -> str:
    """Return what takes are evidence of, in a word; with a plan the cell stands for a real one."""
    if robot.type != EMBEDDED:
        return "real" if station.domain is Domain.REAL else "emulated"
    stands_for_one = robot.gaps or robot.conditions or robot.twin or as_of_plan
    return "sim-to-sim" if stands_for_one else "sim"


def kind(config: Any) -> str:
    """Return the type of a device by the name of its option.

    LeRobot itself says so100 for an SO-101: both are one class, and it gives the first name.
    """
    names = [name for name, known in config.get_known_choices().items() if known is type(config)]
    return max(names, default=str(config.type))


def robot_words(robot: Any) -> str:
    """Return which arm it is, as a record of its checks names it."""
    return f"{kind(robot)} {robot.id or ''}".strip()


def _name(config: Any) -> str:
    return f"{kind(config)} '{config.id}'" if config.id else kind(config)


def robot_arguments(robot: Any) -> dict[str, Any]:
    """Return what `--robot.*` say of the embedded cell, and of its camera where they do."""
    from gaploop.sim.randomise import cell_arguments

    camera = ("image_size", "camera_hz")
    like = {name: getattr(robot, name) for name in camera if hasattr(robot, name)}
    return cell_arguments(robot, robot.model, "--robot.model") | like


def cell_rig(
    robot: Any,
    fps: float | None,
    conditions: Mapping[str, object],
    sensors: Mapping[str, Mapping[str, Any]] | None = None,
) -> EmbeddedRig:
    """Build the embedded cell that `--robot.*` describes, with something set up, for takes."""
    from gaploop.collect.rig import embedded_rig

    there = {**robot.conditions, **conditions}
    return embedded_rig(**robot_arguments(robot), conditions=there, fps=fps, sensors=sensors)


def simulated_rig(
    robot: Any,
    fps: float | None,
    conditions: Mapping[str, object],
    sensors: Mapping[str, Mapping[str, Any]] | None = None,
) -> Rig:
    """Build the scene file, or else the embedded cell, that `--robot.*` describe."""
    if robot.scene is None:
        return cell_rig(robot, fps, conditions, sensors)
    from gaploop.collect.rig import world_rig

    return world_rig(
        robot.scene,
        gaps=robot.gaps,
        gap_seed=robot.gap_seed,
        conditions={**robot.conditions, **conditions},
        fps=fps,
    )


def cell_of(robot: Any) -> SimCell:
    """Return the embedded cell that `--robot.*` describes, with its scene set up."""
    from gaploop.sim.cell import SimCell

    cell = SimCell(**robot_arguments(robot), conditions=robot.conditions)
    cell.reset(robot.seed)
    return cell


def cameras_of(
    robot: Any, clock: Clock, station: Station, identities: Identities | None = None
) -> tuple[CameraSource, ...]:
    """Connect a robot's cameras, the one that shows the scene first; none of the embedded cell.

    Raises:
        DeviceError: one can't be opened, or gives no picture.
        UnknownChoiceError: the station's camera is none of them.
    """
    if robot.type == EMBEDDED:
        return ()
    from gaploop.teleop.lerobot_devices import make_cameras
    from gaploop.teleop.lerobot_devices.make import camera_configs

    names = list(camera_configs(robot))
    first = station.scene.camera_among(names, "--robot.cameras") if names else ""
    cameras = make_cameras(robot, clock, identities)
    return tuple(sorted(cameras, key=lambda camera: camera.name != first))


# -- the types of devices, as options ------------------------------------------------------------

OWN_PACKAGES: Final = (
    "gaploop.sim.lerobot_devices",
    "gaploop.teleop.lerobot_devices",
    "gaploop.teleop.lerobot_leaders",
    "gaploop.teleop.lerobot_ros2",
)


KINDS: Final = ("RobotConfig", "TeleoperatorConfig", "CameraConfig")
_REGISTERED: Final = re.compile(rf"@({'|'.join(KINDS)})\.register_subclass\(\s*\"(\w+)\"")
_PLUGINS: Final = ("lerobot_robot_*", "lerobot_teleoperator_*", "lerobot_camera_*")
"""How LeRobot tells its plug-ins, by the names of distributions."""
DISCOVERED: Final = "GAPLOOP_DISCOVERED_PACKAGES"
"""Environment variable: packages that the command line named, for the processes it starts."""


def with_devices(
    config_class: type, devices: Mapping[str, str | None], names_only: bool = False
) -> type:
    """Return a command's options with LeRobot's types of device.

    Args:
        config_class: the command's dataclass.
        devices: `robot`, `teleop` or `camera` to the type that it is unless given; "" where it has
            to be given, None where there may be none.
        names_only: as of `registries`.
    """
    known = dict(zip(("robot", "teleop", "camera"), registries(names_only), strict=True))
    typed: list[tuple[str, Any, Any]] = []
    for name, usual in devices.items():
        if usual is None:
            typed.append((name, known[name] | None, field(default=None)))
        else:
            given = {"default_factory": known[name].get_choice_class(usual)} if usual else {}
            typed.append((name, known[name], field(**given)))
    return with_types(config_class, typed)


def with_types(config_class: type, typed: Iterable[tuple[str, Any, Any]]) -> type:
    """Return a dataclass with other types and fields for some of its names.

    It has the name and module of the one that it is made of: help finds its options' words there.
    """
    return make_dataclass(
        config_class.__name__,
        typed,
        bases=(config_class,),
        namespace={"__doc__": config_class.__doc__},
        module=config_class.__module__,
    )


@functools.cache
def registries(names_only: bool = False) -> tuple[Any, Any, Any]:
    """Return LeRobot's RobotConfig, TeleoperatorConfig, CameraConfig with every type registered.

    Args:
        names_only: only the types' names are needed, for help. Importing LeRobot takes seconds, so
            they are read from its files and those of its plug-ins; not where it is there anyway.
    """
    if names_only and "lerobot" not in sys.modules and (named := named_registries()) is not None:
        return named
    import lerobot.cameras
    import lerobot.robots
    import lerobot.teleoperators

    for package in (lerobot.cameras, lerobot.robots, lerobot.teleoperators):
        for module in pkgutil.iter_modules(package.__path__):
            if not module.ispkg:
                continue
            try:
                importlib.import_module(f"{package.__name__}.{module.name}")
            except ImportError as error:  # its vendor's library isn't there: its type isn't offered
                log.debug("LeRobot's %s can't be imported: %s", module.name, error)
    for name in OWN_PACKAGES:
        importlib.import_module(name)
    from lerobot.utils.import_utils import register_third_party_plugins

    register_third_party_plugins()
    return (
        lerobot.robots.RobotConfig,
        lerobot.teleoperators.TeleoperatorConfig,
        lerobot.cameras.CameraConfig,
    )


def named_registries() -> tuple[Any, Any, Any] | None:
    """Return stand-ins for `registries` that know the types' names and none of their options.

    None where a plug-in's files don't tell which types it registers.
    """
    made: dict[str, Any] = {kind: type(kind, (draccus.ChoiceRegistry,), {}) for kind in KINDS}
    spec = importlib.util.find_spec("lerobot")
    places = [
        Path(home) / folder
        for home in (spec and spec.submodule_search_locations) or ()
        for folder in ("robots", "teleoperators", "cameras")
    ]
    own = Path(__file__).parent.parent
    sources = [path for place in places for path in place.rglob("*.py")]
    for name in OWN_PACKAGES:
        place = own.joinpath(*name.split(".")[1:])
        module = place.with_suffix(".py")  # a folder of that name may be an update's leftover
        sources += [module] if module.is_file() else place.glob("*.py")
    found = [named for path in sources for named in _registered(path)]
    hits = {hit for folder in sys.path for like in _PLUGINS for hit in Path(folder).glob(like)}
    for plugin in {re.split(r"[-.]", hit.name)[0] for hit in hits}:
        spec = importlib.util.find_spec(plugin)
        if spec is None or spec.origin is None:
            continue  # LeRobot can't import it either
        package = spec.submodule_search_locations
        paths = [path for home in package for path in Path(home).rglob("*.py")] if package else []
        theirs = [named for path in paths or [Path(spec.origin)] for named in _registered(path)]
        if not theirs:
            return None
        found += theirs
    for kind, name in dict.fromkeys(found):
        made[kind].register_subclass(name, make_dataclass(name, ()))
    return made[KINDS[0]], made[KINDS[1]], made[KINDS[2]]


def _registered(path: Path) -> list[tuple[str, str]]:
    """Return kind and name of each type of device that a source file registers."""
    return _REGISTERED.findall(path.read_text(errors="replace"))


def discover(arguments: Sequence[str]) -> list[str]:
    """Import the device packages named by `--robot.discover_packages_path=…` and the like."""
    rest = []
    for argument in arguments:
        name, _, package = argument.partition("=")
        if not name.endswith(".discover_packages_path"):
            rest.append(argument)
            continue
        from lerobot.configs.parser import PluginLoadError, load_plugin

        found = None
        with contextlib.suppress(ImportError):  # LeRobot has words for that
            found = importlib.import_module(package)
        if found is None or hasattr(found, "__path__"):  # else it has no modules to look for
            try:
                load_plugin(package)
            except PluginLoadError as error:
                raise UnusableInputError(f"{argument}: {error}") from None
        known = os.environ.get(DISCOVERED, "").split(",")
        os.environ[DISCOVERED] = ",".join(dict.fromkeys(filter(None, [*known, package])))
    return rest
