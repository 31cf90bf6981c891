"""Gaps and conditions that change the scene itself: object, clutter, contact, geometry, task."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.sim import look
from gaploop.sim.arms import SO101, CellArm
from gaploop.sim.conditions import OBJECTS, Conditions, ObjectKind
from gaploop.sim.gaps.catalog import InjectedGap
from gaploop.sim.kinematics import from_polar
from gaploop.sim.scene import (
    CAMERA_NAME,
    CUBE_HALF_SIZE_M,
    FILL_LIGHT_DIFFUSE,
    KEY_LIGHT_DIFFUSE,
    SceneOptions,
    SpecEdit,
)
from gaploop.sim.tasks import Criterion

DISTRACTOR_PREFIX = "distractor"
POST_RADIUS_M = 0.010
POST_RGBA: look.Rgba = (0.30, 0.31, 0.33, 1.0)
# Colours of set-up distractors: none near the hues of object and target.
DISTRACTOR_RGBA: tuple[look.Rgba, ...] = (
    (0.15, 0.55, 0.22, 1.0),
    (0.86, 0.78, 0.15, 1.0),
    (0.45, 0.20, 0.50, 1.0),
    (0.25, 0.25, 0.25, 1.0),
)


def object_options(options: SceneOptions, gaps: Sequence[InjectedGap]) -> SceneOptions:
    """Change the carried object as gaps ask."""
    for gap in gaps:
        p = gap.parameters
        if gap.dimension != "object_property":
            continue
        half = np.asarray(options.object_half_size_m) * p.get("size_factor", 1.0)
        half[0] *= p.get("length_factor", 1.0)
        half[1] *= p.get("width_factor", 1.0)
        half[2] *= p.get("height_factor", 1.0)
        volume_factor = float(np.prod(half) / np.prod(options.object_half_size_m))
        options = replace(
            options,
            object_half_size_m=(float(half[0]), float(half[1]), float(half[2])),
            object_shape="cylinder" if "cylinder" in p else options.object_shape,
            object_mass_kg=p.get("mass_kg", options.object_mass_kg * volume_factor),
            object_com_m=(
                p.get("com_x_fraction", 0.0) * float(half[0]),
                p.get("com_y_fraction", 0.0) * float(half[1]),
                0.0,
            ),
        )
    return options


def scene_edits(
    conditions: Conditions, gaps: Sequence[InjectedGap], gap_seed: int, arm: CellArm
) -> tuple[SpecEdit, ...]:
    """Bodies that conditions and gaps add: distractors, clutter, an occluder, sticky pads."""
    edits: list[SpecEdit] = []
    count = 0
    for _ in range(conditions.distractors):
        rgba = DISTRACTOR_RGBA[count % len(DISTRACTOR_RGBA)]
        edits.append(_box(count, (CUBE_HALF_SIZE_M,) * 3, rgba))
        count += 1
    for gap in gaps:
        p = gap.parameters
        rng = np.random.default_rng([gap_seed, 77])
        if gap.mechanism == "similar":
            for _ in range(int(p["count"])):
                half_m = CUBE_HALF_SIZE_M * p["size_factor"] * float(rng.uniform(0.95, 1.05))
                edits.append(_box(count, (half_m,) * 3, _near_object_hue(p["hue_deg"], rng)))
                count += 1
        elif gap.mechanism == "clutter":
            for _ in range(int(p["count"])):
                height_m = 0.5 * p["height_m"] * float(rng.uniform(0.7, 1.1))
                half_m = float(rng.uniform(0.010, 0.016))
                rgba = DISTRACTOR_RGBA[count % len(DISTRACTOR_RGBA)]
                edits.append(_box(count, (half_m, half_m, height_m), rgba))
                count += 1
        elif gap.mechanism == "occluder":
            edits.append(_lamp_head(gap, arm))
        elif gap.mechanism == "sticky":
            edits.append(_sticky_pads(arm))
        elif gap.mechanism == "posts":
            edits.append(_posts(gap, arm))
        elif gap.mechanism == "l_shaped":
            edits.append(_leg(gap, OBJECTS[conditions.object]))
    return tuple(edits)


def _near_object_hue(hue_deg: float, rng: np.random.Generator) -> look.Rgba:
    red, green, blue, alpha = look.OBJECT_RGBA
    hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
    hue = (hue + hue_deg / 360.0) % 1.0
    mixed = colorsys.hsv_to_rgb(hue, saturation * 0.97, value * float(rng.uniform(0.9, 1.0)))
    return (*mixed, alpha)


def _box(index: int, half_m: tuple[float, float, float], rgba: look.Rgba) -> SpecEdit:
    def edit(spec: mujoco.MjSpec) -> None:
        name = f"{DISTRACTOR_PREFIX}{index}"
        body = spec.worldbody.add_body(name=name, pos=[0.3, 0.3 + 0.06 * index, half_m[2]])
        body.add_freejoint(name=name)
        body.add_geom(
            name=name, type=mujoco.mjtGeom.mjGEOM_BOX, size=half_m, rgba=rgba,
            mass=1200.0 * 8.0 * float(np.prod(half_m)), condim=4,  # 1200 kg/m3: plastic, wood
        )  # fmt: skip

    return edit


def _lamp_head(gap: InjectedGap, arm: CellArm) -> SpecEdit:
    p = gap.parameters
    x, y = from_polar(p["azimuth_rad"], p["radius_from_axis_m"] + _further_m(arm))
    low_m = arm.shade_z_m

    def edit(spec: mujoco.MjSpec) -> None:
        for size, pos, kind in (
            ((p["radius_m"] * 0.6, 0.01, 0.0), (x, y, low_m), mujoco.mjtGeom.mjGEOM_CYLINDER),
            ((0.006, 0.20, 0.006), (x, y + 0.20, low_m + 0.015), mujoco.mjtGeom.mjGEOM_BOX),
        ):
            spec.worldbody.add_geom(
                type=kind, size=size, pos=pos, rgba=(0.93, 0.93, 0.90, 1.0),
                contype=0, conaffinity=0,
            )  # fmt: skip

    return edit


def _posts(gap: InjectedGap, arm: CellArm) -> SpecEdit:
    """Fixed posts where nothing starts: inside the ring of places, and beside it."""
    p = gap.parameters
    half_m = 0.5 * p["post_height_m"]
    middle_m = arm.spawn_centre_m[0]
    places = ((middle_m + p["post_shift_m"], 0.0), (middle_m - 0.03, p["post_side"] * 0.105))

    def edit(spec: mujoco.MjSpec) -> None:
        for x, y in places:
            spec.body("table").add_geom(
                type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[POST_RADIUS_M, half_m, 0.0],
                pos=[x, y, half_m], rgba=POST_RGBA,
            )  # fmt: skip

    return edit


def _leg(gap: InjectedGap, kind: ObjectKind) -> SpecEdit:
    """A bar that makes the object an L: along its x axis, flush with one side."""
    long_m, side = 0.5 * gap.parameters["leg_m"], gap.parameters["leg_side"]
    x_m, y_m, z_m = kind.half_size_m

    def edit(spec: mujoco.MjSpec) -> None:
        spec.body("object").add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, size=[long_m, 0.5 * y_m, z_m],
            pos=[x_m + long_m, side * 0.5 * y_m, 0.0], rgba=kind.rgba or look.OBJECT_RGBA,
            condim=4, friction=[1.0, 0.005, 0.0001], mass=0.0,
        )  # fmt: skip

    return edit


def _sticky_pads(arm: CellArm) -> SpecEdit:
    def edit(spec: mujoco.MjSpec) -> None:
        for name in arm.finger_bodies:
            spec.add_actuator(
                name=f"adhesion_{name}",
                trntype=mujoco.mjtTrn.mjTRN_BODY,
                target=name,
                ctrllimited=True,
                ctrlrange=[0.0, 1.0],
                gainprm=[1.0, *[0.0] * 9],
            )

    return edit


def _further_m(arm: CellArm) -> float:
    """How much further out than the SO-101's this arm's scene lies [m]."""
    return arm.spawn_centre_m[0] - SO101.spawn_centre_m[0]


def apply_to_model(
    model: mujoco.MjModel, conditions: Conditions, gaps: Sequence[InjectedGap], arm: CellArm
) -> None:
    """Change contact, camera pose, table height and light of a compiled model in place."""
    lighting = look.LIGHTINGS[conditions.lighting]
    model.light("key").diffuse[:] = KEY_LIGHT_DIFFUSE * np.asarray(lighting.key_rgb)
    model.light("fill").diffuse[:] = FILL_LIGHT_DIFFUSE * np.asarray(lighting.fill_rgb)
    model.vis.headlight.ambient[:] = model.vis.headlight.ambient * np.asarray(lighting.fill_rgb)
    rgba = OBJECTS[conditions.object].rgba
    if rgba is not None:
        model.geom("object").rgba[:] = rgba
    move_camera(model, np.asarray(conditions.camera_pose))
    model.body("table").pos[2] += conditions.table_height
    for gap in gaps:
        p = gap.parameters
        if gap.mechanism == "camera_pose":
            offset = [p["dx_m"], p["dy_m"], p["dz_m"], 0.0, 0.0, p["dyaw_rad"]]
            move_camera(model, np.asarray(offset))
        if "base_pitch_rad" in p:
            _move_base(model, gap)
        if "bend_x_rad" in p:
            _turn_body(model, "gripper", (p["bend_x_rad"], p["bend_y_rad"], 0.0))
        model.body("table").pos[2] += p.get("table_m", 0.0)
        if gap.dimension == "contact_dynamics":
            _change_contact(model, gap, arm)


def move_camera(model: mujoco.MjModel, offset: NDArray[np.float64]) -> None:
    """Move the overhead camera by (dx, dy, dz [m], roll, pitch, yaw [rad]), in place."""
    if not offset.any():
        return
    camera = model.camera(CAMERA_NAME)
    camera.pos[:] += offset[:3]
    turn, quat = np.zeros(4), np.zeros(4)
    mujoco.mju_euler2Quat(turn, offset[3:], "XYZ")  # about the base's axes
    mujoco.mju_mulQuat(quat, turn, camera.quat)
    camera.quat[:] = quat


def _move_base(model: mujoco.MjModel, gap: InjectedGap) -> None:
    p = gap.parameters
    model.body("base").pos[:2] += (p["base_dx_m"], p["base_dy_m"])
    _turn_body(model, "base", (p["base_roll_rad"], p["base_pitch_rad"], 0.0))


def _turn_body(model: mujoco.MjModel, name: str, xyz_rad: tuple[float, float, float]) -> None:
    """Turn a body about its own axes, in place."""
    turn, quat = np.zeros(4), np.zeros(4)
    mujoco.mju_euler2Quat(turn, np.asarray(xyz_rad), "xyz")
    mujoco.mju_mulQuat(quat, model.body(name).quat, turn)
    model.body(name).quat[:] = quat


def _change_contact(model: mujoco.MjModel, gap: InjectedGap, arm: CellArm) -> None:
    p = gap.parameters
    bodies = {model.body(name).id for name in arm.finger_bodies}
    fingers = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) in bodies]
    if "friction_factor" in p:
        model.geom_friction[fingers] *= p["friction_factor"]
    if "time_constant_factor" in p:
        model.geom_solref[fingers, 0] *= p["time_constant_factor"]
        # Friction constraints are as soft as this ratio says; noslip would hide it.
        model.opt.impratio = 1.0 + 9.0 * (1.0 - p["slip_creep"])
        model.opt.noslip_iterations = 0
    if "adhesion_n" in p:
        for name in arm.finger_bodies:
            model.actuator(f"adhesion_{name}").gainprm[0] = p["adhesion_n"]
    if "table_friction_factor" in p:
        table = model.geom("table")
        table.friction[:] *= p["table_friction_factor"]
        table.condim[:] = 4
        table.priority[:] = 1  # over the object; otherwise the rougher of two surfaces counts


def criterion(task: str, gaps: Sequence[InjectedGap]) -> Criterion:
    """The station's success criterion."""
    wanted = Criterion(task)
    for gap in gaps:
        p = gap.parameters
        wanted = replace(
            wanted,
            tolerance_m=wanted.tolerance_m * p.get("tolerance_factor", 1.0),
            goal_offset_m=(
                wanted.goal_offset_m[0] + p.get("goal_dx_m", 0.0),
                wanted.goal_offset_m[1] + p.get("goal_dy_m", 0.0),
            ),
            deadline_s=min(wanted.deadline_s, p.get("deadline_s", wanted.deadline_s)),
            clearance_m=max(wanted.clearance_m, p.get("clearance_m", 0.0)),
            yaw_tolerance_rad=min(
                wanted.yaw_tolerance_rad, p.get("yaw_tolerance_rad", wanted.yaw_tolerance_rad)
            ),
        )
    return wanted
