"""LeRobot's own phone teleoperator as an input device that moves the tool.

It gives a phone's pose and whether its button is held: from HEBI's app on an iPhone, or from a
WebXR page of the package `teleop` on Android. LeRobot's own step turns both into the robot's axes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from lerobot.teleoperators.phone.phone_processor import MapPhoneActionToRobotAction

from gaploop.teleop.leaders.controls import Intent, IntentSource, TimedIntent
from gaploop.teleop.lerobot_devices.faults import LEROBOT_FAULTS, first_line

log = logging.getLogger(__name__)

READ_S: Final = 0.01
"""It is read this often [s], in a thread: HEBI's library waits for the next packet."""


class LerobotPhone(IntentSource):
    """A phone, connected. It has no stop and no clear of its own: the terminal's keys do that.

    LeRobot goes on with the last pose where the phone is gone. A phone in a hand never gives the
    same pose twice: one that does isn't heard any more, and grows old.
    """

    has_window = False

    def __init__(self, device: Any, step: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._device, self._step, self._now_s = device, step, now_s
        self._axes = MapPhoneActionToRobotAction(platform=device.config.phone_os)
        self._snapshot = (Intent(), now_s())
        self._pose: tuple[float, ...] = ()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="phone", daemon=True)
        self._thread.start()

    def latest(self) -> TimedIntent:
        """Return the newest intent, and its age while the button is held."""
        intent, heard_s = self._snapshot
        return TimedIntent(intent, self._now_s() - heard_s if intent.held else 0.0)

    def close(self) -> None:
        """Disconnect; safe to call twice."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join(1.0)
            try:
                self._device.disconnect()
            except LEROBOT_FAULTS as error:
                log.debug("phone: %s", first_line(error))

    def _read(self) -> None:
        while not self._over.wait(READ_S):
            try:
                self.take(self._device.get_action())
            except LEROBOT_FAULTS as error:
                log.debug("phone: %s", first_line(error))

    def take(self, action: dict[str, Any]) -> None:
        """Take in what LeRobot's class says, which is nothing where it has no pose."""
        if not action:
            return
        pose = (*map(float, action["phone.pos"]), *map(float, action["phone.rot"].as_rotvec()))
        held = bool(action["phone.enabled"])
        mapped = self._axes.action(dict(action))
        names = ("target_x", "target_y", "target_z", "target_wx", "target_wy")
        forward, left, up, roll, pitch = (float(mapped[name]) for name in names)
        gripper = min(max(float(mapped["gripper_vel"]), -1.0), 1.0)
        if not all(map(math.isfinite, (*pose, gripper))):
            return
        hand = (forward, left, up, roll, -pitch)
        intent = Intent(held=held, gripper=gripper, step=self._step, hand=hand)
        if pose != self._pose or not held:
            self._pose, self._snapshot = pose, (intent, self._now_s())
