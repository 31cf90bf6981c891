"""Failure modes from a force window or from motor currents alone, as foreign logs have them."""

from __future__ import annotations

from typing import Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import FailureMode
from gaploop.failure_analysis.evidence import Evidence
from gaploop.failure_analysis.modes.foreign_sets import CurrentSet, Drives, ForceSet, drives
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.signals.force import quiet_stretch
from gaploop.failure_analysis.views.view import TakeView

CONTACT_FORCE: Final = 10.0
"""Times the sensor's quiet noise: free motion shakes a wrist sensor by less."""
CONTACT_TORQUE: Final = 6.0
"""The same for torque, which acceleration of a small load touches less than force."""
PRESSING_SHARE: Final = 0.15
"""Share of what the arm can press with: an obstruction is pushed until the drives give way."""
PRESSING_FORCE: Final = 100.0
"""And at least this many times the noise, where no window of the set shows the arm's limit."""

STOPPED_SAMPLES: Final = 2
RARE_REST: Final = 0.20
"""Of the set's rests: an arm that stands with currents rarer than this was stopped on its way."""
UNLOADED_SPREADS: Final = 1.0


def force_mode(
    view: TakeView, reference: Reference
) -> tuple[FailureMode | None, tuple[Evidence, ...]]:
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
    seen = (Evidence("force_peak_n", force_n, "N", says),)
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


def current_mode(
    view: TakeView, reference: Reference
) -> tuple[FailureMode | None, tuple[Evidence, ...]]:
    """Tell a stopped arm, a lost grip and nothing apart from motor currents and speeds.

    An arm that was stopped by something stands, at the end, with currents it seldom rests with:
    it holds a pose, or presses, where it usually passes. Motors that never show the load that
    they show in the rest of the set carry nothing: what was gripped is gone.
    """
    arm, usual = drives(view.take), reference.currents
    if arm is None or usual is None:
        return None, ()
    stopped = _stopped(arm, usual, view.take.info.uid)
    if stopped is not None:
        return FailureMode.COLLISION, (stopped,)
    load = arm.load_a
    says = (
        f"the lifting motors draw {load:.1f} A at most "
        f"(usual in this set {usual.load_a:.1f} ± {usual.load_spread_a:.1f} A)"
    )
    seen = Evidence("load_current_a", load, "A", says)
    if load < usual.load_a - UNLOADED_SPREADS * usual.load_spread_a:
        return FailureMode.SLIP, (seen,)
    return None, (seen,)


def _stopped(arm: Drives, usual: CurrentSet, uid: str) -> Evidence | None:
    tail = arm.still[-4:]
    if tail.sum() < STOPPED_SAMPLES:
        return None
    rests = arm.current_a[-4:][tail]
    shares = [usual.share_alike(row, uid) for row in rests]
    if not np.isfinite(shares).any():
        return None
    share = float(np.nanmean(shares))
    if share >= RARE_REST:
        return None
    says = (
        f"the arm stands still at the end with motor currents like only {share:.0%} of the set's "
        "rests: something stopped it on its way"
    )
    return Evidence("rest_like_share", share, "share", says)
