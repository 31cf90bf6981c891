"""A scene file as a world: stepped, judged, looked at, and demonstrated by its waypoints.

`SceneWorld` is a gymnasium environment whose actions are goals of the arm's position servos, [°] of
hinges and [m] of slides, as its `agent_pos`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import check_keys, number
from gaploop.core.vocabulary import SEEN
from gaploop.sim.camera import LayeredCamera
from gaploop.sim.hand import PartnerMotion
from gaploop.sim.kinematics import ArmIk, fold_square
from gaploop.sim.predicates import Criterion, Holds, SceneState, parse, uses
from gaploop.sim.roles import find_roles, position_servos
from gaploop.sim.scene_file import PlacedBody, Scene, compile_scene, require_known


class SceneWorld(gym.Env[dict[str, Any], NDArray[np.float32]]):
    """A scene file, stepped; a `World` and an environment.

    Observations are `agent_pos` [°, m], shape (n_joints,), and `pixels`: {camera: RGB, uint8}. Of a
    file without cameras they have `environment_state`, shape (7 n,), instead: place [m] and
    quaternion (w, x, y, z) of every body that lies loose or that `reset` names.

    Attributes:
        draws: observations have pictures.
        jaw: the gripper's joint, "" where the file names none.
        photo: what is behind the scene in them instead of bench and room, from the next reset on.
        wording: level of the words that the task is told in, from the next reset on.
        state: what its success looks at.
        asked: the scene with the present episode's choices made.
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
        servos, drives, pulled = position_servos(model), dict[str, int](), dict[str, int]()
        for a in servos:
            on = int(model.actuator_trnid[a, 0])
            if int(model.actuator_trntype[a]) == int(mujoco.mjtTrn.mjTRN_TENDON):
                name = model.actuator(a).name or model.tendon(on).name
                pulled[name] = on
            else:
                name = model.joint(on).name
            drives[name] = a
        kind = "joint with a position servo"
        require_known(kind, scene.joints, drives, where)
        self.joint_names = tuple(scene.joints or drives)
        if not set(self.joint_names) - set(pulled):
            raise UnusableInputError(
                f"{where}: no joint has a position servo"
                + f"; its {model.nu} actuators are others" * (model.nu > 0)
                + '. Give <actuator> of the MJCF a <position joint="…" kp="…"/> for each joint; '
                "attach a URDF, which can't say it, as arm to a bench in MJCF that does."
            )
        self.jaw = hand = str(scene.gripper.get("joint") or "")
        require_known(kind, [hand] if hand else (), self.joint_names, f"{where}, gripper")
        if hand in pulled:  # by a tendon of joints: any of them
            first = int(model.tendon_adr[pulled[hand]])
            of_joint = int(model.wrap_type[first]) == int(mujoco.mjtWrap.mjWRAP_JOINT)
            self.jaw = model.joint(int(model.wrap_objid[first])).name if of_joint else ""
        self._servos = np.array([drives[name] for name in self.joint_names])
        self._sent, self._sent_at_0 = np.array([servos[int(a)] for a in self._servos]).T
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
        ends[self._is_joint] = [j.range if j.limited[0] else (-np.pi, np.pi) for j in joints]
        self.limits = np.sort(ends)
        require_known("joint", scene.home_deg, self.joint_names, f"{where}, home_deg")
        home = [
            number(scene.home_deg.get(n, 0.0), f"{where}, home_deg, {n}", -720.0, 720.0)
            for n in self.joint_names
        ]
        self.driven_joints = [name for name in self.joint_names if name not in pulled]
        self.home = np.clip(np.array(home) * self._units, *self.limits.T)
        bodies = [model.body(b).name for b in range(1, model.nbody)]
        require_known("body", [placed.body for placed in scene.reset], bodies, f"{where}, reset")
        cameras = [model.camera(c).name for c in range(model.ncam)]
        require_known("camera", [c.name for c in scene.cameras], cameras, f"{where}, cameras")
        sites = [model.site(s).name for s in range(model.nsite)]
        self._asked = [(s, parse(s.success, model, f"{where}, success")) for s in scene.asked()]
        self.asked: Scene = self._asked[0][0]
        self._holds: Holds = self._asked[0][1]
        root = int(model.body_rootid[model.jnt_bodyid[joints[0].id]])
        mujoco.mj_forward(model, self.data)
        found = find_roles(model, self.data, jaw=self.jaw)
        fingers = frozenset(int(model.geom_bodyid[g]) for g in found.fingers)
        if uses(scene.success, "held") and not fingers:
            raise UnusableInputError(f"{where}, held: no gripper was found. Say released instead.")
        self.state = SceneState(
            model,
            self.data,
            arm=frozenset(int(b) for b in np.flatnonzero(model.body_rootid == root)),
            hands=[fingers] if fingers else (),
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
        self._substeps = max(1, round(self.period_s / model.opt.timestep))
        self.task_description = self.asked.instruction[0]
        self.max_steps = round(scene.max_s * scene.fps)
        low, high = self.limits.T / self._units
        self.action_space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        pictures: dict[str, gym.Space[Any]] = {
            c.name: gym.spaces.Box(0, 255, (c.size_px[1], c.size_px[0], 3), np.uint8)
            for c in scene.cameras
        }
        shown = {"agent_pos": len(self.home), "environment_state": 7 * len(self._told)}
        vectors = {k: gym.spaces.Box(-np.inf, np.inf, (n,), np.float32) for k, n in shown.items()}
        self.observation_space = gym.spaces.Dict(
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
        data.qpos[self._qpos] = self.home[self._is_joint]
        self._send(self.home)
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
        if self.partner is None:
            mujoco.mj_step(self.model, self.data, nstep=self._substeps)
        else:
            for _ in range(self._substeps):
                self.partner.step(self.data)
                mujoco.mj_step(self.model, self.data)
            self.partner.notice(self.state)
        won = self.success()
        return self._seen(), float(won), False, False, {"is_success": won}

    def _send(self, goal: NDArray[np.float64]) -> None:
        self.data.ctrl[self._servos] = goal * self._sent + self._sent_at_0

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
        """Return the joints [rad, m], shape (n_joints,); of what a tendon pulls, its length."""
        return self._both(self.data.qpos[self._qpos], self.data.ten_length)

    @property
    def rest_action(self) -> NDArray[np.float32]:
        """The action that keeps the arm at home."""
        return self.action_of(self.home)

    def velocities(self) -> NDArray[np.float64]:
        """Return the joints' speeds [rad/s, m/s], shape (n_joints,)."""
        return self._both(self.data.qvel[self._dof], self.data.ten_velocity)

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
        sites = [world.model.site(s).name for s in range(world.model.nsite)]
        if scene.tool.site not in sites:
            if not any(sites):
                raise UnusableInputError(
                    f"{where}: the model has no sites. Give tool: {{body: NAME, at_m: [x, y, z]}}."
                )
            require_known("site", [scene.tool.site], sites, f"{where}: tool")
        check_keys(scene.gripper, ("joint", "open", "closed"), f"{where}: gripper")
        self._world, self._where, self._points = world, where, scene.demonstrator
        self._hand = scene.gripper.get("joint")
        joints = [name for name in world.driven_joints if name != self._hand]
        self._columns = [world.joint_names.index(name) for name in joints]
        self._grip = world.joint_names.index(self._hand) if self._hand else -1
        self._ik = ArmIk(world.model, joints, scene.tool.site)
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
        if self._index >= 0:
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
            self._goal[self._grip] = gripper[point["gripper"]]
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
