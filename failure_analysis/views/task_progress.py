"""TaskProgress: how much of the way from the tool over the object to the target is left.

The tracker loses the object under the gripper, so while the jaws hold something it counts as being
where the tool is. All runs forwards in time: a running rollout has a finished take's numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.views.phases import HELD_RAD, scene_xy_m
from gaploop.failure_analysis.views.view import TakeView, tool_places

HOLD_S: Final = 0.3
"""Jaws that stop short of their command this long hold something: closing takes less."""
GAIN_M: Final = 0.005
"""Less than this is no progress."""


@dataclass
class TaskProgress:
    """TaskProgress so far; fed frame by frame.

    Attributes:
        remaining_path_m: way left from the tool over the object to the target [m].
        lost_m: most that it has risen above its least [m].
        gained_s: when it last came down by `GAIN_M` [s].
    """

    remaining_path_m: float = np.nan
    least_m: float = math.inf
    lost_m: float = 0.0
    gained_s: float = 0.0
    t_s: float = 0.0
    holding: bool = False
    _short_since_s: float | None = None
    _released_m: FloatArray | None = None

    def update(
        self,
        t_s: float,
        tool_m: FloatArray,
        object_m: FloatArray,
        target_m: FloatArray,
        visible: bool,
        short_rad: float,
    ) -> None:
        """Take note of one frame: tool, object and target on the table plane [m], shape (2,) each.

        `short_rad` is the gripper's reading less its command.
        """
        self.t_s = t_s
        if short_rad <= HELD_RAD:
            self._short_since_s = None
        elif self._short_since_s is None:
            self._short_since_s = t_s
        before, since = self.holding, self._short_since_s
        self.holding = since is not None and t_s - since >= HOLD_S
        if self.holding:
            self._released_m = None
        elif before:
            self._released_m = tool_m.copy()  # until it is seen again
        elif visible:
            self._released_m = None
        place = object_m if self._released_m is None else self._released_m
        place = tool_m if self.holding else place
        self.remaining_path_m = math.dist(tool_m, place) + math.dist(place, target_m)
        if self.remaining_path_m < self.least_m - GAIN_M:
            self.least_m, self.gained_s = self.remaining_path_m, t_s
        self.lost_m = max(self.lost_m, self.remaining_path_m - self.least_m)

    @property
    def stalled_s(self) -> float:
        """Time since the last progress [s]."""
        return self.t_s - self.gained_s


def task_progress(view: TakeView) -> TaskProgress | None:
    """Return the progress at the end of a take; None without tracked scene or known arm."""
    motion, scene = view.motion, view.scene
    if motion is None or scene is None or motion.gripper is None:
        return None
    t_s = view.take.frames.t_s
    # Frames and control ticks share a clock; the small step heeds rounding of their times.
    rows = np.searchsorted(motion.t_s, t_s - 1e-4).clip(0, len(motion.t_s) - 1)
    tool_m = tool_places(motion.position_rad[rows], motion.joints)
    if tool_m is None:
        return None
    short_rad = motion.short_rad[rows]
    object_m, target_m, visible = scene_xy_m(scene)
    state = TaskProgress()
    for k, time_s in enumerate(t_s):
        state.update(
            float(time_s), tool_m[k, :2], object_m[k], target_m[k], bool(visible[k]),
            float(short_rad[k]),
        )  # fmt: skip
    return state
