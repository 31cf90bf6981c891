"""LeRobot's device types as options: `--robot.type=…`, `--teleop.type=…`, with their own options.

Every type that LeRobot ships, those of third-party plugins and gaploop's own register themselves
when their package is imported; nothing here lists them.
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
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any, Final

import draccus

from gaploop.core.errors import UnusableInputError

log = logging.getLogger(__name__)

OWN_PACKAGES: Final = (
    "gaploop.sim.lerobot_devices",
    "gaploop.teleop.lerobot_devices",
    "gaploop.teleop.lerobot_leaders",
    "gaploop.teleop.lerobot_ros2",
)


KINDS: Final = ("RobotConfig", "TeleoperatorConfig", "CameraConfig")
_REGISTERED: Final = re.compile(rf"@({'|'.join(KINDS)})\.register_subclass\(\s*\"(\w+)\"")
_PLUGINS: Final = ("lerobot_robot_*", "lerobot_teleoperator_*", "lerobot_camera_*")
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
            they are read from its files; not where a plugin, or LeRobot itself, is there anyway.
    """
    plugins = (hit for folder in sys.path for name in _PLUGINS for hit in Path(folder).glob(name))
    if names_only and "lerobot" not in sys.modules and not any(plugins):
        return named_registries()
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


def named_registries() -> tuple[Any, Any, Any]:
    """Return stand-ins for `registries` that know the types' names and none of their options."""
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
        sources += place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    for path in sources:
        for kind, name in _REGISTERED.findall(path.read_text(errors="replace")):
            made[kind].register_subclass(name, make_dataclass(name, ()))
    return made[KINDS[0]], made[KINDS[1]], made[KINDS[2]]


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
