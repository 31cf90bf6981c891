"""The MuJoCo model of the cell: arm, table, object, target, camera."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import CellArm, Rgba
from gaploop.core.errors import UnusableInputError
from gaploop.sim import conditions
from gaploop.sim.camera import look_at_quat
from gaploop.sim.catalogue import SO101, TASK_FILES
from gaploop.sim.conditions import GRID_COLUMNS, GRID_ROWS, OBJECTS, Conditions, ObjectKind
from gaploop.sim.gaps.mechanism import (
    Appliers,
    CommandPath,
    ImagePath,
    ModelApplier,
    SensorPath,
    SpecEdit,
)
from gaploop.sim.hand import add_hand
from gaploop.sim.kinematics import TCP_SITE, from_polar
from gaploop.sim.predicates import Criterion
from gaploop.sim.scene_file import Scene, load_scene, without_warnings
from gaploop.sim.views import OVERHEAD, View, fixed, put_cell_views

OLDEST = 336
"""MuJoCo that can leave out what the SO-101's model has for the eye."""
TIMESTEP_S = 0.005  # the time step that the arm model was tuned for
CUBE_HALF_SIZE_M = 0.0125  # so101-nexus PickAndPlace-v1
CUBE_MASS_KG = 0.01  # so101-nexus PickAndPlace-v1
DISC_RADIUS_M = 0.035
DISC_HALF_HEIGHT_M = 0.001

CAMERA_NAME = OVERHEAD
REPORT_CAMERA_NAME = "report"
DISTRACTOR_PREFIX = "distractor"
# Turned by -90 degrees about the vertical: +x (away from the base) is up in the image.
CAMERA_QUAT = (0.7071067811865476, 0.0, 0.0, -0.7071067811865476)


@cache
def task_scene(task: str) -> Scene:
    """Return the scene file of a task."""
    return load_scene(TASK_FILES[task])


@dataclass(frozen=True)
class SceneOptions:
    """What the compiled model contains beyond the arm.

    Attributes:
        task: of `catalogue.TASKS`.
        background: name in conditions.BACKGROUNDS.
        thing: the carried object.
    """

    task: str = "pick_place"
    arm: CellArm = SO101
    background: str = "wood"
    thing: ObjectKind = OBJECTS["red_cube"]


@without_warnings()
def build_model(options: SceneOptions, edits: Sequence[SpecEdit] = ()) -> mujoco.MjModel:
    """Compile the cell with further bodies; the caller may change the model freely."""
    if mujoco.mj_version() < OLDEST:
        raise UnusableInputError(
            f"The embedded cell needs MuJoCo 3.3.6 or newer; here is {mujoco.__version__}, with "
            "which only simulations of others run. Run: pip install -U mujoco"
        )
    arm, thing = options.arm, options.thing
    spec = arm.spec(conditions.PAINT)
    world = spec.worldbody
    bench = mujoco.MjSpec.from_file(str(task_scene(options.task).mjcf))
    spec.option = bench.option
    spec.attach(bench, prefix="", frame=world.add_frame())  # behind the arm's joints
    spec.visual.headlight, spec.visual.quality = bench.visual.headlight, bench.visual.quality

    top, image = conditions.BACKGROUNDS[options.background], spec.texture("table")
    image.builtin = mujoco.mjtBuiltin.mjBUILTIN_NONE
    image.data = conditions.table_texture(top).tobytes()
    body, half = spec.body("object"), np.asarray(thing.half_size_m)
    body.pos = [0.2, 0.0, half[2]]
    if thing.shape == "cylinder":
        body.first_geom().type = mujoco.mjtGeom.mjGEOM_CYLINDER
        body.first_geom().size = [half[0], half[2], 0.0]
    else:
        body.first_geom().size = half
    body.mass = thing.mass_kg
    body.ipos = np.asarray(thing.com_m)
    sides = 2.0 * half
    squares = sides @ sides - sides**2
    body.inertia = thing.mass_kg / 12.0 * squares  # of a solid box
    body.explicitinertial = True

    # The cameras.
    world.add_camera(
        name=CAMERA_NAME, pos=arm.camera_pos_m, quat=CAMERA_QUAT, fovy=arm.camera_fovy_deg
    )
    eye = np.array(arm.report_eye_m)
    world.add_camera(
        name=REPORT_CAMERA_NAME, pos=eye, quat=look_at_quat(eye, np.array(arm.report_at_m)),
        fovy=35.0,
    )  # fmt: skip

    for side in arm.arms:
        _add_force_sensors(spec, side.prefix, side.arm.finger_bodies)
    for edit in edits:
        edit(spec)
    return spec.compile()


def _add_force_sensors(spec: mujoco.MjSpec, prefix: str, jaws: Sequence[str]) -> None:
    """Add force and torque at an arm's tool frame, and what presses on each of its jaws."""
    # Each is worked out when it is read (`SimCell.forces`), not at every physics step.
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
    kinds = mujoco.mjtSensor
    for kind in (kinds.mjSENS_FORCE, kinds.mjSENS_TORQUE):
        spec.add_sensor(type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=prefix + TCP_SITE)
    for jaw in jaws:
        name = f"{prefix}{jaw}_pad"  # all of the jaw is inside, and it isn't drawn
        spec.body(prefix + jaw).add_site(name=name, size=[0.3] * 3, group=5, rgba=[0.0] * 4)
        spec.add_sensor(type=kinds.mjSENS_TOUCH, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=name)


class CellModel(ModelApplier):
    """The first applier of the cell: what gaps, conditions and a twin change of it.

    Attributes:
        options: what is compiled.
        views: the cameras that policies see by.
        criterion: what counts as success.
        camera_delay_s: from a capture until its picture is there [s].
    """

    object_rgba = conditions.OBJECT_RGBA

    def __init__(self, options: SceneOptions, gap_seed: int = 0) -> None:
        super().__init__(gap_seed)
        self.arm: CellArm = options.arm
        self.options = options
        self.criterion = Criterion()
        self.camera_delay_s = 0.0
        self.views: Sequence[View] = ()
        self._boxes = 0

    def show(self, views: Sequence[View]) -> None:
        """Say which cameras policies see by."""
        self.views = views
        self.edit(lambda spec: put_cell_views(views, spec, self.arm))

    def add_box(self, half_m: tuple[float, float, float], rgba: Rgba | None = None) -> None:
        """Add a loose box of a set-up distractor's colour, or of another."""
        index = self._boxes
        self._boxes += 1
        colour = rgba or conditions.DISTRACTOR_RGBA[index % len(conditions.DISTRACTOR_RGBA)]

        @self.edit
        def edit(spec: mujoco.MjSpec) -> None:
            name = f"{DISTRACTOR_PREFIX}{index}"
            body = spec.worldbody.add_body(name=name, pos=[0.3, 0.3 + 0.06 * index, half_m[2]])
            body.add_freejoint(name=name)
            body.add_geom(
                name=name, type=mujoco.mjtGeom.mjGEOM_BOX, size=half_m, rgba=colour,
                mass=1200.0 * 8.0 * float(np.prod(half_m)), condim=4,  # 1200 kg/m3: plastic, wood
            )  # fmt: skip

    def add_mesh(self, number: int, size_m: float, rgba: Rgba) -> None:
        """Add a loose thing of the library, its longest side `size_m`."""
        name = f"{DISTRACTOR_PREFIX}{self._boxes}"
        self._boxes += 1
        mesh = self.library.mesh(number)

        @self.edit
        def edit(spec: mujoco.MjSpec) -> None:
            body = spec.worldbody.add_body(name=name, pos=[0.3, 0.3, size_m * mesh.half[2]])
            body.add_freejoint(name=name)
            mesh.add_to(spec, body, size_m, rgba=rgba, condim=4, density=600.0)

    def change_object(self, **values: Any) -> None:
        """Change fields of the carried object, an `ObjectKind`, before it is compiled."""
        self.options = replace(self.options, thing=replace(self.options.thing, **values))

    def scale_object(self, x: float = 1.0, y: float = 1.0, z: float = 1.0) -> None:
        """Make the carried object larger or smaller, of the same density."""
        thing = self.options.thing
        half = thing.half_size_m
        self.change_object(
            half_size_m=(half[0] * x, half[1] * y, half[2] * z), mass_kg=thing.mass_kg * x * y * z
        )

    def change_density(self, factor: float) -> None:
        """Make the carried object heavier or lighter."""
        self.change_object(mass_kg=self.options.thing.mass_kg * factor)

    def shift_com(self, x_fraction: float, y_fraction: float) -> None:
        """Move the carried object's centre of mass by shares of its half width."""
        half_x, half_y, _ = self.options.thing.half_size_m
        self.change_object(com_m=(x_fraction * half_x, y_fraction * half_y, 0.0))

    def make_cylinder(self) -> None:
        """Make the carried object round."""
        self.change_object(shape="cylinder")

    def shade_m(self, azimuth_rad: float, radius_m: float) -> tuple[float, float, float]:
        """Return where a thing hides part of the scene from the camera [m], shape (3,).

        `azimuth_rad` and `radius_m` are about the SO-101's first axis; other arms' scenes lie
        further out.
        """
        further_m = self.arm.spawn_centre_m[0] - SO101.spawn_centre_m[0]
        x, y = from_polar(azimuth_rad, radius_m + further_m)
        return float(x), float(y), self.arm.shade_z_m

    def cameras(self, model: mujoco.MjModel) -> list[int]:
        """Return the cameras that policies see by, those that stand still where any does."""
        return fixed(self.views, model) if self.views else [model.camera(CAMERA_NAME).id]

    def move_table(self, height_m: float) -> None:
        """Raise the table by `height_m` [m], or lower it."""

        @self.change
        def change(model: mujoco.MjModel) -> None:
            model.body("table").pos[2] += height_m

    def table_of(self, model: mujoco.MjModel) -> Any:
        """Return the table's top, as `mujoco` names a geom."""
        return model.geom("table")

    def surface(self, model: mujoco.MjModel, role: str) -> list[int]:
        """Return the geoms of the table, the object or the target."""
        return [] if role == "room" else [model.geom(role).id]

    def middle_m(self) -> NDArray[np.float64]:
        """Return the middle of where objects start [m], shape (3,)."""
        return np.array([*self.arm.spawn_centre_m, 0.0])

    def grippers(self, model: mujoco.MjModel) -> list[int]:
        """Return the servos that close the jaws."""
        return [model.actuator(name).id for name in self.bodies("gripper")]

    def motors(self, model: mujoco.MjModel) -> list[tuple[int, int, float]]:
        """Return the servos but the gripper's, which keeps its strength, as of `ModelApplier`."""
        found = []
        for k in self.arm.arm_columns:
            name, stall_nm = self.arm.joint_names[k], self.arm.servos.stall_nm[k]
            dof = int(model.joint(name).dofadr[0])
            found.append((model.actuator(name).id, dof, stall_nm / SO101.servos.stall_nm[0]))
        return found

    def goal_joints(self) -> list[str]:
        """Return the joint that each goal is for, in order; "" of a gripper's."""
        columns = self.arm.arm_columns
        return [name if k in columns else "" for k, name in enumerate(self.arm.joint_names)]

    def bodies(self, *names: str) -> list[str]:
        """Return what an arm's bodies, or servos, are called in the model: of a pair, both."""
        return [side.prefix + name for side in self.arm.arms for name in names]

    def fingers(self, model: mujoco.MjModel) -> list[int]:
        """Return the geoms of all jaws in a compiled model."""
        bodies = {model.body(name).id for name in self.bodies(*self.arm.finger_bodies)}
        return [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) in bodies]

    def compile(self) -> mujoco.MjModel:
        """Return the model with all that was asked for."""
        hand = (add_hand,) if self.hand else ()
        model = build_model(self.options, (*self.edits, *hand))
        limit_nm = self.arm.servos.gripper_nm
        for name in self.bodies("gripper"):
            model.actuator(name).forcerange[:] = (-limit_nm, limit_nm)
        self.put_on(model)
        return model


def cell_appliers(options: SceneOptions, gap_seed: int = 0) -> Appliers:
    """Return the four appliers of a nominal cell."""
    arm = options.arm
    keys = dict(zip(arm.arm_columns, arm.zero_keys, strict=True))
    sensors = SensorPath([keys.get(k) for k in range(len(arm.joint_names))])
    return Appliers(CellModel(options, gap_seed), ImagePath(), CommandPath(TIMESTEP_S), sensors)


def settle_gears(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Put joints that others drive where those say, in place."""
    for row in np.flatnonzero(model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)):
        driven, driver = (model.jnt_qposadr[j[row]] for j in (model.eq_obj1id, model.eq_obj2id))
        start, per_rad = model.eq_data[row, :2]
        data.qpos[driven] = start + per_rad * data.qpos[driver]


# The part of so101-nexus' spawn region that the arm reaches with the gripper pointing down.
SPAWN_CENTRE_M = np.array(SO101.spawn_centre_m)
SPAWN_RADIUS_M = (0.05, 0.13)
SPAWN_HALF_ANGLE_RAD = np.radians(75.0)
FLANK_ANGLE_RAD = np.radians(30.0)
"""How far the flanks reach beyond the spawn region, to either side."""
OBJECT_TARGET_GAP_M = 0.065  # the object starts beside the disc (radius 35 mm), not on it
CLEARANCE_M = 0.05  # between a distractor and object, target or another distractor
ATTEMPTS = 200


def spawn_point(
    rng: np.random.Generator,
    cell: tuple[int, int] | None = None,
    placement: str = "nominal",
    centre_m: NDArray[np.float64] = SPAWN_CENTRE_M,
) -> NDArray[np.float64]:
    """Draw a point of the spawn region [m], shape (2,), of one cell of its grid, or beside it.

    Args:
        rng: source of randomness; always consumes two numbers.
        cell: row (by azimuth, right to left) and column (by radius, near to far), or None.
        placement: one of `PLACEMENTS`. The spawn region is a part of a ring: `inner` is what the
            ring leaves free in its middle, `flank` goes on along the ring at both its ends.
        centre_m: middle of the ring [m], shape (2,).
    """
    u, v = rng.random(2)
    if cell is not None:
        u = (cell[1] + u) / GRID_COLUMNS
        v = (cell[0] + v) / GRID_ROWS
    radius = SPAWN_RADIUS_M[0] + u * (SPAWN_RADIUS_M[1] - SPAWN_RADIUS_M[0])
    angle = (2.0 * v - 1.0) * SPAWN_HALF_ANGLE_RAD
    if placement == "inner":
        radius = u * SPAWN_RADIUS_M[0]
    elif placement == "flank":
        angle = (2.0 * v - 1.0) * FLANK_ANGLE_RAD
        angle += np.sign(angle) * SPAWN_HALF_ANGLE_RAD
    return np.asarray(centre_m + radius * np.array([np.cos(angle), np.sin(angle)]))


def place_things(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    rng: np.random.Generator,
    distractor_rng: np.random.Generator,
    rest_z_m: float,
    conditions: Conditions,
    arm: CellArm,
) -> None:
    """Place object and target apart, about their rings' middles, and distractors clear of both."""
    centre = np.array(arm.spawn_centre_m)
    goals = np.array(arm.goal_centre_m or arm.spawn_centre_m)
    table_z_m = float(model.body("table").pos[2])
    object_xy = spawn_point(rng, conditions.grid_cell, conditions.placement, centre)
    yaw = float(rng.uniform(-np.pi, np.pi))
    target_xy = spawn_point(rng, centre_m=goals)
    for _ in range(ATTEMPTS):
        if np.linalg.norm(target_xy - object_xy) >= OBJECT_TARGET_GAP_M:
            break
        target_xy = spawn_point(rng, centre_m=goals)
    set_free_body(model, data, "object", np.array([*object_xy, rest_z_m]), yaw)
    if model.body("target").jntnum[0]:
        height = np.array([*target_xy, table_z_m + CUBE_HALF_SIZE_M])
        set_free_body(model, data, "target", height, 0.0)
    else:
        model.body("target").pos[:] = [*target_xy, table_z_m + DISC_HALF_HEIGHT_M]
    taken = [object_xy, target_xy]
    names = [model.body(body).name for body in range(model.nbody)]
    for name in (n for n in names if n.startswith(DISTRACTOR_PREFIX)):
        xy = spawn_point(distractor_rng, centre_m=centre)
        for _ in range(ATTEMPTS):
            if all(np.linalg.norm(xy - other) >= CLEARANCE_M for other in taken):
                break
            xy = spawn_point(distractor_rng, centre_m=centre)
        taken.append(xy)
        pose = np.array([*xy, table_z_m + float(model.body(name).pos[2])])
        set_free_body(model, data, name, pose, float(distractor_rng.uniform(-np.pi, np.pi)))


def set_free_body(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    name: str,
    position_m: NDArray[np.float64],
    yaw_rad: float,
) -> None:
    """Put a loose body somewhere [m], shape (3,), turned about the vertical, in `data`."""
    address = int(model.joint(name).qposadr[0])
    data.qpos[address : address + 3] = position_m
    data.qpos[address + 3 : address + 7] = [np.cos(yaw_rad / 2), 0.0, 0.0, np.sin(yaw_rad / 2)]
