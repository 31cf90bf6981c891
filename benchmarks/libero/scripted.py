"""A scripted demonstrator of pick and place, from what only simulation knows.

It takes an object from above across its narrowest side, or by the rim where it is too wide for the
gripper, carries it over the target and lets go. That does for objects that stand free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.spatial.transform import Rotation

from gaploop.core.messages import FloatArray

WIDEST_M: Final = 0.072
"""What the gripper takes between its fingers, which open 0.08 m [m]."""
RIM_M: Final = 0.006
"""How far inside its outline a wide object's rim is taken [m]."""
DEEP_M: Final = 0.045
"""Fingers reach at most so far below an object's top [m]."""
OVER_M: Final = 0.12
"""Above the grasp before and after it [m]."""
CLEARANCE_M: Final = 0.03
"""Between what is let go and what it is let go over [m]."""
GROUND_M: Final = 0.016
"""Fingers end so far below the hand's point: it stays at least so high above what is lowest."""
STEP_M, STEP_RAD = 0.05, 0.5
"""Motion that an action of 1 asks for, by LIBERO's controller."""
GAIN: Final = 1.5
"""The controller gets about two thirds of the way in a step."""
OPEN, CLOSE = -1.0, 1.0


@dataclass(frozen=True)
class Grasp:
    """Where to take an object.

    Attributes:
        place_m: of the hand [m], shape (3,).
        yaw_rad: direction of the line between the fingers, about the vertical [rad], -pi/2 to pi/2.
    """

    place_m: FloatArray
    yaw_rad: float


def grasp(points_m: FloatArray, now_rad: float = 0.0) -> Grasp:
    """Return where to take an object from above.

    Args:
        points_m: corners of its surface [m], shape (n, 3).
        now_rad: direction of the line between the fingers now: of equal ways the nearest is taken.
    """
    yaws = now_rad + np.radians(np.arange(-90, 90, 5.0))
    across = points_m[:, :2] @ np.stack([np.cos(yaws), np.sin(yaws)])
    low, high = across.min(0), across.max(0)
    width, turn = high - low, np.abs(yaws - now_rad)
    best = int(np.argmin(width + 0.002 * turn))  # 2 mm for a radian of turning
    yaw = float(yaws[best])
    line = np.array([np.cos(yaw), np.sin(yaw)])
    side = np.array([-line[1], line[0]])
    along = points_m[:, :2] @ side
    middle = (low[best] + high[best]) / 2
    if width[best] > WIDEST_M:
        middle = high[best] - RIM_M
    place = middle * line + (along.min() + along.max()) / 2 * side
    top, bottom = points_m[:, 2].max(), points_m[:, 2].min()
    height = max((top + bottom) / 2, top - DEEP_M, bottom + GROUND_M)
    if width[best] > WIDEST_M:
        height = max(top - 0.015, bottom + GROUND_M)
    return Grasp(np.array([*place, height]), (yaw + np.pi / 2) % np.pi - np.pi / 2)


def demonstrate(scene: Any) -> Iterator[FloatArray]:
    """Yield actions, shape (7,), of a demonstration, each before it is to be taken in the scene.

    Args:
        scene: a `lerobot_scene.Scene` that was reset.
    """
    for goal in scene.goals:
        if len(goal) == 3 and scene.movable(goal[1]):
            yield from _carry(scene, goal[1], goal[2])


def _carry(scene: Any, name: str, target: str) -> Iterator[FloatArray]:
    place, turned = scene.hand()
    take = grasp(scene.surface(name), float(np.arctan2(turned[1, 0], turned[0, 0])))
    up = np.array([0.0, 0.0, OVER_M])
    yield from _move(scene, take.place_m + up, take.yaw_rad, OPEN)
    yield from _move(scene, take.place_m, take.yaw_rad, OPEN, 0.006)
    for _ in range(8):
        yield np.array([0.0] * 6 + [CLOSE])
    yield from _move(scene, take.place_m + up, take.yaw_rad, CLOSE, 0.03)
    # Over the target: what is held hangs below the hand and beside it.
    place, _ = scene.hand()
    held = scene.surface(name)
    middle = (held[:, :2].min(0) + held[:, :2].max(0)) / 2
    below = place[2] - held[:, 2].min()
    there = scene.body(target)[0]
    rim = scene.surface(target)[:, 2].max()
    over = np.array([*(there[:2] + place[:2] - middle), rim + below + CLEARANCE_M])
    high = np.array([*over[:2], max(over[2], place[2])])
    yield from _move(scene, high, take.yaw_rad, CLOSE, 0.015)
    yield from _move(scene, over, take.yaw_rad, CLOSE, 0.01)
    for _ in range(10):
        yield np.array([0.0] * 6 + [OPEN])


def _move(
    scene: Any, goal_m: FloatArray, yaw_rad: float, gripper: float, near_m: float = 0.01
) -> Iterator[FloatArray]:
    """Yield actions until the hand is so near, at most four seconds."""
    across = np.array([np.cos(yaw_rad), np.sin(yaw_rad), 0.0])
    down = np.array([0.0, 0.0, -1.0])
    for _ in range(80):
        place, turned = scene.hand()
        line = across if across @ turned[:, 0] >= 0 else -across
        wanted = np.stack([line, np.cross(down, line), down], 1)
        turn = Rotation.from_matrix(wanted @ turned.T).as_rotvec()
        off = goal_m - place
        if np.linalg.norm(off) < near_m and np.linalg.norm(turn) < 0.1:
            return
        motion = GAIN * np.concatenate([off / STEP_M, turn / STEP_RAD])
        yield np.append(np.clip(motion, -1.0, 1.0), gripper)
