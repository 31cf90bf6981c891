"""What the rules say about a failed take: evidence per gap dimension, in words and numbers.

Each rule says that one signal, standing far enough from usual in one direction, speaks for one
dimension. *Direct* rules read the channel in which a gap acts: a lag, a cast, a camera that moved.
*Indirect* rules read how the attempt went: a slip, a jump. How it went is anybody's doing, so
indirect evidence counts only as far as no direct evidence explains it. Evidence grows with the
logarithm of the distance and is capped, so that one wild value doesn't settle everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.attribution.rules import DIRECT, INDIRECT, Rule
from gaploop.failure_analysis.evidence import Evidence
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.signals.registry import TakeSignals, registry

QUIET_Z: Final = 3.0
"""Spreads from usual that mean nothing: one in 400 by chance if the spread is right."""
CAP: Final = 5.0
EXPLAINED_BY: Final = 2.5
"""Direct evidence of this strength explains away all indirect evidence of other dimensions."""
SECOND_RULES: Final = 0.25
"""What further rules of a dimension add to its strongest one: they are seldom independent."""
SHOWN: Final = 6
"""Observations that a diagnosis lists."""

type Strengths = dict[GapDimension, float]


@dataclass(frozen=True)
class RuleEvidence:
    """What the rules say about one failed take; strengths are 0 or more.

    Attributes:
        left: dimension to strength of what no other dimension's evidence explains.
        placed: strength of a restated task whatever else is unusual: what it would be worth if two
            causes acted at once.
        seen: the evidence that is left, strongest first, with its dimension.
    """

    left: Mapping[GapDimension, float]
    placed: float
    seen: tuple[tuple[GapDimension, Evidence], ...]


@dataclass(frozen=True)
class _Hit:
    rule: Rule
    strength: float
    seen: Evidence


def rules_say(
    measured: TakeSignals, reference: Reference, mode: FailureMode | None
) -> RuleEvidence:
    """Return what every rule says about one failed take.

    Args:
        measured: its signals.
        reference: what is usual.
        mode: its failure mode, for rules that only hold for some.
    """
    direct = [h for rule in DIRECT if (h := _hit(rule, measured, reference, mode))]
    indirect = [h for rule in INDIRECT if (h := _hit(rule, measured, reference, mode))]
    task = None
    if _let_go(measured, reference, mode):
        moved, task = _moved_evidence(measured), _task_evidence(measured)
        indirect += [moved] if moved else []
    left = _unexplained(direct, indirect, _faults(direct))
    scores, placed = _scores(left), task.strength if task else 0.0
    if task:
        loudest = max(_scores([h for h in left if h.rule in DIRECT]).values())
        if loudest <= TASK_QUIET and max(scores.values()) <= TASK_LOUDEST:
            task = replace(task, strength=task.strength * (1.0 - loudest / (2 * TASK_QUIET)))
            scores[GapDimension.TASK_SPECIFICATION] = task.strength
            left = [*left, task]
    hits = sorted(left, key=lambda h: -h.strength)
    seen = tuple((h.rule.dimension, h.seen) for h in hits)
    return RuleEvidence(scores, placed, seen)


def _unexplained(
    direct: Sequence[_Hit], indirect: Sequence[_Hit], faults: Mapping[str, float]
) -> list[_Hit]:
    """Return what is left of direct evidence past faulty channels, and of indirect past it."""
    plain = [h for hit in direct if (h := _left(hit, _fault(hit.rule, faults)))]
    strongest = {d: max((h.strength for h in plain if h.rule.dimension is d), default=0.0)
                 for d in GapDimension}  # fmt: skip
    rest = []
    for hit in indirect:
        others = max(s for d, s in strongest.items() if d is not hit.rule.dimension)
        left = _left(hit, max(others, _fault(hit.rule, faults)))
        rest += [left] if left else []
    return [*plain, *rest]


def _faults(hits: Sequence[_Hit]) -> dict[str, float]:
    """Return channel to how plainly it is faulty itself."""
    faults: dict[str, float] = {}
    for hit in hits:
        if hit.rule.fault:
            faults[hit.rule.fault] = max(faults.get(hit.rule.fault, 0.0), hit.strength)
    return faults


def _fault(rule: Rule, faults: Mapping[str, float]) -> float:
    return max((faults.get(channel, 0.0) for channel in rule.through), default=0.0)


def _left(hit: _Hit, explained: float) -> _Hit | None:
    """Return what is left of a hit where `explained` strength speaks for another cause."""
    share = max(0.0, 1.0 - explained / EXPLAINED_BY)
    return _Hit(hit.rule, hit.strength * share, hit.seen) if share > 0 else None


def _hit(
    rule: Rule, measured: TakeSignals, reference: Reference, mode: FailureMode | None
) -> _Hit | None:
    if rule.modes and mode not in rule.modes:
        return None
    z = reference.z(rule.signal, measured[rule.signal])
    if math.isnan(z) or (rule.side and z * rule.side < 0):
        return None
    beyond = abs(z) - QUIET_Z
    if beyond <= 0 or any(reference.z(n, measured[n]) > QUIET_Z for n in rule.unless):
        return None
    strength = min(rule.weight * math.log1p(beyond), CAP * min(rule.weight, 1.0))
    spec = registry()[rule.signal]
    value = measured[rule.signal]
    says = f"{spec.describe(value)} (nominal {spec.show(reference.signals[rule.signal].mean)})"
    return _Hit(rule, strength, Evidence(rule.signal, value, spec.unit, says))


def _scores(hits: Sequence[_Hit]) -> Strengths:
    scores = dict.fromkeys(GapDimension, 0.0)
    for name in scores:
        strengths = sorted((h.strength for h in hits if h.rule.dimension is name), reverse=True)
        if strengths:
            scores[name] = min(strengths[0] + SECOND_RULES * sum(strengths[1:]), 1.4 * CAP)
    return scores


RELEASED_M: Final = 0.040
"""Let go nearer the target than this, on the disc, an attempt looks done to anyone watching;"""
RESTS_M: Final = {"end_distance_m": 0.020, "release_target_m": RELEASED_M}
"""and so it does where the object is seen to rest this near (15 mm and the tracker's error)."""
AIMED_M: Final = 0.008
"""Farther than this from where it was meant to be, something moved the object while it was let go:
well-placed ones of the training part are seen 2 to 4 mm off."""
MOVED_STEP_M: Final = 0.002
MOVED_M: Final = 0.060
"""Farther than this it fell, or was never there."""
TASK_STRENGTH: Final = 4.0
UNSEEN_SHARE: Final = 0.75
"""What is left of that where the gripper hides how the object came to rest."""
TASK_QUIET: Final = 1.0
"""Direct evidence above this speaks against it,"""
TASK_LOUDEST: Final = 2.2
"""and so does any evidence above this: after a take judged failed, much may still happen."""


def _let_go(measured: TakeSignals, reference: Reference, mode: FailureMode | None) -> bool:
    """Whether the gripper held the object all along and opened over the target, to no avail."""
    let_go = measured["release_target_m"]
    aimed = (let_go < RELEASED_M or math.isnan(let_go)) and measured["held_share"] > 0.9
    aimed &= not reference.z("release_target_m", let_go) > QUIET_Z
    return mode is FailureMode.MISPLACEMENT and aimed


def _moved_evidence(measured: TakeSignals) -> _Hit | None:
    """Held and opened over the target, yet it rests beside: it clung, or slid, when let go."""
    away = measured["end_distance_m"]
    if not AIMED_M < away < MOVED_M:
        return None
    says = f"let go over the target, the object rests {away * 1000:.0f} mm from it"
    rule = Rule(GapDimension.CONTACT_DYNAMICS, "end_distance_m")
    strength = math.log1p((away - AIMED_M) / MOVED_STEP_M)
    return _Hit(rule, strength, Evidence("end_distance_m", away, "m", says))


def _task_evidence(measured: TakeSignals) -> _Hit | None:
    """The object was put where it was meant to be, and the take was judged a failure."""
    rests, let_go = measured["end_distance_m"], measured["release_target_m"]
    unseen = math.isnan(rests)
    name, away = ("release_target_m", let_go) if unseen else ("end_distance_m", rests)
    if not away < RESTS_M[name]:
        return None
    says = (
        f"every other signal is usual and the object rests {away * 1000:.0f} mm from the target, "
        "yet the take was judged a failure"
    )
    beside = 0.0 if unseen else max(away - AIMED_M, 0.0) / (RESTS_M[name] - AIMED_M)
    strength = TASK_STRENGTH * (UNSEEN_SHARE if unseen else 1.0 - beside)
    rule = Rule(GapDimension.TASK_SPECIFICATION, name)
    return _Hit(rule, strength, Evidence(name, away, "m", says))
