"""A scene file as a world: stepped, judged, looked at, and demonstrated by its waypoints.

`SceneWorld` is a gymnasium environment whose actions are goals of the arm's position servos, [°] of
hinges and [m] of slides, as its `agent_pos`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ArmModel
from gaploop.core.schema import check_keys, number
from gaploop.core.vocabulary import SEEN
from gaploop.sim.camera import LayeredCamera
from gaploop.sim.hand import PartnerMotion
from gaploop.sim.kinematics import ArmIk, fold_square
from gaploop.sim.predicates import Criterion, Holds, SceneState, parse, uses
from gaploop.sim.roles import diverged, find_roles, motors_of, position_servos
from gaploop.sim.scene_file import PlacedBody, Scene, compile_scene, require_known

HOME: Final = "home"
"""The keyframe in which an arm starts whose file has no `home_deg`."""


class SceneWorld(gym.Env[dict[str, Any], NDArray[np.float32]]):
    """A scene file, stepped; a `World` and an environment.

    Observations are `agent_pos` [°, m], shape (n_joints,), and `pixels`: {camera: RGB, uint8}. Of a
    file without cameras they have `environment_state`, shape (7 n,), instead: place [m] and
    quaternion (w, x, y, z) of every body that lies loose or that `reset` names.

    Attributes:
        draws: observations have pictures.
        jaw: the gripper's joint, "" where the file names none.
        judged: names of what success is about.
        grip: its place among `joint_names`, -1 where the file names none.
        photo: what is behind the scene in them instead of bench and room, from the next reset on.
        wording: level of the words that the task is told in, from the next reset on.
        state: what its success looks at.
        asked: the scene with the present episode's choices made.
        undriven: actuators that are no position servos, which nothing moves.
        task_description: the instruction of the present episode.
        partner: the hand that gives or takes, where the file has one.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as gymnasium has it)
    render_mode = "rgb_array"
    units = "deg"
    photo: Path | None = None
    wording = SEEN

    def __init__(self, scene: Scene) -> None:
        """Compile a scene; UnusableInputError where the file doesn't fit its model."""
        self.scene = scene
        self.model = model = compile_scene(scene)
        self.data = mujoco.MjData(model)
        where = f"Scene {scene.path}"
        joints = self._take_servos(where)
        self.judged = {*_names_in(scene.success, "object")} or {*_names_in(scene.success)}
        self._require_servos(scene.home_deg, self.joint_names, f"{where}, home_deg")
        home = [
            number(scene.home_deg.get(n, 0.0), f"{where}, home_deg, {n}", -720.0, 720.0)
            for n in self.joint_names
        ]
        self.home = np.array(home) * self._units
        key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME)
        if key >= 0 and not scene.home_deg:
            sent = (model.key_ctrl[key][self._servos] - self._sent_at_0) / self._sent
            self.home = np.where(self._is_joint, 0.0, sent)
            self.home[self._is_joint] = model.key_qpos[key][self._qpos]
        self.home = np.clip(self.home, *self.limits.T)
        bodies = [model.body(b).name for b in range(1, model.nbody)]
        require_known("body", [placed.body for placed in scene.reset], bodies, f"{where}, reset")
        cameras = [model.camera(c).name for c in range(model.ncam)]
        require_known("camera", [c.name for c in scene.cameras], cameras, f"{where}, cameras")
        sites = [model.site(s).name for s in range(model.nsite)]
        self._asked = [(s, parse(s.success, model, f"{where}, success")) for s in scene.asked()]
        self.asked: Scene = self._asked[0][0]
        self._holds: Holds = self._asked[0][1]
        roots = model.body_rootid[model.jnt_bodyid[[joint.id for joint in joints]]]
        mujoco.mj_forward(model, self.data)
        found = find_roles(model, self.data, jaw=self.jaw)
        hands = [frozenset(int(model.geom_bodyid[g]) for g in hand) for hand in found.hands]
        if uses(scene.success, "held") and not hands:
            raise UnusableInputError(f"{where}, held: no gripper was found. Say released instead.")
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
        if scene.cameras:
            self.camera_name = scene.cameras[0].name  # that gaps move
        self.period_s = self.dt = 1.0 / scene.fps
        self._frames = 0
        self.task_description = self.asked.instruction[0]
        self.max_steps = round(scene.max_s * scene.fps)
        low, high = self.limits.T / self._units
        self.action_space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.observation_space = self._shown()

    def _take_servos(self, where: str) -> list[Any]:
        """Take what position servos drive, joints and tendons; return the joints, as MuJoCo names.

        Raises UnusableInputError where there is none, or the file names another.
        """
        scene, model = self.scene, self.model
        servos, drives, pulled = position_servos(model), dict[str, int](), dict[str, int]()
        for a in servos:
            on = int(model.actuator_trnid[a, 0])
            if int(model.actuator_trntype[a]) == int(mujoco.mjtTrn.mjTRN_TENDON):
                name = model.actuator(a).name or model.tendon(on).name
                pulled[name] = on
            else:
                name = model.joint(on).name
            drives[name] = a
        self.jaw = hand = str(scene.gripper.get("joint") or "")
        pushes = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_ACTUATOR, hand)
        if pushes >= 0 and hand not in drives and pushes not in servos:  # a cup, or a motor
            drives[hand], pulled[hand], servos[pushes] = pushes, -1, (1.0, 0.0)
        self._require_servos(scene.joints, drives, f"{where}, joints")
        along = [name for name, _, _ in scene.fingers]
        self._require_servos(along, set(drives) - set(pulled), f"{where}, gripper")
        self.joint_names = tuple(scene.joints or (name for name in drives if name not in along))
        if not set(self.joint_names) - set(pulled):
            raise UnusableInputError(
                f"{where}: no joint has a position servo"
                + f"; its {model.nu} actuators are others" * (model.nu > 0)
                + f'. Write a <position joint="…" kp="…"/> into <actuator> of {scene.mjcf} '
                "for each; it may name joints of the attached arm, also of a URDF."
            )
        self._require_servos([hand] if hand else (), self.joint_names, f"{where}, gripper")
        if hand in pulled and pulled[hand] < 0:
            moves = int(model.actuator_trntype[pushes]) == int(mujoco.mjtTrn.mjTRN_JOINT)
            self.jaw = model.joint(int(model.actuator_trnid[pushes, 0])).name if moves else ""
        elif hand in pulled:  # by a tendon of joints: any of them
            first = int(model.tendon_adr[pulled[hand]])
            of_joint = int(model.wrap_type[first]) == int(mujoco.mjtWrap.mjWRAP_JOINT)
            self.jaw = model.joint(int(model.wrap_objid[first])).name if of_joint else ""
        self.grip = self.joint_names.index(hand) if hand else -1
        self._servos = np.array([drives[name] for name in self.joint_names])
        self._sent, self._sent_at_0 = np.array([servos[int(a)] for a in self._servos]).T
        self._along = [
            (drives[name], *servos[drives[name]], int(model.joint(name).qposadr[0]), closed, opened)
            for name, closed, opened in scene.fingers
        ]
        self.undriven = [_actuator(model, a) for a in range(model.nu) if a not in servos]
        self._is_joint = np.array([name not in pulled for name in self.joint_names])
        self._tendons = np.array([pulled[n] for n in self.joint_names if n in pulled], dtype=int)
        joints = [model.joint(name) for name in self.joint_names if name not in pulled]
        self._qpos = np.array([int(j.qposadr[0]) for j in joints])
        self._dof = np.array([int(j.dofadr[0]) for j in joints])
        self._units = np.ones(len(self.joint_names))
        hinge = np.array([int(j.type[0]) == int(mujoco.mjtJoint.mjJNT_HINGE) for j in joints])
        self._units[self._is_joint] = np.where(hinge, np.pi / 180.0, 1.0)
        ends = ((model.actuator_ctrlrange[self._servos].T - self._sent_at_0) / self._sent).T
        ends[~model.actuator_ctrllimited[self._servos].astype(bool)] = -np.pi, np.pi
        ranges = zip(np.flatnonzero(self._is_joint), joints, strict=True)
        for k, joint in ranges:
            ends[k] = joint.range if joint.limited[0] else ends[k]
        self.limits = np.sort(ends)
        self.driven_joints = [name for name in self.joint_names if name not in pulled]
        return joints

    def _require_servos(self, names: Collection[str], known: Collection[str], where: str) -> None:
        """Refuse names that no position servo moves; UnusableInputError."""
        model = self.model
        joints = [model.joint(j).name for j in range(model.njnt)]
        for name in {*names} & {*joints} - {*known}:
            acts = motors_of(model, [joints.index(name)])
            if not position_servos(model).keys() & {*acts}:
                called = "".join(_actuator(model, a) for a in acts[:1])
                raise UnusableInputError(
                    f"{where}: {name} has no position servo; "
                    + (f"{called}, which moves it, is another" if acts else "it has no actuator")
                    + f'. Write a <position joint="{name}" kp="…"/> into <actuator> in its place, '
                    f"or leave {name} out."
                )
        require_known("joint with a position servo", names, known, where)

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
        data.qpos[self._qpos] = self.home[self._is_joint]
        for _, _, _, address, goal in self._going_along(self.home):
            data.qpos[address] = goal
        self._send(self.home)
        filters = model.actuator_actadr[self._servos]  # of goals: begin where the arm stands
        data.act[filters[filters >= 0]] = data.ctrl[self._servos[filters >= 0]]
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
        self._send(np.clip(np.asarray(action, dtype=float) * self._units, *self.limits.T))
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

    def _send(self, goal: NDArray[np.float64]) -> None:
        self.data.ctrl[self._servos] = goal * self._sent + self._sent_at_0
        for actuator, per, at_0, _, finger in self._going_along(goal):
            self.data.ctrl[actuator] = finger * per + at_0

    def _going_along(
        self, goal: NDArray[np.float64]
    ) -> Iterator[tuple[int, float, float, int, float]]:
        """Yield the gripper's other servos: actuator, what it is sent, address, goal [rad, m]."""
        for actuator, per, at_0, address, closed, opened in self._along:
            low, high = self.scene.gripper["closed"], self.scene.gripper["open"]
            share = (goal[self.grip] - low) / (high - low)
            yield actuator, per, at_0, address, closed + share * (opened - closed)

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
        """Return the joints [rad, m], shape (n_joints,).

        Of what a tendon pulls its length, of another gripper what it is sent.
        """
        sent = self.data.ctrl[self._servos[self.grip]]
        return self._both(self.data.qpos[self._qpos], np.append(self.data.ten_length, sent))

    @property
    def rest_action(self) -> NDArray[np.float32]:
        """The action that keeps the arm at home."""
        return self.action_of(self.home)

    def velocities(self) -> NDArray[np.float64]:
        """Return the joints' speeds [rad/s, m/s], shape (n_joints,)."""
        return self._both(self.data.qvel[self._dof], np.append(self.data.ten_velocity, 0.0))

    def _both(self, of_joints: Any, of_tendons: Any) -> NDArray[np.float64]:
        values = np.empty(len(self.joint_names))
        values[self._is_joint], values[~self._is_joint] = of_joints, of_tendons[self._tendons]
        return values

    def joints_of(self, action: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an action or `agent_pos` [°, m] as joints [rad, m]; shapes (n_joints,)."""
        return np.asarray(action * self._units)

    def action_of(self, q: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return joint goals [rad, m] as an action [°, m]; shapes (n_joints,)."""
        return np.asarray(q / self._units, dtype=np.float32)

    def arm_model(self) -> ArmModel:
        """Return the arm alone, for who leads its tool; UnusableInputError without a tool.

        Its base frame is the arm's own: of one that the file attaches where it is attached, else
        the frame of its first body, which has to stand upright.
        """
        scene, where = self.scene, f"Scene {self.scene.path}"
        require_tool(self.model, scene.tool.site, where)
        first = self.driven_joints[0]
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
            grip=None if self.grip < 0 else self.grip,
            grip_rad=(scene.gripper["closed"], scene.gripper["open"]) if known else None,
        )

    def arm_ik(self, where: str) -> tuple[ArmIk, list[int]]:
        """Return kinematics of the arm up to its tool, and which joints they are of."""
        require_tool(self.model, self.scene.tool.site, where)
        joints = [n for n in self.driven_joints if n != self.scene.gripper.get("joint")]
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
        seen: dict[str, Any] = {"agent_pos": (self.angles() / self._units).astype(np.float32)}
        if self._told:
            poses = np.hstack([self.data.xpos[self._told], self.data.xquat[self._told]])
            seen["environment_state"] = poses.ravel().astype(np.float32)
        elif self.draws and (pictures := self.pictures()):
            seen["pixels"] = pictures
        return seen


def _actuator(model: mujoco.MjModel, number: int) -> str:
    return str(model.actuator(number).name) or f"actuator {number}"


def require_tool(model: mujoco.MjModel, site: str, where: str) -> None:
    """Refuse a tool that the model hasn't got; UnusableInputError."""
    sites = [model.site(s).name for s in range(model.nsite)]
    if not any(sites):
        raise UnusableInputError(
            f"{where}: the model has no sites. Give tool: {{body: NAME, at_m: [x, y, z]}}."
        )
    require_known("site", [site], sites, f"{where}: tool")


WAYPOINT_KEYS: Final = ("to", "offset_m", "gripper", "speed_m_s", "pause_s", "jaw_deg", "follows")
SPEED_M_S: Final = 0.2
MOVED_M, MOVED_RAD = 2e-4, 2e-3
"""What moves or turns less from one frame to the next rests."""
PAUSE_S: Final = 0.3
"""After a waypoint, for the arm to arrive [s]; likewise the time that a gripper gets."""
LATE_S: Final = 3.0
"""An arm that still moves then gets so much more [s]."""


class Demonstrator:
    """Drives a scene along its waypoints; a new one for every episode.

    The tool goes in straight lines and points down, its jaws along the nearest side of what it
    goes to; an arm that is still on its way is waited for. A place is looked up when its waypoint
    begins; a waypoint that `follows` looks again at every frame, and is over when tool and body
    have rested for its `pause_s`.
    """

    def __init__(self, world: SceneWorld) -> None:
        """Read the waypoints; UnusableInputError for what the scene hasn't."""
        scene, where = world.asked, f"Scene {world.scene.path}, demonstrator"
        if not scene.demonstrator:
            raise UnusableInputError(f"{where}: it has no waypoints. Add a list of them.")
        check_keys(scene.gripper, ("joint", "open", "closed"), f"{where}: gripper")
        self._world, self._where, self._points = world, where, scene.demonstrator
        self._ik, self._columns = world.arm_ik(where)
        self._goal, self._angles = world.angles(), world.angles()
        self._moved = np.where(world._units < 1.0, MOVED_RAD, MOVED_M)
        self._index, self._left_s = -1, 0.0
        self._tool, rotation = self._ik.tcp(self._goal[self._columns])
        self._target = self._tool.copy()
        self._jaw_rad = float(np.arctan2(rotation[1, 0], rotation[0, 0]))
        self._speed_m_s, self._pause_s, self._follows = SPEED_M_S, PAUSE_S, False
        self.done = False
        """The last waypoint was reached."""
        self.off_m = list[float]()
        """How far the tool was from each waypoint when the next one began."""

    def __call__(self, _observation: Any) -> NDArray[np.float32]:
        """Return the next action."""
        period_s, before = self._world.period_s, self._angles
        self._angles = self._world.angles()
        rests = bool((np.abs(self._angles - before) <= self._moved).all())
        if self._follows and self._aim():
            self._left_s = self._pause_s
        away = self._target - self._tool
        far = float(np.linalg.norm(away))
        if far <= 1e-9:
            self._left_s -= period_s
            if self._left_s <= 0.0 and (rests or self._left_s <= -LATE_S):
                self._next()
        if far > 1e-9 or self._follows:
            self._tool += away * min(1.0, self._speed_m_s * period_s / max(far, 1e-9))
            arm = self._ik.solve(self._tool, self._jaw_rad, self._goal[self._columns], 6)
            self._goal[self._columns] = arm
        return self._world.action_of(self._goal)

    def _next(self) -> None:
        """Begin the next waypoint; the last one is held."""
        points, at_m = self._points, self._world.data.site(self._world.scene.tool.site).xpos
        if self._index >= 0 and not self.done:
            self.off_m.append(float(np.linalg.norm(at_m - self._target)))
        if self._index + 1 >= len(points):
            self.done = True
            return
        self._index += 1
        point, where = points[self._index], f"{self._where} {self._index + 1}"
        check_keys(point, WAYPOINT_KEYS, where)
        gripper = self._world.scene.gripper
        if "gripper" in point:
            if point["gripper"] not in ("open", "closed") or point["gripper"] not in gripper:
                raise UnusableInputError(f"{where}: give gripper: open or closed, as gripper says.")
            self._goal[self._world.grip] = gripper[point["gripper"]]
        self._pause_s = number(point.get("pause_s", PAUSE_S), f"{where}, pause_s", 0.0, 60.0)
        self._left_s, self._follows = self._pause_s, bool(point.get("follows"))
        self._speed_m_s = number(
            point.get("speed_m_s", SPEED_M_S), f"{where}, speed_m_s", 1e-3, 10.0
        )
        if "to" not in point:
            return
        world = self._world
        bodies = [world.model.body(b).name for b in range(1, world.model.nbody)]
        sites = [world.model.site(s).name for s in range(world.model.nsite)]
        require_known("body or site", [point["to"]], bodies + sites, where)
        offset = [
            number(v, f"{where}, offset_m", -10.0, 10.0) for v in point.get("offset_m", [0] * 3)
        ]
        self._to, self._is_body, self._offset_m = point["to"], point["to"] in bodies, offset
        self._aim()
        self._jaw_rad += np.radians(number(point.get("jaw_deg", 0.0), where, -360.0, 360.0))

    def _aim(self) -> bool:
        """Look up where the waypoint is; say whether it has moved."""
        before = self._target
        self._target = self._world.state.place_m(self._to) + self._offset_m
        turn_rad = 0.0
        if self._is_body:
            turn_rad = fold_square(self._world.state.yaw_rad(self._to) - self._jaw_rad)
            self._jaw_rad += turn_rad
        moved_m = float(np.linalg.norm(self._target - before))
        return moved_m > MOVED_M or abs(turn_rad) > MOVED_RAD


# -- demonstrations carried over to where things are now ------------------------------------------

AT_IT_M: Final = 0.12
"""A gripper that opens or closes no further than this from a thing does so at it."""
TOUCHED_M: Final = 0.005
"""What has moved so far was touched."""
CARRIED_M: Final = 0.02
"""What moves further than this, and less in the hand, is carried."""
FAST_RAD_S: Final = 2.0
ENTERED, LEFT = 0.2, 0.8
"""Shares of a part's way over the table: until the first one thing is gone by, from the second on
the next one."""
HELD_S: Final = 0.3
"""Success that lasts as long counts."""


@dataclass(frozen=True)
class Part:
    """A stretch of a demonstration, up to where the gripper moves, or something is moved.

    Attributes:
        start, end: its frames.
        thing: at what it ends, as its place among `things_of`; None for a place in the world.
        at_m, yaw_rad: where that was when the part began.
    """

    start: int
    end: int
    thing: int | None = None
    at_m: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    yaw_rad: float = 0.0


@dataclass(frozen=True)
class Demonstration:
    """A demonstration that was recorded in a scene file, replayed to see where things were.

    Attributes:
        goals: of the joints [rad, m], shape (n, n_joints), one for each frame.
        tool_m, turns: the tool's places that they ask for, (n, 3), and rotations, (n, 3, 3).
        succeeded: the replay did, too.
    """

    uid: str
    goals: NDArray[np.float64]
    tool_m: NDArray[np.float64]
    turns: NDArray[np.float64]
    parts: Sequence[Part]
    succeeded: bool


def _names_in(said: Any, role: str = "") -> Iterator[str]:
    """Yield what a criterion names, or names in this role alone, such as `object`."""
    if isinstance(said, Mapping):
        for key, part in said.items():
            yield from _names_in(part, "" if key == role else role)
    elif isinstance(said, list):
        for part in said:
            yield from _names_in(part, role)
    elif isinstance(said, str) and not role:
        yield said


def things_of(world: SceneWorld) -> list[str]:
    """Return the bodies and sites that the present episode's success is about, in its order."""
    model = world.model
    sites = {model.site(s).name for s in range(model.nsite)}
    bodies = {model.body(b).name for b in range(1, model.nbody)}
    joints = {
        model.joint(j).name: model.body(int(model.jnt_bodyid[j])).name for j in range(model.njnt)
    }

    found = (
        joints.get(n, n) for n in _names_in(world.asked.success) if n in bodies | sites | {*joints}
    )
    return [*dict.fromkeys(found)] or [p.body for p in world.scene.reset]


def place_of(world: SceneWorld, thing: str) -> tuple[NDArray[np.float64], float]:
    """Return where a body or site is [m] and its direction about the vertical [rad]."""
    if mujoco.mj_name2id(world.model, mujoco.mjtObj.mjOBJ_BODY, thing) >= 0:
        return world.state.place_m(thing), world.state.yaw_rad(thing)
    turn = world.data.site(thing).xmat
    return world.state.place_m(thing), float(np.arctan2(turn[3], turn[0]))


def show(world: SceneWorld, uid: str, seed: int, goals: NDArray[np.float64]) -> Demonstration:
    """Replay what was sent in a take, on the scene of its seed, and note where things were.

    Args:
        world: of the file that it was recorded in.
        goals: of the joints [rad, m], shape (n, n_joints).
    """
    world.reset(seed=seed)
    things = things_of(world)
    ik, columns = world.arm_ik(f"Scene {world.scene.path}, replay")
    tools = [ik.tcp(goal[columns]) for goal in goals]
    places, held, won = list[list[tuple[NDArray[np.float64], float]]](), 0, False
    tips = list[NDArray[np.float64]]()
    rest = np.repeat(goals[-1:], round(1.0 / world.period_s), axis=0)
    for goal in np.concatenate([goals, rest]):
        places.append([place_of(world, thing) for thing in things])
        tips.append(world.data.site(world.scene.tool.site).xpos.copy())
        world.step(world.action_of(goal))
        held = held + 1 if world.success() else 0
        won = won or held * world.period_s >= HELD_S
    at_m = np.array([[at for at, _ in row] for row in places]).reshape(len(places), -1, 3)
    away_m = np.linalg.norm(at_m - np.array(tips)[:, None], axis=2)
    gone = (np.linalg.norm(at_m - at_m[0], axis=2) > TOUCHED_M)[: len(goals)]
    touched = [int(gone[:, k].argmax()) for k in np.flatnonzero(gone.any(axis=0))]
    parts, edges = list[Part](), {0, len(goals), *_moments(world, goals), *touched}
    for start, end in pairwise(sorted(edges)):
        moved_m = np.linalg.norm(at_m[end] - at_m[start], axis=1)
        carried = (moved_m > CARRIED_M) & (np.abs(away_m[end] - away_m[start]) < CARRIED_M)
        near_m = away_m[start : end + 1].min(axis=0) if end == len(goals) else away_m[end]
        near_m = np.where(carried, np.inf, near_m)
        if near_m.size and near_m.min() < AT_IT_M:
            thing = int(near_m.argmin())
            parts.append(Part(start, end, thing, *places[start][thing]))
        else:
            parts.append(Part(start, end))
    tool_m, turns = (np.array(part) for part in zip(*tools, strict=True))
    return Demonstration(uid, goals, tool_m, turns, parts, won)


def _moments(world: SceneWorld, goals: NDArray[np.float64]) -> list[int]:
    """Return the frames in which the gripper's goals go past the middle of their way."""
    gripper = goals[:, world.grip]
    if world.grip < 0 or np.ptp(gripper) < 0.1 * np.ptp(world.limits[world.grip]):
        return []
    share, found = (gripper - gripper.min()) / np.ptp(gripper), list[int]()
    high = share[0] > 0.5
    for frame, now in enumerate(share):
        if now < 0.35 if high else now > 0.65:
            high = not high
            found.append(frame)
    return found


def _turned_rad(world: SceneWorld, thing: str, turn_rad: float) -> float:
    """Return the least turn [rad] after which a thing looks as after `turn_rad`."""
    body = mujoco.mj_name2id(world.model, mujoco.mjtObj.mjOBJ_BODY, thing)
    whole = 2.0 * np.pi
    if body >= 0 and int(world.model.body_geomnum[body]) == 1:
        geom = int(world.model.body_geomadr[body])
        kind, (x_m, y_m, _) = int(world.model.geom_type[geom]), world.model.geom_size[geom]
        if kind == int(mujoco.mjtGeom.mjGEOM_BOX):
            whole = np.pi / 2.0 if abs(x_m - y_m) < 0.05 * x_m else np.pi
        elif kind != int(mujoco.mjtGeom.mjGEOM_MESH):
            return 0.0
    return float((turn_rad + whole / 2.0) % whole - whole / 2.0)


@dataclass(frozen=True)
class Carried:
    """Where what was near a thing goes, now that the thing is elsewhere: turned, then shifted.

    Attributes:
        from_m, to_m: of the thing.
        turn_rad: about the vertical.
    """

    from_m: NDArray[np.float64]
    to_m: NDArray[np.float64]
    turn_rad: float = 0.0

    def __call__(self, at_m: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return where a place goes [m], shape (3,)."""
        return np.asarray(self.to_m + _about_z(self.turn_rad) @ (at_m - self.from_m))

    @property
    def cost_m(self) -> float:
        """How far things have moved; a turn by 1 rad counts as 5 cm."""
        return float(np.linalg.norm(self.to_m - self.from_m)) + 0.05 * abs(self.turn_rad)


def _about_z(turn_rad: float) -> NDArray[np.float64]:
    cos, sin = np.cos(turn_rad), np.sin(turn_rad)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


NOWHERE: Final = Carried(np.zeros(3), np.zeros(3))


class Replayed:
    """Drives a scene as a recorded demonstration did; a new one for every episode.

    After MimicGen's idea (Mandlekar et al. 2023): each part of the demonstration keeps its place
    relative to the thing at which it ends. On the way over the table from one thing to the next the
    tool goes by the one less and by the other more; it goes no faster than it was shown, or than
    waypoints do. The demonstration whose things have moved least is taken. Where nothing has moved,
    it is replayed as it was sent.
    """

    def __init__(self, world: SceneWorld, shown: Sequence[Demonstration]) -> None:
        """Choose one for the present episode."""
        self._world, self._things = world, things_of(world)
        self._ik, self._columns = world.arm_ik(f"Scene {world.scene.path}, replay")
        self.shown = min(shown, key=self._cost_m)
        self._part, self._before = 0, NOWHERE
        self._left = deque[NDArray[np.float64]]()
        self._goal = self.shown.goals[0].copy()
        self._at_m, self._turn_rad = self.shown.tool_m[0], 0.0
        self.done = False
        """All of it was replayed."""

    def __call__(self, _observation: Any) -> NDArray[np.float32]:
        """Return the next action; the last one is held."""
        while not self._left and self._part < len(self.shown.parts):
            part = self.shown.parts[self._part]
            after = self._carried(part) or (self._before if self._is_last else NOWHERE)
            self._left.extend(self._goals(part, self._before, after))
            self._part, self._before = self._part + 1, after
        if self._left:
            self._goal = self._left.popleft()
        self.done = not self._left and self._part == len(self.shown.parts)
        return self._world.action_of(self._goal)

    @property
    def _is_last(self) -> bool:
        return self._part == len(self.shown.parts) - 1

    def _cost_m(self, shown: Demonstration) -> float:
        return sum(found.cost_m for part in shown.parts if (found := self._carried(part)))

    def _carried(self, part: Part) -> Carried | None:
        """Return where a part goes by where its thing is now; None where it has none."""
        if part.thing is None:
            return None
        thing = self._things[part.thing]
        at_m, yaw_rad = place_of(self._world, thing)
        return Carried(part.at_m, at_m, _turned_rad(self._world, thing, yaw_rad - part.yaw_rad))

    def _goals(self, part: Part, before: Carried, after: Carried) -> Iterator[NDArray[np.float64]]:
        """Yield the joints' goals [rad, m] of a part, one for each frame."""
        shown, goal, period_s = self.shown, self._goal.copy(), self._world.period_s
        is_same = before.cost_m < 1e-9 and after.cost_m < 1e-9
        over_m = np.diff(shown.tool_m[part.start : part.end, :2], axis=0, prepend=np.nan)
        way_m = np.cumsum(np.nan_to_num(np.linalg.norm(over_m, axis=1)))
        for frame, gone_m in enumerate(way_m, part.start):
            share = (gone_m / max(way_m[-1], 1e-9) - ENTERED) / (LEFT - ENTERED)
            share = min(max(share, 0.0), 1.0)
            share *= share * (3.0 - 2.0 * share)
            there = shown.tool_m[frame]
            at_m, from_m = (1.0 - share) * before(there) + share * after(there), self._at_m
            turn_rad = (1.0 - share) * before.turn_rad + share * after.turn_rad
            most_m = float(np.linalg.norm(there - shown.tool_m[max(frame - 1, 0)]))
            most_m, most_rad = max(most_m, SPEED_M_S * period_s), FAST_RAD_S * period_s
            far = float(np.linalg.norm(at_m - from_m)) / most_m
            count = math.ceil(max(far, abs(turn_rad - self._turn_rad) / most_rad, 1.0) - 1e-6)
            for part_way in () if is_same else np.arange(1, count + 1) / count:
                turn = _about_z(self._turn_rad + (turn_rad - self._turn_rad) * part_way)
                place = from_m + (at_m - from_m) * part_way
                arm = self._ik.reach(place, turn @ shown.turns[frame], goal[self._columns], 6)
                goal = (shown.goals[frame] if part_way == 1.0 else goal).copy()
                goal[self._columns] = arm
                yield goal
            if is_same:
                goal = shown.goals[frame]
                yield goal
            self._at_m, self._turn_rad = at_m, turn_rad
        self._goal = goal
