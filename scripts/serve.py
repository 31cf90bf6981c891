"""The command `gaploop serve`."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect import lerobot_types
from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.scripts import options
from gaploop.teleop.stopping import stoppable

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

RARE: Final = ("host", "policy.fps", "policy.threads", "policy.format")
EXAMPLE: Final = """\
gaploop serve leader --teleop.type=so101_leader --teleop.port=/dev/ttyACM0 --teleop.id=blue
gaploop serve policy --policy.path=base --port=8441
"""

POSITIONAL: Final = "what"
DEVICES: Final = {"teleop": "scripted"}
LEADER: Final = "leader"
POLICY: Final = "policy"
LOOK_S: Final = 0.1


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


def run(config: ServeConfig) -> int:
    """Serve until a signal comes; return 128 + the signal."""
    from gaploop.teleop import link

    if config.what not in (LEADER, POLICY):
        raise unknown_choice("thing to serve", config.what, (LEADER, POLICY), "gaploop serve")
    given = os.environ.get(link.TOKEN_VARIABLE, "")
    token = link.require_token(given or link.new_token(), link.TOKEN_VARIABLE)
    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(stoppable())
        serve = _leader if config.what == LEADER else _policy
        kind, max_bytes, talk, words = serve(config, stack)
        port = stack.enter_context(
            link.listening(
                kind, token, talk, host=config.host, port=config.port, max_bytes=max_bytes
            )
        )
        logging.getLogger("gaploop.teleop.link").setLevel(logging.INFO)
        where = f"{config.host or link.own_address()}:{port}"
        # Whoever has the token in the environment has it there at the robot, too.
        known = token == os.environ.get(link.TOKEN_VARIABLE)
        said = words(where, "" if known else f"{link.TOKEN_VARIABLE}={token} ")
        result = {"address": where, "token": token, "at_the_robot": said}
        options.emit(config.json, result, said)
        while not stopped:
            time.sleep(LOOK_S)
    return 128 + stopped[0]


type Served = tuple[str, int, "Callable[[Connection], None]", Callable[[str, str], str]]
"""What is spoken, the longest message, who answers, what is told of an address and a token."""


def _leader(config: ServeConfig, stack: contextlib.ExitStack) -> Served:
    from gaploop.teleop.leaders import remote
    from gaploop.teleop.lerobot_devices import make_leader
    from gaploop.teleop.lerobot_devices.generic import OwnUnits

    kind = lerobot_types.kind(config.teleop)
    if kind in lerobot_types.OWN:
        raise UnusableInputError(
            f"gaploop serve leader lends a leader arm, such as --teleop.type=so101_leader; {kind} "
            "needs the robot beside it. To drive from elsewhere without a leader arm: "
            "--teleop.type=browser at the robot."
        )
    leader = make_leader(config.teleop, None)
    stack.callback(leader.close)
    card = remote.LeaderCard(kind, list(OwnUnits(leader.device).joint_names))

    def words(where: str, token: str) -> str:
        return (
            f"{kind} leads whoever connects. At the robot: {token}gaploop teleoperate "
            f"--teleop.type=remote --teleop.address={where} --robot.type=…"
        )

    talk = remote.serve_leader(leader, card, MonotonicClock())
    return remote.KIND, remote.MOST_BYTES, talk, words


def _policy(config: ServeConfig, _stack: contextlib.ExitStack) -> Served:
    from gaploop.collect import remote_policy
    from gaploop.finetune.lerobot_policy import warn_withdrawn

    path = config.policy.required()
    warn_withdrawn(path)
    policy, id_ = options.DrivingPolicy(**vars(config.policy)).load()
    card = remote_policy.card_of(policy, id_)

    def words(where: str, token: str) -> str:
        rollout = f"{token}gaploop rollout --policy.path=remote://{where} --robot.type=…"
        return f"{path} is served, on {policy.runs}. At the robot: {rollout}"

    talk = remote_policy.serve_policy(policy, card)
    return remote_policy.KIND, remote_policy.MOST_BYTES, talk, words
