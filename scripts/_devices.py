"""LeRobot's device types as options: `--robot.type=…`, `--teleop.type=…`, with their own options.

Every type that LeRobot ships, those of third-party plugins and gaploop's own register themselves
when their package is imported; nothing here lists them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import pkgutil
from types import ModuleType
from typing import Final

log = logging.getLogger(__name__)

OWN_PACKAGES: Final = (
    "gaploop.sim.lerobot_devices",
    "gaploop.teleop.lerobot_devices",
    "gaploop.teleop.lerobot_motion",
)


@functools.cache
def registries() -> tuple[type, type]:
    """Return LeRobot's RobotConfig and TeleoperatorConfig with every known type registered."""
    import lerobot.cameras
    import lerobot.robots
    import lerobot.teleoperators

    for package in (lerobot.cameras, lerobot.robots, lerobot.teleoperators):
        _import_all(package)
    for name in OWN_PACKAGES:
        importlib.import_module(name)
    from lerobot.utils.import_utils import register_third_party_plugins

    register_third_party_plugins()
    return lerobot.robots.RobotConfig, lerobot.teleoperators.TeleoperatorConfig


def _import_all(package: ModuleType) -> None:
    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:
            continue
        try:
            importlib.import_module(f"{package.__name__}.{module.name}")
        except ImportError as error:  # its vendor's library isn't installed: its type isn't offered
            log.debug("LeRobot's %s can't be imported: %s", module.name, error)
