"""A script that sees by the camera tracker, as a controller made in simulation does."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gaploop.sim.cell import SimCell
from gaploop.sim.expert import PATIENCE_S, ScriptedLeader, TrackedSight
from gaploop.sim.scene import CUBE_HALF_SIZE_M
from gaploop.sim.tracker import Tracker


class TrackerSight(TrackedSight):
    """The sight of a cell's newest picture, each tracked once."""

    def __init__(self, cell: SimCell, tracker: Tracker | None = None) -> None:
        self._cell = cell
        self._tracker = tracker or Tracker.nominal(cell.image_size, arm=cell.arm)
        self._tracked: NDArray[np.float64] = np.zeros(len(self._tracker.names))
        self._at_s = math.nan
        stack_m = 2.0 * CUBE_HALF_SIZE_M if cell.task == "stack_cube" else 0.0
        super().__init__(cell.arm, cell.read, self._newest, stack_m=stack_m)

    def reset(self) -> None:
        """Forget the last take's detections."""
        self._tracker.reset()
        self._at_s = math.nan

    def _newest(self) -> NDArray[np.float64]:
        frame = self._cell.frame()
        if frame.t_capture_s != self._at_s:
            self._tracked = self._tracker.observe(frame.image, frame.t_capture_s)
            self._at_s = frame.t_capture_s
        return self._tracked


def by_tracker(cell: SimCell, seed: int = 0, tracker: Tracker | None = None) -> ScriptedLeader:
    """Return a script that tries once and goes by the clock, as a policy does.

    It sees by the nominal tracker unless another is given.
    """
    sight = TrackerSight(cell, tracker)
    return ScriptedLeader(cell, seed, sight=sight, retries=0, patience_s=PATIENCE_S)
