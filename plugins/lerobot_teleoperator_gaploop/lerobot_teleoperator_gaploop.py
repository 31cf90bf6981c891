"""gaploop's leaders in LeRobot's own commands: `--teleop.type=gaploop_so101`, `remote`, …"""

from dataclasses import dataclass

from lerobot.teleoperators import TeleoperatorConfig
from lerobot.teleoperators.bi_so_leader import BiSOLeaderConfig
from lerobot.teleoperators.koch_leader import KochLeaderConfig
from lerobot.teleoperators.omx_leader import OmxLeaderConfig
from lerobot.teleoperators.so_leader import SOLeaderTeleopConfig

from gaploop.collect.lerobot_plugin import GaploopLeader
from gaploop.teleop import lerobot_leaders  # noqa: F401 - registers `remote`

# LeRobot finds a device's class by the name of its configuration's.
GaploopSO = GaploopKoch = GaploopOmx = GaploopBiSO = GaploopLeader


@TeleoperatorConfig.register_subclass("gaploop_so100")
@TeleoperatorConfig.register_subclass("gaploop_so101")
@dataclass(kw_only=True)
class GaploopSOConfig(SOLeaderTeleopConfig):
    """SO-100 and SO-101 leader."""


@TeleoperatorConfig.register_subclass("gaploop_koch")
@dataclass(kw_only=True)
class GaploopKochConfig(KochLeaderConfig):
    """Koch leader."""


@TeleoperatorConfig.register_subclass("gaploop_omx")
@dataclass(kw_only=True)
class GaploopOmxConfig(OmxLeaderConfig):
    """OMX leader."""


@TeleoperatorConfig.register_subclass("gaploop_bi_so")
@dataclass(kw_only=True)
class GaploopBiSOConfig(BiSOLeaderConfig):
    """A pair of SO-100 or SO-101 leaders."""
