"""Mechanisms that nobody who diagnoses was told of: `--robot.gaps_module=benchmarks.blind_gaps`.

Whatever names causes is written and tuned on `gaploop.sim.gaps.mechanisms`; these are for asking
afterwards how it does on a cause that it was not made for. They are drawn only by name or with
`held_out="blind"`. What each stands for is in docs/diagnose/gaps.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import mujoco
import numpy as np

from gaploop.core.vocabulary import GapDimension as G
from gaploop.sim import conditions
from gaploop.sim.gaps.mechanism import (
    HORIZON_S,
    Appliers,
    ImageStage,
    Mechanism,
    Parameter,
    Rng,
    Shot,
    Values,
    Vector,
    person_side,
    sign,
    spread,
)
from gaploop.sim.gaps.mechanisms import PERSON_SIDE, Picture
from gaploop.sim.hand import (
    FINGER_REACH_M,
    HOVER_HEIGHT_M,
    PUSH_SPEED_M_S,
    SPEED_M_S,
    HandVisits,
    Knot,
)

LYING_HEIGHT_M = 0.004
ARM_HEIGHT_M = 0.075  # of the gripper's body while it grasps or carries
POST_RADIUS_M = 0.010
POST_RGBA: conditions.Rgba = (0.30, 0.31, 0.33, 1.0)
DEAD_LEVEL = 12.0  # of a row that is not read out: black level and a little noise
SPIKE_S = (0.03, 0.09)  # from a few wrong readings to one that a servo acts upon


def turn_body(model: mujoco.MjModel, name: str, xyz_rad: Sequence[float]) -> None:
    """Turn a body of a compiled model about its own axes [rad], shape (3,), in place."""
    turn, quat = np.zeros(4), np.zeros(4)
    mujoco.mju_euler2Quat(turn, np.asarray(xyz_rad), "xyz")
    mujoco.mju_mulQuat(quat, model.body(name).quat, turn)
    model.body(name).quat[:] = quat


class BlindMechanism(Mechanism):
    """A mechanism that is held out even from those who diagnose."""

    held_out = blind = True


class _SlickTable(BlindMechanism):
    dimension, name = G.CONTACT_DYNAMICS, "slick_table"
    parameters = (Parameter("table_friction_factor", "1", 1e-3, 10.0, 1.0),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"table_friction_factor": 0.015 ** (severity * spread(rng))}

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            table = model.geom("table")
            table.friction[:] *= p["table_friction_factor"]
            table.condim[:] = 4
            table.priority[:] = 1  # over the object; otherwise the rougher of two surfaces counts


class _Glare(BlindMechanism):
    dimension, name = G.VISUAL_DOMAIN, "glare"
    # In units of half the picture, about the middle of the workspace.
    parameters = (
        Parameter("glare_x", "1", -1.0, 1.0),
        Parameter("glare_y", "1", -1.0, 1.0),
        Parameter("glare_radius", "1", 1e-4, 2.0, 0.38),
        Parameter("glare_level", "1", 0.0, 1000.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "glare_x": rng.uniform(-0.2, 0.2),
            "glare_y": 0.05 + rng.uniform(-0.2, 0.2),
            "glare_radius": 0.38 * severity**1.5 * spread(rng),
            "glare_level": 420.0 * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.REFLECTION)
        def shine(picture: Picture, shot: Shot) -> Picture:
            squared = (shot.x - p["glare_x"]) ** 2 + (shot.y - p["glare_y"]) ** 2
            spot = np.exp(-((squared / p["glare_radius"] ** 2) ** 2))  # flat within, soft edge
            return picture + p["glare_level"] * spot[..., None]


class _Banding(BlindMechanism):
    dimension, name = G.VISUAL_DOMAIN, "banding"
    parameters = (
        Parameter("band_depth", "1", 0.0, 1.0),
        Parameter("bands", "1", 0.1, 20.0, 1.75),
        Parameter("band_drift_hz", "Hz", -5.0, 5.0),
        Parameter("band_tint_rad", "rad", -math.pi, math.pi),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "band_depth": 0.97 * severity,
            "bands": rng.uniform(1.3, 2.2),  # 20 ms of readout under lamps at 100 Hz
            "band_drift_hz": sign(rng) * rng.uniform(0.02, 0.10),
            # Phosphors afterglow unequally.
            "band_tint_rad": sign(rng) * 0.4 * severity * spread(rng),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.FLICKER)
        def flicker(picture: Picture, shot: Shot) -> Picture:
            drift = 2.0 * np.pi * p["band_drift_hz"] * shot.t_s
            phase = np.pi * p["bands"] * shot.y + shot.take_phase_rad + drift
            tint = p["band_tint_rad"] * np.array([-1.0, 0.0, 1.0])
            bright = 0.5 + 0.5 * np.cos(phase[..., None] + tint)
            return picture * (1.0 - p["band_depth"] * (1.0 - bright))


class _EncoderSpikes(BlindMechanism):
    dimension, name = G.SENSOR_NOISE, "encoder_spikes"
    parameters = (
        Parameter("spike_hz", "Hz", 0.0, 50.0),
        Parameter("spike_rad", "rad", 0.0, math.pi),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "spike_hz": 4.0 * severity * spread(rng),
            "spike_rad": np.radians(30.0) * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        def spiking(rng: Rng, n_joints: int) -> Callable[[Vector, float], None]:
            """False readings of single joints."""
            count = int(HORIZON_S * p["spike_hz"])
            start_s = np.cumsum(rng.exponential(1.0 / max(p["spike_hz"], 1e-9), count))
            joint = rng.integers(0, n_joints - 1, count)
            jumps = rng.choice([-1.0, 1.0], count) * rng.uniform(0.4, 1.0, count)
            by_rad = p["spike_rad"] * jumps
            end_s = start_s + rng.uniform(*SPIKE_S, count)

            def add(offset_rad: Vector, t_s: float) -> None:
                now = (start_s <= t_s) & (t_s < end_s)
                np.add.at(offset_rad, joint[now], by_rad[now])

            return add

        on.sensors.faults[self.key] = spiking


class _DeadRows(BlindMechanism):
    dimension, name = G.SENSOR_NOISE, "dead_rows"
    # In units of the picture's height.
    parameters = (
        Parameter("dead_period_fraction", "1", 0.01, 1.0, 0.09),
        Parameter("dead_fraction", "1", 0.0, 1.0),
        Parameter("dead_phase", "1", 0.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        period = 0.09 + 0.30 * (1.0 - severity)  # wider and denser groups
        return {
            "dead_period_fraction": period,
            "dead_fraction": 0.03 * severity * spread(rng) / period,
            "dead_phase": rng.uniform(0.0, 1.0),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        @on.images.at(ImageStage.READOUT)
        def lose_rows(picture: Picture, _shot: Shot) -> Picture:
            rows = (np.arange(len(picture)) + 0.5) / len(picture)
            place = (rows / p["dead_period_fraction"] + p["dead_phase"]) % 1.0
            picture = picture.copy()
            picture[place < p["dead_fraction"]] = DEAD_LEVEL
            return picture


class _Flat(BlindMechanism):
    dimension, name = G.OBJECT_PROPERTY, "flat"
    parameters = (Parameter("height_factor", "1", 0.1, 6.0, 1.0),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"height_factor": 1.0 - 0.70 * severity * spread(rng)}

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.scale_object(z=p["height_factor"])


class _LShaped(BlindMechanism):
    dimension, name = G.OBJECT_PROPERTY, "l_shaped"
    parameters = (
        Parameter("leg_m", "m", 0.0, 0.1),
        Parameter("leg_side", "1", -1.0, 1.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"leg_m": 0.034 * severity * spread(rng), "leg_side": sign(rng)}

    def apply(self, p: Values, on: Appliers) -> None:
        if not p["leg_m"]:
            return

        @on.model.edit
        def edit(spec: mujoco.MjSpec) -> None:
            """A bar along the object's x axis, flush with one side."""
            long_m = 0.5 * p["leg_m"]
            x_m, y_m, z_m = on.model.options.thing.half_size_m
            spec.body("object").add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX, size=[long_m, 0.5 * y_m, z_m],
                pos=[x_m + long_m, p["leg_side"] * 0.5 * y_m, 0.0],
                rgba=conditions.OBJECT_RGBA, condim=4, friction=[1.0, 0.005, 0.0001],
                mass=0.0,
            )  # fmt: skip


class _Posts(BlindMechanism):
    dimension, name = G.ENVIRONMENTAL_COMPLEXITY, "posts"
    parameters = (
        Parameter("post_height_m", "m", 0.0, 0.5),
        Parameter("post_shift_m", "m", -0.05, 0.05),
        Parameter("post_side", "1", -1.0, 1.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "post_height_m": 0.03 + 0.13 * severity * spread(rng),
            "post_shift_m": rng.uniform(-0.008, 0.008),
            "post_side": sign(rng),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        """Fixed posts where nothing starts: inside the ring of places, and beside it."""
        if not p["post_height_m"]:
            return
        half_m = 0.5 * p["post_height_m"]
        middle_m = on.model.arm.spawn_centre_m[0]
        places = ((middle_m + p["post_shift_m"], 0.0), (middle_m - 0.03, p["post_side"] * 0.105))

        @on.model.edit
        def edit(spec: mujoco.MjSpec) -> None:
            for x, y in places:
                spec.body("table").add_geom(
                    type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[POST_RADIUS_M, half_m, 0.0],
                    pos=[x, y, half_m], rgba=POST_RGBA,
                )  # fmt: skip


class _CoverTarget(BlindMechanism):
    dimension, name = G.HUMAN_BEHAVIOR, "cover_target"
    parameters = (
        PERSON_SIDE,
        Parameter("cover_m", "m", -0.1, 0.2, -0.06),
        Parameter("stay_s", "s", 0.0, 20.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        # From fingers that end beside the disc to a palm on it.
        return {
            "side_rad": person_side(rng),
            "cover_m": -0.06 + 0.10 * severity * spread(rng),
            "stay_s": 4.0 * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        def knots(place: Vector, inward: Vector) -> list[Knot]:
            at = place - inward * (FINGER_REACH_M - p["cover_m"])
            return [(at, SPEED_M_S, HOVER_HEIGHT_M), (at, PUSH_SPEED_M_S, LYING_HEIGHT_M)]

        on.model.hand = HandVisits(p["side_rad"], knots, stay_s=p["stay_s"], of_target=0)


class _BumpArm(BlindMechanism):
    dimension, name = G.HUMAN_BEHAVIOR, "bump_arm"
    parameters = (
        PERSON_SIDE,
        Parameter("bump_m", "m", 0.0, 0.5),
        Parameter("pushes", "1", 1.0, 2.0, 1.0),
        Parameter("start_s", "s", 0.0, 20.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "side_rad": person_side(rng),
            "bump_m": 0.16 * severity * spread(rng),
            "pushes": 1.0 + round(severity),
            "start_s": 0.4,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        def knots(place: Vector, inward: Vector) -> list[Knot]:
            contact = place - inward * (FINGER_REACH_M + 0.03)
            end = contact + inward * (p["bump_m"] + 0.03)
            return [(contact, SPEED_M_S, ARM_HEIGHT_M), (end, SPEED_M_S, ARM_HEIGHT_M)]

        # First where the arm grasps, then where it will be by the second time.
        visits = int(p["pushes"])
        on.model.hand = HandVisits(p["side_rad"], knots, p["start_s"], visits, of_target=1)


class _TorqueLimit(BlindMechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "torque_limit"
    parameters = (Parameter("torque_factor", "1", 0.01, 5.0, 1.0),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"torque_factor": 0.14 ** (severity * spread(rng))}

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change_servos
        def limit(model: mujoco.MjModel, servo: int, _dof: int, _stronger: float) -> None:
            model.actuator_forcerange[servo] *= p["torque_factor"]


class _DeafJoint(BlindMechanism):
    dimension, name = G.ACTUATOR_RESPONSE, "deaf_joint"
    parameters = (
        Parameter("deaf_joint", "1", 0.0, 3.0),
        Parameter("deaf_fraction", "1", 0.0, 0.95),
        Parameter("deaf_s", "s", 0.01, 10.0, 0.2),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {
            "deaf_joint": float(rng.integers(4)),  # pan, lift, elbow or wrist_flex
            "deaf_fraction": min(0.75 * severity * spread(rng), 0.9),
            "deaf_s": 0.2 + 1.2 * severity,
        }

    def apply(self, p: Values, on: Appliers) -> None:
        if p["deaf_fraction"]:
            pair = on.model.arm
            joints = [pair.columns(side).start + int(p["deaf_joint"]) for side in pair.arms]
            heard_s = p["deaf_s"] * (1.0 / p["deaf_fraction"] - 1.0)

            def missing(rng: Rng) -> Callable[[float, Vector, Vector], None]:
                """A joint that misses its goals, time and again; of a pair the same of both."""
                deaf, until_s = bool(rng.random() < 0.5), 0.0

                def lose(t_s: float, goal_rad: Vector, before_rad: Vector) -> None:
                    nonlocal deaf, until_s
                    while t_s >= until_s:
                        deaf = not deaf
                        typical_s = p["deaf_s"] if deaf else heard_s
                        until_s += typical_s * float(rng.uniform(0.5, 1.5))
                    if deaf:
                        goal_rad[joints] = before_rad[joints]

                return lose

            on.commands.faults[self.key] = missing


class _BaseMoved(BlindMechanism):
    dimension, name = G.SPATIAL_GEOMETRY, "base_moved"
    parameters = (
        Parameter("base_dx_m", "m", -0.3, 0.3),
        Parameter("base_dy_m", "m", -0.3, 0.3),
        Parameter("base_pitch_rad", "rad", -0.5, 0.5),
        Parameter("base_roll_rad", "rad", -0.5, 0.5),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        angle = rng.uniform(0.0, 2.0 * np.pi)
        shift_m = 0.014 * severity * spread(rng)
        return {
            "base_dx_m": shift_m * np.cos(angle),
            "base_dy_m": shift_m * np.sin(angle),
            "base_pitch_rad": sign(rng) * np.radians(2.2) * severity * spread(rng),
            "base_roll_rad": sign(rng) * np.radians(2.2) * severity * spread(rng),
        }

    def apply(self, p: Values, on: Appliers) -> None:
        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            for base in on.model.bodies("base"):
                model.body(base).pos[:2] += (p["base_dx_m"], p["base_dy_m"])
                turn_body(model, base, (p["base_roll_rad"], p["base_pitch_rad"], 0.0))


class _BentGripper(BlindMechanism):
    dimension, name = G.SPATIAL_GEOMETRY, "bent_gripper"
    parameters = (
        Parameter("bend_x_rad", "rad", -1.0, 1.0),
        Parameter("bend_y_rad", "rad", -1.0, 1.0),
    )

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        angle = rng.uniform(0.0, 2.0 * np.pi)
        bend_rad = np.radians(9.0) * severity * spread(rng)
        return {"bend_x_rad": bend_rad * np.cos(angle), "bend_y_rad": bend_rad * np.sin(angle)}

    def apply(self, p: Values, on: Appliers) -> None:
        bend_rad = (p["bend_x_rad"], p["bend_y_rad"], 0.0)

        @on.model.change
        def change(model: mujoco.MjModel) -> None:
            for hand in on.model.bodies("gripper"):
                turn_body(model, hand, bend_rad)


class _Deadline(BlindMechanism):
    dimension, name = G.TASK_SPECIFICATION, "deadline"
    parameters = (Parameter("deadline_s", "s", 0.1, math.inf, math.inf),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"deadline_s": 8.0 * 0.36 ** (severity * spread(rng))}

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.criterion = replace(on.model.criterion, deadline_s=p["deadline_s"])


class _KeepClear(BlindMechanism):
    dimension, name = G.TASK_SPECIFICATION, "keep_clear"
    parameters = (Parameter("clearance_m", "m", 0.0, 0.5),)

    def draw(self, rng: Rng, severity: float) -> dict[str, float]:
        return {"clearance_m": 0.075 * severity * spread(rng)}

    def apply(self, p: Values, on: Appliers) -> None:
        on.model.criterion = replace(on.model.criterion, clearance_m=p["clearance_m"])


MECHANISMS: tuple[Mechanism, ...] = (
    _SlickTable(), _Glare(), _Banding(), _EncoderSpikes(), _DeadRows(), _Flat(), _LShaped(),
    _Posts(), _CoverTarget(), _BumpArm(), _TorqueLimit(), _DeafJoint(), _BaseMoved(),
    _BentGripper(), _Deadline(), _KeepClear(),
)  # fmt: skip
