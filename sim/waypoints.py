"""A demonstrator of a scene file: waypoints by the things that they are about.

demonstrator:
  - {to: cube, offset_m: [0, 0, 0.1], gripper: open}
  - {to: cube}
  - {gripper: closed}
  - {to: disc, offset_m: [0, 0, 0.1]}
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, number
from gaploop.sim.kinematics import ArmIk, fold_square
from gaploop.sim.predicates import SceneState
from gaploop.sim.scene_file import SceneWorld

KEYS: Final = ("to", "offset_m", "gripper", "speed_m_s", "pause_s", "jaw_deg")
SPEED_M_S: Final = 0.2
PAUSE_S: Final = 0.3
"""After a waypoint, for the arm to arrive [s]; likewise the time that a gripper gets."""


class Demonstrator:
    """Drives a scene along its waypoints; a new one for every episode.

    The tool goes in straight lines and points down, its jaws along the nearest side of what it
    goes to. A place is looked up when its waypoint begins.
    """

    def __init__(self, world: SceneWorld) -> None:
        """Read the waypoints; UnusableInputError for what the scene hasn't."""
        scene, where = world.scene, f"Scene {world.scene.path}, demonstrator"
        if not scene.demonstrator:
            raise UnusableInputError(f"{where}: it has no waypoints. Add a list of them.")
        sites = [world.model.site(s).name for s in range(world.model.nsite)]
        if scene.tool not in sites:
            raise unknown_choice("site", scene.tool, filter(None, sites), f"{where}: tool")
        check_keys(scene.gripper, ("joint", "open", "closed"), f"{where}: gripper")
        self._world, self._where = world, where
        self._hand = scene.gripper.get("joint")
        joints = [name for name in world.joint_names if name != self._hand]
        self._columns = [world.joint_names.index(name) for name in joints]
        self._grip = world.joint_names.index(self._hand) if self._hand else -1
        self._ik = ArmIk(world.model, joints, scene.tool)
        self._goal = world.angles()
        self._index, self._left_s = -1, 0.0
        self._tool, rotation = self._ik.tcp(self._goal[self._columns])
        self._target = self._tool.copy()
        self._jaw_rad = float(np.arctan2(rotation[1, 0], rotation[0, 0]))
        self._speed_m_s = SPEED_M_S
        self.done = False
        """The last waypoint was reached."""

    def __call__(self, _observation: Any) -> NDArray[np.float32]:
        """Return the next action."""
        period_s = self._world.period_s
        away = self._target - self._tool
        far = float(np.linalg.norm(away))
        if far <= 1e-9:
            self._left_s -= period_s
            if self._left_s <= 0.0:
                self._next()
        else:
            self._tool += away * min(1.0, self._speed_m_s * period_s / far)
            arm = self._ik.solve(self._tool, self._jaw_rad, self._goal[self._columns], 6)
            self._goal[self._columns] = arm
        return self._world.action_of(self._goal)

    def _next(self) -> None:
        """Begin the next waypoint; the last one is held."""
        points = self._world.scene.demonstrator
        if self._index + 1 >= len(points):
            self.done = True
            return
        self._index += 1
        point, where = points[self._index], f"{self._where} {self._index + 1}"
        check_keys(point, KEYS, where)
        gripper = self._world.scene.gripper
        if "gripper" in point:
            if point["gripper"] not in ("open", "closed") or point["gripper"] not in gripper:
                raise UnusableInputError(f"{where}: give gripper: open or closed, as gripper says.")
            self._goal[self._grip] = gripper[point["gripper"]]
        self._left_s = number(point.get("pause_s", PAUSE_S), f"{where}, pause_s", 0.0, 60.0)
        self._speed_m_s = number(
            point.get("speed_m_s", SPEED_M_S), f"{where}, speed_m_s", 1e-3, 10.0
        )
        if "to" not in point:
            return
        world = self._world
        state = SceneState(world.model, world.data, frozenset(), {})
        bodies = [world.model.body(b).name for b in range(1, world.model.nbody)]
        sites = [world.model.site(s).name for s in range(world.model.nsite)]
        if point["to"] not in (*bodies, *sites):
            raise unknown_choice("body or site", point["to"], filter(None, bodies + sites), where)
        offset = [
            number(v, f"{where}, offset_m", -10.0, 10.0) for v in point.get("offset_m", [0] * 3)
        ]
        self._target = state.place_m(point["to"]) + offset
        if point["to"] in bodies:
            matrix = world.data.body(point["to"]).xmat.reshape(3, 3)
            turned = float(np.arctan2(matrix[1, 0], matrix[0, 0]))
            self._jaw_rad += fold_square(turned - self._jaw_rad)
        self._jaw_rad += np.radians(number(point.get("jaw_deg", 0.0), where, -360.0, 360.0))
