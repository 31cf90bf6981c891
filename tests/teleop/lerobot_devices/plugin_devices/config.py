"""Configs of devices that LeRobot finds as it finds a third party's."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot.cameras.configs import CameraConfig
from lerobot.robots.config import RobotConfig
from lerobot.robots.so_follower.config_so_follower import SOFollowerConfig
from lerobot.teleoperators.config import TeleoperatorConfig


@RobotConfig.register_subclass("plugin_arm_for_tests")
@dataclass(kw_only=True)
class PluginArmConfig(RobotConfig):  # type: ignore[misc]
    """A third party's arm without a servo bus."""

    lacks_switch: bool = False


@TeleoperatorConfig.register_subclass("plugin_leader_for_tests")
@dataclass(kw_only=True)
class PluginLeaderConfig(TeleoperatorConfig):  # type: ignore[misc]
    """A third party's leader."""

    joints: tuple[str, ...] = ("elbow", "base")


@RobotConfig.register_subclass("plugin_so_for_tests")
@dataclass(kw_only=True)
class PluginSoConfig(RobotConfig, SOFollowerConfig):  # type: ignore[misc]
    """A third party's arm on a Feetech bus."""

    couples: bool = False


@CameraConfig.register_subclass("camera_for_tests")
@dataclass(kw_only=True)
class FakeCameraConfig(CameraConfig):  # type: ignore[misc]
    """A camera without a lens."""

    absent: bool = False
