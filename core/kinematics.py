"""Forward kinematics of the arms that gaploop knows, and of any other MJCF.

A workspace box, Cartesian control and calibration need to know where the tool is. Base frame:
x forward, y left, z up, on the table under the base. Tool frame: z along the fingers.

Importing this module loads nothing heavy; `ArmModel.load` imports MuJoCo.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.arm import Box, GuardedPoint
from gaploop.core.arms import ARM_MODELS, model_of
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import FloatArray
from gaploop.core.paths import relative_path

__all__ = ["ARM_MODELS", "TOOL_SITES", "ArmModel", "Box", "kinematic_model", "model_of"]

TOOL_SITES: Final = ("gripperframe", "tcp")
"""Names of the site that stands at the tool centre, best first."""


class ArmModel:
    """One arm's joints and forward kinematics. Safe to use from several threads.

    Use `ArmModel.load`, or `SceneWorld.arm_model`.

    Args:
        model: of the arm alone, in its base frame; slides are in m where hinges are in rad.
        tool: the site at the tool centre; "" for `TOOL_SITES`, or the only one there is.
        joints: with their limits, shape (n_joints, 2); what isn't a joint of the model, such as a
            gripper that a tendon pulls, moves nothing. None for all of the model's, hinges with
            ranges.
        grip: which of them is the gripper; None where there is none.
        grip_rad: where that is closed and open, of `joints`; lowest and highest unless given.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        points: tuple[GuardedPoint, ...] = (),
        *,
        tool: str = "",
        joints: Mapping[str, FloatArray] | None = None,
        grip: int | None = -1,
        grip_rad: tuple[float, float] | None = None,
    ) -> None:
        import mujoco

        self.name, self.points = name, points
        self._model = model
        sites = [model.site(i).name for i in range(model.nsite)]
        named = [site for site in (tool, *TOOL_SITES) if site and site in sites]
        if not named and len(sites) != 1:
            raise UnusableInputError(
                f"{name} has no site named {' or '.join(TOOL_SITES)} to mark the tool centre "
                f"(sites: {', '.join(sites) or 'none'}). Add one to the last body of the arm."
            )
        self._site = sites.index(named[0]) if named else 0
        self.site_name: str = sites[self._site]
        geared = {}
        for row in np.flatnonzero(model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)):
            geared[int(model.eq_obj1id[row])] = (int(model.eq_obj2id[row]), model.eq_data[row, :5])
        free = [j for j in range(model.njnt) if j not in geared]
        known = [model.joint(j).name for j in free]
        if joints is None:
            hinges = int(mujoco.mjtJoint.mjJNT_HINGE)
            for joint, called in zip(free, known, strict=True):
                if model.jnt_type[joint] != hinges or not model.jnt_limited[joint]:
                    raise UnusableInputError(
                        f"{name}: joint {called!r} must be a hinge with a range."
                    )
            joints = dict(zip(known, model.jnt_range[free], strict=True))
        self.joint_names: tuple[str, ...] = tuple(joints)
        self.joint_limits_rad: FloatArray = np.array(list(joints.values()))
        self.grip = None if grip is None else range(len(joints))[grip]
        self.grip_rad = grip_rad
        columns = [k for k, called in enumerate(joints) if called in known]
        free = [free[known.index(self.joint_names[k])] for k in columns]
        self._columns = np.array(columns, dtype=np.intp)
        self._addresses = np.array([model.jnt_qposadr[j] for j in free], dtype=np.intp)
        self.dofs = np.array([model.jnt_dofadr[j] for j in free], dtype=np.intp)
        self._joints = tuple(free)
        moving = [k for k in columns if k != self.grip]
        self.moving = np.array(moving, dtype=np.intp)
        """Which of the joints move the tool: all but the gripper."""
        self.moving_dofs = self.dofs[[columns.index(k) for k in moving]]
        self._geared = tuple(
            (j, int(model.jnt_qposadr[j]), columns[free.index(driver)], tuple(map(float, poly)))
            for j, (driver, poly) in geared.items()
            if driver in free
        )
        self.point_names = ("tool centre", *(point.name for point in points))
        self._bodies = np.array([model.body(p.body).id for p in points], dtype=np.intp)
        self._offsets_m = np.array([p.offset_m for p in points]).reshape(-1, 3, 1)
        self.reach_m = self._reach()
        """For each joint, how far at most any guarded point moves when it turns [m/rad]."""
        self._local = threading.local()

    @classmethod
    def load(cls, name_or_path: str | Path) -> ArmModel:
        """Load an arm by its name in `ARM_MODELS`, or any serial arm from an MJCF file.

        A file's joints are its hinges in order, all limited, the gripper last; its tool centre
        is the site "gripperframe" or "tcp", or the only one; guarded points are the tool centre
        and every joint.

        Raises:
            UnusableInputError: no such name or file, or a model that can't be used.
        """
        spec = ARM_MODELS.get(str(name_or_path))
        if spec is not None:
            return cls(str(name_or_path), kinematic_model(spec.mjcf), spec.points)
        path = Path(name_or_path)
        if path.suffix != ".xml":
            raise unknown_choice("arm model", name_or_path, [*ARM_MODELS, "PATH.xml"])
        if not path.is_file():
            raise UnusableInputError(f"No arm model {path}. Give an MJCF file that exists.")
        model = kinematic_model(path)
        bodies = (model.body(int(model.jnt_bodyid[j])) for j in range(model.njnt))
        return cls(
            path.stem,
            model,
            tuple(
                GuardedPoint(model.joint(j).name, b.name) for j, b in enumerate(bodies) if b.name
            ),
        )

    def _reach(self) -> tuple[float, ...]:
        """Return the longest way along the links from each joint to a guarded point [m].

        However the other joints stand, no point is further from a joint's axis than that. A
        joint that drives another moves what that one carries, too.
        """
        model = self._model
        of_joint = np.zeros(model.njnt)
        ends = [(model.site_bodyid[self._site], model.site_pos[self._site])]
        ends += list(zip(self._bodies, self._offsets_m, strict=True))
        for body, offset_m in ends:
            way_m = float(np.linalg.norm(offset_m))
            while body:
                first = int(model.body_jntadr[body])
                for joint in range(first, first + int(model.body_jntnum[body])):
                    # The axis may stand off the body's frame, which then swings about it.
                    off_m = float(np.linalg.norm(model.jnt_pos[joint]))
                    of_joint[joint] = max(of_joint[joint], way_m + off_m)
                    way_m += 2.0 * off_m
                way_m += float(np.linalg.norm(model.body_pos[body]))
                body = model.body_parentid[body]
        reach = of_joint[list(self._joints)]
        for joint, _, driver, (_, b, c, d, e) in self._geared:
            q = float(np.abs(self.joint_limits_rad[driver]).max())
            slope = abs(b) + q * (2.0 * abs(c) + q * (3.0 * abs(d) + q * 4.0 * abs(e)))
            reach[list(self._columns).index(driver)] += slope * of_joint[joint]
        return tuple(reach.tolist())

    def qpos(self, q_rad: FloatArray) -> FloatArray:
        """Return MuJoCo's configuration for joint positions [rad], shape (n_joints,).

        It differs where joints are geared to others.
        """
        qpos = self._model.qpos0.copy()
        self._fill(qpos, q_rad)
        return np.asarray(qpos)

    def kinematics(self) -> Any:
        """Return the model, to be changed by whoever asks."""
        return copy.copy(self._model)

    def _fill(self, qpos: FloatArray, q_rad: FloatArray) -> None:
        qpos[self._addresses] = np.asarray(q_rad)[self._columns]
        for _, address, driver, (a, b, c, d, e) in self._geared:
            q = float(q_rad[driver])
            qpos[address] = a + q * (b + q * (c + q * (d + q * e)))

    def _placed(self, q_rad: FloatArray) -> Any:
        """Return this thread's MjData with the bodies placed for `q_rad`."""
        local = self._local
        try:
            data, kinematics = local.data, local.kinematics
        except AttributeError:
            import mujoco

            data = local.data = mujoco.MjData(self._model)
            kinematics = local.kinematics = mujoco.mj_kinematics
        self._fill(data.qpos, q_rad)
        kinematics(self._model, data)
        return data

    def T_base_tcp(self, q_rad: FloatArray) -> FloatArray:  # noqa: N802
        """Return the pose of the tool centre in the base frame, shape (4, 4), translation [m].

        `q_rad` are joint positions [rad], shape (n_joints,), in the order of `joint_names`.
        """
        data = self._placed(q_rad)
        pose = np.zeros((4, 4))
        pose[:3, :3] = data.site_xmat[self._site].reshape(3, 3)
        pose[:3, 3] = data.site_xpos[self._site]
        pose[3, 3] = 1.0
        return pose

    def points_m(self, q_rad: FloatArray) -> FloatArray:
        """Return the guarded points in the base frame [m], shape (k, 3), as in `point_names`.

        `q_rad` are joint positions [rad], shape (n_joints,), in the order of `joint_names`.
        """
        data = self._placed(q_rad)
        points = np.empty((len(self._bodies) + 1, 3))
        points[0] = data.site_xpos[self._site]
        turned = data.xmat[self._bodies].reshape(-1, 3, 3) @ self._offsets_m
        points[1:] = data.xpos[self._bodies] + turned[:, :, 0]
        return points

    def weight_nm(self, q_rad: FloatArray) -> FloatArray:
        """Return how the arm's weight turns each joint [N m], shape (n_joints,).

        `q_rad` are joint positions [rad], shape (n_joints,), in the order of `joint_names`.
        """
        import mujoco

        data = self._placed(q_rad)
        mujoco.mj_comPos(self._model, data)
        mujoco.mj_rne(self._model, data, 0, data.qfrc_bias)
        return np.asarray(-data.qfrc_bias[self.dofs])

    def jacobian_m(self, q_rad: FloatArray, point: int) -> FloatArray:
        """Return how a guarded point moves with each joint [m/rad], shape (3, n_joints)."""
        import mujoco

        data = self._placed(q_rad)
        mujoco.mj_comPos(self._model, data)
        jacobian = np.empty((3, self._model.nv))
        body = self._model.site_bodyid[self._site] if point == 0 else self._bodies[point - 1]
        mujoco.mj_jac(self._model, data, jacobian, None, self.points_m(q_rad)[point], int(body))
        return np.asarray(jacobian[:, self.dofs])


_PART_KG: Final = 0.01


def kinematic_model(mjcf: Path) -> Any:
    """Compile the `mujoco.MjModel` of an arm without its geometry: 200 times as fast.

    Raises:
        UnusableInputError: MuJoCo can't read it; the first line of what it says.
    """
    changed_ns = mjcf.stat().st_mtime_ns if mjcf.is_file() else 0
    return copy.copy(_compiled(mjcf, changed_ns))


@functools.lru_cache(maxsize=8)
def _compiled(mjcf: Path, _changed_ns: int) -> Any:
    import mujoco

    try:
        spec = mujoco.MjSpec.from_file(str(mjcf))
        strip(spec)
        return spec.compile()
    except ValueError as error:
        first = str(error).strip().splitlines()[0]
        raise UnusableInputError(f"MuJoCo can't use the arm model {mjcf}: {first}") from error


def read_spec(mjcf: Path) -> Any:
    """Read a `mujoco.MjSpec` from MJCF or URDF.

    Meshes that a URDF names as ROS does, `package://NAME/…`, are found below one of the folders
    that it lies in: the package's own, or one that holds the package.

    Raises:
        UnusableInputError: such a mesh isn't there.
        ValueError: MuJoCo can't read it.
    """
    import mujoco

    spec = mujoco.MjSpec.from_file(str(mjcf))
    for mesh in spec.meshes:
        _, is_packed, named = mesh.file.partition("package://")
        if not is_packed:
            continue
        package, _, below = relative_path(named, "mesh", mjcf).partition("/")
        places = [at / part for at in mjcf.resolve().parents for part in (named, below)]
        mesh.file = str(next((place for place in places if place.is_file()), ""))
        if not mesh.file:
            raise UnusableInputError(
                f"{mjcf}: no folder above it has the mesh {named}. Put the ROS package {package} "
                "beside it."
            )
    return spec


def strip(spec: Any) -> None:
    """Take from a `mujoco.MjSpec` geometry and what refers to it."""
    for part in (*spec.sensors, *spec.pairs, *spec.excludes, *spec.geoms, *spec.meshes):
        spec.delete(part)
    for body in spec.bodies[1:]:
        if not body.explicitinertial:  # a small part that had its mass from its geometry
            body.mass, body.explicitinertial = _PART_KG, True
            body.inertia = [1e-6] * 3
