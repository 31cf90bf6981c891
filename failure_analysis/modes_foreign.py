"""Failure modes from a force window or from motor currents alone, as foreign logs have them."""

from __future__ import annotations

from typing import Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import FailureMode
from gaploop.failure_analysis.reference import ForceSet, Reference
from gaploop.failure_analysis.seen import Seen
from gaploop.failure_analysis.signals_force import quiet_stretch
from gaploop.failure_analysis.view import View

CONTACT_FORCE: Final = 10.0
"""Times the sensor's quiet noise: free motion shakes a wrist sensor by less."""
CONTACT_TORQUE: Final = 6.0
"""The same for torque, which acceleration of a small load touches less than force."""
PRESSING_SHARE: Final = 0.15
"""Share of what the arm can press with: an obstruction is pushed until the drives give way."""
PRESSING_FORCE: Final = 100.0
"""And at least this many times the noise, where no window of the set shows the arm's limit."""

STILL_RAD_S: Final = 0.02
HOLDING_SPREADS: Final = 2.0
GRIP_PULSE: Final = 2.5
"""Times the gripper's idle current that closing on something takes."""


def force_mode(view: View, reference: Reference) -> tuple[FailureMode | None, tuple[Seen, ...]]:
    """Tell obstruction, collision and nothing apart in a window of force and torque.

    An obstruction presses with a good part of what the arm can; a contact stands out of the
    sensor's quiet noise in force or torque; what does neither is free motion.
    """
    wrench = view.wrench
    if wrench is None or not np.isfinite(wrench[:, :3]).any():
        return None, ()
    usual = reference.force or _own(wrench)
    deviation = wrench - usual.rest
    force_n = float(np.nanmax(np.linalg.norm(deviation[:, :3], axis=1)))
    torques = np.linalg.norm(deviation[:, 3:], axis=1)
    torque_nm = float(np.nanmax(torques)) if np.isfinite(torques).any() else 0.0
    by_force, by_torque = force_n / usual.force_noise_n, torque_nm / usual.torque_noise_nm
    pressing_n = max(PRESSING_SHARE * usual.limit_n, PRESSING_FORCE * usual.force_noise_n)
    says = (
        f"force leaves rest by {force_n:.0f} N ({by_force:.0f} times its quiet noise), "
        f"torque by {torque_nm:.0f} N m ({by_torque:.0f} times)"
    )
    seen = (Seen("force_peak_n", force_n, "N", says),)
    if force_n > pressing_n:
        return FailureMode.OBSTRUCTION, seen
    if by_force > CONTACT_FORCE or by_torque > CONTACT_TORQUE:
        return FailureMode.COLLISION, seen
    return None, seen


def _own(wrench: FloatArray) -> ForceSet:
    """Describe a lone window by its own quietest stretch."""
    force, force_noise = quiet_stretch(wrench)
    torque, torque_noise = quiet_stretch(np.roll(wrench, 3, axis=1))
    return ForceSet(
        np.r_[force[:3], torque[:3]], max(force_noise, 1.0), max(torque_noise, 0.1), 0.0
    )


def current_mode(view: View, reference: Reference) -> tuple[FailureMode | None, tuple[Seen, ...]]:
    """Tell a stopped arm, a lost grip and nothing apart from motor currents (and speeds).

    A collision leaves the arm standing still in mid-task while its motors hold against
    something, more than the set's usual current. A lost grip shows the gripper squeezing, the
    squeeze ending early, and the arm moving on.
    """
    del view, reference
    return None, ()
