"""Types of devices as options: `--robot.type`, `--teleop.type`, `--camera.type`; what they tell.

Every type that LeRobot ships, those of third-party plugins and gaploop's own register themselves
when their package is imported; nothing here lists them. `lerobot_factory` connects what is chosen.
"""

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
from dataclasses import field, make_dataclass, replace
from pathlib import Path
from typing import Any, Final

import draccus

from gaploop.core.errors import UnusableInputError
from gaploop.core.station import SIM_STATION, Station, load_station, scene_station
from gaploop.core.vocabulary import Domain

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
OWN_PACKAGES: Final = (
    "gaploop.sim.lerobot_devices",
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


def station_for(robot: Any, path: Path | None) -> Station:
    """Return the station of `--station=FILE`, or the one that a robot has without it.

    An arm whose port is a pseudo-terminal is emulated: its domain is `sim_target`, whatever the
    file says, for what is recorded on it must never pass for a real robot's.

    Raises:
        UnusableInputError: what is wrong in the file.
    """
    known = SIM_STATION if robot.type == EMBEDDED else Station(name="unnamed")
    if getattr(robot, "scene", None) is not None:
        known = scene_station(robot.scene)
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
