"""A MuJoCo arm behind an emulated servo bus: the cell, or another arm on a table, with cameras.

Implements `core.protocols.Plant`. The cell is the one of `sim.cell`, with cube and disc; for other
arms there is the arm alone, from the models of `core.kinematics`.

Its cameras are served over ZeroMQ as LeRobot's `zmq` cameras expect them: one message per frame,
JSON: {"timestamps": {name: s}, "images": {name: base64 of a JPEG}} (lerobot/cameras/zmq, version
0.6.1). The bus must not wait for pictures, so they are drawn in a process of their own: it gets a
copy of the model once, and its positions through shared memory after every step.
"""

import base64
import json
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, Self

import cv2
import mujoco
import numpy as np

from gaploop.core import platform_calls
from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import DeviceError, UnusableInputError, unknown_choice
from gaploop.core.kinematics import ARM_MODELS, ArmModel, read_spec
from gaploop.core.messages import FloatArray, FollowerState, Image
from gaploop.sim import scene
from gaploop.sim.camera import look_at_quat, set_offscreen
from gaploop.sim.cell import SimCell

CELL_CAMERAS: Final = {"top": scene.CAMERA_NAME, "side": scene.REPORT_CAMERA_NAME}
"""What `CameraServer` can show, with its name in the cell's model."""
_EYES_M: Final[Mapping[str, tuple[float, float, float]]] = {
    "top": (0.13, 0.001, 0.75),
    "side": (0.35, -0.55, 0.40),
}
"""Where the same cameras stand beside an arm alone."""
JPEG_QUALITY: Final = 90
_AMBIENT_C: Final = 30.0
_STALL_A: Final = 2.7  # of an STS3215 at 12 V, Feetech's sheet
_START_S: Final = 30.0

CELL_STIFFNESS: Final = 0.1
"""Share of the cell's servos: at 1 a tick of the encoder is half of an STS3215's torque, so that an
arm that rests trips or swings. With P 16, LeRobot's, a real one has a seventh of what is left."""


class MujocoPlant:
    """Position servos of a compiled model; those without power are limp.

    Attributes:
        name: model name, such as koch.
        joint_names: order of all joint arrays.
        on_advance: called after every step.
    """

    def __init__(
        self,
        name: str,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        joint_names: tuple[str, ...],
        stall_nm: FloatArray | None = None,
    ) -> None:
        self.name, self.model, self.data = name, model, data
        self.joint_names = joint_names
        self.on_advance: Callable[[], None] = lambda: None
        self._qpos = np.array([int(model.joint(n).qposadr[0]) for n in joint_names])
        self._dof = np.array([int(model.joint(n).dofadr[0]) for n in joint_names])
        self._servos = np.array([model.actuator(n).id for n in joint_names])
        self._gain = model.actuator_gainprm[self._servos].copy()
        self._bias = model.actuator_biasprm[self._servos].copy()
        self._share: FloatArray = np.ones(len(joint_names))
        self._range_nm = model.actuator_forcerange[self._servos].copy()
        limits_nm = np.abs(model.actuator_forcerange[self._servos]).max(axis=1)
        limits_nm[limits_nm == 0.0] = np.inf  # it reports no load
        self._stall_nm = limits_nm if stall_nm is None else stall_nm  # a limited one draws less
        self._residual_s = 0.0

    def command(self, q_rad: FloatArray) -> None:
        """Set the goal position of every joint [rad], shape (n_joints,)."""
        self.data.ctrl[self._servos] = q_rad

    def power(self, share: FloatArray) -> None:
        """Say which share of its stall torque each motor may give, shape (n_joints,); 0: limp."""
        if np.array_equal(share, self._share):
            return
        self._share = np.array(share, dtype=np.float64)
        on, most_nm = self._share > 0.0, (self._share * self._stall_nm)[:, None]
        self.model.actuator_gainprm[self._servos] = self._gain * on[:, None]
        self.model.actuator_biasprm[self._servos] = self._bias * on[:, None]
        if np.isfinite(most_nm).all():
            self.model.actuator_forcerange[self._servos] = np.clip(
                self._range_nm, -most_nm, most_nm
            )

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


def make_plant(name: str) -> MujocoPlant:
    """Return the plant of one of `ARM_MODELS`, or of an MJCF file, at rest.

    An arm of the cell has its scene.

    Raises:
        UnusableInputError: no such arm, or a joint without a servo of its name.
    """
    arm = ArmModel.load(name)
    if name in CELL_ARMS:
        cell = SimCell(robot=name)
        driven = [cell.model.actuator(n).id for n in cell.joint_names]
        cell.model.actuator_gainprm[driven, 0] *= CELL_STIFFNESS
        cell.model.actuator_biasprm[driven, 1] *= CELL_STIFFNESS
        stall_nm = np.asarray(cell.arm.servos.stall_nm)
        return MujocoPlant(name, cell.model, cell.data, cell.joint_names, stall_nm)
    known = ARM_MODELS.get(name)
    spec = read_spec(known.mjcf if known else Path(name))
    servos = {servo.target: servo for servo in spec.actuators}
    if lacking := [joint for joint in arm.joint_names if joint not in servos]:
        raise UnusableInputError(
            f'{name}: no servo drives {", ".join(lacking)}. Add <position joint="{lacking[0]}" '
            'kp="10" kv="1"/> to its actuators, and so on.'
        )
    for joint, servo in servos.items():
        servo.name = joint
    world = spec.worldbody
    world.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1.0, 1.0, 0.1], rgba=[0.45, 0.47, 0.5, 1.0]
    )
    world.add_light(pos=[0.2, 0.3, 1.2], dir=[-0.1, -0.2, -1.0], diffuse=[0.6, 0.6, 0.6])
    spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
    for camera, eye_m in _EYES_M.items():
        added = world.add_camera(name=camera, pos=list(eye_m), fovy=45.0)
        added.quat = list(look_at_quat(np.asarray(eye_m), np.array([0.12, 0.0, 0.08])))
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return MujocoPlant(name, model, data, arm.joint_names)


class CameraServer:
    """Publishes pictures on 127.0.0.1; a context manager.

    Attributes:
        address: what a subscriber connects to.
    """

    def __init__(
        self,
        plant: MujocoPlant,
        cameras: Sequence[str],
        *,
        port: int = 5555,
        size_px: Sequence[int] = (320, 240),
        fps: float = 25.0,
    ) -> None:
        """Check the settings.

        Args:
            cameras: some of `CELL_CAMERAS`, by which LeRobot names them, too.
            size_px: width and height [px].
            fps: pictures a second [Hz].

        Raises:
            UnusableInputError: no such camera, a setting out of range, or the port is taken.
        """
        for camera in cameras:
            if camera not in CELL_CAMERAS:
                raise unknown_choice("camera", camera, CELL_CAMERAS, "--cameras")
        if len(size_px) != 2 or not all(16 <= side <= 2048 for side in size_px):
            raise UnusableInputError(
                f"--camera_size must be width and height from 16 to 2048 px, got {list(size_px)}."
            )
        if not 0 < fps <= 120:
            raise UnusableInputError(f"--camera_fps must be above 0 and at most 120, got {fps:g}.")
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise UnusableInputError(
                f"--camera_port={port} can't be used: {error}. Name a free one from 1024 to 65535."
            ) from error
        self.address = f"tcp://127.0.0.1:{port}"
        self._plant = plant
        self._model = model = plant.model
        self._context = context = multiprocessing.get_context("spawn")
        self._shared = context.RawArray("d", 1 + model.nq)
        self._stop, self._up = context.Event(), context.Event()
        in_model = {c: CELL_CAMERAS[c] if plant.name in CELL_ARMS else c for c in cameras}
        self._settings = (in_model, self.address, tuple(size_px), fps)
        self._process: Any = None

    def __enter__(self) -> Self:
        self._view = np.frombuffer(self._shared)
        self._publish()
        self._plant.on_advance = self._publish
        self._process = self._context.Process(
            target=_serve,
            args=(self._model, self._shared, self._settings, self._stop, self._up),
            name="cameras",
            daemon=True,
        )
        with platform_calls.starting_deaf():
            self._process.start()
        end_s = time.monotonic() + _START_S
        while not self._up.wait(0.1):
            if not self._process.is_alive() or time.monotonic() > end_s:
                self.__exit__()
                raise DeviceError(
                    "The cameras didn't start: no renderer. Set MUJOCO_GL=egl or osmesa, or leave "
                    "--cameras out."
                )
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.join(5.0)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _publish(self) -> None:
        """Copy where everything is. A picture drawn of half a copy shows two moments 5 ms apart."""
        self._view[0] = time.time()
        self._view[1:] = self._plant.data.qpos


def _serve(
    model: Any,
    shared: Any,
    settings: tuple[dict[str, str], str, tuple[int, int], float],
    stop: Event,
    up: Event,
) -> None:
    """Draw and publish until `stop`; runs in the process of the cameras."""
    import zmq

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    cameras, address, (width, height), fps = settings
    view = np.frombuffer(shared)
    data = mujoco.MjData(model)
    set_offscreen(model, width, height)
    renderer = mujoco.Renderer(model, height, width)
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.setsockopt(zmq.LINGER, 0)
        publisher.setsockopt(zmq.SNDHWM, 2)
        publisher.bind(address)
        parent = multiprocessing.parent_process()
        due_s = time.monotonic()
        while not stop.is_set() and (parent is None or parent.is_alive()):
            state = view.copy()
            data.qpos[:] = state[1:]
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_camlight(model, data)
            images = {}
            for name, camera in cameras.items():
                renderer.update_scene(data, camera)
                picture = np.asarray(renderer.render(), dtype=np.uint8)
                images[name] = base64.b64encode(encode_jpeg(picture)).decode("ascii")
            stamps = dict.fromkeys(cameras, float(state[0]))
            publisher.send_string(json.dumps({"timestamps": stamps, "images": images}))
            up.set()
            due_s = max(due_s + 1.0 / fps, time.monotonic())
            stop.wait(max(0.0, due_s - time.monotonic()))


def encode_jpeg(image: Image) -> bytes:
    """Return a picture, RGB, shape (height, width, 3), as LeRobot's reader wants it.

    LeRobot 0.6.1 hands on what OpenCV decodes without swapping channels, although it calls it
    RGB; its own image server feeds OpenCV's encoder with RGB. So the channels go in swapped.
    """
    done, buffer = cv2.imencode(".jpg", image, [int(cv2.IMWRITE_JPEG_QUALITY), JPEG_QUALITY])
    if not done:
        raise DeviceError("OpenCV can't encode a JPEG.")
    return bytes(buffer)
