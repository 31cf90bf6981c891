"""Which failure was seen, and when, by rules on whatever channels a take has.

The mode is the first event, in time, that the attempt didn't recover from: of `arm_events` in
commands, readings and loads, or `grasp_events` in jaws and tracked object. Definitions are in
docs/diagnose/diagnosis.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray, SafetyReason
from gaploop.core.vocabulary import FailureMode, Outcome, Phase
from gaploop.failure_analysis.modes.arm_events import (
    Event,
    arms,
    contacts,
    drifting,
    load_share,
    moves,
    shaking,
    standing,
)
from gaploop.failure_analysis.modes.grasp_events import grasp_events
from gaploop.failure_analysis.signals.registry import Evidence, TakeSignals
from gaploop.failure_analysis.views.phases import phase_at
from gaploop.failure_analysis.views.view import ArmMotion, TakeView

M = FailureMode
PRECEDENCE: Final = (
    M.OPERATOR_STOP, M.OBSTRUCTION, M.COLLISION, M.MISSED_GRASP, M.SLIP, M.MISPLACEMENT,
    M.OSCILLATION, M.DRIFT, M.FROZEN, M.TIMEOUT,
)  # fmt: skip
"""Which counts where two begin together."""
TOGETHER_S: Final = 0.10
STALLED_S: Final = 0.6
"""A trip for stall comes this long after the motors began to press."""
SWINGING_S: Final = 0.5
"""A joint swings for so long before it has turned round often enough to be noticed."""
SETTLE_S: Final = 0.3
"""A hold that went on for so long after a contact went through it."""


@dataclass(frozen=True)
class ModeCall:
    """A failure mode and why, None where nothing went wrong, and its phase, None where unknown."""

    mode: FailureMode | None
    phase: Phase | None
    evidence: tuple[Evidence, ...] = ()


def failure_mode(view: TakeView, measured: TakeSignals) -> ModeCall:
    """Return the failure mode of a take that failed, or may have."""
    motions = tuple(m for m in arms(view) if moves(m))
    if not motions:
        return ModeCall(None, None)
    # The first event of any arm that the attempt didn't recover from.
    every = [_Arm(m, load_share(view, m), view, measured) for m in motions]
    candidates = [(event, arm) for arm in every for event in arm.events()]
    # How the take ended, too: out of time, at a standstill, or stopped from outside.
    end_s = max(float(arm.motion.t_s[-1]) for arm in every)
    message = f"after {view.take.duration_s:.1f} s the attempt was still running"
    late = Evidence("duration_s", view.take.duration_s, "s", message)
    ends = [Event(M.TIMEOUT, end_s, end_s, late), *_stops(view, every)]
    stood = standing(motions)
    ends += [stood] if stood is not None else []
    candidates += [(event, every[0]) for event in ends]
    stalled = np.any(view.take.frames.safety & int(SafetyReason.STALL))
    if stalled or any(event.mode is M.OBSTRUCTION for event, _ in candidates):
        candidates = [c for c in candidates if c[0].mode is not M.COLLISION]
    earliest = min(event.at_s for event, _ in candidates)
    together = [c for c in candidates if c[0].at_s <= earliest + TOGETHER_S]
    event, arm = min(together, key=lambda c: PRECEDENCE.index(c[0].mode))
    unseen = [arm.held.unseen for arm in every if arm.held.unseen]
    evidence = (
        event.evidence,
        *(Evidence("grip", math.nan, "", f"can't be seen: {why}") for why in unseen),
    )
    if event.mode is M.TIMEOUT and unseen:
        return ModeCall(None, None, evidence)
    return ModeCall(event.mode, arm.phase(event), evidence)


class _Arm:
    """One arm of a take: what happened to it, and to what it handled."""

    def __init__(
        self,
        motion: ArmMotion,
        load_share: FloatArray | None,
        view: TakeView,
        measured: TakeSignals,
    ) -> None:
        self.motion = motion
        self.held = grasp_events(view, motion, measured, load_share)
        self.shook, self.touched = shaking(motion), contacts(motion, load_share)
        if self.shook is not None and load_share is None:  # swinging is off the command, too
            from_s, to_s = self.shook.at_s - SWINGING_S, self.shook.end_s + SWINGING_S
            self.touched = [c for c in self.touched if c.end_s < from_s or c.at_s > to_s]
        self._tool = view.tool if motion is view.motion else None

    def events(self) -> list[Event]:
        held = self.held
        since_s = -math.inf if held.gripped_s is None else held.gripped_s
        drifted, shook = drifting(self.motion, self.touched), self.shook
        lasting = [shook] if shook is not None and shook.end_s > since_s else []
        if held.lifted_s is not None:
            late_s = held.lifted_s + SETTLE_S
            lasting += [c for c in self.touched if c.at_s < since_s and c.end_s > late_s]
        # A contact that a hold went through, to an end of its own, ended nothing.
        ends_s = [e.at_s for e in held.events
                  if e.mode in (M.SLIP, M.MISPLACEMENT) and e.at_s >= since_s]  # fmt: skip
        found = [*held.events, *([drifted] if drifted is not None else [])]
        found += [c for c in self.touched if not any(c.end_s + SETTLE_S < end for end in ends_s)]
        return [*(event for event in found if event.at_s >= since_s), *lasting]

    def phase(self, event: Event) -> Phase:
        fixed = {M.MISSED_GRASP: Phase.GRASP, M.MISPLACEMENT: Phase.PLACE}
        closings = self.held.closings or None
        return fixed.get(event.mode) or phase_at(self.motion, event.at_s, self._tool, closings)


def _stops(view: TakeView, every: list[_Arm]) -> list[Event]:
    """Return who or what stopped the take from outside: the operator, or the safety filter."""
    stops = SafetyReason.ESTOP | SafetyReason.TRIPPED
    flags = view.take.frames.safety
    hit = np.flatnonzero(flags & int(stops)) if len(flags) else np.empty(0, dtype=np.int64)
    if not len(hit) and view.take.outcome != Outcome.INTERRUPTED:
        return []
    when = float(view.take.frames.t_s[hit[0]]) if len(hit) else view.take.duration_s
    cause = SafetyReason(int(flags[hit[0]])) if len(hit) else SafetyReason.NONE
    names = (cause & ~SafetyReason.TRIPPED).name or cause.name or ""
    tripped = f"the safety filter tripped ({names.lower().replace('|', ', ')})"
    why = f"{tripped} at {when:.1f} s" if len(hit) else "the take was cut off"
    evidence = Evidence("stopped_at_s", when, "s", why)
    pressed = [c.at_s for arm in every for c in arm.touched
               if c.at_s <= when <= c.end_s + STALLED_S]  # fmt: skip
    # The filter takes a late or weak arm for a stalled one, too: its word alone is no obstruction.
    if cause & SafetyReason.STALL and pressed:
        return [Event(M.OBSTRUCTION, min(pressed), when, evidence)]
    return [Event(M.OPERATOR_STOP, when, when, evidence)]
