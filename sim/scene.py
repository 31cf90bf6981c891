"""The MuJoCo model of the cell: SO-101 arm, table, object, target, camera.

The arm is the MuJoCo Menagerie SO-101 that so101-nexus ships (Apache-2.0). Only its
collision geometry is drawn: on a CPU the visual meshes cost over ten times the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gaploop.sim import headless  # noqa: F401  (sets the renderer up before mujoco is imported)

# isort: split
import mujoco
import numpy as np
import so101_nexus
from numpy.typing import NDArray

from gaploop.sim import look

JOINT_NAMES = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")

TIMESTEP_S = 0.005  # the time step that the arm model was tuned for
CUBE_HALF_SIZE_M = 0.0125  # so101-nexus PickAndPlace-v1
CUBE_MASS_KG = 0.01  # so101-nexus PickAndPlace-v1
DISC_RADIUS_M = 0.035
DISC_HALF_HEIGHT_M = 0.001

# Pointing down and turned aside, so that the camera sees the whole workspace at the start.
HOME_Q_RAD = (1.397, -0.57, 0.587, 1.552, 0.046, 0.75)

CAMERA_NAME = "overhead"
REPORT_CAMERA_NAME = "report"
CAMERA_POS_M = (0.20, 0.0, 0.62)
CAMERA_FOVY_DEG = 36.0
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
        object_half_size_m: half extents of the carried box, shape (3,).
        object_shape: "box" or "cylinder" (radius and half height from the half sizes).
        object_mass_kg: mass of the carried object.
        object_com_m: centre of mass relative to the geometric centre, shape (3,).
        edits: further bodies (distractors, a hand, an occluder), applied in order.
    """

    task: str = "pick_place"
    background: str = "wood"
    object_half_size_m: tuple[float, float, float] = (CUBE_HALF_SIZE_M,) * 3
    object_shape: str = "box"
    object_mass_kg: float = CUBE_MASS_KG
    object_com_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    edits: tuple[SpecEdit, ...] = field(default=())


def build_model(options: SceneOptions) -> mujoco.MjModel:
    """Compile the cell.

    Args:
        options: what to put in it.

    Returns:
        A model that the caller may change freely.
    """
    spec = mujoco.MjSpec.from_file(str(so101_nexus.get_so101_mujoco_model_path()))
    _set_physics(spec)
    _draw_arm_by_collision_geometry(spec)
    _add_table_and_lights(spec, look.BACKGROUNDS[options.background])
    _add_object(spec, options)
    _add_target(spec, options.task)
    _add_cameras(spec)
    for edit in options.edits:
        edit(spec)
    return spec.compile()


def _set_physics(spec: mujoco.MjSpec) -> None:
    # noslip and the elliptic cone as in so101-nexus: without them a held cube creeps.
    spec.option.timestep = TIMESTEP_S
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.option.iterations = 10
    spec.option.ls_iterations = 20
    spec.option.noslip_iterations = 3


def _draw_arm_by_collision_geometry(spec: mujoco.MjSpec) -> None:
    visual = [g for g in spec.geoms if g.classname.name == "visual"]
    for geom in visual:
        spec.delete(geom)
    used = {g.meshname for g in spec.geoms if g.meshname}
    for mesh in list(spec.meshes):
        if (mesh.name or mesh.file.rsplit(".", 1)[0]) not in used:
            spec.delete(mesh)
    for geom in spec.geoms:
        gripper = geom.classname.name.startswith("collision_gripper")
        geom.group = 0
        geom.rgba = np.array(look.JAW_RGBA if gripper else look.ARM_RGBA)
    base = spec.body("base")
    for pos, size, rgba in (
        ((0.012, 0.0, 0.018), (0.048, 0.038, 0.018), look.ARM_RGBA),
        ((0.026, 0.0, 0.044), (0.026, 0.016, 0.014), look.SERVO_RGBA),
    ):
        base.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size, rgba=rgba,
            contype=0, conaffinity=0, mass=0.0,
        )  # fmt: skip


def _add_table_and_lights(spec: mujoco.MjSpec, background: look.Background) -> None:
    texture = look.table_texture(background)
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
    table = spec.worldbody.add_body(name="table")
    table.add_geom(
        name="table", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.6, 0.6, 0.01], material="table"
    )
    spec.worldbody.add_light(
        name="key", type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[1.0, 1.0, 3.5],
        dir=[-0.227, -0.268, -0.936], diffuse=[KEY_LIGHT_DIFFUSE] * 3,
        specular=[0.0] * 3, castshadow=False,
    )  # fmt: skip
    spec.worldbody.add_light(
        name="fill", type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[0.0, 0.0, 3.5],
        dir=[0.0, 0.0, -1.0], diffuse=[FILL_LIGHT_DIFFUSE] * 3,
        specular=[0.0] * 3, castshadow=False,
    )  # fmt: skip
    spec.visual.headlight.ambient = [AMBIENT] * 3
    spec.visual.headlight.diffuse = [0.0] * 3
    spec.visual.headlight.specular = [0.0] * 3
    spec.visual.quality.shadowsize = 0


def _add_object(spec: mujoco.MjSpec, options: SceneOptions) -> None:
    half = np.asarray(options.object_half_size_m)
    body = spec.worldbody.add_body(name="object", pos=[0.2, 0.0, half[2]])
    body.add_freejoint(name="object")
    cylinder = options.object_shape == "cylinder"
    body.add_geom(
        name="object",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER if cylinder else mujoco.mjtGeom.mjGEOM_BOX,
        size=[half[0], half[2], 0.0] if cylinder else half,
        rgba=look.OBJECT_RGBA, condim=4, friction=[1.0, 0.005, 0.0001], mass=0.0,
    )  # fmt: skip
    body.mass = options.object_mass_kg
    body.ipos = np.asarray(options.object_com_m)
    sides = 2.0 * half
    squares = sides @ sides - sides**2
    body.inertia = options.object_mass_kg / 12.0 * squares  # of a solid box
    body.explicitinertial = True


def _add_target(spec: mujoco.MjSpec, task: str) -> None:
    target = spec.worldbody.add_body(name="target", pos=[0.2, 0.1, DISC_HALF_HEIGHT_M])
    if task == "stack_cube":
        target.add_freejoint(name="target")
        target.add_geom(
            name="target", type=mujoco.mjtGeom.mjGEOM_BOX, size=[CUBE_HALF_SIZE_M] * 3,
            rgba=look.TARGET_RGBA, mass=10 * CUBE_MASS_KG, condim=4,
        )  # fmt: skip
        return
    target.add_geom(
        name="target", type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        size=[DISC_RADIUS_M, DISC_HALF_HEIGHT_M, 0.0], rgba=look.TARGET_RGBA,
        contype=0, conaffinity=0, mass=0.0,
    )  # fmt: skip


def _add_cameras(spec: mujoco.MjSpec) -> None:
    spec.worldbody.add_camera(
        name=CAMERA_NAME, pos=CAMERA_POS_M, quat=CAMERA_QUAT, fovy=CAMERA_FOVY_DEG
    )
    eye = np.array([0.62, -0.42, 0.42])
    spec.worldbody.add_camera(
        name=REPORT_CAMERA_NAME, pos=eye, quat=look_at_quat(eye, np.array([0.13, 0.0, 0.085])),
        fovy=35.0,
    )  # fmt: skip


def look_at_quat(eye_m: NDArray[np.float64], at_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """Orientation of a MuJoCo camera (looks along its -z, y up) that sees a point.

    Args:
        eye_m: camera position [m], shape (3,).
        at_m: point in the middle of the image [m], shape (3,).

    Returns:
        Unit quaternion (w, x, y, z), shape (4,).
    """
    back = (eye_m - at_m) / np.linalg.norm(eye_m - at_m)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    rotation = np.column_stack([right, np.cross(back, right), back])
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, rotation.reshape(-1))
    return quat
