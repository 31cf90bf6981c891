"""Signals of headway: how much of the way is left, since when, and what was lost again."""

from __future__ import annotations

import numpy as np

from gaploop.failure_analysis.signals.registry import signal
from gaploop.failure_analysis.views.headway import HOLD_S
from gaploop.failure_analysis.views.phases import HELD_RAD
from gaploop.failure_analysis.views.view import TakeView

NAN = float("nan")


@signal("way_left_m", "m", "scene", 0.005, "{value} of the way to the target is left")
def way_left_m(view: TakeView) -> float:
    """Way from tool over tracked object to tracked target at the end, on the table plane."""
    return view.headway.way_m if view.headway else NAN


@signal("headway_stall_s", "s", "scene", 0.2, "no headway is made for the last {value}")
def headway_stall_s(view: TakeView) -> float:
    """Time since the way left last shrank by 5 mm."""
    return view.headway.stalled_s if view.headway else NAN


@signal("way_lost_m", "m", "scene", 0.005, "{value} of the way is lost again")
def way_lost_m(view: TakeView) -> float:
    """Most that the way left has risen above its least: a drop, a shove, a second attempt."""
    return view.headway.lost_m if view.headway else NAN


@signal("held_s", "s", "motion", 0.1, "the jaws hold something for {value}")
def held_s(view: TakeView) -> float:
    """Time for which the jaws stop short of their command, counted from 0.3 s on."""
    motion = view.motion
    if motion is None or motion.gripper is None:
        return NAN
    short = (motion.position_rad - motion.sent_rad)[:, motion.gripper] > HELD_RAD
    edges = np.flatnonzero(np.diff(np.r_[0, short.astype(np.int8), 0]))
    runs = (edges[1::2] - edges[::2]) / motion.rate_hz
    return float(np.maximum(runs - HOLD_S, 0.0).sum())
