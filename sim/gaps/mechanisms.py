"""What each gap mechanism is and how a severity becomes physical quantities.

Severity 1 is a bad cell that one could meet, not a broken one; docs/gaps.md has what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gaploop.core.vocabulary import GapDimension

Parameters = dict[str, float]
Draw = Callable[[float, np.random.Generator], Parameters]


@dataclass(frozen=True)
class Mechanism:
    """One way in which a dimension differs.

    Attributes:
        dimension: what it belongs to.
        name: short name, unique within the dimension.
        held_out: kept out of everything that is trained, for honest tests.
        says: what severity 1 means, with units.
        draw: severity in (0, 1] and a generator to parameters.
        blind: held out, and nobody who diagnoses was told of it.
    """

    dimension: GapDimension
    name: str
    held_out: bool
    says: str
    draw: Draw
    blind: bool = False


def sign(rng: np.random.Generator) -> float:
    """Draw one of two opposite directions: -1 or 1."""
    return -1.0 if rng.random() < 0.5 else 1.0


def spread(rng: np.random.Generator) -> float:
    """A factor that makes stations of equal severity differ a little."""
    return float(rng.uniform(0.9, 1.1))


def _slippery(s: float, rng: np.random.Generator) -> Parameters:
    # The cube weighs 0.1 N and the jaws press with 16 N, so it slips only when friction is far
    # lower than that of any real pad; the factor stands for poor pads on a heavier object.
    return {"friction_factor": float(0.004 ** (s * spread(rng)))}


def _soft(s: float, rng: np.random.Generator) -> Parameters:
    return {"time_constant_factor": 1.0 + 2.0 * s * spread(rng), "slip_creep": 0.8 * s**2}


def _sticky(s: float, rng: np.random.Generator) -> Parameters:
    return {"adhesion_n": 4.0 * s * spread(rng)}


def _exposure(s: float, rng: np.random.Generator) -> Parameters:
    dark = rng.random() < 0.5
    stops = -1.95 * s if dark else 1.8 * s
    gamma = 1.0 + (0.2 if dark else -0.15) * s
    return {"gain": float(2.0 ** (stops * spread(rng))), "gamma": gamma}


def _cast(s: float, rng: np.random.Generator) -> Parameters:
    # Directions on the colour circle: tungsten, old fluorescent tubes, blue daylight.
    angle = float(rng.choice([0.5, 2.1, 3.9]) + rng.normal(0.0, 0.2))
    return {"cast_hue_rad": angle, "cast_strength": 0.45 * s * spread(rng), "veil": 0.25 * s}


def _blur(s: float, rng: np.random.Generator) -> Parameters:
    return {"defocus_fraction": 0.055 * s * spread(rng)}


def _vignette(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "vignette": 0.75 * s,
        "distortion": sign(rng) * 0.45 * s * spread(rng),
    }


def _encoder_drift(s: float, rng: np.random.Generator) -> Parameters:
    return {"drift_rad": np.radians(3.0) * s * spread(rng), "noise_rad": np.radians(0.5) * s}


def _stale_reads(s: float, rng: np.random.Generator) -> Parameters:
    return {"stale_fraction": min(0.8 * s * spread(rng), 0.9), "burst_s": 0.02 + 0.58 * s}


def _torn_frames(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "torn_fraction": min(0.7 * s * spread(rng), 0.9),
        "tear_fraction": 0.05 + 0.15 * s,
        "pixel_noise": 30.0 * s,
    }


def _coarse_encoder(s: float, rng: np.random.Generator) -> Parameters:
    return {"step_rad": float(np.radians(3.2) * s * spread(rng))}


def _size(s: float, rng: np.random.Generator) -> Parameters:
    larger = rng.random() < 0.7
    factor = 1.0 + 0.70 * s * spread(rng) if larger else 1.0 - 0.50 * s * spread(rng)
    return {"size_factor": float(factor)}


def _elongated(s: float, rng: np.random.Generator) -> Parameters:
    return {"length_factor": 1.0 + 0.85 * s * spread(rng), "width_factor": 1.0 + 0.25 * s}


def _tall(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "height_factor": 1.0 + 2.2 * s * spread(rng),
        "com_x_fraction": sign(rng) * 0.4 * s,
        "com_y_fraction": sign(rng) * 0.4 * s,
    }


def _round(s: float, rng: np.random.Generator) -> Parameters:
    return {"cylinder": 1.0, "size_factor": 1.0 + 0.65 * s * spread(rng)}


def _similar(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "count": float(1 + round(3.0 * s)),
        "hue_deg": 32.0 * (1.0 - s) * spread(rng),
        "size_factor": 0.8 + 0.45 * s,
    }


def _occluder(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "radius_m": 0.052 * s * spread(rng),
        "azimuth_rad": float(rng.uniform(-0.5, 0.5)),
        "radius_from_axis_m": float(rng.uniform(0.15, 0.20)),
    }


def _clutter(s: float, rng: np.random.Generator) -> Parameters:
    return {"count": float(1 + round(6.0 * s)), "height_m": 0.025 + 0.03 * s * spread(rng)}


def _reach_in(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "side_rad": person_side(rng),
        "stay_s": 2.2 * s * spread(rng),
        "hover_m": 0.085 + 0.09 * (1.0 - s),  # lower is more in the way
        "start_s": 0.25,
    }


def _nudge(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "side_rad": person_side(rng),
        "push_m": 0.065 * s * spread(rng),
        "pushes": 1.0 + round(s),
    }


def _take(s: float, rng: np.random.Generator) -> Parameters:
    return {"side_rad": person_side(rng), "carry_m": 0.14 * s * spread(rng)}


def person_side(rng: np.random.Generator) -> float:
    """Where the person stands [rad]: in front of the arm or to either side."""
    return float(rng.choice([-1.2, -0.6, 0.0, 0.6, 1.2]) + rng.normal(0.0, 0.15))


def _latency(s: float, rng: np.random.Generator) -> Parameters:
    return {"latency_s": 0.26 * s * spread(rng)}


def _backlash(s: float, rng: np.random.Generator) -> Parameters:
    return {"backlash_rad": np.radians(5.0) * s * spread(rng)}


def _weak(s: float, rng: np.random.Generator) -> Parameters:
    return {
        "gain_factor": float(0.015 ** (s * spread(rng))),
        "friction_nm": 0.35 * s * spread(rng),
    }


def _slow(s: float, rng: np.random.Generator) -> Parameters:
    return {"speed_limit_rad_s": float(4.0 * (0.11 ** (s * spread(rng))))}


def _camera_pose(s: float, rng: np.random.Generator) -> Parameters:
    angle = float(rng.uniform(0.0, 2.0 * np.pi))
    shift_m = 0.022 * s * spread(rng)
    return {
        "dx_m": float(shift_m * np.cos(angle)),
        "dy_m": float(shift_m * np.sin(angle)),
        "dz_m": sign(rng) * 0.015 * s,
        "dyaw_rad": sign(rng) * np.radians(4.0) * s * spread(rng),
    }


def _table_height(s: float, rng: np.random.Generator) -> Parameters:
    higher = rng.random() < 0.5
    return {"table_m": (0.016 if higher else -0.020) * s * spread(rng)}


def _zero_offset(s: float, rng: np.random.Generator) -> Parameters:
    degrees = {"pan_rad": 5.0, "lift_rad": 2.5, "elbow_rad": 2.5, "wrist_rad": 3.0, "roll_rad": 5.0}
    return {k: sign(rng) * np.radians(v) * s * spread(rng) for k, v in degrees.items()}


def _tolerance(s: float, rng: np.random.Generator) -> Parameters:
    return {"tolerance_factor": float(0.14 ** (s * spread(rng)))}


def _goal_offset(s: float, rng: np.random.Generator) -> Parameters:
    angle = float(rng.uniform(0.0, 2.0 * np.pi))
    offset_m = 0.026 * s * spread(rng)
    return {
        "goal_dx_m": float(offset_m * np.cos(angle)),
        "goal_dy_m": float(offset_m * np.sin(angle)),
    }


def _alignment(s: float, rng: np.random.Generator) -> Parameters:
    return {"yaw_tolerance_rad": float(np.radians(45.0) * 0.13 ** (s * spread(rng)))}


G = GapDimension
MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism(G.CONTACT_DYNAMICS, "slippery", False, "finger friction / 250", _slippery),
    Mechanism(G.CONTACT_DYNAMICS, "soft", False, "contact time constant x3, creeping grip", _soft),
    Mechanism(G.CONTACT_DYNAMICS, "sticky", True, "finger pads hold on with 4 N", _sticky),
    Mechanism(G.VISUAL_DOMAIN, "exposure", False, "2.0 stops darker or 1.8 brighter", _exposure),
    Mechanism(G.VISUAL_DOMAIN, "colour_cast", False, "cast of 45 %, veil of 25 %", _cast),
    Mechanism(G.VISUAL_DOMAIN, "blur", False, "defocus, sigma 5.5 % of image width", _blur),
    Mechanism(G.VISUAL_DOMAIN, "lens", True, "corners 75 % darker, 45 % distortion", _vignette),
    Mechanism(G.SENSOR_NOISE, "encoder_drift", False, "3 deg drift, 0.5 deg noise", _encoder_drift),
    Mechanism(
        G.SENSOR_NOISE, "stale_reads", False, "bus down 80 % of the time, 0.6 s each", _stale_reads
    ),
    Mechanism(
        G.SENSOR_NOISE, "torn_frames", False, "70 % of pictures torn by 20 % of width", _torn_frames
    ),
    Mechanism(G.SENSOR_NOISE, "coarse_encoder", True, "encoder steps of 3.2 deg", _coarse_encoder),
    Mechanism(G.OBJECT_PROPERTY, "size", False, "70 % larger or half the size", _size),
    Mechanism(G.OBJECT_PROPERTY, "elongated", False, "85 % longer, 25 % wider", _elongated),
    Mechanism(G.OBJECT_PROPERTY, "tall", False, "220 % taller, 40 % off balance", _tall),
    Mechanism(G.OBJECT_PROPERTY, "round", True, "a cylinder, 65 % larger", _round),
    Mechanism(
        G.ENVIRONMENTAL_COMPLEXITY,
        "similar",
        False,
        "4 cubes of the same hue, 25 % larger",
        _similar,
    ),
    Mechanism(
        G.ENVIRONMENTAL_COMPLEXITY, "clutter", False, "7 obstacles of 55 mm height", _clutter
    ),
    Mechanism(
        G.ENVIRONMENTAL_COMPLEXITY,
        "occluder",
        True,
        "a lamp head of 52 mm radius in view",
        _occluder,
    ),
    Mechanism(G.HUMAN_BEHAVIOR, "nudge", False, "pushes the object 65 mm, twice", _nudge),
    Mechanism(G.HUMAN_BEHAVIOR, "reach_in", False, "a hand over the object for 2.2 s", _reach_in),
    Mechanism(G.HUMAN_BEHAVIOR, "take", True, "takes the object 14 cm away", _take),
    Mechanism(G.ACTUATOR_RESPONSE, "latency", False, "0.26 s dead time", _latency),
    Mechanism(G.ACTUATOR_RESPONSE, "backlash", False, "5 deg of play per joint", _backlash),
    Mechanism(G.ACTUATOR_RESPONSE, "weak", False, "servo gain / 67, 0.35 N m stiction", _weak),
    Mechanism(G.ACTUATOR_RESPONSE, "slow", True, "joint speed limited to 0.44 rad/s", _slow),
    Mechanism(
        G.SPATIAL_GEOMETRY, "camera_pose", False, "22 mm, 15 mm up or down, 4 deg yaw", _camera_pose
    ),
    Mechanism(
        G.SPATIAL_GEOMETRY, "table_height", False, "16 mm higher or 20 mm lower", _table_height
    ),
    Mechanism(
        G.SPATIAL_GEOMETRY, "zero_offset", True, "joint zeros off by 2.5 to 5 deg", _zero_offset
    ),
    Mechanism(G.TASK_SPECIFICATION, "tolerance", False, "15 -> 2.1 mm", _tolerance),
    Mechanism(G.TASK_SPECIFICATION, "goal_offset", False, "goal 26 mm off the disc", _goal_offset),
    Mechanism(
        G.TASK_SPECIFICATION, "alignment", True, "faces within 6 deg of the axes", _alignment
    ),
)
