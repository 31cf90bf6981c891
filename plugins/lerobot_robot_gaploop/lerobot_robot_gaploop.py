"""gaploop's arms in LeRobot's own commands: `--robot.type=gaploop_so101`, `gaploop_koch`, …"""

from dataclasses import dataclass

from lerobot.robots import RobotConfig
from lerobot.robots.bi_so_follower import BiSOFollowerConfig
from lerobot.robots.koch_follower import KochFollowerConfig
from lerobot.robots.omx_follower import OmxFollowerConfig
from lerobot.robots.so_follower import SOFollowerRobotConfig

from gaploop.collect.lerobot_plugin import ArmOptions, GaploopArm

# LeRobot finds a device's class by the name of its configuration's.
GaploopSO = GaploopKoch = GaploopOmx = GaploopBiSO = GaploopArm


@RobotConfig.register_subclass("gaploop_so100")
@RobotConfig.register_subclass("gaploop_so101")
@dataclass(kw_only=True)
class GaploopSOConfig(ArmOptions, SOFollowerRobotConfig):
    """SO-100 and SO-101 follower."""


@RobotConfig.register_subclass("gaploop_koch")
@dataclass(kw_only=True)
class GaploopKochConfig(ArmOptions, KochFollowerConfig):
    """Koch follower."""


@RobotConfig.register_subclass("gaploop_omx")
@dataclass(kw_only=True)
class GaploopOmxConfig(ArmOptions, OmxFollowerConfig):
    """OMX follower."""


@RobotConfig.register_subclass("gaploop_bi_so")
@dataclass(kw_only=True)
class GaploopBiSOConfig(ArmOptions, BiSOFollowerConfig):
    """A pair of SO-100 or SO-101 followers."""
