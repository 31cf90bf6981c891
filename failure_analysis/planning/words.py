"""What a plan says, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gaploop.core.plan import ExpectedValue
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import TakeDiagnosis
from gaploop.failure_analysis.planning.allocation import PILOT_ROLLOUTS, Decision, DimensionQuota
from gaploop.failure_analysis.planning.curves import Curve, why_no_response
from gaploop.failure_analysis.planning.effort import RecordingEffort
from gaploop.failure_analysis.planning.failures import Failures


def why_words(dimension: GapDimension, share: float, failures: Failures) -> str:
    """Return the evidence for a dimension."""
    mine = [t for t in failures.named if t.top == dimension.value]
    text = (
        f"{share:.0%} of {len(failures.takes)} failures ({len(mine)} takes mainly; "
        f"{len(failures.takes) - len(failures.named)} abstained)."
    )
    modes = Counter(t.mode for t in mine).most_common(2)
    if modes:
        text += " Seen as " + ", ".join(f"{mode} ({n})" for mode, n in modes) + "."
    says = _typical(dimension, mine)
    return text + (f" Typical: {says}." if says else "")


def verdict_words(
    dimension: GapDimension,
    quota: DimensionQuota,
    curve: Curve,
    mended: ExpectedValue,
    image_policy: bool,
) -> str:
    """Return what follows from the evidence.

    Args:
        fixed: share of the dimension's failures that the quota's takes fix.
    """
    chance = f"{curve.responds:.0%}"
    part = f"{mended.mean:.0%} [{mended.low:.0%}, {mended.high:.0%}] of these failures"
    match quota.decision:
        case Decision.NOT_MENDED:
            why = why_no_response(dimension, image_policy)
            likely = "don't" if curve.responds < 0.2 else "probably don't"
            return f"Demonstrations {likely} fix this (chance that they do: {chance}): {why}."
        case Decision.UNCLEAR:
            return "Too few failures with a named cause to pay for demonstrations yet."
        case Decision.NOT_WORTH:
            return (
                f"Demonstrations aren't worth their time here: a first take is expected to bring "
                f"{quota.next_gain:.2g} points."
            )
        case Decision.NO_BUDGET:
            return f"The budget goes elsewhere; a take would bring {quota.next_gain:.2g} points."
        case Decision.RECORD:
            return f"{quota.takes} takes are expected to fix {part}."
        case Decision.PILOT | Decision.TRY:
            unsure = "The failures lean to this, and hardly one is clear enough to name it"
            if quota.decision is Decision.PILOT:
                unsure = f"Open whether demonstrations fix this (chance {chance})"
            return (
                f"{unsure}: record {quota.first}, adapt, roll out {PILOT_ROLLOUTS}, and plan again "
                f"with gaploop plan --results: up to {quota.takes - quota.first} more if they "
                f"helped, none if not. All {quota.takes} are expected to fix {part}."
            )


def stop_words(quotas: Mapping[GapDimension, DimensionQuota], least_gain: float) -> str:
    """Return why the plan ends where it does."""
    open_ones = {d: q for d, q in quotas.items() if q.decision in _COULD_GO_ON}
    if not open_ones:
        unclear = any(q.decision is Decision.UNCLEAR for q in quotas.values())
        return "" if unclear else "Don't collect: demonstrations would fix nothing that is seen."
    dimension = max(open_ones, key=lambda d: open_ones[d].next_gain)
    gain = open_ones[dimension].next_gain
    what = f"the next take ({dimension.value}) is expected to bring {gain:.2g} points"
    if gain >= least_gain > 0:
        return f"The budget ends it: {what}, still worth its time (from {least_gain:g} points on)."
    return f"Stop here: {what}, below {least_gain:g}. More demonstrations aren't worth their time."


_COULD_GO_ON: Final = (Decision.RECORD, Decision.PILOT, Decision.TRY, Decision.NO_BUDGET)


def notes(
    failures: Failures, summary: Mapping[str, Any], effort: RecordingEffort, least_takes: int
) -> tuple[str, ...]:
    """Return what else to know, or to find out first."""
    found = [
        *_find_out(failures, summary, least_takes),
        *([] if failures.rate_known else [
            "No rollout that was diagnosed succeeded: points are of success if these were all the "
            "rollouts there were, else of the failures alone."
        ]),
        *([] if effort.measured else [
            f"Times are {effort.take.basis} ({effort.take.mean_s:.0f} s a take, "
            f"{effort.reset.mean_s:.0f} s to reset): --takes=DIR measures them from takes."
        ]),
        *(["Sim-to-sim: diagnosed on the embedded cell, no evidence about a real robot."]
          if summary.get("sim_to_sim") else []),
    ]  # fmt: skip
    return tuple(found)


def _find_out(failures: Failures, summary: Mapping[str, Any], least_takes: int) -> Sequence[str]:
    n, named = len(failures.takes), len(failures.named)
    unseen: Mapping[str, int] = summary.get("unseen", {})
    channels = ""
    if unseen:
        names = sorted(unseen, key=lambda name: (-unseen[name], name))[:3]
        channels = f" What the takes have no channel for: {'; '.join(names)}."
    if named < least_takes:
        return [
            f"Find out first: {named} of {n} failures have a named cause, {least_takes} are needed "
            "before more than a few takes are paid for. Roll out ten more and diagnose again, or "
            f"label what you saw (gaploop label).{channels}"
        ]
    if 3 * named < 2 * n:
        return [
            f"{n - named} of {n} failures have no named cause; they count by their posterior. "
            f"Label a dozen by hand before a long campaign (gaploop label).{channels}"
        ]
    return []


def _typical(dimension: GapDimension, takes: Sequence[TakeDiagnosis]) -> str:
    """Return the evidence that most often stands first for this dimension."""
    from gaploop.failure_analysis.attribution.rules import DIRECT, INDIRECT

    signals = {r.signal for r in (*DIRECT, *INDIRECT) if r.dimension is dimension}
    if dimension is GapDimension.TASK_SPECIFICATION:
        signals = {"end_distance_m"}
    firsts = [next((e for e in t.evidence if e.signal in signals), None) for t in takes]
    found = [e for e in firsts if e is not None]
    if not found:
        return ""
    name = Counter(e.signal for e in found).most_common(1)[0][0]
    chosen = sorted((e for e in found if e.signal == name), key=lambda e: (e.value, e.message))
    return chosen[len(chosen) // 2].message
