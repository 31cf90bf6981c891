"""Which signal speaks for which gap dimension, in which direction, and how loudly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gaploop.core.vocabulary import FailureMode, GapDimension

D = GapDimension
M = FailureMode


@dataclass(frozen=True)
class Rule:
    """One signal speaking for one dimension.

    Attributes:
        dimension: what it speaks for.
        signal: name of the signal.
        side: +1 above usual, -1 below, 0 both.
        weight: 1 where the signal is that gap itself, less where others cause it too.
        modes: failure modes it holds for; all where empty.
        fault: the channel that this signal shows to be faulty itself, or "".
        through: the channels it is seen through: where one is faulty, it says little.
        unless: signals that explain it harmlessly where they stand above usual.
    """

    dimension: GapDimension
    signal: str
    side: int = 0
    weight: float = 1.0
    modes: frozenset[FailureMode] = frozenset()
    fault: str = ""
    through: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


_PICTURE: Final = ("picture",)
_VIEW: Final = ("picture", "view")
_READINGS: Final = ("readings",)
_ILL_AIMED: Final = ("grasp_offset_m",)
"""The gripper didn't close where the object is seen: no wonder that nothing is held."""
_BLOCKED: Final = ("hand_share",)
"""A hand in the arm's way holds joints off their commands."""
_FAILED_GRIP: Final = frozenset({M.MISSED_GRASP, M.SLIP})

DIRECT: Final[tuple[Rule, ...]] = (
    Rule(D.ACTUATOR_RESPONSE, "lag_s", +1, through=_READINGS),
    Rule(D.ACTUATOR_RESPONSE, "rest_offset_rad", +1, through=_READINGS, unless=_BLOCKED),
    Rule(D.ACTUATOR_RESPONSE, "backlash_rad", +1, through=_READINGS),
    Rule(D.ACTUATOR_RESPONSE, "speed_gain", -1, through=_READINGS, unless=_BLOCKED),
    Rule(D.SENSOR_NOISE, "jitter_rad", +1, fault="readings"),
    Rule(D.SENSOR_NOISE, "quantum_rad", +1, 0.8, through=_READINGS),
    Rule(D.SENSOR_NOISE, "repeat_share", +1, fault="readings"),
    Rule(D.SENSOR_NOISE, "dropout_share", +1, fault="readings"),
    Rule(D.SENSOR_NOISE, "pixel_noise", +1, fault="picture"),
    Rule(D.SENSOR_NOISE, "camera_age_s", +1),
    Rule(D.VISUAL_DOMAIN, "brightness", 0, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "saturation", 0, 0.8, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "cast_red", 0, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "cast_blue", 0, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "sharpness", -1, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "corner_light", -1, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "light_swing_stops", +1, fault="picture"),
    Rule(D.SPATIAL_GEOMETRY, "camera_shift_px", +1, through=_PICTURE),
    Rule(D.SPATIAL_GEOMETRY, "camera_scale", 0, through=_PICTURE),
    Rule(D.SPATIAL_GEOMETRY, "camera_turn_rad", 0, through=_PICTURE),
    Rule(D.SPATIAL_GEOMETRY, "start_pose_rad", +1, through=_READINGS),
    Rule(D.SPATIAL_GEOMETRY, "target_area_px", 0, 1.0, through=_VIEW),
    Rule(D.OBJECT_PROPERTY, "object_area_ratio", 0, through=_VIEW),
    Rule(D.OBJECT_PROPERTY, "object_aspect", +1, through=_VIEW),
    Rule(D.OBJECT_PROPERTY, "object_fill", -1, through=_VIEW),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "object_blobs", +1, fault="view", through=_PICTURE),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "foreground_share", +1, fault="view", through=_PICTURE),
    Rule(D.HUMAN_BEHAVIOR, "hand_share", +1, through=_PICTURE),
)
"""Signals of the channel in which a gap acts."""

INDIRECT: Final[tuple[Rule, ...]] = (
    Rule(D.ACTUATOR_RESPONSE, "stall_s", +1, 0.6, through=_READINGS, unless=_BLOCKED),
    Rule(D.HUMAN_BEHAVIOR, "moved_alone_m", +1, 0.8),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "jumps_hz", +1, 0.6),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "hidden_far_share", +1, 0.6),
    Rule(D.CONTACT_DYNAMICS, "held_share", -1, 0.9, _FAILED_GRIP, unless=_ILL_AIMED),
    Rule(D.CONTACT_DYNAMICS, "slip_rad_s", +1, 0.7, through=_READINGS),
    Rule(D.CONTACT_DYNAMICS, "lost_count", +1, 5.0, _FAILED_GRIP),  # one loss: 3.3 spreads
    Rule(D.CONTACT_DYNAMICS, "grip_creep_rad", +1, 1.0),
    Rule(D.CONTACT_DYNAMICS, "release_offset_m", +1, 0.6),
    Rule(D.OBJECT_PROPERTY, "carry_current_a", +1, 0.7, through=_READINGS),
    Rule(D.OBJECT_PROPERTY, "carry_sag_rad", +1, 0.7, through=_READINGS),
    Rule(D.CONTACT_DYNAMICS, "stuck_m", +1, 0.9),
    Rule(D.CONTACT_DYNAMICS, "grip_short_rad", -1, 0.6, through=_READINGS),
    Rule(D.OBJECT_PROPERTY, "grip_short_rad", +1, 0.6, through=_READINGS),
    Rule(D.SPATIAL_GEOMETRY, "contact_height_m", +1, 0.9, through=_READINGS),
    Rule(D.OBJECT_PROPERTY, "contact_height_m", +1, 0.8, through=_READINGS),
    Rule(D.SENSOR_NOISE, "drift_rad", +1, 0.5),
    Rule(D.ACTUATOR_RESPONSE, "oscillation_rad", +1, 0.5, through=_READINGS),
)
"""Signals of how the attempt went, which several gaps can cause."""
