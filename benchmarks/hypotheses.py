"""Blind stations of what no probe measures, for widening a twin by hypothesis (sim-to-sim)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

UNMEASURED: Final[Mapping[str, Sequence[str]]] = {
    "contact_dynamics": ("slippery", "soft", "sticky"),
    "visual_domain": ("lens",),
    "sensor_noise": ("stale_reads", "torn_frames"),
    "object_property": ("elongated", "tall", "round"),
    "environmental_complexity": ("similar", "clutter", "occluder"),
    "human_behavior": ("nudge", "reach_in", "take"),
    "spatial_geometry": ("table_height",),
    "task_specification": ("tolerance", "goal_offset", "alignment"),
}
"""What no probe of the drives and cameras measures, by dimension."""
BLIND: Final[Mapping[str, Sequence[str]]] = {
    "contact_dynamics": ("slick_table",),
    "visual_domain": ("glare", "banding"),
    "sensor_noise": ("encoder_spikes", "dead_rows"),
    "object_property": ("flat", "l_shaped"),
    "environmental_complexity": ("posts",),
    "human_behavior": ("cover_target", "bump_arm"),
    "spatial_geometry": ("base_moved", "bent_gripper"),
    "task_specification": ("deadline", "keep_clear"),
}
"""Mechanisms of `blind_gaps` that no hypothesis is made of."""
CALIBRATION, FIGURE = 3_100_000, 3_200_000
"""First seeds: of stations that thresholds may be set by, and of those that figures are of."""
OF_BLIND, OF_POLICIES, OF_NOMINAL = 1000, 2000, 3000
"""Added to them."""


def station(first: int, k: int, attempt: int, among: Mapping[str, Sequence[str]] = UNMEASURED):
    """Return mechanism, severity and gap seed of a station; drawn anew while it seldom fails."""
    rng = np.random.default_rng([first + k, attempt])
    dimension = list(UNMEASURED)[k % len(UNMEASURED)]
    mechanism = str(rng.choice(among[dimension]))
    severity = round(float(rng.uniform(0.5, 1.0)), 2)
    return f"{dimension}.{mechanism}", severity, int(rng.integers(100_000, 1_000_000))
