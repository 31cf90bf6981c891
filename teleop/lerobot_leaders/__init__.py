"""A leader on another machine as a LeRobot teleoperator.

Gaploop's commands know it as `--teleop.type=remote`; LeRobot's own do once
`lerobot_teleoperator_gaploop` is installed. There no safety filter of a LeRobot arm notices that a
sample has grown old: `get_action` raises then.
"""

import os
import time
from typing import Any, ClassVar, Final

from lerobot.teleoperators.teleoperator import Teleoperator
from lerobot.utils.errors import DeviceAlreadyConnectedError, DeviceNotConnectedError

from gaploop.core.errors import DeviceError
from gaploop.core.messages import feature_of
from gaploop.teleop.leaders.remote import LeaderLink
from gaploop.teleop.lerobot_leaders.config import BrowserConfig, MotionConfig, RemoteLeaderConfig
from gaploop.teleop.link import TOKEN_VARIABLE, parse_address, require_token

__all__ = ["BrowserConfig", "MotionConfig", "RemoteLeader", "RemoteLeaderConfig"]

STALE_S: Final = 0.5
"""An older sample isn't handed out [s]; gaploop's safety filter trips before."""


class RemoteLeader(Teleoperator):  # type: ignore[misc]
    """LeRobot teleoperator that asks a leader on another machine."""

    config_class = RemoteLeaderConfig
    name = "remote"
    feedback_features: ClassVar[dict[str, Any]] = {}
    is_calibrated = True  # by whoever serves it

    def __init__(self, config: RemoteLeaderConfig) -> None:
        super().__init__(config)
        self.config = config
        option = "--teleop.token"
        self._token = require_token(config.token or os.environ.get(TOKEN_VARIABLE, ""), option)
        self._host, self._port = parse_address(config.address, "--teleop.address")
        self.where = f"{self._host}:{self._port}"
        """Host and port of the machine with the leader."""
        self._link: LeaderLink | None = None
        self._made_s = 0.0

    @property
    def action_features(self) -> dict[str, Any]:
        """Joint positions of the leader; none before it is connected."""
        joints = [] if self._link is None else self._link.card.joints
        return {feature_of(joint): float for joint in joints}

    @property
    def is_connected(self) -> bool:
        """Whether connect() has been called."""
        return self._link is not None

    @property
    def age_s(self) -> float:
        """How old what `get_action` returned last is at the most [s]."""
        return time.monotonic() - self._made_s

    def connect(self, calibrate: bool = True) -> None:
        """Connect; `calibrate` has no meaning here."""
        del calibrate
        if self._link is not None:
            raise DeviceAlreadyConnectedError(f"{self} is already connected.")
        self._link = LeaderLink(self._host, self._port, self._token)

    def calibrate(self) -> None:
        """Nothing to calibrate."""

    def configure(self) -> None:
        """Nothing to configure."""

    def get_action(self) -> dict[str, Any]:
        """Where the leader is, in its LeRobot units."""
        if self._link is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        try:
            self._made_s, values = self._link.newest()
        except DeviceError as error:
            raise DeviceNotConnectedError(str(error)) from error
        if self.age_s > STALE_S:
            raise DeviceNotConnectedError(
                f"{self._link.where} has been silent for {self.age_s:.1f} s."
            )
        return dict(zip(self.action_features, values, strict=True))

    def send_feedback(self, feedback: dict[str, Any]) -> None:
        """Ignore feedback."""
        del feedback

    def disconnect(self) -> None:
        """Close the link; safe to call twice."""
        if self._link is not None:
            self._link.close()
            self._link = None
