"""Any arm of position servos, by its MJCF file: what fitting its drives needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import mujoco
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.sim.gaps.mechanism import PERIOD_S, Appliers, CommandPath, ImagePath, SensorPath
from gaploop.sim.gaps.world_model import WorldModel
from gaploop.sim.roles import Roles, find_roles, motors_of, position_servos
from gaploop.sim.scene import TIMESTEP_S


class ServoArm:
    """An arm alone, without contact, as its drives are fitted; its gripper rests.

    Attributes:
        name: of the file, without its ending.
        joint_names: of the hinges that its servos drive, from the base to the hand.
        limits_rad: their lowest and highest angles [rad], shape (n_joints, 2).
        arm_columns: of the joints that are fitted: those that are sent goals.
        model: steps of `TIMESTEP_S`; its servos are called like their joints.
    """

    zero_keys: tuple[str, ...] = ()

    def __init__(self, mjcf: Path) -> None:
        """Read an MJCF file, or a URDF that MuJoCo can.

        Raises:
            UnusableInputError: it can't be read, or no position servos drive its joints.
        """
        self.path, self.name = mjcf, mjcf.stem
        if not mjcf.is_file():
            raise UnusableInputError(f"No arm model {mjcf}. Give an MJCF file that exists.")
        try:
            spec = _arm_spec(mjcf)
            whole = spec.compile()
            roles = find_roles(whole, mujoco.MjData(whole))
            servos = {
                int(whole.actuator_trnid[motor, 0]): motor
                for motor in motors_of(whole, roles.arm)
                if position_servos(whole).get(motor) == (1.0, 0.0)
            }
            self.joint_names = tuple(whole.joint(j).name for j in roles.arm if j in servos)
            if not self.joint_names:
                raise UnusableInputError(
                    f"{mjcf}: no position servo drives a hinge of its arm. Give each joint one, "
                    'such as <position joint="NAME" kp="50" kv="2"/>.'
                )
            self.model = model = _only(spec, self.joint_names)
        except ValueError as error:
            first = str(error).strip().splitlines()[0]
            raise UnusableInputError(f"MuJoCo can't use the arm model {mjcf}: {first}") from error
        self._data = mujoco.MjData(model)
        joints = tuple(model.joint(name).id for name in self.joint_names)
        self._roles = Roles(arm=joints)
        unlimited = ~model.jnt_limited[list(joints)].astype(bool)[:, None]
        self.limits_rad: FloatArray = np.where(
            unlimited, [[-np.pi, np.pi]], model.jnt_range[list(joints)]
        )
        self.arm_columns = list(range(len(joints)))

    def sent_goals(self, joints: Sequence[str]) -> Self:
        """Take note of which joints are sent goals; returns itself."""
        self.arm_columns = [k for k, name in enumerate(self.joint_names) if name in joints]
        return self

    def appliers(self) -> Appliers:
        """Return the four appliers of the arm as its file has it."""
        on = WorldModel(self.model, self._data, self._roles, 0, PERIOD_S)
        sensors = SensorPath([""] * len(self.joint_names))
        return Appliers(on, ImagePath(), CommandPath(TIMESTEP_S), sensors)


def _arm_spec(mjcf: Path) -> mujoco.MjSpec:
    """Read a model without what has no mass and without what it looks like."""
    spec = mujoco.MjSpec.from_file(str(mjcf))
    for part in (*spec.sensors, *spec.pairs, *spec.excludes, *spec.keys, *spec.lights):
        spec.delete(part)
    for body in spec.bodies[1:]:
        for geom in body.geoms if body.explicitinertial else ():
            spec.delete(geom)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if (mesh.name or Path(mesh.file).stem) not in used:
            spec.delete(mesh)
    spec.option.timestep = TIMESTEP_S
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    return spec


def _only(spec: mujoco.MjSpec, names: Sequence[str]) -> mujoco.MjModel:
    """Compile a model in which only these joints move, each by a servo of its name."""
    for part in (*spec.equalities, *spec.tendons):
        spec.delete(part)
    for servo in list(spec.actuators):
        if servo.trntype == mujoco.mjtTrn.mjTRN_JOINT and servo.target in names:
            servo.name = servo.target
        else:
            spec.delete(servo)
    for joint in list(spec.joints):
        if joint.name not in names:
            spec.delete(joint)
    return spec.compile()
