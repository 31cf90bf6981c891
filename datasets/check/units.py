"""Rules of `check` for units: one dataset holds its joints in one unit, stated or not."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.datasets import layout
from gaploop.datasets.check.episodes import EpisodeTable
from gaploop.datasets.check.findings import Findings, numbers
from gaploop.datasets.check.frames import Scan
from gaploop.datasets.columns import STATE

HALF_TURN: Final = math.pi + 0.2
"""No joint of an arm is much further from its middle [rad]."""
MOVES_RAD: Final = 0.35
"""A joint that is used moves at least so far: 20 degrees."""
ALIKE: Final = 3.0
"""Times that one episode's joint moves further than another's, in equal units."""


def check_units(episodes: EpisodeTable, scan: Scan | None, findings: Findings) -> None:
    """Find episodes in other units than most: as their gap columns say, else as values do."""
    said: dict[str, list[int]] = {}
    if "gap_units" in episodes.table.column_names:
        units = episodes.table["gap_units"].to_pylist()
        for episode, unit in zip(episodes.index.tolist(), units, strict=True):
            if unit:
                said.setdefault(str(unit), []).append(episode)
    if len(said) > 1:
        most = max(said, key=lambda unit: len(said[unit]))
        others = sorted(e for unit, found in said.items() if unit != most for e in found)
        listed = "; ".join(f"{unit}: episodes {numbers(found)}" for unit, found in said.items())
        text = f"State and action are in several units ({listed}): no policy can learn from both."
        fix = (
            f"{findings.delete(others)}  # keeps {most}; or convert a part: gaploop edit harmonise"
        )
        findings.error("mixed_units", f"{layout.EPISODES}: gap_units", text, fix)
    moments = scan.moments.get(STATE) if scan is not None else None
    if said or scan is None or moments is None or len(moments.low) != len(scan.runs):
        return
    odd = [scan.runs[i].episode for i in plainly_radians(moments.low, moments.high)]
    text = "they look like radians, the others like degrees: no policy can learn from both."
    fix = f"{findings.delete(odd)}  # or convert a part: gaploop edit split, gaploop edit harmonise"
    findings.about(odd, "mixed_units", f"data: {STATE}", text, fix)


def plainly_radians(low: NDArray[np.float64], high: NDArray[np.float64]) -> list[int]:
    """Return which episodes are in radians among others in degrees; none where that isn't certain.

    Certain is where the joints that move do so by an arm's angles in both, 57 times as far in some.

    Args:
        low: smallest reading of each joint in each episode, shape (episodes, joints).
        high: the largest one.
    """
    if len(low) < 2 or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return []
    far, moved = np.maximum(-low, high), high - low
    small = (far.max(axis=1) <= HALF_TURN) & (moved.max(axis=1) >= MOVES_RAD)
    large = moved.max(axis=1) >= math.degrees(MOVES_RAD)
    if not small.any() or not (small | large).all() or not large.any():
        return []
    usual = np.median(moved[large], axis=0)
    used = usual >= math.degrees(MOVES_RAD)
    ratio = usual[used] / np.maximum(moved[small][:, used], 1e-9)
    fits = (ratio > math.degrees(1.0) / ALIKE) & (ratio < math.degrees(1.0) * ALIKE)
    # An arm that stands still may flicker by a third of a degree; most of its joints don't.
    fits &= moved[small][:, used] >= MOVES_RAD
    return np.flatnonzero(small).tolist() if (fits.mean(axis=1) > 0.5).all() else []
