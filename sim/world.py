"""A world: a scene that a policy or a person drives, whoever made it.

The embedded cell is one (`cell.SimCell`), a scene file (`scene_file.SceneWorld`), and any gymnasium
environment (`gym_world.GymWorld`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import mujoco
from numpy.typing import NDArray


@dataclass(frozen=True)
class WorldJoint:
    """A joint, or another number of a command.

    Attributes:
        unit: "rad", "m", or "1" where the world doesn't say.
        low: least value that can be asked for.
    """

    name: str
    unit: str
    low: float
    high: float


@runtime_checkable
class World(Protocol):
    """What evaluation, recording and gaps ask of a scene.

    Attributes:
        joints: what a command sets, in this order.
        period_s: time that a step takes [simulated s].
        instruction: the task in words.
        model: MuJoCo's, or None where something else simulates.
        data: its state, or None.
    """

    joints: tuple[WorldJoint, ...]
    period_s: float
    instruction: str
    model: mujoco.MjModel | None
    data: mujoco.MjData | None

    def reset(self, seed: int) -> Any:
        """Start an episode; equal seeds give equal scenes."""

    def step(self, command: NDArray[Any]) -> Any:
        """Send a command, shape (n_joints,), and let `period_s` pass."""

    def render(self, cameras: Sequence[str] = ()) -> Any:
        """Return camera to its picture, RGB, uint8, shape (height, width, 3)."""

    def success(self) -> bool:
        """Judge the present state."""

    def parameters(self) -> Mapping[str, str]:
        """Return "dimension.mechanism" to "" where it can be set here, else to what is missing."""

    def close(self) -> None:
        """Free what it holds; safe to call twice."""
