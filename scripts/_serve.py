"""What `gaploop serve` does: lends a policy until a signal comes."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Final

from websockets.sync.connection import Connection

from gaploop.collect import remote_policy
from gaploop.core.errors import unknown_choice
from gaploop.scripts import options
from gaploop.scripts.serve import ServeConfig
from gaploop.teleop import link
from gaploop.teleop.stopping import stoppable

POLICY: Final = "policy"
LOOK_S: Final = 0.1


def run(config: ServeConfig) -> int:
    """Serve until a signal comes; return 128 + the signal."""
    if config.what != POLICY:
        raise unknown_choice("thing to serve", config.what, (POLICY,), "gaploop serve")
    given = os.environ.get(link.TOKEN_VARIABLE, "")
    token = link.require_token(given or link.new_token(), link.TOKEN_VARIABLE)
    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(stoppable())
        talk, words = served(config)
        port = stack.enter_context(
            link.listening(
                remote_policy.KIND, token, talk, host=config.host, port=config.port,
                max_bytes=remote_policy.MOST_BYTES,
            )
        )  # fmt: skip
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


type Served = tuple[Callable[[Connection], None], Callable[[str, str], str]]
"""Who answers, and what is told of an address and a token."""


def served(config: ServeConfig) -> Served:
    """Load the policy; return who answers for it."""
    from gaploop.finetune.lerobot_policy import warn_withdrawn

    path = config.policy.required()
    warn_withdrawn(path)
    policy, id_ = options.DrivingPolicy(**vars(config.policy)).load()
    card = remote_policy.card_of(policy, id_)

    def words(where: str, token: str) -> str:
        rollout = f"{token}gaploop rollout --policy.path=remote://{where} --robot.type=…"
        return f"{path} is served, on {policy.runs}. At the robot: {rollout}"

    return remote_policy.serve_policy(policy, card), words
