"""What the tracked scene of a running take says so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.views.arm import tool_places
from gaploop.failure_analysis.views.headway import Headway
from gaploop.failure_analysis.views.phases import scene_xy_m
from gaploop.failure_analysis.views.view import SCENE_SIZE

NAN: Final = float("nan")


class SceneSoFar:
    """Headway and dropouts of the tracker, frame by frame.

    Args:
        joints: the arm's joint names.
        fps: policy frames per second [Hz].
    """

    def __init__(self, joints: Sequence[str], fps: float) -> None:
        self._joints, self._fps = tuple(joints), fps
        self._headway: Headway | None = None
        self._frames = self._hidden = self._run = self._longest = self._losses = 0
        self._was_visible = False

    def push(
        self, t_s: float, read_rad: FloatArray, short_rad: float, environment: FloatArray
    ) -> None:
        """Take note of a frame: its time [s], readings [rad], gripper error [rad] and scene."""
        if len(environment) != SCENE_SIZE:
            return
        visible = bool(environment[5] > 0.5)
        self._count(bool(environment[5] < 0.5))
        tool_m = tool_places(read_rad[None], self._joints)
        if tool_m is None or np.isnan(short_rad):
            return
        object_m, target_m, _ = scene_xy_m(environment[None])
        if self._headway is None:
            self._headway = Headway()
        self._headway.update(t_s, tool_m[0, :2], object_m[0], target_m[0], visible, short_rad)

    def values(self) -> Mapping[str, float]:
        """Return the signals of the scene so far; NaN where nothing tracks."""
        way, seen = self._headway, self._frames
        return {
            "hidden_share": self._hidden / seen if seen else NAN,
            "hidden_longest_s": self._longest / self._fps if seen else NAN,
            "hidden_hz": self._losses * self._fps / seen if seen else NAN,
            "way_left_m": way.way_m if way else NAN,
            "headway_stall_s": way.stalled_s if way else NAN,
            "way_lost_m": way.lost_m if way else NAN,
        }

    def _count(self, hidden: bool) -> None:
        self._frames += 1
        self._hidden += hidden
        self._losses += hidden and self._was_visible
        self._was_visible = not hidden
        self._run = self._run + 1 if hidden else 0
        self._longest = max(self._longest, self._run)
