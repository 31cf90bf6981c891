"""The first applier of any MuJoCo scene: what mechanisms change, by the roles in its model.

The compiled model that somebody's environment holds is changed in place. What a mechanism needs
and the scene doesn't have is said by `UnavailableError`.
"""

import copy
from collections.abc import Callable
from typing import Any, Final

import mujoco
import numpy as np

from gaploop.core.arm import Rgba
from gaploop.sim.conditions import DISTRACTOR_RGBA
from gaploop.sim.gaps.mechanism import (
    CAMERA_M,
    OBJECT_HALF_M,
    PERIOD_S,
    ModelApplier,
    SpecEdit,
    UnavailableError,
    Vector,
    stream,
)
from gaploop.sim.roles import Roles, motors_of, weld

STALL_NM: Final = 2.94
"""Of the cell's servos: by how much stronger others are, friction that is added grows."""
NEAR, FAR = 3.0, 8.0
"""Boxes stand this many half sizes of the object away from it."""
EXTENT_M: Final = 0.46
"""Of the cell, about, as MuJoCo takes it."""
HIDDEN: Final = 3
"""Geoms of this group and above aren't drawn unless somebody asks."""
BOX, CYLINDER = int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_CYLINDER)
SPHERE = int(mujoco.mjtGeom.mjGEOM_SPHERE)
ELLIPSOID, CAPSULE = int(mujoco.mjtGeom.mjGEOM_ELLIPSOID), int(mujoco.mjtGeom.mjGEOM_CAPSULE)

type Model = mujoco.MjModel


class NoModel(ModelApplier):
    """Of a scene in which no model was found: nothing can be changed."""

    lacks = "no MuJoCo model was found in it"

    def __init__(self, period_s: float, gap_seed: int = 0) -> None:
        """Take note of the policy's period [s]."""
        super().__init__(gap_seed)
        self.period_s = period_s

    def scale(self, relative_to: str) -> float:
        """Return how large something is, as a share of the cell's: `Parameter.relative_to`."""
        return self.period_s / PERIOD_S if relative_to == "period" else 1.0

    def change(self, _change: Callable[[Model], None]) -> None:
        """Raise UnavailableError."""
        raise UnavailableError(self.lacks)

    def edit(self, _edit: SpecEdit) -> None:
        """Raise UnavailableError."""
        raise UnavailableError(self.lacks)


class WorldModel(NoModel):
    """Changes a compiled model by its roles.

    Attributes:
        roles: as of the model.
        raised_m: how much higher the object starts, since its table does or it is larger [m].
        boxes: bodies to place anew in every take, with their half heights [m].
    """

    lacks = ModelApplier.lacks

    def __init__(
        self, model: Model, data: mujoco.MjData, roles: Roles, gap_seed: int, period_s: float
    ) -> None:
        """Take note of a scene that was reset; it isn't changed."""
        super().__init__(period_s, gap_seed)
        self.roles = roles
        self.boxes: list[tuple[str, float]] = []
        self.raised_m = 0.0
        self._tried, self._data = copy.copy(model), copy.copy(data)
        self._tries = True
        for camera in roles.measured:
            self.change(camera.put_on)
        mujoco.mj_camlight(self._tried, self._data)

    def need(self, role: str) -> Any:
        """Return what plays a role, or raise UnavailableError."""
        if role in self.roles.doubts:
            raise UnavailableError(
                f"its {role.removesuffix('s')} is in doubt ({self.roles.doubts[role]})"
            )
        if (found := getattr(self.roles, role)) == ():
            raise UnavailableError(f"it has no {role.removesuffix('s')}")
        return found

    def change(self, change: Callable[[Model], None]) -> None:
        """Change the compiled model in place; may decorate what does."""
        try:
            if self._tries:
                change(self._tried)
        except KeyError as error:
            lacks = str(error.args[0]).partition(". Valid")[0]  # names follow, maybe hundreds
            raise UnavailableError(f"its model isn't the embedded cell's ({lacks})") from None
        self._changes.append(change)

    def begin_anew(self) -> None:
        """Likewise; nothing is tried any more."""
        super().begin_anew()
        self._tries = False

    def edit(self, edit: SpecEdit) -> None:
        """Add bodies before the model is compiled; may decorate what does."""
        if self._tries:
            edit(mujoco.MjSpec())
        self.edits.append(edit)

    @property
    def half_size_m(self) -> Vector:
        """Half size of the object along x, y and z as it lies [m], shape (3,)."""
        low, high = self._extent(self._tried)
        return np.asarray(0.5 * (high - low))

    def _geoms(self) -> list[int]:
        thing = self.need("object")
        found = [g for g in range(self._tried.ngeom) if int(self._tried.geom_bodyid[g]) == thing]
        if not found:
            raise UnavailableError("its object's shape is that of a body inside it")
        return found

    def _extent(self, model: Model) -> tuple[Vector, Vector]:
        """Return the object's corners [m], shape (3,) each, as it lay when it was reset."""
        place = self._data.xpos[self.need("object")]
        turn = self._data.xmat[self.roles.object].reshape(3, 3)
        low, high = np.full(3, np.inf), np.full(3, -np.inf)
        for geom in self._geoms():
            matrix = np.zeros(9)
            mujoco.mju_quat2Mat(matrix, model.geom_quat[geom])
            rotation = turn @ matrix.reshape(3, 3)
            centre = place + turn @ model.geom_pos[geom] + rotation @ model.geom_aabb[geom, :3]
            half = np.abs(rotation) @ model.geom_aabb[geom, 3:]
            low, high = np.minimum(low, centre - half), np.maximum(high, centre + half)
        return low, high

    @property
    def camera_m(self) -> float:
        """Distance of the camera from the object, or from the hand where there is none [m]."""
        camera = self.need("cameras")[0]
        body = self.roles.object if self.roles.object >= 0 else self._tried.nbody - 1
        return float(np.linalg.norm(self._data.cam_xpos[camera] - self._data.xpos[body]))

    def scale(self, relative_to: str) -> float:
        """Return how large something is, as a share of the cell's: `Parameter.relative_to`."""
        if relative_to == "object":
            return float(self.half_size_m.mean()) / OBJECT_HALF_M
        if relative_to == "camera":
            return self.camera_m / CAMERA_M
        if relative_to == "scene":
            known = bool(self.roles.cameras) and "cameras" not in self.roles.doubts
            return self.camera_m / CAMERA_M if known else float(self._tried.stat.extent) / EXTENT_M
        return super().scale(relative_to)

    def scale_object(self, x: float = 1.0, y: float = 1.0, z: float = 1.0) -> None:
        """Make the object larger or smaller along the world's axes, from its lower side up."""
        thing, factor = self.need("object"), np.array([x, y, z])
        turn = self._data.xmat[thing].reshape(3, 3).copy()
        floor_m = self._extent(self._tried)[0][2]

        @self.change
        def change(model: Model) -> None:
            for geom in self._geoms():
                _scale_geom(model, geom, turn, factor)
            model.body_ipos[thing] = turn.T @ (factor * (turn @ model.body_ipos[thing]))
            volume = x * y * z
            model.body_mass[thing] *= volume
            model.body_inertia[thing] *= volume ** (5 / 3)
            self._settle(model)

        self.raised_m += float(floor_m - self._extent(self._tried)[0][2])

    def make_cylinder(self) -> None:
        """Make an object of boxes round."""

        @self.change
        def change(model: Model) -> None:
            geoms = [g for g in self._geoms() if int(model.geom_type[g]) == BOX]
            if not geoms:
                raise UnavailableError("its object isn't a box")
            for geom in geoms:
                half = model.geom_size[geom].copy()
                model.geom_type[geom] = CYLINDER
                model.geom_size[geom] = [half[0], half[2], 0.0]
                _bound(model, geom, np.array([half[0], half[0], half[2]]))
            self._settle(model)

    def _settle(self, model: Model) -> None:
        """Recompute what the compiler made of the object's mass and extent."""
        thing = self.roles.object
        # The tree of boxes that a body's geoms are looked for in: one box around all of them.
        start, count = int(model.body_bvhadr[thing]), int(model.body_bvhnum[thing])
        reach_m = max(
            float(np.linalg.norm(model.geom_pos[g] - model.body_ipos[thing]))
            + float(np.linalg.norm(model.geom_aabb[g, :3]) + np.linalg.norm(model.geom_aabb[g, 3:]))
            for g in self._geoms()
        )
        model.bvh_aabb[start : start + count] = [0.0] * 3 + [reach_m] * 3
        mujoco.mj_setConst(model, mujoco.MjData(model))

    def change_density(self, factor: float) -> None:
        """Make the object heavier or lighter."""
        thing = self.need("object")

        @self.change
        def change(model: Model) -> None:
            model.body_mass[thing] *= factor
            model.body_inertia[thing] *= factor
            self._settle(model)

    def shift_com(self, x_fraction: float, y_fraction: float) -> None:
        """Move the object about its centre of mass, by shares of its half width.

        The body's frame stays at the centre of mass: MuJoCo compiles such bodies more simply, and
        nothing can be changed about that afterwards.
        """
        thing, half = self.need("object"), self.half_size_m
        turn = self._data.xmat[thing].reshape(3, 3).copy()
        shift_m = turn.T @ [x_fraction * half[0], y_fraction * half[1], 0.0]

        @self.change
        def change(model: Model) -> None:
            model.geom_pos[self._geoms()] -= shift_m
            model.geom_sameframe[self._geoms()] = 0
            self._settle(model)

    @property
    def object_rgba(self) -> Rgba:
        """Colour of the object."""
        geom = self._geoms()[-1]
        material = int(self._tried.geom_matid[geom])
        rgba = self._tried.geom_rgba[geom] if material < 0 else self._tried.mat_rgba[material]
        red, green, blue, _ = (float(v) for v in rgba)
        return red, green, blue, 1.0

    def add_box(self, half_m: tuple[float, float, float], rgba: Rgba | None = None) -> None:
        """Add a box that stands firm, in proportion to the object as a cube is to the cell's.

        It stands firm because a loose one would lengthen the state that environments set whole.
        """
        self.need("table")
        index, scale = len(self.boxes), self.scale("object")
        half = np.asarray(half_m) * scale
        self.boxes.append((f"gaploop_box{index}", float(half[2])))
        colour = rgba or DISTRACTOR_RGBA[index % len(DISTRACTOR_RGBA)]

        @self.edit
        def edit(spec: mujoco.MjSpec) -> None:
            body = spec.worldbody.add_body(name=f"gaploop_box{index}", pos=[0.0, 0.0, -10.0])
            body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=half, rgba=colour)

    def add_mesh(self, number: int, size_m: float, rgba: Rgba) -> None:
        """Add a thing of the library that stands firm, likewise."""
        self.need("table")
        name, size_m = f"gaploop_box{len(self.boxes)}", size_m * self.scale("object")
        mesh = self.library.mesh(number)
        self.boxes.append((name, size_m * float(mesh.half[2])))

        @self.edit
        def edit(spec: mujoco.MjSpec) -> None:
            body = spec.worldbody.add_body(name=name, pos=[0.0, 0.0, -10.0])
            mesh.add_to(spec, body, size_m, rgba=rgba)

    def place_boxes(self, model: Model, data: mujoco.MjData, seed: int) -> None:
        """Stand the boxes about the object, in a scene that was just reset."""
        rng = stream([self._gap_seed, seed], "boxes")
        half, thing = self.half_size_m, data.xpos[self.roles.object]
        taken = [thing[:2]]
        for name, half_m in self.boxes:
            for _ in range(50):
                far = float(half.mean()) * rng.uniform(NEAR, FAR)
                angle = rng.uniform(0.0, 2.0 * np.pi)
                place = thing[:2] + far * np.array([np.cos(angle), np.sin(angle)])
                clear = float(half.mean()) * NEAR
                if all(np.linalg.norm(place - other) >= clear for other in taken):
                    break
            taken.append(place)
            low = thing[2] - half[2] + self.raised_m
            model.body_pos[model.body(name).id] = [*place, low + half_m]

    def shade_m(self, azimuth_rad: float, radius_m: float) -> tuple[float, float, float]:
        """Return a place between the camera and the object [m], shape (3,)."""
        del azimuth_rad, radius_m
        camera, thing = self.need("cameras")[0], self.need("object")
        middle = 0.5 * (self._data.cam_xpos[camera] + self._data.xpos[thing])
        return float(middle[0]), float(middle[1]), float(middle[2])

    def cameras(self, model: Model) -> list[int]:  # noqa: ARG002 (known by role)
        """Return the cameras that a policy sees by."""
        return list(self.need("cameras"))

    def move_table(self, height_m: float) -> None:
        """Raise the table by `height_m` [m], and what lies on it, or lower it."""
        self.need("table")
        self.raised_m += max(height_m, 0.0)  # onto a lower one it falls by itself

        @self.change
        def change(model: Model) -> None:
            if self.roles.table > 0:
                model.body_pos[self.roles.table, 2] += height_m
            else:
                model.geom_pos[list(self.roles.table_geoms), 2] += height_m

    def surface(self, model: Model, role: str) -> list[int]:
        """Return the geoms of the table, the object, or the room: what else the world has."""
        if role == "object":
            return self._geoms()
        table = list(self.roles.table_geoms)
        if role == "table":
            self.need("table")
            return table
        still = (model.geom_bodyid == 0) & (model.geom_group < HIDDEN)
        return [int(g) for g in np.flatnonzero(still) if g not in table] if role == "room" else []

    def middle_m(self) -> Vector:
        """Return where the object lay when it was reset [m], or else the middle of the scene."""
        known = self.roles.object >= 0
        return np.array(self._data.xpos[self.roles.object] if known else self._tried.stat.center)

    def grippers(self, model: Model) -> list[int]:
        """Return the motors of the fingers."""
        found = motors_of(model, self.need("gripper"))
        if not found:
            raise UnavailableError("no motors close its gripper")
        return found

    def motors(self, model: Model) -> list[tuple[int, int, float]]:
        """Return the arm's motors, as of `ModelApplier`."""
        found = motors_of(model, self.need("arm"))
        if not found:
            why = ": a mocap body pulls it" * (weld(model) >= 0)
            raise UnavailableError(f"no motors move its arm{why}")
        stall_nm = [float(np.abs(model.actuator_forcerange[m]).max()) or STALL_NM for m in found]
        dofs = [int(model.jnt_dofadr[model.actuator_trnid[m, 0]]) for m in found]
        return [(m, dof, nm / STALL_NM) for m, dof, nm in zip(found, dofs, stall_nm, strict=True)]

    def goal_joints(self) -> list[str]:
        """Return the joint that each goal of a servo is for, in order; "" of a gripper's."""
        model, arm = self._tried, self.need("arm")
        driven = {int(model.actuator_trnid[m, 0]) for m in motors_of(model, self.roles.gripper)}
        return [
            *(model.joint(j).name for j in arm),
            *("" for j in self.roles.gripper if j in driven),
        ]

    def bodies(self, *names: str) -> list[str]:
        """Raise UnavailableError: bodies have other names here."""
        raise UnavailableError(f"its bodies have other names than {', '.join(names)}")

    def fingers(self, model: Model) -> list[int]:  # noqa: ARG002 (known by role)
        """Return the geoms of all jaws."""
        self.need("gripper")
        return list(self.roles.fingers)


def _scale_geom(model: Model, geom: int, turn: Vector, factor: Vector) -> None:
    """Scale a geom of a body turned by `turn`, shape (3, 3), along the world's axes."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, model.geom_quat[geom])
    # Which of the world's axes each of the geom's own lies nearest to.
    own = factor[np.argmax(np.abs(turn @ matrix.reshape(3, 3)), axis=0)]
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    half = model.geom_aabb[geom, 3:] * own
    if kind in (BOX, ELLIPSOID):
        size *= own
    elif kind in (CYLINDER, CAPSULE):
        wide = np.sqrt(own[0] * own[1])
        size[:2] *= [wide, own[2]]
        half = np.array([size[0], size[0], size[1] + (size[0] if kind == CAPSULE else 0.0)])
    elif kind == SPHERE:
        size[0] *= np.cbrt(own.prod())
        half = np.full(3, size[0])
    else:
        raise UnavailableError("its object is a mesh, whose shape is fixed")
    model.geom_pos[geom] = turn.T @ (factor * (turn @ model.geom_pos[geom]))
    _bound(model, geom, half)


def _bound(model: Model, geom: int, half_m: Vector) -> None:
    model.geom_aabb[geom, 3:] = half_m
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    reach = {BOX: np.linalg.norm(size), CYLINDER: np.hypot(size[0], size[1])}
    model.geom_rbound[geom] = reach.get(kind, float(half_m.max()))
