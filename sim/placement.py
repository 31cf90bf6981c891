"""Where object, target and distractors start."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.sim.arms import SO101
from gaploop.sim.conditions import GRID_COLUMNS, GRID_ROWS, Conditions
from gaploop.sim.scene import CUBE_HALF_SIZE_M, DISC_HALF_HEIGHT_M

# The part of so101-nexus' spawn region that the arm reaches with the gripper pointing down.
SPAWN_CENTRE_M = np.array(SO101.spawn_centre_m)
SPAWN_RADIUS_M = (0.05, 0.13)
SPAWN_HALF_ANGLE_RAD = np.radians(75.0)
FLANK_ANGLE_RAD = np.radians(30.0)
"""How far the flanks reach beyond the spawn region, to either side."""
OBJECT_TARGET_GAP_M = 0.065  # the object starts beside the disc (radius 35 mm), not on it
CLEARANCE_M = 0.05  # between a distractor and object, target or another distractor
ATTEMPTS = 200


def spawn_point(
    rng: np.random.Generator,
    cell: tuple[int, int] | None = None,
    placement: str = "nominal",
    centre_m: NDArray[np.float64] = SPAWN_CENTRE_M,
) -> NDArray[np.float64]:
    """Draw a point of the spawn region [m], shape (2,), of one cell of its grid, or beside it.

    Args:
        rng: source of randomness; always consumes two numbers.
        cell: row (by azimuth, right to left) and column (by radius, near to far), or None.
        placement: one of `PLACEMENTS`. The spawn region is a part of a ring: `inner` is what the
            ring leaves free in its middle, `flank` goes on along the ring at both its ends.
        centre_m: middle of the ring [m], shape (2,).
    """
    u, v = rng.random(2)
    if cell is not None:
        u = (cell[1] + u) / GRID_COLUMNS
        v = (cell[0] + v) / GRID_ROWS
    radius = SPAWN_RADIUS_M[0] + u * (SPAWN_RADIUS_M[1] - SPAWN_RADIUS_M[0])
    angle = (2.0 * v - 1.0) * SPAWN_HALF_ANGLE_RAD
    if placement == "inner":
        radius = u * SPAWN_RADIUS_M[0]
    elif placement == "flank":
        angle = (2.0 * v - 1.0) * FLANK_ANGLE_RAD
        angle += np.sign(angle) * SPAWN_HALF_ANGLE_RAD
    return np.asarray(centre_m + radius * np.array([np.cos(angle), np.sin(angle)]))


def place_task(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    rng: np.random.Generator,
    rest_z_m: float,
    table_z_m: float,
    conditions: Conditions,
    centre_m: NDArray[np.float64],
    goal_centre_m: NDArray[np.float64],
) -> None:
    """Place object and target in `data` and `model`, apart, about their rings' middles [m]."""
    object_xy = spawn_point(rng, conditions.grid_cell, conditions.placement, centre_m)
    yaw = float(rng.uniform(-np.pi, np.pi))
    target_xy = spawn_point(rng, centre_m=goal_centre_m)
    for _ in range(ATTEMPTS):
        if np.linalg.norm(target_xy - object_xy) >= OBJECT_TARGET_GAP_M:
            break
        target_xy = spawn_point(rng, centre_m=goal_centre_m)
    set_free_body(model, data, "object", np.array([*object_xy, rest_z_m]), yaw)
    if model.body("target").jntnum[0]:
        height = np.array([*target_xy, table_z_m + CUBE_HALF_SIZE_M])
        set_free_body(model, data, "target", height, 0.0)
    else:
        model.body("target").pos[:] = [*target_xy, table_z_m + DISC_HALF_HEIGHT_M]


def distractor_poses(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    rng: np.random.Generator,
    table_z_m: float,
    centre_m: NDArray[np.float64],
) -> None:
    """Place whatever distractors the model has, clear of object, target and each other."""
    address = int(model.joint("object").qposadr[0])
    taken = [data.qpos[address : address + 2].copy(), model.body("target").pos[:2].copy()]
    if model.body("target").jntnum[0]:
        address = int(model.joint("target").qposadr[0])
        taken[1] = data.qpos[address : address + 2].copy()
    for body in range(model.nbody):
        name = model.body(body).name
        if not name.startswith("distractor"):
            continue
        xy = spawn_point(rng, centre_m=centre_m)
        for _ in range(ATTEMPTS):
            if all(np.linalg.norm(xy - other) >= CLEARANCE_M for other in taken):
                break
            xy = spawn_point(rng, centre_m=centre_m)
        taken.append(xy)
        height_m = float(model.geom(name).size[2])
        pose = np.array([*xy, table_z_m + height_m])
        set_free_body(model, data, name, pose, float(rng.uniform(-np.pi, np.pi)))


def set_free_body(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    name: str,
    position_m: NDArray[np.float64],
    yaw_rad: float,
) -> None:
    """Put a loose body somewhere [m], shape (3,), turned about the vertical, in `data`."""
    address = int(model.joint(name).qposadr[0])
    data.qpos[address : address + 3] = position_m
    data.qpos[address + 3 : address + 7] = [np.cos(yaw_rad / 2), 0.0, 0.0, np.sin(yaw_rad / 2)]
