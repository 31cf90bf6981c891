"""Which failure was seen, and when, by rules on whatever channels a take has.

Handling rules need joints and a gripper; a force window or motor currents alone still tell a
collision from an obstruction. Thresholds are lengths and angles of a tabletop arm, or multiples
of the set's own noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.types import SafetyReason
from gaploop.core.vocabulary import FailureMode, Outcome, Phase
from gaploop.failure_analysis.modes.foreign import current_mode, force_mode
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.seen import Seen
from gaploop.failure_analysis.signals.registry import Measured
from gaploop.failure_analysis.views.phases import GRASP_S, grasps, main_grasp, phase_at
from gaploop.failure_analysis.views.view import Motion, View

TOLERANCE_M: Final = 0.020
"""An object nearer its target than this counts as placed (success tolerance and tracking error)."""
SHAKES_RAD: Final = math.radians(2.0)
FROZEN_S: Final = 2.0
MOVED_M: Final = 0.025


@dataclass(frozen=True)
class ModeCall:
    """A failure mode, its phase and why.

    Attributes:
        mode: what was seen, or None where nothing went wrong in what can be seen.
        phase: when, or None where it can't be told.
        seen: the observations it rests on.
    """

    mode: FailureMode | None
    phase: Phase | None
    seen: tuple[Seen, ...] = ()


Rule = Callable[[View, Motion, Measured], ModeCall | None]


def failure_mode(view: View, measured: Measured, reference: Reference) -> ModeCall:
    """Return the failure mode of a take that failed, or may have.

    Args:
        view: the take.
        measured: its signals.
        reference: what is usual, for force and current sets.
    """
    motion = view.motion
    if motion is not None and np.ptp(motion.sent_rad, axis=0).max() > 0.02:
        for rule in (_stopped, _shook, _missed, _lost, _misplaced, _stood, _timeout):
            call = rule(view, motion, measured)
            if call is not None:
                return call
        return ModeCall(FailureMode.TIMEOUT, phase_at(motion, float(motion.t_s[-1])))
    if view.wrench is not None:
        return _foreign(force_mode(view, reference))
    if view.currents_a is not None:
        return _foreign(current_mode(view, reference))
    return ModeCall(None, None)


def _foreign(found: tuple[FailureMode | None, tuple[Seen, ...]]) -> ModeCall:
    return ModeCall(found[0], None, found[1])


def _stopped(view: View, motion: Motion, _: Measured) -> ModeCall | None:
    stops = SafetyReason.ESTOP | SafetyReason.TRIPPED
    flags = view.take.frames.safety
    hit = np.flatnonzero(flags & int(stops)) if len(flags) else np.empty(0, dtype=np.int64)
    if not len(hit) and view.take.outcome != Outcome.INTERRUPTED:
        return None
    when = float(view.take.frames.t_s[hit[0]]) if len(hit) else view.take.duration_s
    cause = SafetyReason(int(flags[hit[0]])) if len(hit) else SafetyReason.NONE
    names = (cause & ~SafetyReason.TRIPPED).name or cause.name or ""
    tripped = f"the safety filter tripped ({names.lower().replace('|', ', ')})"
    why = f"{tripped} at {when:.1f} s" if len(hit) else "the take was cut off"
    return ModeCall(
        FailureMode.OPERATOR_STOP, phase_at(motion, when), (Seen("stopped_at_s", when, "s", why),)
    )


def _shook(_: View, motion: Motion, measured: Measured) -> ModeCall | None:
    shake = measured["oscillation_rad"]
    if not shake > SHAKES_RAD or measured["reversals_hz"] < 2.0:
        return None
    velocity = np.abs(motion.velocity_rad_s[:, motion.arm_joints]).max(axis=1)
    when = float(motion.t_s[int(np.argmax(velocity))])
    says = f"the arm shakes by {math.degrees(shake):.1f}° rms"
    return ModeCall(
        FailureMode.OSCILLATION,
        phase_at(motion, when),
        (Seen("oscillation_rad", shake, "rad", says),),
    )


def _missed(_: View, motion: Motion, measured: Measured) -> ModeCall | None:
    closings = grasps(motion)
    if not closings:
        return None
    carried = max(measured["transported_m"], measured["carried_m"]) > MOVED_M and (
        measured["held_share"] > 0.3
    )
    grasp = main_grasp(motion)
    if grasp is None or carried or (grasp.held and np.isnan(grasp.lost_s)):
        return None
    brief = grasp.held and grasp.lost_s - grasp.close_s < GRASP_S + 0.2
    if grasp.held and not brief:
        return None
    times = "once" if len(closings) == 1 else f"{len(closings)} times"
    says = (
        f"the gripper closed {times} and its jaws met "
        f"(they stop {abs(math.degrees(grasp.short_rad)):.1f}° from the command)"
    )
    return ModeCall(
        FailureMode.MISSED_GRASP, Phase.GRASP,
        (Seen("grip_short_rad", grasp.short_rad, "rad", says),),
    )  # fmt: skip


def _lost(_: View, motion: Motion, measured: Measured) -> ModeCall | None:
    grasp = main_grasp(motion)
    if grasp is None or not grasp.held:
        return None
    if not np.isnan(grasp.lost_s):
        says = f"the jaws closed on nothing {grasp.lost_s - grasp.close_s:.1f} s after the grasp"
        seen = Seen("held_s", grasp.lost_s - grasp.close_s, "s", says)
        return ModeCall(FailureMode.SLIP, phase_at(motion, grasp.lost_s), (seen,))
    moved = measured["transported_m"]
    if grasp.released and moved < MOVED_M and measured["end_distance_m"] > TOLERANCE_M:
        says = f"the jaws held something, yet the object ended {moved * 1000:.0f} mm from its start"
        return ModeCall(FailureMode.SLIP, Phase.GRASP, (Seen("transported_m", moved, "m", says),))
    return None


def _misplaced(_: View, motion: Motion, measured: Measured) -> ModeCall | None:
    grasp, away = main_grasp(motion), _end_distance_m(measured)
    if grasp is None or not grasp.held or not grasp.released:
        return None
    if math.isnan(away):
        says = "the object was carried and released; where it lies can't be seen"
    else:
        says = f"the object was released and lies {away * 1000:.0f} mm from the target"
    return ModeCall(
        FailureMode.MISPLACEMENT, Phase.PLACE, (Seen("end_distance_m", away, "m", says),)
    )


def _end_distance_m(measured: Measured) -> float:
    """Distance of object and target at the end, or of tool and target at release if unseen [m]."""
    away = measured["end_distance_m"]
    return measured["release_target_m"] if math.isnan(away) else away


def _stood(_: View, motion: Motion, measured: Measured) -> ModeCall | None:
    idle, stall = measured["idle_end_s"], measured["stall_s"]
    if stall > 1.0:
        says = f"a joint stood short of its command for {stall:.1f} s"
        when = float(motion.t_s[-1])
        return ModeCall(
            FailureMode.OBSTRUCTION, phase_at(motion, when), (Seen("stall_s", stall, "s", says),)
        )
    if idle > FROZEN_S:
        when = float(motion.t_s[-1]) - idle
        says = f"the arm stands still for the last {idle:.1f} s"
        return ModeCall(
            FailureMode.FROZEN, phase_at(motion, when), (Seen("idle_end_s", idle, "s", says),)
        )
    return None


def _timeout(view: View, motion: Motion, _: Measured) -> ModeCall | None:
    says = f"after {view.take.duration_s:.1f} s the arm was still at it"
    return ModeCall(
        FailureMode.TIMEOUT, phase_at(motion, float(motion.t_s[-1])),
        (Seen("duration_s", view.take.duration_s, "s", says),),
    )  # fmt: skip
