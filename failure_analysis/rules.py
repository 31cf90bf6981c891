"""The rules: which signal speaks for which gap dimension, and how loudly in one failed take.

*Direct* rules read the channel in which a gap acts: a lag, a cast, a camera that moved. *Indirect*
rules read how the attempt went: a slip, a jump. That is anybody's doing, so it counts only as far
as no direct evidence explains it. Evidence grows with the logarithm of the distance from usual and
is capped, so that one wild value doesn't settle everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.signals.registry import Evidence, TakeSignals, registry

D = GapDimension
M = FailureMode


@dataclass(frozen=True)
class Rule:
    """One signal speaking for one dimension.

    Attributes:
        side: +1 above usual, -1 below, 0 both.
        weight: 1 where the signal is that gap itself, less where others cause it too.
        modes: failure modes it holds for; all where empty.
        fault: the channel that this signal shows to be faulty itself, or "".
        through: the channels it is seen through: where one is faulty, it says little.
        unless: signals that explain it harmlessly where they stand above usual.
    """

    dimension: GapDimension
    signal: str
    side: int = 0
    weight: float = 1.0
    modes: frozenset[FailureMode] = frozenset()
    fault: str = ""
    through: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


_PICTURE: Final = ("picture",)
_VIEW: Final = ("picture", "view")
_READINGS: Final = ("readings",)
_ILL_AIMED: Final = ("grasp_offset_m",)
"""The gripper didn't close where the object is seen: no wonder that nothing is held."""
_BLOCKED: Final = ("hand_share",)
"""A hand in the arm's way holds joints off their commands."""
_FAILED_GRIP: Final = frozenset({M.MISSED_GRASP, M.SLIP})

DIRECT: Final[tuple[Rule, ...]] = (
    Rule(D.ACTUATOR_RESPONSE, "lag_s", +1, through=_READINGS),
    Rule(D.ACTUATOR_RESPONSE, "rest_offset_rad", +1, through=_READINGS, unless=_BLOCKED),
    Rule(D.ACTUATOR_RESPONSE, "backlash_rad", +1, through=_READINGS),
    Rule(D.ACTUATOR_RESPONSE, "speed_gain", -1, through=_READINGS, unless=_BLOCKED),
    Rule(D.SENSOR_NOISE, "jitter_rad", +1, fault="readings"),
    Rule(D.SENSOR_NOISE, "quantum_rad", +1, 0.8, through=_READINGS),
    Rule(D.SENSOR_NOISE, "repeat_share", +1, fault="readings"),
    Rule(D.SENSOR_NOISE, "dropout_share", +1, fault="readings"),
    Rule(D.SENSOR_NOISE, "pixel_noise", +1, fault="picture"),
    Rule(D.SENSOR_NOISE, "camera_age_s", +1),
    Rule(D.VISUAL_DOMAIN, "brightness", 0, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "saturation", 0, 0.8, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "cast_red", 0, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "cast_blue", 0, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "sharpness", -1, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "corner_light", -1, fault="picture"),
    Rule(D.VISUAL_DOMAIN, "light_swing_stops", +1, fault="picture"),
    Rule(D.SPATIAL_GEOMETRY, "camera_shift_px", +1, through=_PICTURE),
    Rule(D.SPATIAL_GEOMETRY, "camera_scale", 0, through=_PICTURE),
    Rule(D.SPATIAL_GEOMETRY, "camera_turn_rad", 0, through=_PICTURE),
    Rule(D.SPATIAL_GEOMETRY, "start_pose_rad", +1, through=_READINGS),
    Rule(D.SPATIAL_GEOMETRY, "target_area_px", 0, 1.0, through=_VIEW),
    Rule(D.OBJECT_PROPERTY, "object_area_ratio", 0, through=_VIEW),
    Rule(D.OBJECT_PROPERTY, "object_aspect", +1, through=_VIEW),
    Rule(D.OBJECT_PROPERTY, "object_fill", -1, through=_VIEW),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "object_blobs", +1, fault="view", through=_PICTURE),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "foreground_share", +1, fault="view", through=_PICTURE),
    Rule(D.HUMAN_BEHAVIOR, "hand_share", +1, through=_PICTURE),
)
"""Signals of the channel in which a gap acts."""

INDIRECT: Final[tuple[Rule, ...]] = (
    Rule(D.ACTUATOR_RESPONSE, "stall_s", +1, 0.6, through=_READINGS, unless=_BLOCKED),
    Rule(D.HUMAN_BEHAVIOR, "moved_alone_m", +1, 0.8),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "jumps_hz", +1, 0.6),
    Rule(D.ENVIRONMENTAL_COMPLEXITY, "hidden_far_share", +1, 0.6),
    Rule(D.CONTACT_DYNAMICS, "held_share", -1, 0.9, _FAILED_GRIP, unless=_ILL_AIMED),
    Rule(D.CONTACT_DYNAMICS, "slip_rad_s", +1, 0.7, through=_READINGS),
    Rule(D.CONTACT_DYNAMICS, "lost_count", +1, 5.0, _FAILED_GRIP),  # one loss: 3.3 spreads
    Rule(D.CONTACT_DYNAMICS, "grip_creep_rad", +1, 1.0),
    Rule(D.CONTACT_DYNAMICS, "release_offset_m", +1, 0.6),
    Rule(D.CONTACT_DYNAMICS, "touch_share", -1, 0.9, _FAILED_GRIP, unless=_ILL_AIMED),
    Rule(D.CONTACT_DYNAMICS, "touch_slope", -1, 0.7),
    Rule(D.CONTACT_DYNAMICS, "touch_release_s", +1, 0.9),
    Rule(D.OBJECT_PROPERTY, "carry_force_n", +1, 0.7),
    Rule(D.OBJECT_PROPERTY, "carry_current_a", +1, 0.7, through=_READINGS),
    Rule(D.OBJECT_PROPERTY, "carry_sag_rad", +1, 0.7, through=_READINGS),
    Rule(D.CONTACT_DYNAMICS, "stuck_m", +1, 0.9),
    Rule(D.CONTACT_DYNAMICS, "grip_short_rad", -1, 0.6, through=_READINGS),
    Rule(D.OBJECT_PROPERTY, "grip_short_rad", +1, 0.6, through=_READINGS),
    Rule(D.SPATIAL_GEOMETRY, "contact_height_m", +1, 0.9, through=_READINGS),
    Rule(D.OBJECT_PROPERTY, "contact_height_m", +1, 0.8, through=_READINGS),
    Rule(D.SENSOR_NOISE, "drift_rad", +1, 0.5),
    Rule(D.ACTUATOR_RESPONSE, "oscillation_rad", +1, 0.5, through=_READINGS),
)
"""Signals of how the attempt went, which several gaps can cause."""


def signals_of(dimension: str) -> frozenset[str]:
    """Return the signals that speak for a dimension."""
    return frozenset(r.signal for r in (*DIRECT, *INDIRECT) if r.dimension == dimension)


QUIET_Z: Final = 3.0
"""Spreads from usual that mean nothing: one in 400 by chance if the spread is right."""
CAP: Final = 5.0
EXPLAINED_BY: Final = 2.5
"""Direct evidence of this strength explains away all indirect evidence of other dimensions."""
SECOND_RULES: Final = 0.25
"""What further rules of a dimension add to its strongest one: they are seldom independent."""
SHOWN: Final = 6
"""Observations that a diagnosis lists."""

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
"""and so does any evidence above this: after an episode judged failed, much may still happen."""


@dataclass(frozen=True)
class RuleEvidence:
    """What the rules say about one failed take; strengths are 0 or more.

    Attributes:
        left: dimension to strength of what no other dimension's evidence explains.
        placed: strength of a restated task if two causes acted at once.
        indirect: strength of the loudest of how the attempt went, which is anybody's doing.
        evidence: what is left, strongest first, with its dimension.
    """

    left: Mapping[GapDimension, float]
    placed: float
    indirect: float
    evidence: tuple[tuple[GapDimension, Evidence], ...]


@dataclass(frozen=True)
class _Hit:
    rule: Rule
    strength: float
    evidence: Evidence

    def fault(self, faults: Mapping[str, float]) -> float:
        """Return how plainly a channel that this is seen through is faulty itself."""
        return max((faults.get(channel, 0.0) for channel in self.rule.through), default=0.0)

    def residual(self, explained: float) -> _Hit | None:
        """Return what is left where `explained` strength speaks for another cause."""
        share = max(0.0, 1.0 - explained / EXPLAINED_BY)
        return replace(self, strength=self.strength * share) if share > 0 else None


def rule_evidence(
    measured: TakeSignals, reference: Reference, mode: FailureMode | None
) -> RuleEvidence:
    """Return what every rule says about one failed take."""
    direct = [h for rule in DIRECT if (h := _hit(rule, measured, reference, mode))]
    indirect = [h for rule in INDIRECT if (h := _hit(rule, measured, reference, mode))]
    task = None
    let_go = measured["release_target_m"]
    aimed = (let_go < RELEASED_M or math.isnan(let_go)) and measured["held_share"] > 0.9
    aimed &= not reference.z("release_target_m", let_go) > QUIET_Z
    if mode is FailureMode.MISPLACEMENT and aimed:
        # The gripper held the object all along and opened over the target, to no avail.
        rests = measured["end_distance_m"]
        if AIMED_M < rests < MOVED_M:  # it clung, or slid, when let go
            message = f"let go over the target, the object rests {rests * 1000:.0f} mm from it"
            rule = Rule(D.CONTACT_DYNAMICS, "end_distance_m")
            strength = math.log1p((rests - AIMED_M) / MOVED_STEP_M)
            indirect.append(_Hit(rule, strength, Evidence("end_distance_m", rests, "m", message)))
        unseen = math.isnan(rests)
        name, away = ("release_target_m", let_go) if unseen else ("end_distance_m", rests)
        if away < RESTS_M[name]:  # it is where it was meant to be
            message = (
                f"every other signal is usual and the object rests {away * 1000:.0f} mm from the "
                "target, yet the episode was judged a failure"
            )
            beside = 0.0 if unseen else max(away - AIMED_M, 0.0) / (RESTS_M[name] - AIMED_M)
            strength = TASK_STRENGTH * (UNSEEN_SHARE if unseen else 1.0 - beside)
            rule = Rule(D.TASK_SPECIFICATION, name)
            task = _Hit(rule, strength, Evidence(name, away, "m", message))
    # A channel that is faulty itself explains what is seen through it; direct evidence for another
    # dimension explains indirect evidence.
    faults: dict[str, float] = {}
    for hit in direct:
        if hit.rule.fault:
            faults[hit.rule.fault] = max(faults.get(hit.rule.fault, 0.0), hit.strength)
    left = [h for hit in direct if (h := hit.residual(hit.fault(faults)))]
    strongest = {d: max((h.strength for h in left if h.rule.dimension is d), default=0.0)
                 for d in GapDimension}  # fmt: skip
    for hit in indirect:
        others = max(s for d, s in strongest.items() if d is not hit.rule.dimension)
        rest = hit.residual(max(others, hit.fault(faults)))
        left += [rest] if rest else []
    scores, placed = _scores(left), task.strength if task else 0.0
    if task:
        loudest = max(_scores([h for h in left if h.rule in DIRECT]).values())
        if loudest <= TASK_QUIET and max(scores.values()) <= TASK_LOUDEST:
            task = replace(task, strength=task.strength * (1.0 - loudest / (2 * TASK_QUIET)))
            scores[GapDimension.TASK_SPECIFICATION] = task.strength
            left = [*left, task]
    hits = sorted(left, key=lambda h: -h.strength)
    anybodys = max(_scores([h for h in left if h.rule in INDIRECT]).values())
    return RuleEvidence(
        scores, placed, anybodys, tuple((h.rule.dimension, h.evidence) for h in hits)
    )


def _hit(
    rule: Rule, measured: TakeSignals, reference: Reference, mode: FailureMode | None
) -> _Hit | None:
    if rule.modes and mode not in rule.modes:
        return None
    z = reference.z(rule.signal, measured[rule.signal], measured.row_s)
    if math.isnan(z) or (rule.side and z * rule.side < 0):
        return None
    beyond = abs(z) - QUIET_Z
    if beyond <= 0 or any(reference.z(n, measured[n]) > QUIET_Z for n in rule.unless):
        return None
    strength = min(rule.weight * math.log1p(beyond), CAP * min(rule.weight, 1.0))
    spec = registry()[rule.signal]
    value = measured[rule.signal]
    message = f"{spec.describe(value)} (nominal {spec.show(reference.signals[rule.signal].mean)})"
    return _Hit(rule, strength, Evidence(rule.signal, value, spec.unit, message))


def _scores(hits: list[_Hit]) -> dict[GapDimension, float]:
    scores = dict.fromkeys(GapDimension, 0.0)
    for name in scores:
        strengths = sorted((h.strength for h in hits if h.rule.dimension is name), reverse=True)
        if strengths:
            scores[name] = min(strengths[0] + SECOND_RULES * sum(strengths[1:]), 1.4 * CAP)
    return scores
