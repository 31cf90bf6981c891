"""Mechanisms that no gap is drawn from: what domain randomisation varies beyond the gaps.

They act like a gap's, by values, through `put_into`; no severity means anything here.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import replace
from typing import Final

import mujoco
import numpy as np

from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import GapDimension
from gaploop.core.vocabulary import GapDimension as G
from gaploop.sim.conditions import BACKGROUNDS, TableTop, table_texture
from gaploop.sim.gaps.mechanism import (
    Appliers,
    ImageStage,
    Mechanism,
    Parameter,
    Shot,
    Values,
    Vector,
)
from gaploop.sim.gaps.mechanisms import Picture

DAYLIGHT_K = 6500.0
"""Colour temperature of the nominal lamps, to which the camera is balanced [K]."""
_C2_M_K = 1.4388e-2  # second radiation constant
_CHANNELS_M = np.array([610e-9, 545e-9, 465e-9])  # peaks of a camera's red, green and blue


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
        # Wien's approximation of a black body, against the temperature the camera is balanced to.
        tint = np.exp(-_C2_M_K / _CHANNELS_M * (1.0 / p["temperature_k"] - 1.0 / DAYLIGHT_K))
        tint /= tint[1]

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
            hue, saturation, value = colorsys.rgb_to_hsv(*np.clip(rgb / 255.0, 0.0, 1.0))
            turned = colorsys.hsv_to_rgb(
                (hue + p["hue_deg"] / 360.0) % 1.0,
                min(saturation * p["saturation_factor"], 1.0),
                min(value * p["value_factor"], 1.0),
            )
            red, green, blue = (round(255.0 * v) for v in turned)
            return red, green, blue

        grain = kinds[min(int(p["grain"]), 3)] or top.grain
        texture = table_texture(TableTop(tone(tones[0]), tone(tones[1]), grain))

        @on.model.change
        def paint(model: mujoco.MjModel) -> None:
            start = int(model.tex_adr[model.texture("table").id])
            model.tex_data[start : start + texture.size] = texture.ravel()


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


RANDOMISED: tuple[Mechanism, ...] = (
    _Lamps(), _TableTop(), _FrameJitter(), _FieldOfView(), _Mass(), _Gravity(), _JointDynamics(),
)  # fmt: skip

SHARED: Final = (
    Parameter("torque_factor", "1", 0.01, 5.0, 1.0),
    Parameter("damping_factor", "1", 0.01, 100.0, 1.0),
    Parameter("armature_factor", "1", 0.05, 50.0, 1.0),
)
"""What is said of all drives here, for want of a mechanism that does."""
PER_JOINT: Final = (
    *SHARED,
    Parameter("gain_factor", "1", 1e-3, 10.0, 1.0),
    Parameter("friction_nm", "N m", -0.5, 3.0),
    Parameter("backlash_rad", "rad", 0.0, 0.5),
    Parameter("speed_limit_rad_s", "rad/s", 0.05, math.inf, math.inf),
)
"""What is said of one joint, as "joint.parameter". Friction is beyond the model's own, or less."""
JOINTS: Final = tuple(
    dict.fromkeys(arm.joint_names[k] for arm in CELL_ARMS.values() for k in arm.arm_columns)
)
"""Joints of all arms of the cell, without grippers."""


UNLIMITED_RAD_S2, USUAL_RAD_S2 = 600.0, 30.0
"""A torque limit that accelerates a joint by more than the first is none; without one, a factor is
of the torque that accelerates it by the second, beyond its friction."""


class _Drives(Mechanism):
    dimension, name = GapDimension.ACTUATOR_RESPONSE, "drives"
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

        play, limit = (
            np.array([of(j, quantity) if j else nominal for j in joints])
            for quantity, nominal in (("backlash_rad", 0.0), ("speed_limit_rad_s", np.inf))
        )
        on.commands.play_rad = on.commands.play_rad + play
        on.commands.speed_limit_rad_s = np.minimum(on.commands.speed_limit_rad_s, limit)


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


MEASURED: Final = (_Drives(), _TableFriction())
"""What a twin alone says."""
