"""A scene file as a world: stepped, judged and looked at.

`SceneWorld` is a gymnasium environment whose actions are goals of the arm's position servos, [°] of
hinges and [m] of slides, as its `agent_pos`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ArmModel
from gaploop.core.vocabulary import SEEN
from gaploop.sim.camera import LayeredCamera
from gaploop.sim.hand import PartnerMotion
from gaploop.sim.kinematics import ArmIk
from gaploop.sim.predicates import Criterion, Holds, SceneState, names_in, parse, uses
from gaploop.sim.roles import diverged, find_roles
from gaploop.sim.scene_file import PlacedBody, Scene, compile_scene, require_known
from gaploop.sim.scene_servos import SceneServos


class SceneWorld(gym.Env[dict[str, Any], NDArray[np.float32]]):
    """A scene file, stepped; a `World` and an environment.

    Observations are `agent_pos` [°, m], shape (n_joints,), and `pixels`: {camera: RGB, uint8}. Of a
    file without cameras they have `environment_state`, shape (7 n,), instead: place [m] and
    quaternion (w, x, y, z) of every body that lies loose or that `reset` names.

    Attributes:
        servos: what actions are sent to.
        draws: observations have pictures.
        judged: names of what success is about.
        photo: what is behind the scene in them instead of bench and room, from the next reset on.
        wording: level of the words that the task is told in, from the next reset on.
        state: what its success looks at.
        asked: the scene with the present episode's choices made.
        task_description: the instruction of the present episode.
        partner: the hand that gives or takes, where the file has one.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as gymnasium has it)
    render_mode: str | None = "rgb_array"
    photo: Path | None = None
    wording = SEEN

    def __init__(self, scene: Scene) -> None:
        """Compile a scene; UnusableInputError where the file doesn't fit its model."""
        self.scene = scene
        self.model = model = compile_scene(scene)
        self.data = mujoco.MjData(model)
        where = f"Scene {scene.path}"
        self.servos = SceneServos(scene, model)
        self.joint_names, self.limits = self.servos.names, self.servos.limits
        # An arm of slides alone is in metres, which no episode can say.
        self.units = "deg" if (self.servos.units < 1.0).any() else ""
        self.home = self.servos.home()
        self.judged = {*names_in(scene.success, "object")} or {*names_in(scene.success)}
        bodies = [model.body(b).name for b in range(1, model.nbody)]
        require_known("body", [placed.body for placed in scene.reset], bodies, f"{where}, reset")
        cameras = [model.camera(c).name for c in range(model.ncam)]
        require_known("camera", [c.name for c in scene.cameras], cameras, f"{where}, cameras")
        sites = [model.site(s).name for s in range(model.nsite)]
        self._asked = [(s, parse(s.success, model, f"{where}, success")) for s in scene.asked()]
        self.asked: Scene = self._asked[0][0]
        self._holds: Holds = self._asked[0][1]
        roots = model.body_rootid[model.jnt_bodyid[self.servos.joints]]
        mujoco.mj_forward(model, self.data)
        found = find_roles(model, self.data, jaw=self.servos.jaw)
        hands = [frozenset(int(model.geom_bodyid[g]) for g in hand) for hand in found.hands]
        if uses(scene.success, "held") and not hands:
            said = "no gripper was found, and a cup has no fingers. Say lifted instead."
            raise UnusableInputError(f"{where}, held: {said}")
        self.state = SceneState(
            model,
            self.data,
            arm=frozenset(map(int, np.flatnonzero(np.isin(model.body_rootid, roots)))),
            hands=hands,
            tools=[model.site(scene.tool.site).id] if scene.tool.site in sites else (),
        )
        self.partner = PartnerMotion(scene.partner, model, where) if scene.partner else None
        self.drawers = dict[str, LayeredCamera]()
        self.draws = True
        named = {int(model.body(p.body).id) for p in scene.reset}
        loose = model.jnt_bodyid[model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)]
        self._told = [] if scene.cameras else sorted(named | set(map(int, loose)))
        if not scene.cameras:
            self.render_mode = None
        else:
            self.camera_name = scene.cameras[0].name  # that gaps move
        self.period_s = self.dt = 1.0 / scene.fps
        self._frames = 0
        self.task_description = self.asked.instruction[0]
        self.max_steps = round(scene.max_s * scene.fps)
        low, high = self.limits.T / self.servos.units
        self.action_space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.observation_space = self._shown()

    def _shown(self) -> gym.spaces.Dict:
        """Return the space of observations."""
        pictures: dict[str, gym.Space[Any]] = {
            c.name: gym.spaces.Box(0, 255, (c.size_px[1], c.size_px[0], 3), np.uint8)
            for c in self.scene.cameras
        }
        shown = {"agent_pos": len(self.home), "environment_state": 7 * len(self._told)}
        vectors = {k: gym.spaces.Box(-np.inf, np.inf, (n,), np.float32) for k, n in shown.items()}
        return gym.spaces.Dict(
            {
                **{k: v for k, v in vectors.items() if shown[k]},
                **({"pixels": gym.spaces.Dict(pictures)} if pictures else {}),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode: the arm at home, things where the file says."""
        super().reset(seed=seed)
        del options
        if self.scene.is_worded_anew or self.wording != SEEN:
            drawn = int(self.np_random.integers(2**31)) if seed is None else seed
            number, self.task_description = self.scene.told(drawn, self.wording)
            self.asked, self._holds = self._asked[number]
        model, data = self.model, self.data
        mujoco.mj_resetData(model, data)
        self._frames = 0
        self.servos.start(data, self.home)
        if self.partner is not None:
            self.partner.reset(self.np_random, data)
        for placed in self.scene.reset:
            self._place(placed)
        mujoco.mj_forward(model, data)
        start_m = {model.body(b).name: data.xpos[b].copy() for b in range(model.nbody)}
        self.state = replace(self.state, start_m=start_m)
        for drawer in self.drawers.values():
            drawer.forget(self.photo)
        return self._seen(), {"is_success": False}

    def _place(self, placed: PlacedBody) -> None:
        model, body = self.model, self.model.body(placed.body).id
        x, y = self.np_random.uniform(*placed.x_m), self.np_random.uniform(*placed.y_m)
        half = np.radians(self.np_random.uniform(*placed.yaw_deg)) / 2.0
        quat = [np.cos(half), 0.0, 0.0, np.sin(half)]
        joint = int(model.body_jntadr[body])
        free = joint >= 0 and int(model.jnt_type[joint]) == int(mujoco.mjtJoint.mjJNT_FREE)
        if free:
            start = int(model.jnt_qposadr[joint])
            z = model.qpos0[start + 2] if placed.z_m is None else placed.z_m
            self.data.qpos[start : start + 7] = [x, y, z, *quat]
        else:
            z = model.body_pos[body, 2] if placed.z_m is None else placed.z_m
            model.body_pos[body], model.body_quat[body] = [x, y, z], quat

    def step(self, action: NDArray[Any]) -> Any:
        """Send goals [°, m], shape (n_joints,), and let one frame pass."""
        goal = np.clip(self.joints_of(np.asarray(action, dtype=float)), *self.limits.T)
        self.servos.send(self.data, goal)
        at = [round((self._frames + k) * self.period_s / self.model.opt.timestep) for k in (0, 1)]
        self._frames += 1
        if self.partner is None:
            mujoco.mj_step(self.model, self.data, nstep=at[1] - at[0])
        else:
            for _ in range(at[1] - at[0]):
                self.partner.step(self.data)
                mujoco.mj_step(self.model, self.data)
            self.partner.notice(self.state)
        won = self.success() and not diverged(self.data)
        return self._seen(), float(won), diverged(self.data), False, {"is_success": won}

    def success(self) -> bool:
        """Judge the present state by the file's predicates."""
        return self.state.satisfies(self._holds)

    @property
    def criterion(self) -> Criterion | None:
        """How strictly `near` is taken, which a gap may change; None where nothing asks for it."""
        return self.state.criterion if uses(self.scene.success, "near") else None

    @criterion.setter
    def criterion(self, criterion: Criterion) -> None:
        self.state = replace(self.state, criterion=criterion)

    def angles(self) -> NDArray[np.float64]:
        """Return the joints [rad, m], shape (n_joints,)."""
        return self.servos.positions(self.data)

    @property
    def rest_action(self) -> NDArray[np.float32]:
        """The action that keeps the arm at home."""
        return self.action_of(self.home)

    def joints_of(self, action: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an action or `agent_pos` [°, m] as joints [rad, m]; shapes (n_joints,)."""
        return np.asarray(action * self.servos.units)

    def action_of(self, q: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return joint goals [rad, m] as an action [°, m]; shapes (n_joints,)."""
        return np.asarray(q / self.servos.units, dtype=np.float32)

    def arm_model(self) -> ArmModel:
        """Return the arm alone, for who leads its tool; UnusableInputError without a tool.

        Its base frame is the arm's own: of one that the file attaches where it is attached, else
        the frame of its first body, which has to stand upright.
        """
        scene, where = self.scene, f"Scene {self.scene.path}"
        require_tool(self.model, scene.tool.site, where)
        first = self.servos.driven[0]
        arm = compile_scene(scene, first)
        base = arm.body(int(arm.body_rootid[arm.jnt_bodyid[arm.joint(first).id]]))
        at_m, turn = np.array(scene.arm_at_m, dtype=float), np.radians(scene.arm_turn_deg)
        if scene.arm is None:
            rotation = np.zeros(9)
            mujoco.mju_quat2Mat(rotation, base.quat)
            at_m, upright = base.pos.copy(), rotation[8] > np.cos(np.radians(10.0))
            turn = float(np.arctan2(rotation[3], rotation[0])) if upright else 0.0
        back = np.array([np.cos(turn / 2), 0.0, 0.0, -np.sin(turn / 2)])
        moved, place, turned = np.zeros(3), base.pos - at_m, base.quat.copy()
        mujoco.mju_rotVecQuat(moved, place, back)
        mujoco.mju_mulQuat(base.quat, back, turned)
        base.pos[:] = moved
        limits = dict(zip(self.joint_names, self.limits, strict=True))
        known = {"closed", "open"} <= set(scene.gripper)
        return ArmModel(
            scene.path.stem,
            arm,
            tool=scene.tool.site,
            joints=limits,
            grip=None if self.servos.gripper < 0 else self.servos.gripper,
            grip_rad=(scene.gripper["closed"], scene.gripper["open"]) if known else None,
        )

    def arm_ik(self, where: str) -> tuple[ArmIk, list[int]]:
        """Return kinematics of the arm up to its tool, and which joints they are of."""
        require_tool(self.model, self.scene.tool.site, where)
        joints = [n for n in self.servos.driven if n != self.scene.gripper.get("joint")]
        columns = [self.joint_names.index(name) for name in joints]
        if not joints:
            raise UnusableInputError(f"{where}: no position servos move its arm.")
        return ArmIk(self.model, joints, self.scene.tool.site), columns

    def pictures(self) -> dict[str, NDArray[np.uint8]]:
        """Return camera to its picture, RGB, shape (height, width, 3)."""
        found = {}
        for camera in self.scene.cameras:
            if camera.name not in self.drawers:
                lens = camera.view.lens if camera.view else None
                drawer = LayeredCamera(self.model, camera.name, *camera.size_px, lens)
                drawer.forget(self.photo)
                self.drawers[camera.name] = drawer
            found[camera.name] = self.drawers[camera.name].draw(self.data)
        return found

    def render(self) -> Any:
        """Return the first camera's picture; None without cameras."""
        return next(iter(self.pictures().values()), None)

    def close(self) -> None:
        """Free the renderers; safe to call twice."""
        while self.drawers:
            self.drawers.popitem()[1].close()

    def _seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = {"agent_pos": self.action_of(self.angles())}
        if self._told:
            poses = np.hstack([self.data.xpos[self._told], self.data.xquat[self._told]])
            seen["environment_state"] = poses.ravel().astype(np.float32)
        elif self.draws and (pictures := self.pictures()):
            seen["pixels"] = pictures
        return seen


def require_tool(model: mujoco.MjModel, site: str, where: str) -> None:
    """Refuse a tool that the model hasn't got; UnusableInputError."""
    sites = [model.site(s).name for s in range(model.nsite)]
    if not any(sites):
        raise UnusableInputError(
            f"{where}: the model has no sites. Give tool: {{body: NAME, at_m: [x, y, z]}}."
        )
    require_known("site", [site], sites, f"{where}: tool")
