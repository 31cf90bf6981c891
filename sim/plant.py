"""A MuJoCo arm behind an emulated servo bus: the SO-101's cell, or another arm on a table.

Implements `core.protocols.Plant`. The cell is the one of `sim.cell`, with cube and disc; for the
Koch and the OpenMANIPULATOR there is the arm alone, from the models of `core.kinematics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gaploop.sim import headless  # noqa: F401  (sets the renderer up before mujoco is imported)

# isort: split
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arms import ARM_MODELS, CELL_ARMS
from gaploop.core.errors import unknown_choice
from gaploop.core.kinematics import ArmModel
from gaploop.core.types import FloatArray, FollowerState
from gaploop.sim import scene
from gaploop.sim.cell import Cell
from gaploop.sim.scene import look_at_quat

CAMERAS = ("top", "side")
"""What `serve_cameras` can show."""

_AMBIENT_C = 30.0
_STALL_A = 2.7  # of an STS3215 at 12 V, Feetech's sheet


class ScenePlant(Protocol):
    """A plant whose scene can be drawn elsewhere."""

    name: str
    joint_names: tuple[str, ...]
    model: mujoco.MjModel
    data: mujoco.MjData
    on_advance: Callable[[], None]
    """Called after every step."""

    def command(self, q_rad: FloatArray) -> None:
        """See `Plant`."""
        ...

    def power(self, on: NDArray[np.bool_]) -> None:
        """See `Plant`."""
        ...

    def advance(self, duration_s: float) -> None:
        """See `Plant`."""
        ...

    def read(self) -> FollowerState:
        """See `Plant`."""
        ...


class MujocoPlant:
    """Position servos of a compiled model; those without power are limp.

    Attributes:
        name: model name, such as koch.
        joint_names: order of all joint arrays.
        model: the compiled model.
        data: its state.
        on_advance: called after every step.
    """

    def __init__(
        self, name: str, model: mujoco.MjModel, data: mujoco.MjData, joint_names: tuple[str, ...]
    ) -> None:
        self.name, self.model, self.data = name, model, data
        self.joint_names = joint_names
        self.on_advance: Callable[[], None] = _nothing
        self._qpos = np.array([int(model.joint(n).qposadr[0]) for n in joint_names])
        self._dof = np.array([int(model.joint(n).dofadr[0]) for n in joint_names])
        self._servos = np.array([model.actuator(n).id for n in joint_names])
        self._gain = model.actuator_gainprm[self._servos].copy()
        self._bias = model.actuator_biasprm[self._servos].copy()
        self._on: NDArray[np.bool_] = np.ones(len(joint_names), dtype=np.bool_)
        self._stall_nm = np.abs(model.actuator_forcerange[self._servos]).max(axis=1)
        self._residual_s = 0.0

    def command(self, q_rad: FloatArray) -> None:
        """Set the goal position of every joint [rad], shape (n_joints,)."""
        self.data.ctrl[self._servos] = q_rad

    def power(self, on: NDArray[np.bool_]) -> None:
        """Say which motors hold their goal, shape (n_joints,); the others are limp."""
        if np.array_equal(on, self._on):
            return
        self._on = np.array(on, dtype=np.bool_)
        self.model.actuator_gainprm[self._servos] = self._gain * self._on[:, None]
        self.model.actuator_biasprm[self._servos] = self._bias * self._on[:, None]

    def advance(self, duration_s: float) -> None:
        """Let time pass [s]; remainders of a physics step are carried over."""
        self._residual_s += duration_s
        step_s = float(self.model.opt.timestep)
        count = int(self._residual_s / step_s + 1e-6)
        self._residual_s -= count * step_s
        if count:
            mujoco.mj_step(self.model, self.data, nstep=count)
            self.on_advance()

    def read(self) -> FollowerState:
        """What the servos report."""
        torque_nm = self.data.actuator_force[self._servos].copy()
        load = torque_nm / self._stall_nm
        count = len(self.joint_names)
        return FollowerState(
            t_s=float(self.data.time),
            position_rad=self.data.qpos[self._qpos].copy(),
            velocity_rad_s=self.data.qvel[self._dof].copy(),
            current_a=load * _STALL_A,
            load_pct=100.0 * load,
            temperature_c=np.full(count, _AMBIENT_C),
            voltage_v=np.full(count, np.nan),
            status=np.zeros(count, dtype=np.int64),
        )


def make_plant(name: str, *, seed: int = 0) -> MujocoPlant:
    """Return the plant of an arm, at rest.

    Args:
        name: one of `ARM_MODELS`; an arm of the cell comes with its table, cube and disc.
        seed: draws the cell's scene.

    Raises:
        UnusableInputError: no such arm.
    """
    if name not in ARM_MODELS:
        raise unknown_choice("arm model", name, ARM_MODELS)
    if name in CELL_ARMS:
        cell = Cell(robot=name)
        cell.reset(seed)
        return MujocoPlant(name, cell.model, cell.data, cell.joint_names)
    model = _arm_alone(name)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return MujocoPlant(name, model, data, ArmModel.load(name).joint_names)


def _arm_alone(name: str) -> mujoco.MjModel:
    """An arm on a floor, with light and the two cameras."""
    spec = mujoco.MjSpec.from_file(str(ARM_MODELS[name].mjcf))
    world = spec.worldbody
    world.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1.0, 1.0, 0.1], rgba=[0.45, 0.47, 0.5, 1.0]
    )
    world.add_light(pos=[0.2, 0.3, 1.2], dir=[-0.1, -0.2, -1.0], diffuse=[0.6, 0.6, 0.6])
    spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
    target = np.array([0.12, 0.0, 0.08])
    for camera, eye_m in _EYES.items():
        added = world.add_camera(name=camera, pos=list(eye_m), fovy=45.0)
        added.quat = list(look_at_quat(np.asarray(eye_m), target))
    return spec.compile()


_EYES: Mapping[str, tuple[float, float, float]] = {
    "top": (0.13, 0.001, 0.75),
    "side": (0.35, -0.55, 0.40),
}


def _nothing() -> None:
    return


def camera_in(plant_name: str, camera: str) -> str:
    """Return the name in the model of one of CAMERAS."""
    if camera not in CAMERAS:
        raise unknown_choice("camera", camera, CAMERAS, "--cameras")
    if plant_name not in CELL_ARMS:
        return camera
    return {"top": scene.CAMERA_NAME, "side": scene.REPORT_CAMERA_NAME}[camera]


def serve_cameras(plant: MujocoPlant, names: list[str], **settings: Any) -> Any:
    """Serve pictures of the plant's scene from a process of their own; a context manager.

    See `camera_server.CameraServer` for the settings.
    """
    from gaploop.sim.camera_server import CameraServer

    return CameraServer(plant, {n: camera_in(plant.name, n) for n in names}, **settings)
