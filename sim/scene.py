"""The MuJoCo model of the cell: arm, table, object, target, camera."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import CellArm
from gaploop.sim import look
from gaploop.sim.arms import SO101
from gaploop.sim.conditions import OBJECTS, ObjectKind

HOME_Q_RAD = SO101.home_q_rad

TIMESTEP_S = 0.005  # the time step that the arm model was tuned for
CUBE_HALF_SIZE_M = 0.0125  # so101-nexus PickAndPlace-v1
CUBE_MASS_KG = 0.01  # so101-nexus PickAndPlace-v1
DISC_RADIUS_M = 0.035
DISC_HALF_HEIGHT_M = 0.001

CAMERA_NAME = "overhead"
REPORT_CAMERA_NAME = "report"
# Turned by -90 degrees about the vertical: +x (away from the base) is up in the image.
CAMERA_QUAT = (0.7071067811865476, 0.0, 0.0, -0.7071067811865476)

KEY_LIGHT_DIFFUSE = 0.42
FILL_LIGHT_DIFFUSE = 0.42
AMBIENT = 0.26

SpecEdit = Callable[[mujoco.MjSpec], None]


@dataclass(frozen=True)
class SceneOptions:
    """What the compiled model contains beyond the arm.

    Attributes:
        task: "pick_place", "pick_lift" or "stack_cube".
        background: name in look.BACKGROUNDS.
        thing: the carried object.
    """

    task: str = "pick_place"
    arm: CellArm = SO101
    background: str = "wood"
    thing: ObjectKind = OBJECTS["red_cube"]


def build_model(options: SceneOptions, edits: Sequence[SpecEdit] = ()) -> mujoco.MjModel:
    """Compile the cell with further bodies; the caller may change the model freely."""
    arm = options.arm
    spec = arm.spec(look.PAINT)
    world = spec.worldbody
    # noslip and the elliptic cone as in so101-nexus: without them a held cube creeps.
    spec.option.timestep = TIMESTEP_S
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.option.iterations = 10
    spec.option.ls_iterations = 20
    spec.option.noslip_iterations = 3

    # Table, room and lights.
    texture = look.table_texture(look.BACKGROUNDS[options.background])
    image = spec.add_texture(
        name="table", type=mujoco.mjtTexture.mjTEXTURE_2D, width=texture.shape[1],
        height=texture.shape[0], nchannel=3,
    )  # fmt: skip
    image.data = texture.tobytes()
    spec.add_texture(
        name="room", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, width=64, height=64,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT, rgb1=[0.86, 0.88, 0.90],
        rgb2=[0.62, 0.65, 0.69],
    )  # fmt: skip
    material = spec.add_material(name="table", specular=0.05, shininess=0.1)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "table"
    table = world.add_body(name="table")
    table.add_geom(
        name="table", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.6, 0.6, 0.01], material="table"
    )
    world.add_light(
        name="key", type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[1.0, 1.0, 3.5],
        dir=[-0.227, -0.268, -0.936], diffuse=[KEY_LIGHT_DIFFUSE] * 3,
        specular=[0.0] * 3, castshadow=False,
    )  # fmt: skip
    world.add_light(
        name="fill", type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[0.0, 0.0, 3.5],
        dir=[0.0, 0.0, -1.0], diffuse=[FILL_LIGHT_DIFFUSE] * 3,
        specular=[0.0] * 3, castshadow=False,
    )  # fmt: skip
    spec.visual.headlight.ambient = [AMBIENT] * 3
    spec.visual.headlight.diffuse = [0.0] * 3
    spec.visual.headlight.specular = [0.0] * 3
    spec.visual.quality.shadowsize = 0

    # The object.
    thing = options.thing
    half = np.asarray(thing.half_size_m)
    body = world.add_body(name="object", pos=[0.2, 0.0, half[2]])
    body.add_freejoint(name="object")
    cylinder = thing.shape == "cylinder"
    body.add_geom(
        name="object",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER if cylinder else mujoco.mjtGeom.mjGEOM_BOX,
        size=[half[0], half[2], 0.0] if cylinder else half,
        rgba=look.OBJECT_RGBA, condim=4, friction=[1.0, 0.005, 0.0001], mass=0.0,
    )  # fmt: skip
    body.mass = thing.mass_kg
    body.ipos = np.asarray(thing.com_m)
    sides = 2.0 * half
    squares = sides @ sides - sides**2
    body.inertia = thing.mass_kg / 12.0 * squares  # of a solid box
    body.explicitinertial = True

    # The target: a disc, or the cube to put it on.
    target = world.add_body(name="target", pos=[0.2, 0.1, DISC_HALF_HEIGHT_M])
    if options.task == "stack_cube":
        target.add_freejoint(name="target")
        target.add_geom(
            name="target", type=mujoco.mjtGeom.mjGEOM_BOX, size=[CUBE_HALF_SIZE_M] * 3,
            rgba=look.TARGET_RGBA, mass=10 * CUBE_MASS_KG, condim=4,
        )  # fmt: skip
    else:
        target.add_geom(
            name="target", type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=[DISC_RADIUS_M, DISC_HALF_HEIGHT_M, 0.0], rgba=look.TARGET_RGBA,
            contype=0, conaffinity=0, mass=0.0,
        )  # fmt: skip

    # The cameras.
    world.add_camera(
        name=CAMERA_NAME, pos=arm.camera_pos_m, quat=CAMERA_QUAT, fovy=arm.camera_fovy_deg
    )
    eye = np.array(arm.report_eye_m)
    world.add_camera(
        name=REPORT_CAMERA_NAME, pos=eye, quat=look_at_quat(eye, np.array(arm.report_at_m)),
        fovy=35.0,
    )  # fmt: skip

    for edit in edits:
        edit(spec)
    return spec.compile()


def settle_gears(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Put joints that others drive where those say, in place."""
    for row in np.flatnonzero(model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)):
        driven, driver = (model.jnt_qposadr[j[row]] for j in (model.eq_obj1id, model.eq_obj2id))
        start, per_rad = model.eq_data[row, :2]
        data.qpos[driven] = start + per_rad * data.qpos[driver]


def look_at_quat(eye_m: NDArray[np.float64], at_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orientation (w, x, y, z) of a MuJoCo camera at `eye_m` that sees `at_m` [m].

    It looks along its -z, y up.
    """
    back = (eye_m - at_m) / np.linalg.norm(eye_m - at_m)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    rotation = np.column_stack([right, np.cross(back, right), back])
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, rotation.reshape(-1))
    return quat
