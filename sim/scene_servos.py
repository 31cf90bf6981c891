"""What a scene file's goals are sent to: position servos of joints and tendons, and its gripper.

A gripper may also be a motor, or hold by a cup: it is sent its goal as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import number
from gaploop.sim.roles import motors_of, position_servos
from gaploop.sim.scene_file import Scene, require_known

HOME: Final = "home"
"""The keyframe in which an arm starts whose file has no `home_deg`."""


@dataclass(frozen=True)
class SceneDrive:
    """An actuator that is sent where to be.

    Attributes:
        name: of the joint that it moves, else of the actuator or its tendon.
        actuator: its number, as `joint` and `tendon` are.
        per_goal, at_0: it is sent goal * per_goal + at_0, where goals are [rad or m].
        joint: what it moves itself, or else
        tendon: what it pulls; neither, where it is a motor or a cup.
    """

    name: str
    actuator: int
    per_goal: float = 1.0
    at_0: float = 0.0
    joint: int | None = None
    tendon: int | None = None


@dataclass(frozen=True)
class Finger:
    """A servo that goes along with the gripper's first: its goals [rad, m] at both ends."""

    drive: SceneDrive
    closed: float
    opened: float


class SceneServos:
    """The drives of a scene file's arm with its gripper, in the order of actions.

    Attributes:
        names: of the drives.
        driven: of the joints that they move themselves, by name.
        joints: the same by number.
        limits: [rad, m], shape (n, 2).
        units: rad or m to each ° or m of an action, shape (n,).
        gripper: its place among them, -1 where the file names none.
        jaw: a joint of the gripper, "" where none is known.
        others: the model's actuators that hold nothing where it is told; they stay at 0.
    """

    def __init__(self, scene: Scene, model: mujoco.MjModel) -> None:
        """Find them; UnusableInputError where there is none, or the file names another."""
        self._scene, self._model, self._where = scene, model, f"Scene {scene.path}"
        servos = position_servos(model)
        known = {d.name: d for d in (_drive(model, a, *how) for a, how in servos.items())}
        hand = str(scene.gripper.get("joint") or "")
        pushes = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_ACTUATOR, hand)
        if pushes >= 0 and hand not in known and pushes not in servos:
            known[hand] = SceneDrive(hand, pushes)
        sent = {*servos, *(drive.actuator for drive in known.values())}
        self.others = [_name(model, a) for a in range(model.nu) if a not in sent]
        self._require(scene.joints, known, "joints")
        along = [name for name, _, _ in scene.fingers]
        of_joints = [name for name, drive in known.items() if drive.joint is not None]
        self._require(along, of_joints, "gripper")
        self.names = tuple(scene.joints or (name for name in known if name not in along))
        self._drives = [known[name] for name in self.names]
        self._fingers = [Finger(known[n], closed, opened) for n, closed, opened in scene.fingers]
        self.driven = [name for name in self.names if known[name].joint is not None]
        if not self.driven:
            raise UnusableInputError(
                f"{self._where}: no joint has a position servo"
                + f"; its {model.nu} actuators are others" * (model.nu > 0)
                + f'. Write a <position joint="…" kp="…"/> into <actuator> of {scene.mjcf} '
                "for each; it may name joints of the attached arm, also of a URDF."
            )
        self._require([hand] if hand else (), self.names, "gripper")
        self.gripper = self.names.index(hand) if hand else -1
        self.jaw = _jaw(model, known[hand]) if hand else ""
        self._find_addresses()

    def _find_addresses(self) -> None:
        """Note where in MuJoCo's arrays each drive's part is, its limits and its units."""
        model, drives = self._model, self._drives
        self._actuators = np.array([drive.actuator for drive in drives])
        self._per_goal = np.array([drive.per_goal for drive in drives])
        self._at_0 = np.array([drive.at_0 for drive in drives])
        self._of_joint = np.array([drive.joint is not None for drive in drives])
        self._of_tendon = np.array([drive.tendon is not None for drive in drives])
        self.joints = np.array([d.joint for d in drives if d.joint is not None], dtype=int)
        self._tendons = np.array([d.tendon for d in drives if d.tendon is not None], dtype=int)
        self._qpos, self._dof = model.jnt_qposadr[self.joints], model.jnt_dofadr[self.joints]
        hinge = model.jnt_type[self.joints] == int(mujoco.mjtJoint.mjJNT_HINGE)
        self.units = np.ones(len(drives))
        self.units[self._of_joint] = np.where(hinge, np.pi / 180.0, 1.0)
        ends = self._goals(model.actuator_ctrlrange[self._actuators].T).T
        ends[~model.actuator_ctrllimited[self._actuators].astype(bool)] = -np.pi, np.pi
        limited = model.jnt_limited[self.joints].astype(bool)
        ends[np.flatnonzero(self._of_joint)[limited]] = model.jnt_range[self.joints[limited]]
        self.limits = np.sort(ends)

    def _require(self, names: Collection[str], known: Collection[str], key: str) -> None:
        """Refuse names that no position servo moves; UnusableInputError."""
        model, where = self._model, f"{self._where}, {key}"
        joints = [model.joint(j).name for j in range(model.njnt)]
        for name in {*names} & {*joints} - {*known}:
            acts = motors_of(model, [joints.index(name)])
            if not position_servos(model).keys() & {*acts}:
                called = "".join(_name(model, a) for a in acts[:1])
                raise UnusableInputError(
                    f"{where}: {name} has no position servo; "
                    + (f"{called}, which moves it, is another" if acts else "it has no actuator")
                    + f'. Write a <position joint="{name}" kp="…"/> into <actuator> in its place, '
                    f"or leave {name} out."
                )
        require_known("joint with a position servo", names, known, where)

    def _goals(self, sent: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the goals [rad, m] of which actuators were sent this, shape (…, n)."""
        return np.asarray((sent - self._at_0) / self._per_goal)

    def home(self) -> NDArray[np.float64]:
        """Return where the arm starts [rad, m], shape (n,): by the file, its keyframe, or at 0."""
        scene, model = self._scene, self._model
        self._require(scene.home_deg, self.names, "home_deg")
        said = [
            number(scene.home_deg.get(n, 0.0), f"{self._where}, home_deg, {n}", -720.0, 720.0)
            for n in self.names
        ]
        home = np.array(said) * self.units
        key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME)
        if key >= 0 and not scene.home_deg:
            home = np.where(self._of_joint, 0.0, self._goals(model.key_ctrl[key][self._actuators]))
            home[self._of_joint] = model.key_qpos[key][self._qpos]
        return np.clip(home, *self.limits.T)

    def start(self, data: mujoco.MjData, goal: NDArray[np.float64]) -> None:
        """Put an arm where it is told to be [rad, m], shape (n,)."""
        data.qpos[self._qpos] = goal[self._of_joint]
        for finger in self._fingers:
            data.qpos[self._model.jnt_qposadr[finger.drive.joint]] = self._along(finger, goal)
        self.send(data, goal)
        filters = self._model.actuator_actadr[self._actuators]  # of goals: begin where it stands
        data.act[filters[filters >= 0]] = data.ctrl[self._actuators[filters >= 0]]

    def send(self, data: mujoco.MjData, goal: NDArray[np.float64]) -> None:
        """Tell the drives where to be [rad, m], shape (n,)."""
        data.ctrl[self._actuators] = goal * self._per_goal + self._at_0
        for finger in self._fingers:
            drive = finger.drive
            data.ctrl[drive.actuator] = self._along(finger, goal) * drive.per_goal + drive.at_0

    def _along(self, finger: Finger, goal: NDArray[np.float64]) -> float:
        """Return where a finger is to be [rad, m] where the gripper's first is sent by `goal`."""
        closed, opened = (self._scene.gripper[key] for key in ("closed", "open"))
        share = (goal[self.gripper] - closed) / (opened - closed)
        return float(finger.closed + share * (finger.opened - finger.closed))

    def positions(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """Return the joints [rad, m], shape (n,).

        Of what a tendon pulls its length, of a motor or a cup what it is sent.
        """
        return self._filled(data.ctrl[self._actuators], data.qpos[self._qpos], data.ten_length)

    def velocities(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """Return the joints' speeds [rad/s, m/s], shape (n,)."""
        return self._filled(np.zeros(len(self.names)), data.qvel[self._dof], data.ten_velocity)

    def _filled(
        self,
        others: NDArray[np.float64],
        of_joints: NDArray[np.float64],
        of_all_tendons: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        found = others.copy()
        found[self._of_joint], found[self._of_tendon] = of_joints, of_all_tendons[self._tendons]
        return found


def _drive(model: mujoco.MjModel, actuator: int, per_goal: float, at_0: float) -> SceneDrive:
    on = int(model.actuator_trnid[actuator, 0])
    if int(model.actuator_trntype[actuator]) == int(mujoco.mjtTrn.mjTRN_TENDON):
        name = model.actuator(actuator).name or model.tendon(on).name
        return SceneDrive(name, actuator, per_goal, at_0, tendon=on)
    return SceneDrive(model.joint(on).name, actuator, per_goal, at_0, joint=on)


def _jaw(model: mujoco.MjModel, drive: SceneDrive) -> str:
    """Return a joint that a gripper's drive moves, by itself or by its tendon; "" for none."""
    if drive.joint is not None:
        return drive.name
    if drive.tendon is not None:
        first = int(model.tendon_adr[drive.tendon])
        joint = int(model.wrap_type[first]) == int(mujoco.mjtWrap.mjWRAP_JOINT)
        return str(model.joint(int(model.wrap_objid[first])).name) if joint else ""
    moves = int(model.actuator_trntype[drive.actuator]) == int(mujoco.mjtTrn.mjTRN_JOINT)
    return str(model.joint(int(model.actuator_trnid[drive.actuator, 0])).name) if moves else ""


def _name(model: mujoco.MjModel, actuator: int) -> str:
    return str(model.actuator(actuator).name) or f"actuator {actuator}"
