"""What `gaploop serve` does: lends a leader or a policy until a signal comes."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Final

from websockets.sync.connection import Connection

from gaploop.collect import lerobot_types, remote_policy
from gaploop.core.clock import MonotonicClock
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.scripts import options
from gaploop.scripts.serve import ServeConfig
from gaploop.teleop import link
from gaploop.teleop.leaders import remote
from gaploop.teleop.lerobot_devices.generic import OwnUnits
from gaploop.teleop.lerobot_devices.make import make_leader
from gaploop.teleop.stopping import stoppable

LEADER: Final = "leader"
POLICY: Final = "policy"
LOOK_S: Final = 0.1


def run(config: ServeConfig) -> int:
    """Serve until a signal comes; return 128 + the signal."""
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


type Served = tuple[str, int, Callable[[Connection], None], Callable[[str, str], str]]
"""What is spoken, the longest message, who answers, what is told of an address and a token."""


def _leader(config: ServeConfig, stack: contextlib.ExitStack) -> Served:
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
    from gaploop.finetune.lerobot_policy import warn_withdrawn  # a leader's machine has no torch

    path = config.policy.required()
    warn_withdrawn(path)
    policy, id_ = options.DrivingPolicy(**vars(config.policy)).load()
    card = remote_policy.card_of(policy, id_)

    def words(where: str, token: str) -> str:
        rollout = f"{token}gaploop rollout --policy.path=remote://{where} --robot.type=…"
        return f"{path} is served, on {policy.runs}. At the robot: {rollout}"

    talk = remote_policy.serve_policy(policy, card)
    return remote_policy.KIND, remote_policy.MOST_BYTES, talk, words
