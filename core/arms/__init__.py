"""The arms that gaploop knows, one module each with an `ARM`. A new arm is a new module here.

Importing this loads nothing heavy.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Final

from gaploop.core.arm import Arm, ArmSpec, CellArm

DEFAULT: Final = "so101"
"""The arm that is meant where none is named."""


def find_arms() -> dict[str, Arm]:
    """Return the arm of every module of this package, by name; the default one first."""
    modules = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    arms: list[Arm] = [module.ARM for module in modules]
    return {arm.name: arm for arm in sorted(arms, key=lambda arm: (arm.name != DEFAULT, arm.name))}


ARMS: Final[dict[str, Arm]] = find_arms()
"""The arms by name, as found when this was imported."""


class _Part[Value](Mapping[str, Value]):
    """Arm name to one part of it, of those arms that have the part."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __getitem__(self, name: str) -> Value:
        value: Value | None = getattr(ARMS[name], self._part)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name, arm in ARMS.items() if getattr(arm, self._part) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


ARM_MODELS: Final[Mapping[str, ArmSpec]] = _Part("kinematics")
"""Geometry of the arms that have one, by name."""
CELL_ARMS: Final[Mapping[str, CellArm]] = _Part("cell")
"""The arms of the embedded cell by name."""


def model_of(robot_type: str) -> str | None:
    """Return the name in `ARM_MODELS` of a LeRobot robot type, or None where none is known.

    The SO-100 counts as an SO-101: same joints, link lengths within millimetres.
    """
    for name, arm in ARMS.items():
        if arm.kinematics is not None and robot_type in (name, *arm.robot_types):
            return name
    return None
