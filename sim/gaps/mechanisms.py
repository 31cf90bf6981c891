"""The gap mechanisms: what a severity draws of each, and how it acts.

Severity 1 is a bad cell that one could meet, not a broken one; docs/diagnose/gaps.md has what it is
in words and what it costs. To add one: write its class here and name it in `MECHANISMS`; nothing
that is drawn for another mechanism changes.
"""

import colorsys
import math
from collections.abc import Callable
from dataclasses import replace

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.vocabulary import GapDimension as G
from gaploop.sim import hand
from gaploop.sim.gaps.mechanism import (
    JOINTS,
    OBJECT_HALF_M,
    Appliers,
    Heat,
    ImageStage,
    Mechanism,
    Parameter,
    Rng,
    Shot,
    UnavailableError,
    Values,
    Vector,
    person_side,
    sign,
    spread,
)
from gaploop.sim.predicates import FULL_SQUARE_RAD

type Picture = NDArray[np.floating]


class _Slippery(Mechanism):
    dimension, name = G.CONTACT_DYNAMICS, "slippery"
    # The cube weighs 0.1 N and the jaws press with 16 N, so it slips only when friction is far
    # lower than that of any real pad; the factor stands for poor pads on a heavier object.
    parameters = (Parameter("friction_factor", "1", 1e-3, 10.0, 1.0, factor=0.004),)

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            model.geom_friction[on.model.fingers(model)] *= p["friction_factor"]


class _Soft(Mechanism):
    dimension, name = G.CONTACT_DYNAMICS, "soft"
    parameters = (
        Parameter("time_constant_factor", "1", 0.2, 10.0, 1.0),
        Parameter("slip_creep", "1", 0.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "time_constant_factor": 1.0 + 2.0 * severity * spread(rng),
            "slip_creep": 0.8 * severity**2,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            model.geom_solref[on.model.fingers(model), 0] *= p["time_constant_factor"]
            # Friction constraints are as soft as this ratio says; noslip would hide it.
            model.opt.impratio = 1.0 + 9.0 * (1.0 - p["slip_creep"])
            model.opt.noslip_iterations = 0


class _Sticky(Mechanism):
    dimension, name, held_out = G.CONTACT_DYNAMICS, "sticky", True
    parameters = (Parameter("adhesion_n", "N", 0.0, 20.0, full=4.0),)

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.edit
        def edit(spec: mujoco.MjSpec) -> None:
            for name in on.model.bodies(*on.model.arm.finger_bodies):
                spec.add_actuator(
                    name=f"adhesion_{name}", trntype=mujoco.mjtTrn.mjTRN_BODY, target=name,
                    ctrllimited=True, ctrlrange=[0.0, 1.0],
                    gainprm=[p["adhesion_n"], *[0.0] * 9],
                )  # fmt: skip


class _Exposure(Mechanism):
    dimension, name = G.VISUAL_DOMAIN, "exposure"
    parameters = (
        Parameter("gain", "1", 0.02, 50.0, 1.0),
        Parameter("gamma", "1", 0.2, 5.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        dark = rng.random() < 0.5
        stops = (-1.95 if dark else 1.8) * severity
        gamma = 1.0 + (0.2 if dark else -0.15) * severity
        return {"gain": 2.0 ** (stops * spread(rng)), "gamma": gamma}

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.EXPOSURE)
        def expose(picture: Picture, _shot: Shot) -> Picture:
            return 255.0 * (np.clip(picture * p["gain"], 0.0, 255.0) / 255.0) ** p["gamma"]


class _ColourCast(Mechanism):
    dimension, name = G.VISUAL_DOMAIN, "colour_cast"
    parameters = (
        Parameter("cast_hue_rad", "rad", -2.0 * math.pi, 2.0 * math.pi),
        Parameter("cast_strength", "1", 0.0, 2.0),
        Parameter("veil", "1", 0.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        # Directions on the colour circle: tungsten, old fluorescent tubes, blue daylight.
        angle = float(rng.choice([0.5, 2.1, 3.9]) + np.clip(rng.normal(0.0, 0.2), -1, 1))
        return {
            "cast_hue_rad": angle,
            "cast_strength": 0.45 * severity * spread(rng),
            "veil": 0.25 * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        angle = p["cast_hue_rad"] + np.array([0.0, 2.0 * np.pi / 3.0, 4.0 * np.pi / 3.0])
        tint = np.cos(angle)
        gains = np.exp(p["cast_strength"] * tint) * (1.0 - p["veil"])
        veil = p["veil"] * 110.0 * (1.0 + 0.6 * tint)  # grey level of stray light

        @on.images.at(ImageStage.TINT)
        def tinge(picture: Picture, _shot: Shot) -> Picture:
            return picture * gains + veil


class _Blur(Mechanism):
    dimension, name = G.VISUAL_DOMAIN, "blur"
    parameters = (Parameter("defocus_fraction", "1", 0.0, 0.3, full=0.055),)

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.FOCUS)
        def blur(picture: Picture, _shot: Shot) -> Picture:
            sigma_px = p["defocus_fraction"] * picture.shape[1]
            return np.asarray(cv2.GaussianBlur(picture, (0, 0), sigma_px))


class _Lens(Mechanism):
    dimension, name, held_out = G.VISUAL_DOMAIN, "lens", True
    parameters = (
        Parameter("vignette", "1", 0.0, 1.0, full=0.75, is_exact=True),
        Parameter("distortion", "1", -1.0, 1.0, full=0.45, either_way=True),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.LENS)
        def distort(picture: Picture, shot: Shot) -> Picture:
            squeeze = 1.0 + p["distortion"] * (shot.x**2 + shot.y**2)
            height, width = picture.shape[:2]
            x, y = (
                (v * squeeze * half + half - 0.5).astype(np.float32)
                for v, half in ((shot.x, 0.5 * width), (shot.y, 0.5 * height))
            )
            return np.asarray(
                cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            )

        @on.images.at(ImageStage.SHADING)
        def shade(picture: Picture, shot: Shot) -> Picture:
            fall = p["vignette"] * np.clip((shot.x**2 + shot.y**2) / 1.1, 0.0, 1.0)
            return picture * (1.0 - fall)[..., None]


class _EncoderDrift(Mechanism):
    dimension, name = G.SENSOR_NOISE, "encoder_drift"
    parameters = (
        Parameter("drift_rad", "rad", 0.0, 0.5, full=math.radians(3.0)),
        Parameter("noise_rad", "rad", 0.0, 0.2, full=math.radians(0.5), is_exact=True),
        *(Parameter(f"{joint}.drift_rad", "rad", 0.0, 0.5) for joint in JOINTS),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        on.sensors.noise_rad = math.hypot(on.sensors.noise_rad, p["noise_rad"])
        drift_rad: float | Vector = p["drift_rad"]
        if any(p[f"{joint}.drift_rad"] for joint in JOINTS):
            own = [p.get(f"{joint}.drift_rad", 0.0) for joint in on.model.goal_joints()]
            drift_rad = np.hypot(drift_rad, own)

        def swinging(rng: Rng, n_joints: int) -> Callable[[Vector, float], None]:
            """A slow swing of encoders' zeros, which comes and goes within a take."""
            phase = rng.uniform(0.0, 2.0 * np.pi, n_joints)
            hz = rng.uniform(0.15, 0.5, n_joints)

            def add(offset_rad: Vector, t_s: float) -> None:
                offset_rad += drift_rad * np.sin(2.0 * np.pi * hz * t_s + phase)

            return add

        on.sensors.faults[self.key] = swinging


class _StaleReads(Mechanism):
    dimension, name = G.SENSOR_NOISE, "stale_reads"
    parameters = (
        Parameter("stale_fraction", "1", 0.0, 0.95),
        Parameter("burst_s", "s", 0.005, 10.0, 0.3, "period"),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "stale_fraction": min(0.8 * severity * spread(rng), 0.9),
            "burst_s": 0.02 + 0.58 * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        on.sensors.stale_fraction, on.sensors.outage_s = p["stale_fraction"], p["burst_s"]


class _TornFrames(Mechanism):
    dimension, name = G.SENSOR_NOISE, "torn_frames"
    parameters = (
        Parameter("torn_fraction", "1", 0.0, 1.0),
        Parameter("tear_fraction", "1", 0.0, 0.5),
        Parameter("pixel_noise", "1", 0.0, 128.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "torn_fraction": min(0.7 * severity * spread(rng), 0.9),
            "tear_fraction": 0.05 + 0.15 * severity,
            "pixel_noise": 30.0 * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.TRANSFER)
        def tear(picture: Picture, shot: Shot) -> Picture:
            """Shift a band of rows, as after a lost packet, and add pixel noise."""
            torn, first, share, shift = shot.rng.random(4)
            if torn < p["torn_fraction"]:
                height, width = picture.shape[:2]
                start = int(first * 0.6 * height)
                rows = slice(start, start + int((0.2 + 0.5 * share) * height))
                shift_px = round((2.0 * shift - 1.0) * p["tear_fraction"] * width)
                picture = picture.copy()
                picture[rows] = np.roll(picture[rows], shift_px, axis=1)
            return picture + shot.rng.normal(0.0, p["pixel_noise"], picture.shape)


class _CameraDelay(Mechanism):
    # Exposure, USB, decoding: 30 to 100 ms in practice. Held out: what tells causes apart was
    # fitted before there was such a gap.
    dimension, name, held_out = G.SENSOR_NOISE, "camera_delay", True
    parameters = (Parameter("delay_s", "s", 0.0, 2.0, full=0.2),)

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.camera_delay_s += p["delay_s"]


class _CoarseEncoder(Mechanism):
    dimension, name, held_out = G.SENSOR_NOISE, "coarse_encoder", True
    parameters = (Parameter("step_rad", "rad", 0.0, 0.5, full=math.radians(3.2)),)

    def apply(self, p: Values, on: Appliers) -> None:
        on.sensors.step_rad = p["step_rad"]


class _ForceDrift(Mechanism):
    dimension, name, held_out, by_name = G.SENSOR_NOISE, "force_drift", True, True
    parameters = (
        Parameter("drift_n", "N", 0.0, 20.0, full=2.0),
        Parameter("noise_n", "N", 0.0, 10.0, full=0.3, is_exact=True),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        on.sensors.force_drift_n, on.sensors.force_noise_n = p["drift_n"], p["noise_n"]


class _Size(Mechanism):
    dimension, name = G.OBJECT_PROPERTY, "size"
    parameters = (
        Parameter("size_factor", "1", 0.2, 4.0, 1.0),
        Parameter("density_factor", "1", 0.05, 100.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        change = 0.70 if rng.random() < 0.7 else -0.50
        return {"size_factor": 1.0 + change * severity * spread(rng)}

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.scale_object(*[p["size_factor"]] * 3)
        on.model.change_density(p["density_factor"])


class _Elongated(Mechanism):
    dimension, name = G.OBJECT_PROPERTY, "elongated"
    parameters = (
        Parameter("length_factor", "1", 0.2, 4.0, 1.0, full=0.85),
        Parameter("width_factor", "1", 0.2, 4.0, 1.0, full=0.25, is_exact=True),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.scale_object(p["length_factor"], p["width_factor"])


class _Tall(Mechanism):
    dimension, name = G.OBJECT_PROPERTY, "tall"
    parameters = (
        Parameter("height_factor", "1", 0.2, 6.0, 1.0, full=2.2),
        Parameter("com_x_fraction", "1", -1.0, 1.0, full=0.4, either_way=True, is_exact=True),
        Parameter("com_y_fraction", "1", -1.0, 1.0, full=0.4, either_way=True, is_exact=True),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.scale_object(z=p["height_factor"])
        on.model.shift_com(p["com_x_fraction"], p["com_y_fraction"])


class _Round(Mechanism):
    dimension, name, held_out = G.OBJECT_PROPERTY, "round", True
    parameters = (
        Parameter("cylinder", "1", 0.0, 1.0),
        Parameter("size_factor", "1", 0.2, 4.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"cylinder": 1.0, "size_factor": 1.0 + 0.65 * severity * spread(rng)}

    def apply(self, p: Values, on: Appliers) -> None:
        if p["cylinder"] >= 0.5:
            on.model.make_cylinder()
        on.model.scale_object(*[p["size_factor"]] * 3)


class _Similar(Mechanism):
    dimension, name = G.ENVIRONMENTAL_COMPLEXITY, "similar"
    parameters = (
        Parameter("count", "1", 0.0, 12.0),
        Parameter("hue_deg", "deg", -180.0, 180.0),
        Parameter("size_factor", "1", 0.3, 2.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "count": 1 + round(3.0 * severity),
            "hue_deg": 32.0 * (1.0 - severity) * spread(rng),
            "size_factor": 0.8 + 0.45 * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        red, green, blue, alpha = on.model.object_rgba
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        hue = (hue + p["hue_deg"] / 360.0) % 1.0
        rng = on.model.rng(self.key)
        for _ in range(round(p["count"])):
            half_m = OBJECT_HALF_M * p["size_factor"] * float(rng.uniform(0.95, 1.05))
            rgb = colorsys.hsv_to_rgb(hue, saturation * 0.97, value * float(rng.uniform(0.9, 1.0)))
            on.model.add_box((half_m,) * 3, (*rgb, alpha))


class _Clutter(Mechanism):
    dimension, name = G.ENVIRONMENTAL_COMPLEXITY, "clutter"
    parameters = (
        Parameter("count", "1", 0.0, 12.0),
        Parameter("height_m", "m", 0.005, 0.2, 0.025),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "count": 1 + round(6.0 * severity),
            "height_m": 0.025 + 0.03 * severity * spread(rng),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        rng = on.model.rng(self.key)
        for _ in range(round(p["count"])):
            height_m = 0.5 * p["height_m"] * float(rng.uniform(0.7, 1.1))
            half_m = float(rng.uniform(0.010, 0.016))
            on.model.add_box((half_m, half_m, height_m))


class _Occluder(Mechanism):
    dimension, name, held_out = G.ENVIRONMENTAL_COMPLEXITY, "occluder", True
    parameters = (
        Parameter("radius_m", "m", 0.0, 0.5, relative_to="camera"),
        Parameter("azimuth_rad", "rad", -math.pi, math.pi),
        Parameter("radius_from_axis_m", "m", 0.0, 0.6, 0.175),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "radius_m": 0.052 * severity * spread(rng),
            "azimuth_rad": rng.uniform(-0.5, 0.5),
            "radius_from_axis_m": rng.uniform(0.15, 0.20),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        if not p["radius_m"]:
            return
        x, y, low_m = on.model.shade_m(p["azimuth_rad"], p["radius_from_axis_m"])

        @on.model.edit
        def edit(spec: mujoco.MjSpec) -> None:
            lamp = spec.worldbody.add_body(name="occluder")
            for size, pos, kind in (
                ((p["radius_m"] * 0.6, 0.01, 0.0), (x, y, low_m), mujoco.mjtGeom.mjGEOM_CYLINDER),
                ((0.006, 0.20, 0.006), (x, y + 0.20, low_m + 0.015), mujoco.mjtGeom.mjGEOM_BOX),
            ):
                lamp.add_geom(
                    type=kind, size=size, pos=pos, rgba=(0.93, 0.93, 0.90, 1.0),
                    contype=0, conaffinity=0,
                )  # fmt: skip


PERSON_SIDE = Parameter("side_rad", "rad", -math.pi, math.pi)


class _Nudge(Mechanism):
    dimension, name = G.HUMAN_BEHAVIOR, "nudge"
    parameters = (
        PERSON_SIDE,
        Parameter("push_m", "m", 0.0, 0.3, relative_to="object"),
        Parameter("pushes", "1", 1.0, 2.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "side_rad": person_side(rng),
            "push_m": 0.065 * severity * spread(rng),
            "pushes": 1.0 + round(severity),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        def knots(place: Vector, inward: Vector) -> list[hand.Knot]:
            contact = place - inward * (hand.FINGER_REACH_M + 0.02)
            end = contact + inward * (p["push_m"] + 0.005)
            return [
                (contact, hand.SPEED_M_S, hand.PUSH_HEIGHT_M),
                (end, hand.PUSH_SPEED_M_S, hand.PUSH_HEIGHT_M),
            ]

        on.model.hand = hand.HandVisits(p["side_rad"], knots, visits=int(p["pushes"]))


class _ReachIn(Mechanism):
    dimension, name = G.HUMAN_BEHAVIOR, "reach_in"
    parameters = (
        PERSON_SIDE,
        Parameter("stay_s", "s", 0.0, 20.0),
        Parameter("hover_m", "m", 0.02, 0.4, hand.HOVER_HEIGHT_M),
        Parameter("start_s", "s", 0.0, 20.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "side_rad": person_side(rng),
            "stay_s": 2.2 * severity * spread(rng),
            "hover_m": hand.HOVER_HEIGHT_M + 0.09 * (1.0 - severity),  # lower is more in the way
            "start_s": 0.25,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        def knots(place: Vector, inward: Vector) -> list[hand.Knot]:
            return [(place - inward * 0.01, hand.SPEED_M_S, p["hover_m"])]

        on.model.hand = hand.HandVisits(p["side_rad"], knots, p["start_s"], stay_s=p["stay_s"])


class _TakeAway(Mechanism):
    dimension, name, held_out = G.HUMAN_BEHAVIOR, "take", True
    parameters = (
        PERSON_SIDE,
        Parameter("carry_m", "m", 0.0, 0.5, relative_to="object"),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"side_rad": person_side(rng), "carry_m": 0.14 * severity * spread(rng)}

    def apply(self, p: Values, on: Appliers) -> None:
        def knots(place: Vector, inward: Vector) -> list[hand.Knot]:
            grasp = place - inward * hand.FINGER_REACH_M * 0.6
            aside = np.array([-inward[1], inward[0]])
            if (place + aside * 0.05) @ (place + aside * 0.05) > place @ place:
                aside = -aside  # towards the arm, where it can still be reached
            end, low_m = grasp + aside * p["carry_m"], 0.016
            return [
                (grasp, hand.SPEED_M_S, hand.HOVER_HEIGHT_M), (grasp, hand.SPEED_M_S, low_m),
                (end, hand.PUSH_SPEED_M_S, low_m + 0.02), (end, hand.SPEED_M_S, low_m),
                (end, hand.SPEED_M_S, hand.HOVER_HEIGHT_M),
            ]  # fmt: skip

        on.model.hand = hand.HandVisits(p["side_rad"], knots, takes=True)


class _Latency(Mechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "latency"
    parameters = (Parameter("latency_s", "s", 0.0, 2.0, relative_to="period", full=0.26),)

    def apply(self, p: Values, on: Appliers) -> None:
        on.commands.latency_s = p["latency_s"]


class _Backlash(Mechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "backlash"
    parameters = (Parameter("backlash_rad", "rad", 0.0, 0.5, full=math.radians(5.0)),)

    def apply(self, p: Values, on: Appliers) -> None:
        on.commands.play_rad = p["backlash_rad"]


class _Weak(Mechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "weak"
    parameters = (
        Parameter("gain_factor", "1", 1e-3, 10.0, 1.0, factor=0.015),
        Parameter("friction_nm", "N m", 0.0, 3.0, full=0.35),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change_servos
        def weaken(model: mujoco.MjModel, servo: int, dof: int, stronger: float) -> None:
            model.actuator_gainprm[servo, 0] *= p["gain_factor"]
            model.actuator_biasprm[servo, 1] *= p["gain_factor"]
            model.dof_frictionloss[dof] += p["friction_nm"] * stronger


class _Slow(Mechanism):
    dimension, name, held_out = G.ACTUATOR_RESPONSE, "slow", True
    parameters = (Parameter("speed_limit_rad_s", "rad/s", 0.05, math.inf, math.inf),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"speed_limit_rad_s": 4.0 * 0.11 ** (severity * spread(rng))}

    def apply(self, p: Values, on: Appliers) -> None:
        on.commands.speed_limit_rad_s = p["speed_limit_rad_s"]


class _Heat(Mechanism):
    # Nothing is seen of it in a single take: it is drawn where it is named.
    dimension, name, held_out, by_name = G.ACTUATOR_RESPONSE, "heat", True, True
    parameters = (
        Parameter("rise_c", "°C", 0.0, 60.0, full=30.0),
        Parameter("after_s", "s", 1.0, 1e5, 60.0),
        Parameter("latency_s", "s", 0.0, 2.0, relative_to="period", full=0.08),
        Parameter("friction_nm", "N m", 0.0, 3.0, full=0.02),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        on.commands.heat = Heat(**p)


class _LostGoals(Mechanism):
    # Drawn where it is named: orders of stations were committed before there was such a gap.
    dimension, name, held_out, by_name = G.ACTUATOR_RESPONSE, "lost_goals", True, True
    parameters = tuple(
        replace(p, name=f"{joint}.{p.name}")
        for joint in JOINTS
        for p in (
            Parameter("lost_fraction", "1", 0.0, 0.95),
            Parameter("lost_s", "s", 0.01, 30.0, 0.4),
        )
    )

    def parameter(self, name: str) -> Parameter:
        """Return one of its parameters; joints are called as in anybody's model."""
        _, dot, quantity = name.rpartition(".")
        return replace(super().parameter(f"{JOINTS[0]}{dot}{quantity}"), name=name)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        joint = str(rng.choice(JOINTS[:4]))  # not the roll, which a cube hardly asks for
        share = 0.7 * severity * spread(rng)
        return {f"{joint}.lost_fraction": share, f"{joint}.lost_s": 0.1 + 0.9 * severity}

    def apply(self, p: Values, on: Appliers) -> None:
        of = {key.rpartition(".")[0]: v for key, v in p.items() if v and key.endswith("_fraction")}
        names, lost = on.model.goal_joints(), list[tuple[int, float, float]]()
        for joint, share in of.items():
            lasts_s = p.get(f"{joint}.lost_s", self.parameter(f"{joint}.lost_s").nominal)
            # A joint of one arm is that of both of a pair.
            mine = [k for k, n in enumerate(names) if joint in (n, n.partition("_")[2])]
            lost += [(k, share, lasts_s) for k in mine]
            if not mine:
                raise UnavailableError(f"no joint of its arm is called {joint}")
        means_s = [(s * (1.0 / share - 1.0), s) for _, share, s in lost]

        def losing(rng: Rng) -> Callable[[float, Vector, Vector], None]:
            """Joints that miss their goals for a time, time and again, whatever came before."""
            deaf = [rng.random() < share for _, share, _ in lost]
            until_s = [rng.exponential(s[now]) for s, now in zip(means_s, deaf, strict=True)]

            def lose(t_s: float, goal_rad: Vector, before_rad: Vector) -> None:
                for n, (k, *_) in enumerate(lost):
                    while t_s >= until_s[n]:
                        deaf[n] = not deaf[n]
                        until_s[n] += rng.exponential(means_s[n][deaf[n]])
                    if deaf[n]:
                        goal_rad[k] = before_rad[k]

            return lose

        if lost:
            on.commands.faults[self.key] = losing


class _CameraPose(Mechanism):
    dimension, name = G.SPATIAL_GEOMETRY, "camera_pose"
    parameters = (
        *(Parameter(f"d{axis}_m", "m", -0.6, 0.6, relative_to="camera") for axis in "xyz"),
        *(Parameter(f"d{turn}_rad", "rad", -0.6, 0.6) for turn in ("roll", "pitch", "yaw")),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        angle = rng.uniform(0.0, 2.0 * np.pi)
        shift_m = 0.022 * severity * spread(rng)
        return {
            "dx_m": shift_m * np.cos(angle),
            "dy_m": shift_m * np.sin(angle),
            "dz_m": sign(rng) * 0.015 * severity,
            "dyaw_rad": sign(rng) * np.radians(4.0) * severity * spread(rng),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        turn_rad = (p["droll_rad"], p["dpitch_rad"], p["dyaw_rad"])
        on.model.move_camera((p["dx_m"], p["dy_m"], p["dz_m"], *turn_rad))


class _TableHeight(Mechanism):
    dimension, name = G.SPATIAL_GEOMETRY, "table_height"
    parameters = (Parameter("table_m", "m", -0.1, 0.1, relative_to="object"),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        height_m = 0.016 if rng.random() < 0.5 else -0.020
        return {"table_m": height_m * severity * spread(rng)}

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.move_table(p["table_m"])


class _ZeroOffset(Mechanism):
    dimension, name, held_out = G.SPATIAL_GEOMETRY, "zero_offset", True
    parameters = tuple(
        Parameter(f"{joint}_rad", "rad", -0.5, 0.5, full=math.radians(most_deg), either_way=True)
        for joint, most_deg in (
            ("pan", 5.0), ("lift", 2.5), ("elbow", 2.5), ("wrist", 3.0), ("roll", 5.0)
        )
    )  # fmt: skip

    def apply(self, p: Values, on: Appliers) -> None:
        if not any(on.sensors.zero_keys):
            raise UnavailableError("no turning joints of its arm are known")
        on.sensors.zero_rad += [p.get(key or "", 0.0) for key in on.sensors.zero_keys]


class _Tolerance(Mechanism):
    dimension, name = G.TASK_SPECIFICATION, "tolerance"
    parameters = (Parameter("tolerance_factor", "1", 0.01, 10.0, 1.0, factor=0.14),)

    def apply(self, p: Values, on: Appliers) -> None:
        wanted = on.model.criterion
        factor = wanted.tolerance_factor * p["tolerance_factor"]
        on.model.criterion = replace(wanted, tolerance_factor=factor)


class _GoalOffset(Mechanism):
    dimension, name = G.TASK_SPECIFICATION, "goal_offset"
    parameters = (
        Parameter("goal_dx_m", "m", -0.3, 0.3, relative_to="object"),
        Parameter("goal_dy_m", "m", -0.3, 0.3, relative_to="object"),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        angle = rng.uniform(0.0, 2.0 * np.pi)
        offset_m = 0.026 * severity * spread(rng)
        return {"goal_dx_m": offset_m * np.cos(angle), "goal_dy_m": offset_m * np.sin(angle)}

    def apply(self, p: Values, on: Appliers) -> None:
        offset_m = (p["goal_dx_m"], p["goal_dy_m"])
        on.model.criterion = replace(on.model.criterion, goal_offset_m=offset_m)


class _Alignment(Mechanism):
    dimension, name, held_out = G.TASK_SPECIFICATION, "alignment", True
    parameters = (
        Parameter("yaw_tolerance_rad", "rad", 0.01, FULL_SQUARE_RAD, FULL_SQUARE_RAD, factor=0.13),
    )

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.criterion = replace(on.model.criterion, **p)


MECHANISMS: tuple[Mechanism, ...] = (
    _Slippery(), _Soft(), _Sticky(),
    _Exposure(), _ColourCast(), _Blur(), _Lens(),
    _EncoderDrift(), _StaleReads(), _TornFrames(), _CameraDelay(), _CoarseEncoder(),
    _ForceDrift(),
    _Size(), _Elongated(), _Tall(), _Round(),
    _Similar(), _Clutter(), _Occluder(),
    _Nudge(), _ReachIn(), _TakeAway(),
    _Latency(), _Backlash(), _Weak(), _Slow(), _Heat(), _LostGoals(),
    _CameraPose(), _TableHeight(), _ZeroOffset(),
    _Tolerance(), _GoalOffset(), _Alignment(),
)  # fmt: skip
