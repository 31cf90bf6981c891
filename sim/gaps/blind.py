"""Mechanisms that nobody who diagnoses was told of.

Whatever names causes is written and tuned on `mechanisms`; these are for asking afterwards how it
does on a cause that it was not made for. They are drawn only by name or with `held_out="blind"`.
What each stands for is in docs/gaps.md.
"""

from __future__ import annotations

import numpy as np

from gaploop.core.vocabulary import GapDimension as G
from gaploop.sim.gaps.mechanisms import Draw, Mechanism, Parameters, person_side, sign, spread


def _slick_table(s: float, rng: np.random.Generator) -> Parameters:
    return {"table_friction_factor": float(0.015 ** (s * spread(rng)))}


def _glare(s: float, rng: np.random.Generator) -> Parameters:
    # In units of half the picture, about the middle of the workspace.
    return {
        "glare_x": float(rng.uniform(-0.2, 0.2)),
        "glare_y": 0.05 + float(rng.uniform(-0.2, 0.2)),
        "glare_radius": 0.38 * s**1.5 * spread(rng),
        "glare_level": 420.0 * s,
    }


def _banding(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "band_depth": 0.97 * s,
        "bands": float(rng.uniform(1.3, 2.2)),  # 20 ms of readout under lamps at 100 Hz
        "band_drift_hz": sign(rng) * float(rng.uniform(0.02, 0.10)),
        "band_tint_rad": sign(rng) * 0.4 * s * spread(rng),  # phosphors afterglow unequally
    }


def _encoder_spikes(s: float, rng: np.random.Generator) -> Parameters:
    return {"spike_hz": 4.0 * s * spread(rng), "spike_rad": np.radians(30.0) * s}


def _dead_rows(s: float, rng: np.random.Generator) -> Parameters:
    # Wider and denser groups; in units of the picture's height.
    period = 0.09 + 0.30 * (1.0 - s)
    return {
        "dead_period_fraction": period,
        "dead_fraction": 0.03 * s * spread(rng) / period,
        "dead_phase": float(rng.uniform(0.0, 1.0)),
    }


def _flat(s: float, rng: np.random.Generator) -> Parameters:
    return {"height_factor": 1.0 - 0.70 * s * spread(rng)}


def _l_shaped(s: float, rng: np.random.Generator) -> Parameters:
    return {"leg_m": 0.034 * s * spread(rng), "leg_side": sign(rng)}


def _posts(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "post_height_m": 0.03 + 0.13 * s * spread(rng),
        "post_shift_m": float(rng.uniform(-0.008, 0.008)),
        "post_side": sign(rng),
    }


def _cover_target(s: float, rng: np.random.Generator) -> Parameters:
    # From fingers that end beside the disc to a palm on it.
    return {
        "side_rad": person_side(rng),
        "cover_m": -0.06 + 0.10 * s * spread(rng),
        "stay_s": 4.0 * s,
    }


def _bump_arm(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "side_rad": person_side(rng),
        "bump_m": 0.16 * s * spread(rng),
        "pushes": 1.0 + round(s),
        "start_s": 0.4,
    }


def _torque_limit(s: float, rng: np.random.Generator) -> Parameters:
    return {"torque_factor": float(0.14 ** (s * spread(rng)))}


def _deaf_joint(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "deaf_joint": float(rng.integers(4)),  # pan, lift, elbow or wrist_flex
        "deaf_fraction": min(0.75 * s * spread(rng), 0.9),
        "deaf_s": 0.2 + 1.2 * s,
    }


def _base_moved(s: float, rng: np.random.Generator) -> Parameters:
    angle = float(rng.uniform(0.0, 2.0 * np.pi))
    shift_m = 0.014 * s * spread(rng)
    return {
        "base_dx_m": float(shift_m * np.cos(angle)),
        "base_dy_m": float(shift_m * np.sin(angle)),
        "base_pitch_rad": sign(rng) * np.radians(2.2) * s * spread(rng),
        "base_roll_rad": sign(rng) * np.radians(2.2) * s * spread(rng),
    }


def _bent_gripper(s: float, rng: np.random.Generator) -> Parameters:
    angle = float(rng.uniform(0.0, 2.0 * np.pi))
    bend_rad = np.radians(9.0) * s * spread(rng)
    return {
        "bend_x_rad": float(bend_rad * np.cos(angle)),
        "bend_y_rad": float(bend_rad * np.sin(angle)),
    }


def _deadline(s: float, rng: np.random.Generator) -> Parameters:
    return {"deadline_s": float(8.0 * 0.36 ** (s * spread(rng)))}


def _keep_clear(s: float, rng: np.random.Generator) -> Parameters:
    return {"clearance_m": 0.075 * s * spread(rng)}


def _blind(dimension: G, name: str, says: str, draw: Draw) -> Mechanism:
    return Mechanism(dimension, name, True, says, draw, blind=True)


BLIND_MECHANISMS: tuple[Mechanism, ...] = (
    _blind(G.CONTACT_DYNAMICS, "slick_table", "table friction / 70", _slick_table),
    _blind(G.VISUAL_DOMAIN, "glare", "a reflection of 8 cm radius", _glare),
    _blind(G.VISUAL_DOMAIN, "banding", "lamp flicker: bands 97 % darker", _banding),
    _blind(G.SENSOR_NOISE, "encoder_spikes", "4 jumps of 30 deg a second", _encoder_spikes),
    _blind(G.SENSOR_NOISE, "dead_rows", "a third of the picture's rows are dead", _dead_rows),
    _blind(G.OBJECT_PROPERTY, "flat", "a tile of 7.5 mm", _flat),
    _blind(G.OBJECT_PROPERTY, "l_shaped", "an L with a leg of 34 mm", _l_shaped),
    _blind(G.ENVIRONMENTAL_COMPLEXITY, "posts", "two fixed posts of 16 cm", _posts),
    _blind(G.HUMAN_BEHAVIOR, "cover_target", "a hand lies on the target for 4 s", _cover_target),
    _blind(G.HUMAN_BEHAVIOR, "bump_arm", "pushes the arm 16 cm aside, twice", _bump_arm),
    _blind(G.ACTUATOR_RESPONSE, "torque_limit", "torque limited to 0.4 N m", _torque_limit),
    _blind(G.ACTUATOR_RESPONSE, "deaf_joint", "a joint misses goals 75 % of the time", _deaf_joint),
    _blind(G.SPATIAL_GEOMETRY, "base_moved", "base off by 14 mm, tilted by 2.2 deg", _base_moved),
    _blind(G.SPATIAL_GEOMETRY, "bent_gripper", "gripper bent by 9 deg", _bent_gripper),
    _blind(G.TASK_SPECIFICATION, "deadline", "done within 2.9 s", _deadline),
    _blind(G.TASK_SPECIFICATION, "keep_clear", "tool 75 mm away at the end", _keep_clear),
)
