"""A leader that runs a scripted motion: `--teleop.type=motion`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

import numpy as np

from gaploop.core.errors import DeviceError
from gaploop.core.kinematics import ArmModel, Box
from gaploop.core.types import FloatArray, LeaderSample, SafetyReason, Tick
from gaploop.teleop.leaders.options import MotionOptions
from gaploop.teleop.leaders.scripts import Script, build_script

log = logging.getLogger(__name__)

STOOD_STILL_S: Final = 0.25
"""A loop that asks nothing for this long has stood still, as after a trip [s]."""


class MotionLeader:
    """Moves the arm by a script, from where it is and back to there. A `Leader` and `TakeSink`.

    A script that was interrupted, by a trip or a loop that stood still, isn't gone on with: the
    leader is done, and asks for the pose it had come to.

    Args:
        arm: kinematics of the follower.
        limits_rad: the follower's joint limits [rad], shape (n_joints, 2).
        start: returns the follower's joint positions [rad]; called by `reset`.
        options: the script.
        box: workspace, or None.
    """

    def __init__(
        self,
        arm: ArmModel,
        limits_rad: FloatArray,
        start: Callable[[], FloatArray],
        options: MotionOptions,
        box: Box | None = None,
    ) -> None:
        self._arm, self._limits_rad, self._box = arm, limits_rad, box
        self._start, self._options = start, options
        self._script: Script | None = None
        self._began_s = self._last_s = math.nan
        self._q_rad: FloatArray = np.zeros(len(arm.joint_names))
        self.interrupted = False

    @property
    def duration_s(self) -> float:
        """How long the script takes [s]; 0 before `reset`."""
        return 0.0 if self._script is None else self._script.trajectory.duration_s

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the script was made smaller or left out, and why."""
        return () if self._script is None else self._script.notes

    def reset(self) -> None:
        """Read the arm's pose, and build and check the whole script from there.

        Raises:
            UnusableInputError: nothing of the script fits.
            DeviceError: the follower doesn't say where it is.
        """
        q = np.array(self._start(), dtype=np.float64)
        if q.shape != self._q_rad.shape or not np.isfinite(q).all():
            raise DeviceError(
                f"The follower reports {q.tolist()} as joint positions. Check its bus."
            )
        self._script = build_script(self._arm, self._limits_rad, self._box, q, self._options)
        for note in self._script.notes:
            log.warning("%s", note)
        self._q_rad, self._began_s, self._last_s = q, math.nan, math.nan
        self.interrupted = False

    def tick(self, tick: Tick) -> None:
        """Take note of a trip; called from any thread."""
        if tick.command.reasons & SafetyReason.TRIPPED:
            self.interrupted = True

    def read(self, t_s: float) -> LeaderSample:
        """Return the script's pose at loop time `t_s` [s]; the first call starts it."""
        if self._script is None:
            self.reset()
        if math.isnan(self._began_s):
            self._began_s = t_s
        elif t_s - self._last_s > STOOD_STILL_S:
            self.interrupted = True
        self._last_s = t_s
        if self._script is not None and not self.interrupted:
            self._q_rad = self._script.trajectory.at(t_s - self._began_s)
        return LeaderSample(t_s, self._q_rad)

    def done(self) -> bool:
        """Say whether the script has ended or was interrupted."""
        return self.interrupted or self._last_s - self._began_s >= self.duration_s > 0.0
