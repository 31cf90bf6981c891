"""A scene as a file: MJCF of bench and arm, what is reset and where, and when its task is done.

`SceneWorld` steps what `load_scene` read: a gymnasium environment whose actions are goals of the
arm's position servos, [°] of hinges and [m] of slides, as its `agent_pos`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import ModelFile
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, number
from gaploop.sim.camera import LayeredCamera
from gaploop.sim.gaps.world_model import motors_of
from gaploop.sim.predicates import Holds, SceneState, parse
from gaploop.sim.scene import look_at_quat
from gaploop.sim.survey import AFFINE

KEYS: Final = (
    "mjcf", "arm", "arm_at_m", "arm_turn_deg", "joints", "gripper", "tool", "home_deg", "cameras",
    "fps", "reset", "instruction", "success", "demonstrator", "max_s",
)  # fmt: skip
SIZE_PX: Final = (128, 128)
FAR_M: Final = 100.0
ATTEMPTS: Final = 100
"""Draws of places until things that are reset lie apart."""


@dataclass(frozen=True)
class SceneCamera:
    """A camera of the model, or one that the file adds.

    Attributes:
        eye_m: where it is, or None for one of the model's.
        size_px: width and height.
    """

    name: str
    size_px: tuple[int, int] = SIZE_PX
    eye_m: NDArray[np.float64] | None = None
    at_m: NDArray[np.float64] | None = None
    fovy_deg: float = 45.0


@dataclass(frozen=True)
class PlacedBody:
    """Where a loose body starts.

    Attributes:
        x_m: lowest and highest; likewise y_m.
        yaw_deg: about the vertical.
        z_m: None for the height that it has in the model.
    """

    body: str
    x_m: tuple[float, float]
    y_m: tuple[float, float]
    yaw_deg: tuple[float, float] = (0.0, 0.0)
    z_m: float | None = None


@dataclass(frozen=True)
class Scene:
    """A scene file as read.

    Attributes:
        joints: of the arm with its gripper; () for all that position servos drive.
        gripper: {joint, open, closed [rad or m]}, or empty.
        home_deg: joint to where it starts [°, m].
        demonstrator: waypoints, as `waypoints.Demonstrator` takes them.
    """

    path: Path
    mjcf: Path
    arm: Path | None = None
    arm_at_m: tuple[float, ...] = (0.0, 0.0, 0.0)
    arm_turn_deg: float = 0.0
    joints: tuple[str, ...] = ()
    gripper: Mapping[str, Any] = field(default_factory=dict)
    tool: str = ""
    home_deg: Mapping[str, float] = field(default_factory=dict)
    cameras: tuple[SceneCamera, ...] = ()
    fps: float = 25.0
    reset: tuple[PlacedBody, ...] = ()
    instruction: str = ""
    success: Any = None
    demonstrator: Sequence[Mapping[str, Any]] = ()
    max_s: float = 12.0


def load_scene(path: Path) -> Scene:
    """Read a scene file.

    Raises:
        UnusableInputError: it can't be read, or says something unknown.
    """
    said = load_yaml(path, "Scene")
    where = f"Scene {path}"
    check_keys(said, KEYS, where, ("mjcf", "success", "instruction"))

    def triple(value: Any, what: str) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != 3:
            raise UnusableInputError(f"{where}, {what}: give [x, y, z] in m, not {value!r}.")
        return tuple(number(v, f"{where}, {what}", -FAR_M, FAR_M) for v in value)

    def span(value: Any, what: str, most: float) -> tuple[float, float]:
        ends = value if isinstance(value, list) else [value, value]
        if len(ends) != 2:
            raise UnusableInputError(
                f"{where}, {what}: give a number or [low, high], not {value!r}."
            )
        low, high = (number(v, f"{where}, {what}", -most, most) for v in ends)
        return low, high

    cameras = []
    for name, camera in (said.get("cameras") or {}).items():
        camera, place = camera or {}, f"cameras, {name}"
        check_keys(camera, ("eye_m", "at_m", "fovy_deg", "size_px"), f"{where}, {place}")
        width, height = camera.get("size_px", SIZE_PX)
        added = {
            key: np.array(triple(camera[key], f"{place}, {key}"))
            for key in ("eye_m", "at_m")
            if key in camera
        }
        if len(added) == 1:
            raise UnusableInputError(f"{where}, {place}: eye_m and at_m go together.")
        fovy = number(camera.get("fovy_deg", 45.0), f"{where}, {place}, fovy_deg", 1.0, 170.0)
        cameras.append(SceneCamera(str(name), (int(width), int(height)), **added, fovy_deg=fovy))
    placed = []
    for name, spot in (said.get("reset") or {}).items():
        place = f"reset, {name}"
        check_keys(spot, ("x_m", "y_m", "z_m", "yaw_deg"), f"{where}, {place}", ("x_m", "y_m"))
        z_m = spot.get("z_m")
        placed.append(
            PlacedBody(
                str(name),
                span(spot["x_m"], f"{place}, x_m", FAR_M),
                span(spot["y_m"], f"{place}, y_m", FAR_M),
                span(spot.get("yaw_deg", 0.0), f"{place}, yaw_deg", 360.0),
                None if z_m is None else number(z_m, f"{where}, {place}, z_m", -FAR_M, FAR_M),
            )
        )
    usual = Scene(path, path)
    return Scene(
        path,
        _model_file(said["mjcf"], path),
        _model_file(said["arm"], path) if "arm" in said else None,
        triple(said["arm_at_m"], "arm_at_m") if "arm_at_m" in said else usual.arm_at_m,
        number(said.get("arm_turn_deg", 0.0), f"{where}, arm_turn_deg", -360.0, 360.0),
        tuple(said.get("joints") or ()),
        said.get("gripper") or {},
        str(said.get("tool") or ""),
        said.get("home_deg") or {},
        tuple(cameras),
        number(said.get("fps", usual.fps), f"{where}, fps", 1.0, 500.0),
        tuple(placed),
        str(said["instruction"]),
        said["success"],
        tuple(said.get("demonstrator") or ()),
        number(said.get("max_s", usual.max_s), f"{where}, max_s", 0.1, 600.0),
    )


def _model_file(said: Any, scene: Path) -> Path:
    """Return the path of a model: beside the scene, or of an installed package, package:path."""
    name, colon, inside = str(said).partition(":")
    if colon:
        path = ModelFile(name, inside, f"pip install {name}").find(f"scene {scene}")
    else:
        path = scene.parent / name
    if not path.is_file():
        raise UnusableInputError(f"Scene {scene}: there is no model {path}.")
    return path


def compile_scene(scene: Scene) -> mujoco.MjModel:
    """Return the compiled model of bench and arm; the bench's options count.

    Raises:
        UnusableInputError: MuJoCo can't read or compile it.
    """
    ours = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _words: None)
    try:
        spec = mujoco.MjSpec.from_file(str(scene.mjcf))
        if scene.arm is not None:
            half = np.radians(scene.arm_turn_deg) / 2.0
            frame = spec.worldbody.add_frame(
                pos=scene.arm_at_m, quat=[np.cos(half), 0.0, 0.0, np.sin(half)]
            )
            spec.attach(mujoco.MjSpec.from_file(str(scene.arm)), prefix="", frame=frame)
        for camera in scene.cameras:
            if camera.eye_m is not None and camera.at_m is not None:
                quat = look_at_quat(camera.eye_m, camera.at_m)
                spec.worldbody.add_camera(
                    name=camera.name, pos=camera.eye_m, quat=quat, fovy=camera.fovy_deg
                )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of options that the bench overrules
            return spec.compile()
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UnusableInputError(f"Scene {scene.path}: MuJoCo can't build it ({reason}).") from None
    finally:
        mujoco.set_mju_user_warning(ours)


class SceneWorld(gym.Env[dict[str, Any], NDArray[np.float32]]):
    """A scene file, stepped; a `World` and an environment.

    Observations are `agent_pos` [°, m], shape (n_joints,), and `pixels`: {camera: RGB, uint8}.

    Attributes:
        draws: observations have pictures.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as gymnasium has it)
    render_mode = "rgb_array"

    def __init__(self, scene: Scene) -> None:
        """Compile a scene; UnusableInputError where the file doesn't fit its model."""
        self.scene = scene
        self.model = model = compile_scene(scene)
        self.data = mujoco.MjData(model)
        where = f"Scene {scene.path}"
        all_joints = list(range(model.njnt))
        drives = {
            model.joint(int(model.actuator_trnid[a, 0])).name: a
            for a in motors_of(model, all_joints)
            if int(model.actuator_biastype[a]) == AFFINE
        }
        for name in scene.joints or drives:
            if name not in drives:
                raise unknown_choice("joint with a position servo", name, drives, where)
        self.joint_names = tuple(scene.joints or drives)
        if not self.joint_names:
            raise UnusableInputError(
                f"{where}: no joint has a position servo. Add position actuators to the model."
            )
        self._servos = np.array([drives[name] for name in self.joint_names])
        joints = [model.joint(name) for name in self.joint_names]
        self._qpos = np.array([int(j.qposadr[0]) for j in joints])
        self._dof = np.array([int(j.dofadr[0]) for j in joints])
        hinge = np.array([int(j.type[0]) == int(mujoco.mjtJoint.mjJNT_HINGE) for j in joints])
        self._units = np.where(hinge, np.pi / 180.0, 1.0)
        self.limits = np.array([j.range if j.limited[0] else (-np.pi, np.pi) for j in joints])
        for name in scene.home_deg:
            if name not in self.joint_names:
                raise unknown_choice("joint", name, self.joint_names, f"{where}, home_deg")
        home = [
            number(scene.home_deg.get(n, 0.0), f"{where}, home_deg, {n}", -720.0, 720.0)
            for n in self.joint_names
        ]
        self.home = np.clip(np.array(home) * self._units, *self.limits.T)
        for placed in scene.reset:
            body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, placed.body)
            if body < 0:
                names = [model.body(b).name for b in range(1, model.nbody)]
                raise unknown_choice("body", placed.body, filter(None, names), f"{where}, reset")
        for camera in scene.cameras:
            names = [model.camera(c).name for c in range(model.ncam)]
            if camera.name not in names:
                raise unknown_choice("camera", camera.name, names, f"{where}, cameras")
        self._holds: Holds = parse(scene.success, model, f"{where}, success")
        root = int(model.body_rootid[model.jnt_bodyid[model.joint(self.joint_names[0]).id]])
        self._arm = frozenset(int(b) for b in np.flatnonzero(model.body_rootid == root))
        self._drawers = dict[str, LayeredCamera]()
        self.draws = True
        if scene.cameras:
            self.camera_name = scene.cameras[0].name  # that gaps move
        self.period_s = self.dt = 1.0 / scene.fps
        self._substeps = max(1, round(self.period_s / model.opt.timestep))
        self.task_description = scene.instruction
        low, high = (edge / self._units for edge in self.limits.T)
        self.action_space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        pictures: dict[str, gym.Space[Any]] = {
            c.name: gym.spaces.Box(0, 255, (c.size_px[1], c.size_px[0], 3), np.uint8)
            for c in scene.cameras
        }
        self.observation_space = gym.spaces.Dict(
            {
                "agent_pos": gym.spaces.Box(-np.inf, np.inf, self.home.shape, np.float32),
                **({"pixels": gym.spaces.Dict(pictures)} if pictures else {}),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode: the arm at home, things where the file says."""
        super().reset(seed=seed)
        del options
        model, data = self.model, self.data
        mujoco.mj_resetData(model, data)
        data.qpos[self._qpos] = self.home
        data.ctrl[self._servos] = self.home
        for placed in self.scene.reset:
            self._place(placed)
        mujoco.mj_forward(model, data)
        self._start_m = {model.body(b).name: data.xpos[b].copy() for b in range(model.nbody)}
        for drawer in self._drawers.values():
            drawer.forget()
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
        goal = np.clip(np.asarray(action, dtype=float) * self._units, *self.limits.T)
        self.data.ctrl[self._servos] = goal
        mujoco.mj_step(self.model, self.data, nstep=self._substeps)
        won = self.success()
        return self._seen(), float(won), False, False, {"is_success": won}

    def success(self) -> bool:
        """Judge the present state by the file's predicates."""
        return self._holds(SceneState(self.model, self.data, self._arm, self._start_m))

    def angles(self) -> NDArray[np.float64]:
        """Return the joints [rad, m], shape (n_joints,)."""
        return np.asarray(self.data.qpos[self._qpos].copy())

    @property
    def rest_action(self) -> NDArray[np.float32]:
        """The action that keeps the arm at home."""
        return self.action_of(self.home)

    def velocities(self) -> NDArray[np.float64]:
        """Return the joints' speeds [rad/s, m/s], shape (n_joints,)."""
        return np.asarray(self.data.qvel[self._dof].copy())

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
            if camera.name not in self._drawers:
                self._drawers[camera.name] = LayeredCamera(self.model, camera.name, *camera.size_px)
            found[camera.name] = self._drawers[camera.name].draw(self.data)
        return found

    def render(self) -> Any:
        """Return the first camera's picture; None without cameras."""
        return next(iter(self.pictures().values()), None)

    def close(self) -> None:
        """Free the renderers; safe to call twice."""
        while self._drawers:
            self._drawers.popitem()[1].close()

    def _seen(self) -> dict[str, Any]:
        state = (self.angles() / self._units).astype(np.float32)
        pictures = self.pictures() if self.draws else {}
        return {"agent_pos": state, **({"pixels": pictures} if pictures else {})}
