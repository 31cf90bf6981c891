"""The scripted motion as a LeRobot teleoperator.

Use it from LeRobot's own commands, with the arm's pose at the start, which LeRobot doesn't tell
a teleoperator:

    lerobot-teleoperate --teleop.discover_packages_path=gaploop.teleop.lerobot_motion \
        --teleop.type=motion --teleop.script=chirp --teleop.robot_model=so101 \
        --teleop.start='[0, -17, 34, 34, 0, 20]' ...

When the script has ended, the pose that it began with is asked for.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
from lerobot.teleoperators.teleoperator import Teleoperator
from lerobot.utils.errors import DeviceAlreadyConnectedError, DeviceNotConnectedError

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel, Box
from gaploop.teleop.leaders.motion import MotionLeader
from gaploop.teleop.lerobot_motion.config import MotionConfig

__all__ = ["Motion", "MotionConfig"]


class Motion(Teleoperator):  # type: ignore[misc]
    """LeRobot teleoperator that moves an arm by a script, in degrees and gripper percent."""

    config_class = MotionConfig
    name = "motion"
    feedback_features: ClassVar[dict[str, Any]] = {}
    is_calibrated = True

    def __init__(self, config: MotionConfig) -> None:
        super().__init__(config)
        self.config = config
        if not config.robot_model or not config.start:
            raise UnusableInputError(
                "In LeRobot's own commands --teleop.type=motion needs --teleop.robot_model "
                f"({', '.join(ARM_MODELS)}, or an MJCF file) and --teleop.start, the arm's pose at "
                "the start in LeRobot's units. gaploop record needs neither."
            )
        self._arm = ArmModel.load(config.robot_model)
        spec = ARM_MODELS.get(config.robot_model)
        closed, opened = spec.gripper_percent_rad if spec else self._arm.joint_limits_rad[-1]
        self._gripper_rad = (float(closed), float(opened))
        self._box: Box | None = spec.workspace_m if spec else None
        self._leader: MotionLeader | None = None

    @property
    def action_features(self) -> dict[str, Any]:
        """Joint positions."""
        return {f"{name}.pos": float for name in self._arm.joint_names}

    @property
    def is_connected(self) -> bool:
        """Whether connect() has been called."""
        return self._leader is not None

    def connect(self, calibrate: bool = True) -> None:
        """Build and check the script; `calibrate` has no meaning here."""
        del calibrate
        if self._leader is not None:
            raise DeviceAlreadyConnectedError(f"{self} is already connected.")
        names, start = self._arm.joint_names, self.config.start
        if len(start) != len(names):
            raise UnusableInputError(
                f"--teleop.start must be {len(names)} numbers, for {', '.join(names)}; "
                f"got {len(start)}."
            )
        start_rad = np.radians(np.array(start, dtype=np.float64))
        closed, opened = self._gripper_rad
        start_rad[-1] = closed + (opened - closed) * start[-1] / 100.0
        limits_rad = self._arm.joint_limits_rad
        leader = MotionLeader(
            self._arm, limits_rad, lambda: start_rad, self.config.options(), self._box
        )
        leader.reset()
        self._leader = leader

    def calibrate(self) -> None:
        """Nothing to calibrate."""

    def configure(self) -> None:
        """Nothing to configure."""

    def get_action(self) -> dict[str, Any]:
        """Next joint command in LeRobot's units."""
        if self._leader is None:
            raise DeviceNotConnectedError(f"{self} is not connected: call connect() first.")
        q_rad = self._leader.read(time.monotonic()).q_rad
        values = np.degrees(q_rad)
        closed, opened = self._gripper_rad
        values[-1] = 100.0 * (q_rad[-1] - closed) / (opened - closed)
        return dict(zip(self.action_features, values.tolist(), strict=True))

    def send_feedback(self, feedback: dict[str, Any]) -> None:
        """Ignore feedback."""
        del feedback

    def disconnect(self) -> None:
        """End the script; safe to call twice."""
        self._leader = None
