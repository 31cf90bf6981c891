"""The arms that the embedded cell can have; `core.arms` describes them."""

from __future__ import annotations

from functools import cache
from typing import Final

from gaploop.core.arm import CellArm
from gaploop.core.arms import CELL_ARMS, DEFAULT
from gaploop.core.errors import unknown_choice

SO101: Final = CELL_ARMS[DEFAULT]


def arm_named(name: str, where: str = "--env.robot") -> CellArm:
    """Return an arm of the cell.

    Args:
        name: one of `CELL_ARMS`.
        where: the option that named it, for the message.

    Raises:
        UnusableInputError: no such arm, or the package with its model isn't installed.
    """
    if name not in CELL_ARMS:
        raise unknown_choice("arm of the embedded cell", name, CELL_ARMS, where)
    arm = CELL_ARMS[name]
    arm.model.find(f"{arm.says} ({name})")
    return arm


def arm_of(robot_type: str) -> CellArm:
    """Return the arm of a recording's robot type; the default for one that the cell hasn't."""
    return next((arm for arm in CELL_ARMS.values() if arm.robot_type == robot_type), SO101)


@cache
def arm_with_joints(joint_names: tuple[str, ...]) -> CellArm | None:
    """Return the arm that has these joints, or None where none has or its model isn't here."""
    found = next((arm for arm in CELL_ARMS.values() if arm.joint_names == joint_names), None)
    return found if found is not None and found.model.is_installed else None
