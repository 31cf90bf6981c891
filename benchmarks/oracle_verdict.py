"""What the failure modes and phases mean, to the letter, on simulator state.

**Handling.** The gripper is *shut* while its command is below `SHUT_RAD`, for at least `SHUT_S`.
The object is *held* while both jaws press on it, breaks up to `FLICKER_S` bridged, for `HELD_S`
at least or until it is lifted by `LIFTED_M` or carried `DRAGGED_M`. A hold ends by *release*
where opening had been commanded, else the object is *lost*. A closing without a hold is *missed*.

**The arm.** A *contact* is a force above `CONTACT_N` between the arm (or what it holds) and
anything but the object it grips. It counts where it takes `COLLIDED_NS` of momentum, or pushes a
joint `PUSHED_RAD` further off what its servo is set to. It is an *obstruction* where it lasts
`PRESSED_S` and pushes so, else a *collision*. The arm *shakes* where a joint turns round `TURNS`
times by `SHAKE_RAD`, with no more than `TURN_S` between turns. It *drifts* where an untouched
joint stands `DRIFT_RAD` off what its servo is set to for `DRIFT_S`: latency and slow drives
aren't drift, torque that is gone is. It is *frozen* where no joint moves from some time on until
the end, for `FROZEN_S` at least.

**Mode.** A success has none. Else it is the first thing, in time, that the attempt didn't recover
from: whatever came before the object was last gripped was recovered from, and so was a contact
that a hold went through; what still went on then counts. Where two begin together
(within `TOGETHER_S`) the order of `PRECEDENCE` decides, and a collision that ended in an
obstruction is that obstruction. So an arm that ran into a box and then closed on nothing
collided; one that brushed the box and gripped all the same didn't. An e-stop or safety trip is
`operator_stop`, but for a trip for stall: motors that pressed for so long are an obstruction. An
object that was released and isn't judged a success is misplaced, wherever it lies. Where nothing
of this is so, the time ran out: `timeout`.

**Phases.** Approach until the gripper is told to shut; grasp until the object is held, or it
opens again; transport until the tool has come down to `LOWERED` of its highest lift for the last
time; place until `RETREAT_S` after the release; retreat afterwards, until the next attempt's
approach.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.oracle_facts import RETREAT_S, AttemptFacts, Contact, Hold, Record, facts
from gaploop.core.messages import SafetyReason
from gaploop.core.vocabulary import FailureMode, Phase

STALLED_S: Final = 0.6
"""A contact that ended no longer than this before a trip for stall led to it."""
TOGETHER_S: Final = 0.10
CLOSED_S: Final = 0.3
"""Jaws have met so long after they were told to close."""
STALL: Final = SafetyReason.STALL.name or ""

M = FailureMode
PRECEDENCE: Final = (
    M.OPERATOR_STOP, M.OBSTRUCTION, M.COLLISION, M.MISSED_GRASP, M.SLIP, M.MISPLACEMENT,
    M.OSCILLATION, M.DRIFT, M.FROZEN, M.TIMEOUT,
)  # fmt: skip


@dataclass(frozen=True)
class Happened:
    """What happened in an attempt.

    Attributes:
        mode: a failure mode, or None for a success.
        phase: the phase in which it happened, or None.
        at_s: when [s], or None.
        facts: what it rests on.
    """

    mode: FailureMode | None
    phase: Phase | None
    at_s: float | None
    facts: AttemptFacts

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data for `truth.jsonl`."""
        head = {"mode": self.mode or "", "phase": self.phase or "", "at_s": self.at_s}
        return {**head, **asdict(self.facts)}


@dataclass(frozen=True)
class _Break:
    at_s: float
    mode: FailureMode


def verdict(record: Record) -> Happened:
    """Say what happened; an attempt without a single turn ends in `timeout` at 0 s."""
    return judge(facts(record))


def judge(seen: AttemptFacts) -> Happened:
    """Say what the facts add up to."""
    if seen.succeeded:
        return Happened(None, None, None, seen)
    since_s, lifted_s = _picked_up(seen)
    lasting = [_Break(c.start_s, c.mode) for c in seen.contacts
               if c.counts and c.start_s < since_s and c.end_s > lifted_s + RETREAT_S]  # fmt: skip
    if seen.shook_s is not None and seen.shook_s[1] > since_s:
        lasting.append(_Break(seen.shook_s[0], M.OSCILLATION))
    found = [b for b in _breaks(seen) if b.at_s >= since_s]
    first = _first([*found, *lasting, *_stopped(seen)])
    return Happened(first.mode, _phase_of(first, seen), first.at_s, seen)


def _picked_up(seen: AttemptFacts) -> tuple[float, float]:
    """Return when the object was last gripped, and when it then was lifted, if it was [s]."""
    if not seen.holds:
        return 0.0, 0.0
    last = seen.holds[-1]
    return last.start_s, last.carried_s if last.carried_s < last.end_s else last.start_s


def _breaks(seen: AttemptFacts) -> list[_Break]:
    found = [_Break(seen.duration_s, M.TIMEOUT)]
    found += [_Break(s + CLOSED_S, M.MISSED_GRASP) for s in seen.missed_s]
    found += [_Break(h.end_s, M.SLIP) for h in seen.holds if h.ended == "lost"]
    found += [_Break(h.end_s, M.MISPLACEMENT) for h in seen.holds if h.ended == "released"]
    pressing = [c for c in seen.contacts if c.counts and not _outlived(c, seen.holds)]
    found += [_Break(c.start_s, c.mode) for c in pressing]
    found += [_Break(seen.drifted_s, M.DRIFT)] if seen.drifted_s is not None else []
    found += [_Break(seen.still_s, M.FROZEN)] if seen.still_s is not None else []
    return found


def _stopped(seen: AttemptFacts) -> list[_Break]:
    stop_s = seen.stopped_s
    if stop_s is None:
        return []
    if STALL not in seen.stopped:
        return [_Break(stop_s, M.OPERATOR_STOP)]
    pressing = [c.start_s for c in seen.contacts if c.start_s <= stop_s <= c.end_s + STALLED_S]
    return [_Break(min([stop_s, *pressing]), M.OBSTRUCTION)]


def _first(breaks: list[_Break]) -> _Break:
    if any(b.mode is M.OBSTRUCTION for b in breaks):  # the first touch is a part of it
        breaks = [b for b in breaks if b.mode is not M.COLLISION]
    earliest = min(b.at_s for b in breaks)
    together = [b for b in breaks if b.at_s <= earliest + TOGETHER_S]
    return min(together, key=lambda b: PRECEDENCE.index(b.mode))


def _outlived(contact: Contact, held: tuple[Hold, ...]) -> bool:
    """Say whether a hold went on through the contact, to an end of its own."""
    return any(
        h.start_s <= contact.start_s and contact.end_s + RETREAT_S < h.end_s and h.ended != "kept"
        for h in held
    )


def _phase_of(found: _Break, seen: AttemptFacts) -> Phase:
    fixed = {M.MISSED_GRASP: Phase.GRASP, M.MISPLACEMENT: Phase.PLACE}
    if found.mode in fixed:
        return fixed[found.mode]
    at_s = found.at_s - 0.01  # what ends a phase belongs to it
    return next((phase for phase, _, end in seen.phases if at_s < end), seen.phases[-1][0])
