"""Configuration of gaploop's own leaders, registered with LeRobot by name."""

from dataclasses import dataclass, field

from lerobot.teleoperators.config import TeleoperatorConfig

from gaploop.teleop.leaders.controls import MotionOptions


@TeleoperatorConfig.register_subclass("remote")
@dataclass(kw_only=True)
class RemoteLeaderConfig(TeleoperatorConfig):  # type: ignore[misc]
    """A leader on another machine, where `gaploop serve leader` runs.

    Attributes:
        address: host:port of that machine; the port is 8440 unless given.
        token: what `gaploop serve` printed; unless given, GAPLOOP_LINK_TOKEN in the environment.
    """

    address: str
    token: str = field(default="", repr=False)  # messages of LeRobot's hold the configuration


@TeleoperatorConfig.register_subclass("browser")
@dataclass(kw_only=True)
class BrowserConfig(TeleoperatorConfig):  # type: ignore[misc]
    """A phone or a browser: a page with touch pads, served here. For gaploop's own commands.

    Attributes:
        host: address to serve the page on; all of this machine's unless given.
        port: to serve it on.
    """

    host: str = ""
    port: int = 8440


@TeleoperatorConfig.register_subclass("motion")
@dataclass(kw_only=True)
class MotionConfig(MotionOptions, TeleoperatorConfig):  # type: ignore[misc]
    """A scripted motion. For gaploop's own commands."""
