"""Joints and cameras in Rerun's viewer, through LeRobot's own helpers (`--display_data`)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower
from gaploop.core.types import Tick
from gaploop.teleop.control import ControlThread

DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables, one of which names the display on Linux."""
CLOSE_S: Final = 2.0
"""The viewer may take this long to show the last turns [s]."""
SHOW_S: Final = 0.05
"""The viewer gets a new picture this often [s]."""


class _RerunSink:
    """A subscriber that logs a turn now and then, in the robot's LeRobot units."""

    def __init__(self, follower: Follower, log: Callable[..., Any]) -> None:
        self._follower, self._log = follower, log
        self._next_s = 0.0

    def tick(self, tick: Tick) -> None:
        """Log the turn if one is due."""
        now_s = time.monotonic()
        if now_s < self._next_s or not tick.policy_frame:
            return
        self._next_s = now_s + SHOW_S
        names, to_units = self._follower.joint_names, self._follower.to_units
        position, sent = to_units(tick.state.position_rad), to_units(tick.command.sent_rad)
        observation: dict[str, Any] = {
            f"{name}.pos": float(value) for name, value in zip(names, position, strict=True)
        }
        observation |= {name: frame.image for name, frame in tick.frames.items()}
        action = {f"{name}.pos": float(value) for name, value in zip(names, sent, strict=True)}
        self._log("rerun", observation=observation, action=action)


@contextlib.contextmanager
def rerun_view() -> Iterator[Callable[[ControlThread, Follower], None]]:
    """Open the viewer; yield what subscribes it to the control thread of an arm.

    Raises:
        UnusableInputError: there is no display to open it on.
    """
    if sys.platform == "linux" and not any(map(os.environ.get, DISPLAYS)):
        raise UnusableInputError(
            "--display_data opens Rerun's window, and there is no display here. Leave it out: the "
            "terminal shows the joints too."
        )
    from lerobot.utils.visualization_utils import (
        init_visualization,
        log_visualization_data,
        shutdown_visualization,
    )

    def watch(control: ControlThread, follower: Follower) -> None:
        control.attach(_RerunSink(follower, log_visualization_data))

    init_visualization("rerun", session_name="gaploop teleoperate")
    try:
        yield watch
    finally:
        # It waits for the viewer to take what is left, for ever where that has gone.
        closing = threading.Thread(target=shutdown_visualization, args=("rerun",), daemon=True)
        closing.start()
        closing.join(CLOSE_S)
