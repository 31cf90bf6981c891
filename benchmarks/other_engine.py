"""The embedded cell's pick-and-place in another engine: Drake's solver and VTK's pictures.

    PYTHONPATH=. gaploop evaluate --policy.path=base \
        --env.gym=benchmarks.other_engine:SO101PickPlace-v0

Masses, inertias, limits and shapes come from the SO-101's MJCF file, which Drake reads; scenes,
colours, camera and criterion are the cell's. Nothing of MuJoCo steps or draws here. Stations are
keyword arguments of the environment: `--env.kwargs='{delay_s: 0.1}'`.
"""

from __future__ import annotations

import importlib
import json
import logging
import tempfile
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import cv2
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.sim import scene
from gaploop.sim.catalogue import INSTRUCTIONS, SO101, from_degrees, to_degrees
from gaploop.sim.conditions import BACKGROUNDS, OBJECT_RGBA, PAINT, TARGET_RGBA, table_texture

ID: Final = "SO101PickPlace-v0"
FIRST_SCENE: Final = 1_000_000
"""Scene 0 here is the first one that `gaploop evaluate` shows a policy in the cell."""
FPS: Final = 50
PICTURE_EVERY: Final = 2  # of these steps: 25 Hz, as the cell's camera
MAX_STEPS: Final = 400
TIMESTEP_S: Final = 0.005  # the cell's
SIZE_PX: Final = 192
ENCODER_STEP_RAD: Final = 2.0 * np.pi / 4096.0
SERVO_KP: Final = 998.22  # N m/rad
SERVO_KV: Final = 2.731  # N m s/rad: of the MJCF file
FRICTION: Final = 1.0
MODULUS_PA: Final = 1e7
"""Of every surface, for Drake's pressure fields; MuJoCo's contacts have no such number."""
LIGHTS: Final = (((-0.227, -0.268, -0.936), 0.42), ((0.0, 0.0, -1.0), 0.42))
"""Direction and strength of the cell's lamps."""
AMBIENT: Final = 0.26
"""VTK's lamps have no ambient part here: four weak ones from the sides and one from above."""
DIRECTIONS: Final = ((1, 0, -0.5), (-1, 0, -0.5), (0, 1, -0.5), (0, -1, -0.5))
NEAR_M: Final = 0.015
LIFTED_M: Final = 0.010
STILL_M_S: Final = 0.01
STILL_RAD_S: Final = 0.5
HELD_N: Final = 0.2
"""The cell's criterion: sim/scenes/pick_place.yaml."""

BASE: Final = (
    ("0.012 0 0.018", "0.048 0.038 0.018", PAINT.arm),
    ("0.026 0 0.044", "0.026 0.016 0.014", PAINT.servo),
)
"""What the cell adds to the arm's looks: boxes' places, sizes and colours."""

type Vector = NDArray[np.float64]


def drake() -> Any:
    """Return Drake's Python package; UnusableInputError where it isn't installed."""
    try:
        return importlib.import_module("pydrake.all")
    except ImportError as error:
        raise UnusableInputError(
            "This environment runs in Drake, which isn't installed. Try: pip install drake"
        ) from error


@cache
def arm_mjcf(folder: Path) -> Path:
    """Write the arm's MJCF file as the cell uses it, meshes as Drake reads them; return its path.

    Only what collides is drawn, in the cell's colours.
    """
    import trimesh

    def words(values: Sequence[float]) -> str:
        return " ".join(map(str, values))

    source = SO101.model.find(SO101.label)
    tree, used = ET.parse(source), set[str]()
    root = tree.getroot()
    for body in root.iter("body"):
        for geom in body.findall("geom"):
            kind = geom.get("class", "")
            if kind == "visual":
                body.remove(geom)
                continue
            jaw = kind.startswith("collision_gripper")
            geom.set("group", "0")
            geom.set("rgba", words(PAINT.jaw if jaw else PAINT.arm))
            used.add(geom.get("mesh", ""))
        if body.get("name") == "base":
            fixed = {"type": "box", "contype": "0", "conaffinity": "0", "mass": "0"}
            for pos, size, rgba in BASE:
                ET.SubElement(body, "geom", fixed | {"pos": pos, "size": size, "rgba": words(rgba)})
    (assets,) = root.iter("asset")
    for mesh in list(assets):
        name = mesh.get("file", "").removesuffix(".stl")
        if mesh.tag != "mesh" or name not in used:
            assets.remove(mesh)
            continue
        solid: Any = trimesh.load(source.parent / "assets" / f"{name}.stl")
        solid.convex_hull.export(folder / f"{name}.obj", include_normals=True)
        mesh.set("file", f"{name}.obj")
        mesh.set("name", name)
    (compiler,) = root.iter("compiler")
    compiler.set("meshdir", str(folder))
    tree.write(path := folder / "so101.xml")
    cv2.imwrite(str(folder / "table.png"), table_texture(BACKGROUNDS["wood"])[..., ::-1])
    return path


class PickPlace(gym.Env[Any, Any]):
    """The cell's arm, table, cube, disc and camera in Drake.

    Args:
        friction: of cube and jaws, as a factor.
        mass: of the cube, as a factor.
        size: of the cube's edges, as a factor; its mass stays.
        camera_m: how far the camera stands off its place [m], shape (3,).
        camera_deg: how far it is turned about its own axes, right, down and ahead [°], shape (3,).
        delay_s: from a command until the servos get it [s].
        servo_gain: of the arm's position servos, without the gripper's, as a factor.
        zero_deg: joint to how much more than true it reads [°].
        light: strength of all lamps, as a factor.
    """

    metadata = {  # noqa: RUF012  gymnasium's, which isn't changed
        "render_modes": ["rgb_array"], "render_fps": FPS, "joint_names": SO101.joint_names,
    }  # fmt: skip
    task_description: Final = INSTRUCTIONS["pick_place"]

    def __init__(
        self, render_mode: str | None = "rgb_array",
        *, friction: float = 1.0, mass: float = 1.0, size: float = 1.0, light: float = 1.0,
        camera_m: Sequence[float] = (0.0, 0.0, 0.0), camera_deg: Sequence[float] = (0.0, 0.0, 0.0),
        delay_s: float = 0.0, servo_gain: float = 1.0, zero_deg: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.render_mode = render_mode
        self._half_m, self._delay_s = scene.CUBE_HALF_SIZE_M * size, delay_s
        self._zero_rad = np.radians([(zero_deg or {}).get(j, 0.0) for j in SO101.joint_names])
        self._folder = tempfile.TemporaryDirectory(prefix="gaploop_drake_")
        self._build(friction, scene.CUBE_MASS_KG * mass, servo_gain, light)
        d = drake()
        turn = d.RotationMatrix(np.array([[0.0, -1, 0], [-1, 0, 0], [0, 0, -1]]))  # +x is up
        turn = turn @ d.RotationMatrix(d.RollPitchYaw(np.radians(camera_deg)))
        self._eye = d.RigidTransform(turn, np.add(SO101.camera_pos_m, camera_m))
        # The cell's K: Drake counts pixels from their corners, the cell from their centres.
        focal_px = 0.5 * SIZE_PX / np.tan(np.radians(SO101.camera_fovy_deg) / 2.0)
        info = d.CameraInfo(SIZE_PX, SIZE_PX, focal_px, focal_px, SIZE_PX / 2, SIZE_PX / 2)
        core = d.RenderCameraCore("vtk", info, d.ClippingRange(0.01, 5.0), d.RigidTransform())
        self._camera = d.ColorRenderCamera(core)
        low, high = self.limits_rad.T
        ends = to_degrees(low).astype(np.float32), to_degrees(high).astype(np.float32)
        self.action_space = gym.spaces.Box(*ends, dtype=np.float32)
        shown: dict[str, Any] = {"agent_pos": gym.spaces.Box(-np.inf, np.inf, (6,), np.float32)}
        if render_mode:
            picture = gym.spaces.Box(0, 255, (SIZE_PX, SIZE_PX, 3), np.uint8)
            shown["pixels"] = gym.spaces.Dict({scene.CAMERA_NAME: picture})
        self.observation_space = gym.spaces.Dict(shown)

    def _build(self, friction: float, mass_kg: float, servo_gain: float, light: float) -> None:
        d, folder = drake(), Path(self._folder.name)
        builder = d.DiagramBuilder()
        plant, graph = d.AddMultibodyPlantSceneGraph(builder, TIMESTEP_S)
        plant.set_contact_model(d.ContactModel.kHydroelasticWithFallback)
        plant.set_discrete_contact_approximation(d.DiscreteContactApproximation.kLagged)
        surface = d.DefaultProximityProperties()
        surface.compliance_type, surface.hydroelastic_modulus = "compliant", MODULUS_PA
        surface.resolution_hint, surface.hunt_crossley_dissipation = 0.01, 10.0
        surface.dynamic_friction = surface.static_friction = FRICTION
        config = d.SceneGraphConfig()
        config.default_proximity_properties = surface
        graph.set_config(config)
        graph.AddRenderer("vtk", d.MakeRenderEngineVtk(self._renderer(light)))

        logging.getLogger("drake").setLevel(logging.ERROR)  # it tells what of MJCF it doesn't know
        (self._arm,) = d.Parser(plant).AddModels(str(arm_mjcf(folder)))
        # The table.
        top = d.RigidTransform([0.0, 0.0, -0.01])
        world, box = plant.world_body(), d.Box(1.2, 1.2, 0.02)
        plant.RegisterCollisionGeometry(world, top, box, "table", d.ProximityProperties())
        looks = d.PerceptionProperties()
        looks.AddProperty("phong", "diffuse_map", str(folder / "table.png"))
        looks.AddProperty("phong", "diffuse", d.Rgba(1, 1, 1, 1))
        drawn = d.GeometryInstance(top, box, "table")
        drawn.set_perception_properties(looks)
        drawn.set_illustration_properties(d.MakePhongIllustrationProperties(np.ones(4)))
        plant.RegisterVisualGeometry(world, drawn)
        # What is carried, and where to.
        side, things = 2.0 * self._half_m, plant.AddModelInstance("things")
        inertia = d.SpatialInertia.SolidBoxWithMass(mass_kg, side, side, side)
        self._cube = cube = plant.AddRigidBody("object", things, inertia)
        rubs = d.ProximityProperties()
        smooth = friction / (2.0 - friction) if friction < 2.0 else np.inf
        # Drake's friction of a pair is 2 a b / (a + b): this one against 1 is `friction`.
        d.AddContactMaterial(
            dissipation=10.0, point_stiffness=None,
            friction=d.CoulombFriction(smooth, smooth), properties=rubs,
        )  # fmt: skip
        shape, at = d.Box(side, side, side), d.RigidTransform()
        plant.RegisterCollisionGeometry(cube, at, shape, "object", rubs)
        plant.RegisterVisualGeometry(cube, at, shape, "object", np.array(OBJECT_RGBA))
        target = plant.AddRigidBody("target", things, inertia)
        goal = d.FixedOffsetFrame("goal", plant.world_frame(), at)
        self._goal = plant.AddFrame(goal)
        plant.WeldFrames(self._goal, target.body_frame())
        disc = d.Cylinder(scene.DISC_RADIUS_M, 2.0 * scene.DISC_HALF_HEIGHT_M)
        plant.RegisterVisualGeometry(target, at, disc, "target", np.array(TARGET_RGBA))

        joints = [plant.GetJointByName(name, self._arm) for name in SO101.joint_names]
        for k, name in enumerate(SO101.joint_names):
            servo = plant.GetJointActuatorByName(name, self._arm)
            is_gripper, gains = k in SO101.grippers, d.PdControllerGains()
            factor = 1.0 if is_gripper else servo_gain
            gains.p, gains.d = SERVO_KP * factor, SERVO_KV * factor
            servo.set_controller_gains(gains)
            limit_nm = SO101.servos.gripper_nm if is_gripper else SO101.servos.stall_nm[k]
            servo.set_effort_limit(limit_nm)
        plant.Finalize()
        self._plant, self._diagram = plant, builder.Build()
        self._simulator = d.Simulator(self._diagram)
        root = self._simulator.get_mutable_context()
        self._context = plant.GetMyMutableContextFromRoot(root)
        self._graph, self._graph_context = graph, graph.GetMyContextFromRoot(root)
        self._world_id = plant.GetBodyFrameIdOrThrow(world.index())
        self._at = np.array([joint.position_start() for joint in joints])
        ends = [[*j.position_lower_limits(), *j.position_upper_limits()] for j in joints]
        self.limits_rad = np.array(ends)
        self._fingers = {plant.GetBodyByName(n, self._arm).index() for n in SO101.finger_bodies}
        self._port = plant.get_desired_state_input_port(self._arm)

    def _renderer(self, light: float) -> Any:
        d = drake()

        def lamp(direction: Sequence[float], strength: float) -> Any:
            one = d.LightParameter()
            one.type, one.frame = "directional", "world"
            one.direction, one.intensity = np.array(direction, dtype=float), light * strength
            return one

        up = 1.0 + 4.0 * np.sin(np.arctan(0.5))
        lamps = [lamp(*known) for known in LIGHTS]
        lamps += [lamp(way, AMBIENT / up) for way in (*DIRECTIONS, (0, 0, -1))]
        looks = d.RenderEngineVtkParams()
        looks.lights, looks.default_clear_color = lamps, np.array([0.74, 0.77, 0.80])
        return looks

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode with the scene that the cell has for `FIRST_SCENE` + `seed`."""
        super().reset(seed=seed, options=options)
        d, rng = drake(), np.random.default_rng([FIRST_SCENE + (seed or 0), 11])
        home = np.asarray(SO101.home_q_rad) + rng.normal(0.0, 0.01, len(SO101.joint_names))
        object_xy, yaw = scene.spawn_point(rng), float(rng.uniform(-np.pi, np.pi))
        target_xy = scene.spawn_point(rng)
        for _ in range(scene.ATTEMPTS):
            if np.linalg.norm(target_xy - object_xy) >= scene.OBJECT_TARGET_GAP_M:
                break
            target_xy = scene.spawn_point(rng)
        root = self._simulator.get_mutable_context()
        self._diagram.SetDefaultContext(root)
        root.SetTime(0.0)
        q = self._plant.GetPositions(self._context)
        q[self._at] = home - self._zero_rad
        self._plant.SetPositions(self._context, q)
        turn, up = d.RotationMatrix.MakeZRotation(yaw), self._half_m
        pose = d.RigidTransform(turn, [*object_xy, up])
        self._plant.SetFreeBodyPose(self._context, self._cube, pose)
        self._target_m = np.array([*target_xy, scene.DISC_HALF_HEIGHT_M])
        self._goal.SetPoseInParentFrame(self._context, d.RigidTransform(self._target_m))
        self._steps, self._due = 0, deque[tuple[int, Vector]]()
        self._command(home - self._zero_rad)
        self._simulator.Initialize()
        self._picture = self.picture() if self.render_mode else None
        return self._seen(), {}

    def _command(self, q_rad: Vector) -> None:
        self._port.FixValue(self._context, np.concatenate([q_rad, np.zeros(len(q_rad))]))

    def step(self, action: Any) -> Any:
        """Send goals [°, gripper 0 to 100], shape (6,), and let 1 / `FPS` pass."""
        wanted = np.clip(from_degrees(action), *self.limits_rad.T) - self._zero_rad
        per_step = round(1.0 / FPS / TIMESTEP_S)
        now = self._steps * per_step
        self._due.append((now + round(self._delay_s / TIMESTEP_S), wanted))
        for tick in range(now, now + per_step):
            while self._due and self._due[0][0] <= tick:
                self._command(self._due.popleft()[1])
            self._simulator.AdvanceTo((tick + 1) * TIMESTEP_S)
        self._steps += 1
        if self.render_mode and self._steps % PICTURE_EVERY == 0:
            self._picture = self.picture()
        return self._seen(), 0.0, False, False, {"is_success": self.success()}

    def _seen(self) -> dict[str, Any]:
        read = self._plant.GetPositions(self._context)[self._at] + self._zero_rad
        read = np.round(read / ENCODER_STEP_RAD) * ENCODER_STEP_RAD
        seen: dict[str, Any] = {"agent_pos": to_degrees(read).astype(np.float32)}
        if self._picture is not None:
            seen["pixels"] = {scene.CAMERA_NAME: self._picture}
        return seen

    def picture(self) -> NDArray[np.uint8]:
        """Return what the overhead camera sees now, RGB, shape (SIZE_PX, SIZE_PX, 3)."""
        query = self._graph.get_query_output_port().Eval(self._graph_context)
        drawn = query.RenderColorImage(self._camera, self._world_id, self._eye)
        return np.ascontiguousarray(drawn.data[..., :3])

    def render(self) -> Any:
        """Return the newest picture."""
        return self._picture

    def success(self) -> bool:
        """Judge the present state by the cell's criterion."""
        plant, context = self._plant, self._context
        at_m = plant.EvalBodyPoseInWorld(context, self._cube).translation()
        moves = plant.EvalBodySpatialVelocityInWorld(context, self._cube)
        return bool(
            np.linalg.norm(at_m[:2] - self._target_m[:2]) <= NEAR_M
            and at_m[2] - self._half_m < LIFTED_M
            and np.linalg.norm(moves.translational()) < STILL_M_S
            and np.linalg.norm(moves.rotational()) < STILL_RAD_S
            and not self._held()
        )

    def _held(self) -> bool:
        found = self._plant.get_contact_results_output_port().Eval(self._context)
        inspector, cube, pressing = self._graph.model_inspector(), self._cube.index(), set[Any]()
        for k in range(found.num_hydroelastic_contacts()):  # as all boxes touch
            info = found.hydroelastic_contact_info(k)
            patch = info.contact_surface()
            ids = [inspector.GetFrameId(g) for g in (patch.id_M(), patch.id_N())]
            bodies = {self._plant.GetBodyFromFrameId(i).index() for i in ids}
            if cube in bodies and np.linalg.norm(info.F_Ac_W().translational()) > HELD_N:
                pressing |= bodies
        return self._fingers <= pressing

    def close(self) -> None:
        """Remove the files that Drake read; safe to call twice."""
        self._folder.cleanup()


SEED: Final = 4_320_261_128
"""Draws the stations; it stood here before any was run."""
STATIONS: Final = 8


def stations() -> list[tuple[str, dict[str, Any]]]:
    """Return what is wrong at each station, and the environment's arguments for that.

    Sizes are those of the cell's gaps at severities from 0.5 to 1, where it has such a gap.
    """
    rng = np.random.default_rng(SEED)

    def sign() -> float:
        return float(rng.choice([-1.0, 1.0]))

    way, larger = rng.uniform(-np.pi, np.pi), sign() > 0
    off = rng.uniform(0.011, 0.022)
    can: dict[str, dict[str, Any]] = {
        "contact_dynamics.slippery": {"friction": 0.004 ** rng.uniform(0.5, 1.0)},
        "object_property.size": {"size": rng.uniform(1.35, 1.7) if larger else 0.55},
        "object_property.mass": {"mass": 10.0 ** rng.uniform(1.0, 1.5)},
        "actuator_response.latency": {"delay_s": rng.uniform(0.13, 0.26)},
        "actuator_response.weak": {"servo_gain": 67.0 ** -rng.uniform(0.5, 1.0)},
        "spatial_geometry.camera_pose": {
            "camera_m": [off * np.cos(way), off * np.sin(way), sign() * rng.uniform(0.007, 0.015)],
            "camera_deg": [0.0, 0.0, sign() * rng.uniform(2.0, 4.0)],
        },
        "spatial_geometry.zero_offset": {
            "zero_deg": {j: sign() * rng.uniform(1.25, 5.0) for j in SO101.joint_names[:4]}
        },
        "visual_domain.exposure": {"light": 2.0 ** rng.uniform(-2.0, -1.0)},
    }
    chosen = [list(can)[k] for k in rng.permutation(len(can))[:STATIONS]]
    return [(key, json.loads(json.dumps(can[key], default=float))) for key in chosen]


if __name__ == "__main__":
    for key, arguments in stations():
        print(f"{key}: --env.kwargs='{json.dumps(arguments)}'")
else:
    gym.register(ID, f"{__name__}:PickPlace", max_episode_steps=MAX_STEPS)
