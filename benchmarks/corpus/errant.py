"""Controllers of the nominal cell that fail by their own doing: failures without any gap.

Each spoils the scripted controller in one way that trained policies show, too. The cell, its
sensors and its pictures stay as they are: whoever names a gap for such a failure is wrong.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from benchmarks.sight import by_tracker
from gaploop.core.errors import unknown_choice
from gaploop.core.messages import FloatArray, Image, LeaderSample
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import ExpertStage
from gaploop.sim.kinematics import from_polar, polar
from gaploop.sim.tracker import Tracker, TrackerCalibration

ERRORS: Final = ("early_release", "wrong_target", "stops")
HELD_OUT_ERRORS: Final = ("grasps_beside", "never_closes", "wanders")
"""Kinds that nothing is trained or tuned on."""


class MisledTracker(Tracker):
    """A tracker whose detections a controller gets wrong: shifts object and target by a constant.

    Only the controller looks through it; what is recorded comes from the rig's own tracker.

    Args:
        cell: whose nominal tracker it is.
        object_m: shift of the object [m], shape (2,).
        target_m: shift of the target [m], shape (2,).
    """

    def __init__(self, cell: SimCell, object_m: FloatArray, target_m: FloatArray) -> None:
        super().__init__(TrackerCalibration.nominal(cell.image_size, cell.task, cell.arm))
        self._shifts = ((0, object_m), (3, target_m))

    def observe(self, image: Image, t_s: float = 0.0) -> FloatArray:
        """Return the tracked scene, shape (7,), with the shifts in it."""
        seen = super().observe(image, t_s)
        for at, shift_m in self._shifts:
            place = from_polar(float(seen[at]), float(seen[at + 1])) + shift_m
            seen[at], seen[at + 1] = polar(place)
        return seen


class ErrantLeader:
    """The scripted, tracker-driven controller with one error of its own.

    Args:
        cell: the cell; read only.
        error: one of `ERRORS` or `HELD_OUT_ERRORS`.
        seed: draws the controller's habits.
        error_seed: draws when and how it errs.

    Raises:
        UnknownChoiceError: no such error.
    """

    def __init__(self, cell: SimCell, error: str, seed: int, error_seed: int = 0) -> None:
        if error not in ERRORS + HELD_OUT_ERRORS:
            raise unknown_choice("error", error, ERRORS + HELD_OUT_ERRORS)
        self._error, self._open_rad = error, cell.arm.grip.open_rad
        self._n_arm = len(cell.arm.arm_columns)
        self._rng = np.random.default_rng([seed, error_seed, 41])
        shifts: dict[str, FloatArray] = {"object": np.zeros(2), "target": np.zeros(2)}
        if error in ("wrong_target", "grasps_beside"):
            low, high = (0.045, 0.09) if error == "wrong_target" else (0.022, 0.045)
            angle, length = self._rng.uniform(0, 2 * np.pi), self._rng.uniform(low, high)
            which = "target" if error == "wrong_target" else "object"
            shifts[which] = length * np.array([np.cos(angle), np.sin(angle)])
        tracker = MisledTracker(cell, shifts["object"], shifts["target"])
        self._script = by_tracker(cell, seed, tracker)
        self._draw()

    def _draw(self) -> None:
        self._errs_at_s = float(self._rng.uniform(0.8, 2.4))
        self._late_s = float(self._rng.uniform(0.1, 0.9))
        self._away_rad = self._rng.uniform(-0.5, 0.5, self._n_arm)
        self._since_s: float | None = None
        self._held: FloatArray | None = None

    def reset(self) -> None:
        """Get ready for a new take."""
        self._script.reset()
        self._draw()

    def done(self) -> bool:
        """Say whether the attempt is over; one that stopped or wandered off never says so."""
        return self._script.done() and self._error not in ("stops", "wanders")

    def read(self, t_s: float) -> LeaderSample:
        """Return what is asked for at loop time `t_s` [s], with the error in it."""
        asked = self._script.read(t_s)
        q_rad = np.array(asked.q_rad)
        if self._error == "early_release" and self._carrying(t_s):
            q_rad[-1] = self._open_rad
        elif self._error == "never_closes":
            q_rad[-1] = max(q_rad[-1], self._open_rad)
        elif self._error in ("stops", "wanders") and t_s >= self._errs_at_s:
            q_rad = self._astray(q_rad, t_s)
        return LeaderSample(t_s, q_rad)

    def _carrying(self, t_s: float) -> bool:
        """Whether the object has been in the air for longer than the drawn time."""
        if self._since_s is None and self._script.stage >= ExpertStage.LIFT:
            self._since_s = t_s
        return self._since_s is not None and t_s - self._since_s >= self._late_s

    def _astray(self, q_rad: FloatArray, t_s: float) -> FloatArray:
        """Stand still; or go to some other pose within 1.5 s, and stay there."""
        if self._held is None:
            self._held = q_rad
        if self._error == "stops":
            return self._held
        share = min((t_s - self._errs_at_s) / 1.5, 1.0)
        goal = self._held.copy()
        goal[:-1] += self._away_rad
        return np.asarray(self._held + (goal - self._held) * (3 * share**2 - 2 * share**3))
