"""The command `gaploop serve`."""

from dataclasses import dataclass, field
from typing import Any, Final

from gaploop.scripts import options

RARE: Final = ("what", "host", "policy.fps", "policy.threads", "policy.format")
EXAMPLE: Final = """\
gaploop serve leader --teleop.type=so101_leader --teleop.port=/dev/ttyACM0 --teleop.id=blue
gaploop serve policy --policy.path=base --port=8441
"""
POSITIONAL: Final = "what"
DEVICES: Final = {"teleop": "scripted"}


@dataclass
class ServeConfig:
    """Lend a leader arm or a policy to a robot on another machine, until Ctrl-C.

    It prints what to enter at the robot: an address and a token, which is new each time unless
    GAPLOOP_LINK_TOKEN holds one. The link is encrypted, and nobody without the token gets in.
    The safety filter is on the robot's side: where the link is slow or gone, the arm stops.
    Ctrl-C here stops an arm that follows, too.
    """

    what: str = ""
    """leader or policy."""
    teleop: Any = None
    """leader: which arm leads."""
    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    host: str = ""
    """Address to listen on, such as 127.0.0.1 for an SSH tunnel; all of this machine's unless
    given."""
    port: int = 8440
    """Port to listen on; 0 for any."""
    json: bool = False
    """Print one JSON object: {"address", "token", "at_the_robot"}."""
