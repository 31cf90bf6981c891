"""LIBERO scenes by LeRobot's `LiberoEnv`, drawn only when somebody looks, with privileged state.

Drawing a picture takes 0.1 to 0.2 s where no GPU does it, a step of physics 0.015 s. LeRobot's
environment draws both cameras at every step; policies that plan ahead look at few of them.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import numpy as np
from lerobot.envs.libero import LiberoEnv, _get_suite
from lerobot.processor.env_processor import LiberoProcessorStep

from benchmarks.libero.categories import StepState
from benchmarks.libero.rollouts import TaskName, move_camera
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Observation

PICTURE_PX: Final = 256
"""Side of a picture [px], as in LIBERO's published datasets."""
AGENT_VIEW, WRIST = "agentview", "robot0_eye_in_hand"
CAMERAS: Final = {"image": AGENT_VIEW, "image2": WRIST}
"""Name in datasets, which is LeRobot's, to name in the scene."""
FPS: Final = 20
"""Steps a second [Hz]."""


class _UndrawnEnv(LiberoEnv):  # type: ignore[misc]  # LeRobot is not typed
    """LeRobot's environment without pictures: `Scene` draws them."""

    def _ensure_env(self) -> None:
        is_new = self._env is None
        super()._ensure_env()
        if is_new:
            for camera in CAMERAS.values():
                for part in ("enabled", "active"):
                    self._env.env.modify_observable(f"{camera}_image", part, False)

    def _format_raw_obs(self, raw_obs: dict[str, Any]) -> Any:
        nothing = np.zeros((1, 1, 3), dtype=np.uint8)
        return super()._format_raw_obs({**dict.fromkeys(self.camera_name, nothing), **raw_obs})


_open = dict[tuple[TaskName, tuple[str, ...]], "Scene"]()


def open_scene(task: TaskName, cameras: tuple[str, ...]) -> Scene:
    """Return a task's scene; this process keeps the last one open, which takes seconds to make."""
    if (task, cameras) not in _open:
        for other in _open.values():
            other.close()
        _open.clear()
        _open[task, cameras] = Scene(task, cameras)
    return _open[task, cameras]


class Scene:
    """One task's scene: reset to a seed, stepped, looked at.

    Args:
        task: suite and number.
        cameras: those that are drawn, of `CAMERAS`.

    Raises:
        UnusableInputError: there is no such suite or task.
    """

    def __init__(self, task: TaskName, cameras: Sequence[str] = tuple(CAMERAS)) -> None:
        logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                suite = _get_suite(task.suite)
        except ValueError as error:
            raise UnusableInputError(f"--tasks: {error}") from None
        if not 0 <= task.number < len(suite.tasks):
            raise UnusableInputError(
                f"--tasks: {task.suite} has tasks 0 to {len(suite.tasks) - 1}, not {task.number}."
            )
        self._env = _UndrawnEnv(
            suite,
            task.number,
            task.suite,
            obs_type="pixels_agent_pos",
            init_states=False,
            observation_width=PICTURE_PX,
            observation_height=PICTURE_PX,
        )
        self._cameras = {name: CAMERAS[name] for name in cameras}
        self.instruction: str = self._env.task_description
        self.max_steps: int = self._env._max_episode_steps

    @property
    def inner(self) -> Any:
        """LIBERO's environment."""
        return self._env._env.env

    def reset(self, seed: int, camera_m: float = 0.0) -> None:
        """Draw a scene: equal seeds give equal ones.

        Args:
            seed: names the scene.
            camera_m: how far the agent-view camera is moved to its right [m].
        """
        # LIBERO tries again where a placement fails, and says so on stdout.
        with contextlib.redirect_stdout(io.StringIO()):
            observed, _ = self._env.reset(seed=seed)
        self._robot = observed["robot_state"]
        move_camera(self.inner.sim.model._model, AGENT_VIEW, camera_m)
        self.inner.sim.forward()
        self.goals: Sequence[Sequence[str]] = self.inner.parsed_problem["goal_state"]
        """LIBERO's predicates, all of which are to hold, such as (on, bowl, plate)."""

    def step(self, action: FloatArray) -> bool:
        """Take an action, shape (7,), relative motion of the hand and the gripper, -1 to 1.

        Returns:
            whether the task is done.
        """
        raw, _, _, _ = self._env._env.step(np.clip(action, -1.0, 1.0))
        self._robot = self._env._format_raw_obs(raw)["robot_state"]
        return bool(self._env._env.check_success())

    def look(self) -> Observation:
        """Draw what the cameras see, and return it with the arm's state, as LeRobot gives it.

        `observation.state` is position [m], rotation vector [rad] and both fingers [m], shape (8,).
        """
        pictures = {name: self._draw(camera) for name, camera in self._cameras.items()}
        return Observation(self.state(), None, pictures)

    def state(self) -> FloatArray:
        """Return `observation.state`, shape (8,)."""
        import torch

        hand = self._robot["eef"]
        quat = torch.tensor(hand["quat"], dtype=torch.float32)[None]
        turned = LiberoProcessorStep()._quat2axisangle(quat)[0].numpy()
        return np.concatenate([hand["pos"], turned, self._robot["gripper"]["qpos"]])

    def _draw(self, camera: str) -> Any:
        drawn = self.inner.sim.render(
            camera_name=camera, width=PICTURE_PX, height=PICTURE_PX, depth=False
        )
        # Drawn upside down; LeRobot turns LIBERO's pictures by 180 degrees.
        return np.ascontiguousarray(drawn[::-1, ::-1])

    def privileged(self, action: FloatArray) -> StepState:
        """Return what a rollout's failure is told by, after `action` was taken."""
        env, moved = self.inner, [self._moved(goal) for goal in self.goals]
        gripper = env.robots[0].gripper
        return StepState(
            hand_m=np.array(self._robot["eef"]["pos"]),
            closing=bool(action[-1] > 0),
            touched=tuple(env.check_contact(gripper, env.get_object(n)) for n in moved),
            height_m=tuple(float(self.body(n)[0][2]) for n in moved),
            met=tuple(bool(env._eval_predicate(goal)) for goal in self.goals),
        )

    def _moved(self, goal: Sequence[str]) -> str:
        """Return the object that a predicate is about; of a drawer, what it is part of."""
        name = goal[1]
        site = self.inner.object_sites_dict.get(name)
        return str(site.parent_name) if site is not None else name

    def movable(self, name: str) -> bool:
        """Say whether an object can be carried about."""
        return name in self.inner.objects_dict

    def body(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Return position [m], shape (3,), and rotation, shape (3, 3), of an object or a site."""
        data = self.inner.sim.data
        if name in self.inner.obj_body_id:
            number = self.inner.obj_body_id[name]
            return np.array(data.body_xpos[number]), data.body_xmat[number].reshape(3, 3).copy()
        return np.array(data.get_site_xpos(name)), np.array(data.get_site_xmat(name))

    def surface(self, name: str) -> FloatArray:
        """Return corners of what an object consists of [m], shape (n, 3); of a site, its parent."""
        site = self.inner.object_sites_dict.get(name)
        name = str(site.parent_name) if site is not None else name
        model, data = self.inner.sim.model._model, self.inner.sim.data._data
        root = model.body_rootid[self.inner.obj_body_id[name]]
        found = list[FloatArray]()
        for g in np.flatnonzero(model.body_rootid[model.geom_bodyid] == root):
            if model.geom_dataid[g] >= 0:
                mesh = model.mesh(model.geom_dataid[g])
                first = int(mesh.vertadr[0])
                corners = model.mesh_vert[first : first + int(mesh.vertnum[0])]
            else:
                middle, half = model.geom_aabb[g].reshape(2, 3)
                corners = middle + half * np.array(list(product((-1, 1), repeat=3)))
            found.append(data.geom_xpos[g] + corners @ data.geom_xmat[g].reshape(3, 3).T)
        return np.concatenate(found)

    def hand(self) -> tuple[FloatArray, FloatArray]:
        """Return the hand's position [m], shape (3,), and rotation, shape (3, 3)."""
        return np.array(self._robot["eef"]["pos"]), np.array(self._robot["eef"]["mat"])

    def close(self) -> None:
        """Let the renderer go."""
        self._env.close()
