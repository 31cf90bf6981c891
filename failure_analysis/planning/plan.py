"""From a diagnosis to a plan: what to collect, and what to do instead of collecting.

Which gaps demonstrations mend was measured by fine-tuning under each of them: camera pose and
object respond, contact and people in part; latency, noise, light and clutter don't, because no
number of examples tells the policy what its channels no longer carry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.plan import Plan, PlanItem
from gaploop.core.vocabulary import DIMENSIONS, GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis

D = GapDimension

LEAST_SHARE: Final = 0.10
"""Of the diagnosed failures: a dimension below this gets no item of its own."""
LEAST_TAKES: Final = 3
"""Failures that must be diagnosed before demonstrations are paid for."""
MINUTES_PER_TAKE: Final = 0.75
"""A 15 s take, half a minute to reset the scene: assumed."""


@dataclass(frozen=True)
class Remedy:
    """What mends a dimension.

    Attributes:
        remedy: one of core.plan's REMEDIES.
        response: how far demonstrations mend it, 0 to 1, as a share of the budget per share.
        protocol: how to go about it.
    """

    remedy: str
    response: float
    protocol: str


REMEDIES: Final[Mapping[GapDimension, Remedy]] = {
    D.SPATIAL_GEOMETRY: Remedy(
        "demonstrate", 1.0,
        "First recalibrate camera and joint zeros. If the station has to stay as it is, record "
        "successful demonstrations on it as it stands, spread evenly over the workspace grid.",
    ),
    D.OBJECT_PROPERTY: Remedy(
        "demonstrate", 1.0,
        "Record successful demonstrations with the real objects, sizes and weights in turn, "
        "spread evenly over the workspace grid.",
    ),
    D.CONTACT_DYNAMICS: Remedy(
        "demonstrate", 0.5,
        "First clean or change the finger pads and grip harder. Then record slow, firm grasps on "
        "the real surfaces, with current telemetry on.",
    ),
    D.HUMAN_BEHAVIOR: Remedy(
        "demonstrate", 0.5,
        "Agree on when people may reach in. Record takes with consenting participants in which "
        "the arm waits, then goes on from where the object lies.",
    ),
    D.ACTUATOR_RESPONSE: Remedy(
        "identify", 0.0,
        "Log fast and reversing motions, identify delay, play and gain, compensate them in the "
        "controller or service the drive; then evaluate again.",
    ),
    D.SENSOR_NOISE: Remedy(
        "recalibrate", 0.0,
        "Check cables, bus and camera link, recalibrate zeros, filter what remains; log scripted "
        "motions to characterise it; then evaluate again.",
    ),
    D.VISUAL_DOMAIN: Remedy(
        "perception", 0.0,
        "Fix exposure and white balance, focus the lens, add light, set the colour segmentation "
        "anew; then evaluate again.",
    ),
    D.ENVIRONMENTAL_COMPLEXITY: Remedy(
        "perception", 0.0,
        "Clear the cell, or make perception tell the object from what looks like it; keep "
        "obstacles out of the arm's way; then evaluate again.",
    ),
    D.TASK_SPECIFICATION: Remedy(
        "restate", 0.0,
        "Look at these takes together with whoever judges them, agree on criterion and tolerance, "
        "write them down, and evaluate again.",
    ),
}  # fmt: skip


def make_plan(diagnosis: Diagnosis, budget_takes: int) -> Plan:
    """Turn a diagnosis into a plan.

    A dimension gets an item if it has a fair share of the failures that could be attributed.
    Takes are shared out among the dimensions that demonstrations mend, by share and response;
    the others say what to do instead and ask for no takes. Conditions stay empty: the gap is in
    the station as it stands, which is where the takes are to be recorded.

    Args:
        diagnosis: what went wrong.
        budget_takes: how many takes may be recorded at most, 0 or more.

    Raises:
        UnusableInputError: a negative budget.
    """
    if budget_takes < 0:
        raise UnusableInputError(f"--budget.takes is {budget_takes}: give 0 or more.")
    attributed = [t for t in diagnosis.takes if not t.abstained]
    shares = _shares(attributed)
    wanted = {d: s for d, s in shares.items() if s >= LEAST_SHARE}
    enough = len(attributed) >= LEAST_TAKES
    takes = _allot(wanted, budget_takes if enough else 0)
    plan = uuid7()
    items = tuple(
        _item(plan, dimension, share, takes[dimension], diagnosis.takes, attributed, enough)
        for dimension, share in sorted(wanted.items(), key=lambda pair: -pair[1])
    )
    total = sum(item.takes for item in items)
    return Plan(plan, diagnosis.id, items, round(MINUTES_PER_TAKE * total, 1))


def _shares(takes: Sequence[TakeDiagnosis]) -> dict[GapDimension, float]:
    """Mean posterior of each dimension over the attributed failures, without `none`."""
    sums = {d: sum(t.dimensions[d.value] for t in takes) for d in GapDimension}
    total = sum(sums.values())
    return {d: value / total if total > 0 else 0.0 for d, value in sums.items()}


def _allot(shares: Mapping[GapDimension, float], budget: int) -> dict[GapDimension, int]:
    """Share out takes by largest remainder; never more than the budget."""
    weights = {d: share * REMEDIES[d].response for d, share in shares.items()}
    total = sum(weights.values())
    if total <= 0:
        return dict.fromkeys(shares, 0)
    exact = {d: budget * weight / total for d, weight in weights.items()}
    takes = {d: int(value) for d, value in exact.items()}
    left = budget - sum(takes.values())
    for d in sorted(exact, key=lambda d: takes[d] - exact[d])[:left]:
        takes[d] += 1
    return takes


def _item(
    plan: str,
    dimension: GapDimension,
    share: float,
    takes: int,
    diagnosed: Sequence[TakeDiagnosis],
    attributed: Sequence[TakeDiagnosis],
    enough: bool,
) -> PlanItem:
    remedy = REMEDIES[dimension]
    return PlanItem(
        id=f"{plan}:{dimension.value}",  # takes carry it, and it leads them back to the plan
        dimension=dimension,
        takes=takes,
        remedy=remedy.remedy,
        why=_why(dimension, share, diagnosed, attributed, enough),
        protocol=remedy.protocol,
        conditions={},
        share=round(share, 4),
    )


def _why(
    dimension: GapDimension,
    share: float,
    diagnosed: Sequence[TakeDiagnosis],
    attributed: Sequence[TakeDiagnosis],
    enough: bool,
) -> str:
    mine = [t for t in attributed if t.top == dimension.value]
    text = (
        f"{share:.0%} of {len(attributed)} attributed failures ({len(mine)} takes mainly; "
        f"{len(diagnosed) - len(attributed)} of {len(diagnosed)} failures abstained)."
    )
    modes = Counter(t.mode for t in mine).most_common(2)
    if modes:
        text += " Seen as " + ", ".join(f"{mode} ({n})" for mode, n in modes) + "."
    says = _typical(dimension, mine)
    if says:
        text += f" Typical: {says}."
    remedy = REMEDIES[dimension]
    if remedy.remedy != "demonstrate":
        text += f" Demonstrations don't mend this: {DIMENSIONS[dimension].remedy}"
    elif not enough:
        text += f" Too few failures to pay for demonstrations yet: diagnose at least {LEAST_TAKES}."
    return text


def _typical(dimension: GapDimension, takes: Sequence[TakeDiagnosis]) -> str:
    """Return the evidence that most often stands first for this dimension."""
    from gaploop.failure_analysis.attribution.rules import DIRECT, INDIRECT

    signals = {r.signal for r in (*DIRECT, *INDIRECT) if r.dimension is dimension}
    if dimension is D.TASK_SPECIFICATION:
        signals = {"end_distance_m"}
    firsts = [next((e for e in t.evidence if e.signal in signals), None) for t in takes]
    found = [e for e in firsts if e is not None]
    if not found:
        return ""
    name = Counter(e.signal for e in found).most_common(1)[0][0]
    chosen = sorted((e for e in found if e.signal == name), key=lambda e: e.value)
    return chosen[len(chosen) // 2].says
