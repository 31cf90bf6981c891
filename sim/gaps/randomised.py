"""Mechanisms that no gap is drawn from: what domain randomisation varies beyond the gaps.

They act like a gap's, by values, through `put_into`; no severity means anything here.
"""

import colorsys
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import mujoco
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import GapDimension as G
from gaploop.sim.conditions import BACKGROUNDS, TableTop, table_texture
from gaploop.sim.gaps.mechanism import (
    JOINTS,
    Appliers,
    ImageStage,
    Mechanism,
    Parameter,
    Rng,
    Shot,
    UnavailableError,
    Values,
    Vector,
    turned,
)
from gaploop.sim.gaps.mechanisms import Picture

DAYLIGHT_K = 6500.0
"""Colour temperature of the nominal lamps, to which the camera is balanced [K]."""
_C2_M_K = 1.4388e-2  # second radiation constant
_CHANNELS_M = np.array([610e-9, 545e-9, 465e-9])  # peaks of a camera's red, green and blue


def _tint(temperature_k: float) -> Vector:
    """Return a lamp's colour, green 1, shape (3,).

    Wien's approximation of a black body, against the temperature the camera is balanced to.
    """
    tint = np.exp(-_C2_M_K / _CHANNELS_M * (1.0 / temperature_k - 1.0 / DAYLIGHT_K))
    return np.asarray(tint / tint[1])


class _Lamps(Mechanism):
    dimension, name = G.VISUAL_DOMAIN, "lamps"
    parameters = (
        Parameter("key_factor", "1", 0.0, 5.0, 1.0),
        Parameter("fill_factor", "1", 0.0, 5.0, 1.0),
        Parameter("temperature_k", "K", 1500.0, 20000.0, DAYLIGHT_K),
        Parameter("azimuth_rad", "rad", -math.pi, math.pi),
        Parameter("tilt_rad", "rad", -0.8, 0.8),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        tint = _tint(p["temperature_k"])

        @on.model.change
        def light(model: mujoco.MjModel) -> None:
            model.light("key").diffuse[:] *= p["key_factor"] * tint
            model.light("fill").diffuse[:] *= p["fill_factor"] * tint
            model.vis.headlight.ambient[:] *= p["fill_factor"] * tint
            x, y, z = model.light("key").dir
            azimuth = math.atan2(y, x) + p["azimuth_rad"]
            tilt = math.atan2(math.hypot(x, y), -z) + p["tilt_rad"]
            level = math.sin(tilt)
            model.light("key").dir[:] = (
                level * math.cos(azimuth), level * math.sin(azimuth), -math.cos(tilt),
            )  # fmt: skip


def _repainted(rgb: Vector, p: Values, of: str = "") -> tuple[float, float, float]:
    """Return a colour, 0 to 1 each, with another hue, saturation and value."""
    hue, saturation, value = colorsys.rgb_to_hsv(*rgb)
    return colorsys.hsv_to_rgb(
        (hue + p[f"{of}hue_deg"] / 360.0) % 1.0,
        min(saturation * p[f"{of}saturation_factor"], 1.0),
        min(value * p[f"{of}value_factor"], 1.0),
    )


class _TableTop(Mechanism):
    dimension, name = G.VISUAL_DOMAIN, "table_top"
    parameters = (
        Parameter("hue_deg", "deg", -180.0, 180.0),
        Parameter("saturation_factor", "1", 0.0, 3.0, 1.0),
        Parameter("value_factor", "1", 0.0, 2.0, 1.0),
        Parameter("contrast_factor", "1", 0.0, 4.0, 1.0),
        Parameter("grain", "1", 0.0, 3.0),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        kinds = (None, "wood", "speckle", "plain")  # the first is the condition's own
        top = BACKGROUNDS[on.model.options.background]
        tones = np.array([top.light_rgb, top.dark_rgb], dtype=float)
        middle = tones.mean(axis=0)
        tones = middle + p["contrast_factor"] * (tones - middle)

        def tone(rgb: Vector) -> tuple[int, int, int]:
            red, green, blue = (round(255.0 * v) for v in _repainted(np.clip(rgb / 255.0, 0, 1), p))
            return red, green, blue

        grain = kinds[min(int(p["grain"]), 3)] or top.grain
        texture = table_texture(TableTop(tone(tones[0]), tone(tones[1]), grain))

        @on.model.change
        def paint(model: mujoco.MjModel) -> None:
            start = int(model.tex_adr[model.texture("table").id])
            model.tex_data[start : start + texture.size] = texture.ravel()


LAMPS_AT_ONCE: Final = 7
"""MuJoCo draws eight lights, the headlight (ambient) among them."""
SHADOW_PX: Final = 512
_LAMP: Final = "gaploop_lamp"


class _PlacedLamps(Mechanism):
    """Lamps about the scene instead of its own, as bright together; they may throw shadows."""

    dimension, name = G.VISUAL_DOMAIN, "placed_lamps"
    parameters = (
        Parameter("count", "1", 0.0, 4.0),
        Parameter("layout", "1", 0.0, 1e6),  # draws direction, share and colour of each
        Parameter("intensity_factor", "1", 0.0, 5.0, 1.0),
        Parameter("ambient_fraction", "1", 0.0, 1.0, 0.3),
        Parameter("temperature_k", "K", 1500.0, 20000.0, DAYLIGHT_K),
        Parameter("temperature_spread", "1", 0.0, 1.0),
        Parameter("elevation_rad", "rad", 0.2, math.pi / 2.0, 0.6),  # of the lowest
        Parameter("distance_m", "m", 0.2, 50.0, 1.2, relative_to="scene"),
        Parameter("shadows", "1", 0.0, 1.0),  # from 0.5 on
        Parameter("radius_m", "m", 0.0, 5.0, relative_to="scene"),  # 0 throws hard shadows
    )

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.edit
        def hang(spec: mujoco.MjSpec) -> None:
            spec.visual.quality.shadowsize = spec.visual.quality.shadowsize or SHADOW_PX
            for k in range(LAMPS_AT_ONCE):
                spec.worldbody.add_light(name=f"{_LAMP}{k}", active=False)

        count = int(p["count"])
        if not count:
            return
        rng = np.random.default_rng(int(p["layout"]))
        shares = rng.dirichlet([3.0] * count)
        azimuths_rad = rng.uniform(-math.pi, math.pi, count)
        elevations_rad = rng.uniform(p["elevation_rad"], math.pi / 2.0, count)
        temperatures_k = p["temperature_k"] * np.exp(
            p["temperature_spread"] * rng.normal(size=count)
        )
        # A lamp that is wide is several close together: each throws a shadow of its own.
        points = min(4, LAMPS_AT_ONCE // count) if p["radius_m"] and p["shadows"] >= 0.5 else 1
        centre_m = on.model.middle_m()

        @on.model.change
        def light(model: mujoco.MjModel) -> None:
            lamps = [k for k in range(model.nlight) if model.light(k).name.startswith(_LAMP)]
            own = [k for k in range(model.nlight) if k not in lamps and model.light_active[k]]
            head = model.vis.headlight
            total = float(head.diffuse.mean() + model.light_diffuse[own].mean(axis=1).sum())
            model.light_active[own] = 0
            head.diffuse[:] = head.specular[:] = 0.0
            head.ambient[:] += p["ambient_fraction"] * total
            head.ambient[:] *= p["intensity_factor"]
            total *= p["intensity_factor"] * (1.0 - p["ambient_fraction"])
            for k, lamp in enumerate(lamps[: count * points]):
                azimuth, level = azimuths_rad[k % count], elevations_rad[k % count]
                flat = np.cos(level)
                away = np.array([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(level)])
                aside = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
                turn = 2.0 * math.pi * (k // count) / points
                edge = np.cos(turn) * aside + np.sin(turn) * np.cross(away, aside)
                spot_m = p["distance_m"] * away + (p["radius_m"] * edge if points > 1 else 0.0)
                model.light_pos[lamp] = centre_m + spot_m
                model.light_dir[lamp] = -spot_m / np.linalg.norm(spot_m)
                tint = _tint(float(np.clip(temperatures_k[k % count], 1500.0, 20000.0)))
                # As bright on the table as from above, unless it is very low.
                level_factor = max(math.sin(level), 0.4)
                share = shares[k % count] / points / level_factor
                model.light_diffuse[lamp] = total * share * tint / tint.mean()
                model.light_specular[lamp] = model.light_ambient[lamp] = 0.0
                model.light_cutoff[lamp], model.light_exponent[lamp] = 60.0, 0.0
                model.light_castshadow[lamp] = p["shadows"] >= 0.5
                model.light_active[lamp] = 1


SURFACES: Final = ("table", "room", "object", "target")
_TEXTURE_PX: Final = {"table": 256, "room": 256, "object": 64, "target": 64}
_UNTOUCHED: Final = (0.5, 0.5, 0.5, 1.0)
"""A geom's colour by which MuJoCo takes that of its material."""


def _colour_of(model: mujoco.MjModel, geom: int) -> Vector:
    own, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    is_own = material < 0 or not np.allclose(own, _UNTOUCHED)
    return np.array(own if is_own else model.mat_rgba[material], dtype=float)


class _Colours(Mechanism):
    dimension, name = G.VISUAL_DOMAIN, "colours"
    parameters = tuple(
        Parameter(f"{role}_{key}", unit, low, high, nominal)
        for role in SURFACES[2:]
        for key, unit, low, high, nominal in (
            ("hue_deg", "deg", -180.0, 180.0, 0.0),
            ("saturation_factor", "1", 0.0, 3.0, 1.0),
            ("value_factor", "1", 0.0, 2.0, 1.0),
        )
    )

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def paint(model: mujoco.MjModel) -> None:
            for role in SURFACES[2:]:
                for geom in on.model.surface(model, role):
                    rgba = _colour_of(model, geom)
                    model.geom_rgba[geom] = *_repainted(rgba[:3], p, f"{role}_"), rgba[3]


class _Surfaces(Mechanism):
    """Textures of a library by their numbers; 0 leaves a surface as it is."""

    dimension, name = G.VISUAL_DOMAIN, "surfaces"
    parameters = tuple(Parameter(role, "1", 0.0, 1e6) for role in SURFACES)

    def apply(self, p: Values, on: Appliers) -> None:
        library = on.model.library

        @on.model.edit
        def prepare(spec: mujoco.MjSpec) -> None:
            for role, size in _TEXTURE_PX.items():
                name, is_flat = f"gaploop_{role}", role in SURFACES[:2]
                kind = (
                    mujoco.mjtTexture.mjTEXTURE_2D if is_flat else mujoco.mjtTexture.mjTEXTURE_CUBE
                )
                spec.add_texture(
                    name=name, type=kind, builtin=mujoco.mjtBuiltin.mjBUILTIN_FLAT,
                    width=size, height=size if is_flat else 6 * size, nchannel=3,
                )  # fmt: skip
                material = spec.add_material(name=name, specular=0.05, shininess=0.1)
                layers = [""] * mujoco.mjtTextureRole.mjNTEXROLE.value
                layers[mujoco.mjtTextureRole.mjTEXROLE_RGB.value] = name
                material.textures = layers

        @on.model.change
        def cover(model: mujoco.MjModel) -> None:
            kinds = mujoco.mjtObj.mjOBJ_TEXTURE, mujoco.mjtObj.mjOBJ_MATERIAL
            asked = [role for role in SURFACES if p[role]]
            known = dict[str, Sequence[int]]()
            for role in asked:
                try:
                    known[role] = on.model.surface(model, role)
                except UnavailableError:
                    if role == asked[-1] and not any(known.values()):
                        raise
            for role, geoms in known.items():
                size = _TEXTURE_PX[role]
                texture, material = (mujoco.mj_name2id(model, k, f"gaploop_{role}") for k in kinds)
                if not geoms or texture < 0:
                    continue
                picture = library.texture(int(p[role]), size)
                start = int(model.tex_adr[texture])
                if role in SURFACES[2:] and "textures" not in library.folders:
                    # A pattern in the thing's own colour: hues are `colours`' affair.
                    grey = picture.mean(axis=-1, keepdims=True)
                    picture = np.repeat(255.0 - 0.6 * (grey.max() - grey), 3, axis=-1).astype(
                        np.uint8
                    )
                    model.mat_rgba[material] = _colour_of(model, geoms[0])
                pixels = np.tile(picture.reshape(-1), 1 if role in SURFACES[:2] else 6)
                model.tex_data[start : start + pixels.size] = pixels
                model.geom_matid[geoms] = material
                model.geom_rgba[geoms] = _UNTOUCHED


class _Distractors(Mechanism):
    """Things of a library of meshes beside the object."""

    dimension, name = G.ENVIRONMENTAL_COMPLEXITY, "distractors"
    parameters = (
        Parameter("count", "1", 0.0, 8.0),
        Parameter("pick", "1", 0.0, 1e6),
        Parameter("size_m", "m", 0.005, 0.2, 0.04),  # of the longest side
    )

    def apply(self, p: Values, on: Appliers) -> None:
        rng = np.random.default_rng(int(p["pick"]))
        for number in rng.integers(0, 1_000_000, int(p["count"])):
            rgb = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.0, 0.9), rng.uniform(0.15, 0.95))
            on.model.add_mesh(int(number), p["size_m"] * rng.uniform(0.7, 1.1), (*rgb, 1.0))


class _FrameJitter(Mechanism):
    """What changes from picture to picture, not from take to take."""

    dimension, name = G.VISUAL_DOMAIN, "frame_jitter"
    parameters = (
        Parameter("exposure_stops", "1", 0.0, 2.0),
        Parameter("tint_fraction", "1", 0.0, 1.0),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.EXPOSURE)
        def jitter(picture: Picture, shot: Shot) -> Picture:
            stops, *tint = shot.rng.uniform(-1.0, 1.0, 4)
            gain = 2.0 ** (p["exposure_stops"] * stops)
            gains = gain * (1.0 + p["tint_fraction"] * np.array(tint))
            return np.asarray(picture * gains)


class _FieldOfView(Mechanism):
    dimension, name = G.SPATIAL_GEOMETRY, "field_of_view"
    parameters = (Parameter("dfovy_deg", "deg", -20.0, 40.0),)

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def zoom(model: mujoco.MjModel) -> None:
            model.cam_fovy[on.model.cameras(model)] += p["dfovy_deg"]


class _Mass(Mechanism):
    dimension, name = G.OBJECT_PROPERTY, "mass"
    parameters = (Parameter("mass_factor", "1", 0.05, 50.0, 1.0),)

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.change_density(p["mass_factor"])


class _Gravity(Mechanism):
    dimension, name = G.CONTACT_DYNAMICS, "gravity"
    parameters = (Parameter("gravity_m_s2", "m/s2", 0.0, 30.0, 9.81),)

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def pull(model: mujoco.MjModel) -> None:
            model.opt.gravity[2] = -p["gravity_m_s2"]


class _JointDynamics(Mechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "joint_dynamics"
    parameters = (
        Parameter("gain_factor", "1", 0.01, 10.0, 1.0),
        Parameter("damping_factor", "1", 0.0, 20.0, 1.0),
        Parameter("friction_factor", "1", 0.0, 20.0, 1.0),
        Parameter("armature_factor", "1", 0.1, 10.0, 1.0),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change_servos
        def change(model: mujoco.MjModel, servo: int, dof: int, _stronger: float) -> None:
            model.actuator_gainprm[servo, 0] *= p["gain_factor"]
            model.actuator_biasprm[servo, 1] *= p["gain_factor"]
            model.actuator_biasprm[servo, 2] *= p["damping_factor"]
            model.dof_damping[dof] *= p["damping_factor"]
            model.dof_frictionloss[dof] *= p["friction_factor"]
            model.dof_armature[dof] *= p["armature_factor"]


class _GripperDrive(Mechanism):
    """How stiffly the jaws are held: below 1 they give way."""

    dimension, name = G.ACTUATOR_RESPONSE, "gripper_drive"
    parameters = (Parameter("stiffness_factor", "1", 0.01, 10.0, 1.0),)

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            servos = on.model.grippers(model)
            model.actuator_gainprm[servos, 0] *= p["stiffness_factor"]
            model.actuator_biasprm[servos, 1] *= p["stiffness_factor"]


class _ActionNoise(Mechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "action_noise"
    parameters = (Parameter("noise_rad", "rad", 0.0, 0.2),)

    def apply(self, p: Values, on: Appliers) -> None:
        def jittering(rng: Rng) -> Callable[[float, Vector, Vector], None]:
            def jitter(_t_s: float, goal_rad: Vector, _before_rad: Vector) -> None:
                goal_rad += rng.normal(0.0, p["noise_rad"], goal_rad.shape)

            return jitter

        on.commands.faults[self.key] = jittering


class _CentreOfMass(Mechanism):
    dimension, name = G.OBJECT_PROPERTY, "centre_of_mass"
    parameters = (
        Parameter("com_x_fraction", "1", -1.0, 1.0),  # of the half width
        Parameter("com_y_fraction", "1", -1.0, 1.0),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.shift_com(p["com_x_fraction"], p["com_y_fraction"])


class _Restitution(Mechanism):
    """How much the object's contacts damp: below 1 it bounces; at 0.2, half as fast as it fell."""

    dimension, name = G.CONTACT_DYNAMICS, "restitution"
    parameters = (Parameter("damping_factor", "1", 0.2, 5.0, 1.0),)

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            geoms = on.model.surface(model, "object")
            model.geom_solref[geoms, 1] *= p["damping_factor"]
            model.geom_solmix[geoms] = 1e3  # else the other surface counts as much


RANDOMISED: tuple[Mechanism, ...] = (
    _Lamps(), _TableTop(), _PlacedLamps(), _Colours(), _Surfaces(), _Distractors(), _FrameJitter(),
    _FieldOfView(), _Mass(), _CentreOfMass(), _Gravity(), _Restitution(), _JointDynamics(),
    _GripperDrive(), _ActionNoise(),
)  # fmt: skip
PER_FRAME: Final = frozenset(
    (
        *(f"visual_domain.{name}" for name in ("lamps", "table_top", "placed_lamps", "colours")),
        "visual_domain.surfaces", "spatial_geometry.camera_pose", "spatial_geometry.field_of_view",
    )
)  # fmt: skip
"""What can be drawn anew for every picture: it changes nothing but what cameras see."""

SHARED: Final = (
    Parameter("torque_factor", "1", 0.01, 5.0, 1.0),
    Parameter("damping_factor", "1", 0.01, 100.0, 1.0),
    Parameter("armature_factor", "1", 0.05, 50.0, 1.0),
    Parameter("acceleration_limit_rad_s2", "rad/s²", 0.2, math.inf, math.inf),
)
"""What is said of all drives here, for want of a mechanism that does."""
PER_JOINT: Final = (
    *SHARED,
    Parameter("gain_factor", "1", 1e-3, 10.0, 1.0),
    Parameter("friction_nm", "N m", -0.5, 3.0),
    Parameter("backlash_rad", "rad", 0.0, 0.5),
    Parameter("dead_band_rad", "rad", 0.0, 0.5),
    Parameter("speed_limit_rad_s", "rad/s", 0.05, math.inf, math.inf),
)
"""What is said of one joint, as "joint.parameter". Friction is beyond the model's own, or less."""
UNLIMITED_RAD_S2, USUAL_RAD_S2 = 600.0, 30.0
"""A torque limit that accelerates a joint by more than the first is none; without one, a factor is
of the torque that accelerates it by the second, beyond its friction."""


class _Drives(Mechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "drives"
    parameters = (
        *SHARED,
        *(replace(p, name=f"{joint}.{p.name}") for joint in JOINTS for p in PER_JOINT),
    )

    def parameter(self, name: str) -> Parameter:
        """Return one of its parameters; joints are called as in anybody's model."""
        joint, _, quantity = name.rpartition(".")
        for p in PER_JOINT if joint else ():
            if p.name == quantity:
                return replace(p, name=name)
        return super().parameter(name)

    def apply(self, p: Values, on: Appliers) -> None:
        joints = on.model.goal_joints()
        differ = {k.rpartition(".")[0] for k, v in p.items() if v != self.parameter(k).nominal}
        if foreign := differ.difference(joints, [""]):
            raise UnusableInputError(
                f"{self.key}: this arm has no joint {min(foreign)}. One of: "
                f"{', '.join(filter(None, joints))}."
            )

        def of(joint: str, quantity: str) -> float:
            name = f"{joint}.{quantity}"
            return p.get(name, self.parameter(name).nominal)

        @on.model.change_servos
        def change(model: mujoco.MjModel, servo: int, dof: int, _stronger: float) -> None:
            joint = model.joint(int(model.dof_jntid[dof])).name
            gain = of(joint, "gain_factor")
            model.actuator_gainprm[servo, 0] *= gain
            model.actuator_biasprm[servo, 1] *= gain
            torque = p["torque_factor"] * of(joint, "torque_factor")
            friction_nm = max(float(model.dof_frictionloss[dof]) + of(joint, "friction_nm"), 0.0)
            inertia = float(model.dof_M0[dof])
            model.dof_frictionloss[dof] = friction_nm
            limit_nm = float(np.abs(model.actuator_forcerange[servo]).max()) or np.inf
            if torque != 1.0 and limit_nm > UNLIMITED_RAD_S2 * inertia:
                limit_nm = friction_nm + torque * USUAL_RAD_S2 * inertia
                model.actuator_forcerange[servo] = (-limit_nm, limit_nm)
                model.actuator_forcelimited[servo] = 1
            else:
                model.actuator_forcerange[servo] *= torque
            damping = p["damping_factor"] * of(joint, "damping_factor")
            model.actuator_biasprm[servo, 2] *= damping
            model.dof_damping[dof] *= damping
            model.dof_armature[dof] *= p["armature_factor"] * of(joint, "armature_factor")

        ramp = "acceleration_limit_rad_s2"
        play, on.commands.dead_band_rad, limit, ramps = (
            np.array([of(j, quantity) if j else nominal for j in joints])
            for quantity, nominal in (
                ("backlash_rad", 0.0), ("dead_band_rad", 0.0), ("speed_limit_rad_s", np.inf),
                (ramp, np.inf),
            )
        )  # fmt: skip
        on.commands.play_rad = on.commands.play_rad + play
        on.commands.speed_limit_rad_s = np.minimum(on.commands.speed_limit_rad_s, limit)
        on.commands.acceleration_limit_rad_s2 = np.minimum(p[ramp], ramps)


class _TableFriction(Mechanism):
    dimension, name = G.CONTACT_DYNAMICS, "table_friction"
    parameters = (Parameter("friction_factor", "1", 1e-3, 10.0, 1.0),)

    def apply(self, p: Values, on: Appliers) -> None:
        table_of = on.model.table_of

        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            table = table_of(model)
            table.friction[:] *= p["friction_factor"]
            table.condim[:], table.priority[:] = 4, 1  # else the rougher of two surfaces counts


class _Flicker(Mechanism):
    """Lamps on alternating current under a shutter that exposes row after row: rolling bands."""

    dimension, name = G.VISUAL_DOMAIN, "flicker"
    parameters = (
        Parameter("depth", "1", 0.0, 1.0),  # of the mean light, to either side of it
        Parameter("bands", "1", 0.2, 20.0, 1.0),  # over the picture's height
        Parameter("drift_hz", "Hz", -100.0, 100.0),  # passing a row, upwards where positive
        Parameter("lag_rad", "rad", -math.pi, math.pi),  # of blue behind red: phosphors' afterglow
    )

    def apply(self, p: Values, on: Appliers) -> None:
        lag_rad = p["lag_rad"] * np.array([0.5, 0.0, -0.5])

        @on.images.at(ImageStage.FLICKER)
        def flicker(picture: Picture, shot: Shot) -> Picture:
            turns = 0.5 * p["bands"] * shot.y[:, 0] + p["drift_hz"] * shot.t_s
            phase = 2.0 * np.pi * turns + shot.take_phase_rad
            swing = np.cos(phase[:, None] + lag_rad)
            return np.asarray(picture * (1.0 + p["depth"] * swing)[:, None])


class _BasePose(Mechanism):
    """An arm that was screwed on elsewhere, while camera and table stayed."""

    dimension, name = G.SPATIAL_GEOMETRY, "base_pose"
    parameters = (
        *(Parameter(f"d{axis}_m", "m", -0.3, 0.3) for axis in "xyz"),
        *(Parameter(f"d{turn}_rad", "rad", -0.5, 0.5) for turn in ("roll", "pitch", "yaw")),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        bases = on.model.bodies("base")

        @on.model.change
        def move(model: mujoco.MjModel) -> None:
            for base in map(model.body, bases):
                base.pos[:] += (p["dx_m"], p["dy_m"], p["dz_m"])
                base.quat[:] = turned(base.quat, (p["droll_rad"], p["dpitch_rad"], p["dyaw_rad"]))


class _BentHand(Mechanism):
    """A hand that was bent, or mounted at an angle, before the joint that rolls it."""

    dimension, name = G.SPATIAL_GEOMETRY, "bent_hand"
    parameters = (
        Parameter("aside_rad", "rad", -0.8, 0.8),  # about what is at a right angle to the others:
        Parameter("forward_rad", "rad", -0.8, 0.8),  # about the axis that the wrist bends by
    )

    def apply(self, p: Values, on: Appliers) -> None:
        turn, hands = np.zeros(4), on.model.bodies("gripper")
        mujoco.mju_euler2Quat(turn, np.array([p["aside_rad"], p["forward_rad"], 0.0]), "xyz")

        @on.model.change
        def bend(model: mujoco.MjModel) -> None:
            for hand in map(model.body, hands):
                bent = np.zeros(4)
                mujoco.mju_mulQuat(bent, hand.quat, turn)
                hand.quat[:] = bent


MEASURED: Final = (_Drives(), _TableFriction(), _Flicker(), _BasePose(), _BentHand())
"""What a twin alone says."""
