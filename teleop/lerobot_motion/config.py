"""Configuration of the scripted motion, registered with LeRobot by name."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from lerobot.teleoperators.config import TeleoperatorConfig

from gaploop.teleop.leaders.options import MotionOptions


@TeleoperatorConfig.register_subclass("motion")
@dataclass(kw_only=True)
class MotionConfig(MotionOptions, TeleoperatorConfig):  # type: ignore[misc]
    """A scripted motion.

    Attributes:
        robot_model: arm model, so101, koch, openmanipulator or the path of an MJCF file. Only
            LeRobot's own commands need it; gaploop knows the arm.
        start: joint positions that the arm has at the start, in LeRobot's units (degrees, the
            gripper 0..100). Only LeRobot's own commands need it: they don't tell a teleoperator
            where the arm is. gaploop asks the arm.
    """

    robot_model: str = ""
    start: list[float] = field(default_factory=list)

    def options(self) -> MotionOptions:
        """Return the script's own options."""
        return MotionOptions(**{f.name: getattr(self, f.name) for f in fields(MotionOptions)})
