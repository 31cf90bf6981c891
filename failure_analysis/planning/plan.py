"""From a diagnosis to a plan: what to collect, and what to do instead of collecting.

Which gaps demonstrations fix was measured by fine-tuning under each of them (`responses.json`):
camera pose, object, soft contact and weak or slack drives respond, dead time a little, pushes and
light hardly. Of noise and clutter it is assumed: no number of examples tells the policy what its
channels no longer carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from gaploop.core.files import uuid7
from gaploop.core.plan import ExpectedValue, Plan, PlanItem
from gaploop.core.station import Station
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis
from gaploop.failure_analysis.planning.allocation import (
    LEAST_GAIN,
    PILOT_HORIZON,
    PILOT_TAKES,
    Budget,
    Decision,
    DimensionQuota,
    affordable,
    best_order,
    next_gains,
    split_takes,
    worth_a_pilot,
)
from gaploop.failure_analysis.planning.curves import Curve, learn
from gaploop.failure_analysis.planning.effort import (
    RecordingEffort,
    effort_from,
    estimate,
    setup_changes,
)
from gaploop.failure_analysis.planning.failures import CAUSES, Failures
from gaploop.failure_analysis.planning.outlook import DRAWS, Outlook, Prospect
from gaploop.failure_analysis.planning.remedies import REMEDIES
from gaploop.failure_analysis.planning.setups import Setups, setups_for
from gaploop.failure_analysis.planning.words import notes, stop_words, verdict_words, why_words

LEAST_SHARE: Final = 0.10
"""Of the failures: a dimension below this gets no item of its own."""
LEAST_TAKES: Final = 3
"""Failures whose cause must be named before demonstrations are paid for."""
LEAST_LEANING: Final = 6
"""Failures that lean to one cause, each too unsure to name it, that are worth trying it."""
LEAST_RESPONSE: Final = 0.5
"""Probability that demonstrations fix anything, below which the other remedy comes first: it
costs an hour where a campaign costs a day."""


@dataclass(frozen=True)
class Ask:
    """What a plan is made from, besides the diagnosis.

    Attributes:
        budget: what may be spent.
        curves: how each dimension responds to demonstrations.
        effort: what recording takes.
        station: where it is recorded; its named conditions are varied where that helps.
        conditions: uid of a failed take to what was set up.
        image_policy: the policy sees pictures rather than tracked poses.
        least_gain: percentage points of success that a take must be expected to bring.
    """

    budget: Budget
    curves: Mapping[GapDimension, Curve] = field(default_factory=learn)
    effort: RecordingEffort = field(default_factory=effort_from)
    station: Station = field(default_factory=lambda: Station("any"))
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    image_policy: bool = False
    least_gain: float = LEAST_GAIN


@dataclass(frozen=True)
class Planned:
    """A plan, and what it rests on."""

    plan: Plan
    outlook: Outlook

    def prospects(self) -> tuple[Prospect, ...]:
        """Return what to expect of more takes, for each dimension in the plan's order."""
        planned: dict[GapDimension, int] = {}
        for item in self.plan.items:
            total = planned.get(item.dimension, 0) + item.takes + item.may_follow
            planned[item.dimension] = total
        return tuple(self.outlook.prospect(d, n) for d, n in planned.items())


def make_plan(diagnosis: Diagnosis, budget_takes: int) -> Plan:
    """Turn a diagnosis into a plan within a number of takes; see `plan_for`.

    Raises:
        UnusableInputError: a negative budget.
    """
    return plan_for(diagnosis, Ask(Budget(takes=budget_takes))).plan


def plan_for(diagnosis: Diagnosis, ask: Ask) -> Planned:
    """Turn a diagnosis into a plan.

    A dimension gets an item if it has a fair share of the failures. Takes go where the next one is
    expected to bring most for its price, until the budget or the gain is used up. Where it is open
    whether demonstrations help, a few are recorded first. What demonstrations don't fix is done
    instead, and asks for no takes.
    """
    failures = Failures.of(diagnosis)
    shares = _shares(failures)
    quotas = _quotas(failures, list(shares), ask)
    outlook = Outlook(failures, ask.curves)
    plan_id = uuid7()
    items = [
        item
        for dimension, share in shares.items()
        for item in _items(plan_id, dimension, share, quotas[dimension], failures, outlook, ask)
    ]
    gain = sum((outlook.gain(d, quota.takes) for d, quota in quotas.items()), np.zeros(DRAWS))
    hours = _hours(quotas, failures, ask)
    now_h = sum(item.hours.mean * item.takes / (item.takes + item.may_follow)
                for item in items if item.hours)  # fmt: skip
    known, rate = failures.rate_known, ask.effort.rate_per_hour
    plan = Plan(
        plan_id,
        diagnosis.id,
        tuple(items),
        round(60 * now_h, 1),
        gain_points=_points(gain),
        gain_of="all rollouts" if known else "the failures",
        success_now=estimate(1 - outlook.rate, 4) if known else None,
        success_then=estimate(1 - outlook.rate + gain / 100, 4) if known else None,
        hours=estimate(hours, 3),
        cost=None if rate is None else estimate(rate * hours),
        currency="" if rate is None else ask.effort.currency,
        stop=stop_words(quotas, ask.least_gain),
        notes=notes(failures, diagnosis.summary, ask.effort, LEAST_TAKES),
    )
    return Planned(plan, outlook)


def _shares(failures: Failures) -> dict[GapDimension, float]:
    """Return the share of the failures of each dimension that gets an item, largest first."""
    if not failures.takes:
        return {}
    means = failures.posteriors.mean(axis=0)
    found = {d: float(means[CAUSES.index(d)]) for d in GapDimension}
    wanted = [(d, share) for d, share in found.items() if share >= LEAST_SHARE]
    return dict(sorted(wanted, key=lambda pair: -pair[1]))


def _quotas(
    failures: Failures, wanted: Sequence[GapDimension], ask: Ask
) -> dict[GapDimension, DimensionQuota]:
    """Return what becomes of every wanted dimension.

    A diagnosis names a cause in one take only if that take alone leaves little doubt. Where hardly
    any does but all lean the same way, they may still err alike: a few takes find out.
    """
    if len(failures.named) >= LEAST_TAKES:
        return _by_gain(failures, wanted, ask)
    unclear = {d: _without_takes(d, ask, Decision.UNCLEAR) for d in wanted}
    likely = [d for d in wanted if failures.leaning(d) >= LEAST_LEANING]
    return unclear | {d: _tried_first(q) for d, q in _by_gain(failures, likely, ask).items()}


def _tried_first(quota: DimensionQuota) -> DimensionQuota:
    """Return a quota of which only a few takes are recorded before looking."""
    if quota.decision not in (Decision.RECORD, Decision.PILOT):
        return quota
    return replace(quota, decision=Decision.TRY, first=min(quota.takes, PILOT_TAKES[0]))


def _by_gain(
    failures: Failures, wanted: Sequence[GapDimension], ask: Ask
) -> dict[GapDimension, DimensionQuota]:
    """Return what becomes of dimensions where each take goes to where it is expected to help."""
    points = {
        d: 100.0 * failures.rate * float(failures.shares[CAUSES.index(d)])
        for d in wanted
        if ask.curves[d].responds >= LEAST_RESPONSE
    }
    gains = next_gains(ask.curves, points)
    price = {d: ask.effort.hours_per_take(d) if ask.budget.by_the_hour else 1.0 for d in points}
    takes = affordable(
        best_order(gains, price, ask.least_gain),
        ask.budget,
        partial(_expected_hours, failures=failures, ask=ask),
        ask.effort.rate_per_hour,
    )
    return {d: _quota(d, takes.get(d, 0), gains, points, ask) for d in wanted}


def _without_takes(dimension: GapDimension, ask: Ask, decision: Decision) -> DimensionQuota:
    mends = ask.curves[dimension].responds >= LEAST_RESPONSE
    return DimensionQuota(decision if mends else Decision.NOT_MENDED)


def _quota(
    dimension: GapDimension,
    takes: int,
    gains: Mapping[GapDimension, FloatArray],
    points: Mapping[GapDimension, float],
    ask: Ask,
) -> DimensionQuota:
    """Return what becomes of a dimension that was allotted so many takes."""
    if dimension not in gains:
        return DimensionQuota(Decision.NOT_MENDED)
    line = gains[dimension]
    left = float(line[takes]) if takes < len(line) else 0.0
    if not takes:
        worth = left >= ask.least_gain and left > 0
        return DimensionQuota(Decision.NO_BUDGET if worth else Decision.NOT_WORTH, next_gain=left)
    most = max(takes, min(ask.budget.takes or PILOT_HORIZON, PILOT_HORIZON))
    curve, worth_points = ask.curves[dimension], points[dimension]
    first = worth_a_pilot(curve, worth_points, takes, most, ask.least_gain)
    return DimensionQuota(Decision.PILOT if first else Decision.RECORD, takes, first or takes, left)


def _changes(dimension: GapDimension, takes: int, failures: Failures, ask: Ask) -> float:
    found = setups_for(dimension, failures, ask.conditions, ask.station)
    return setup_changes(takes, found.every())


def _expected_hours(takes: Mapping[GapDimension, int], *, failures: Failures, ask: Ask) -> float:
    return sum(
        n * ask.effort.hours_per_take(d) + ask.effort.setup_hours(_changes(d, n, failures, ask))
        for d, n in takes.items()
    )


def _hours(
    quotas: Mapping[GapDimension, DimensionQuota], failures: Failures, ask: Ask
) -> FloatArray:
    takes = {d: quota.takes for d, quota in quotas.items()}
    changes = sum(_changes(d, n, failures, ask) for d, n in takes.items())
    return ask.effort.draw_hours(takes, changes, np.random.default_rng(3), DRAWS)


def _points(draws: FloatArray) -> ExpectedValue:
    return estimate(draws, 1)


def _items(
    plan: str,
    dimension: GapDimension,
    share: float,
    quota: DimensionQuota,
    failures: Failures,
    outlook: Outlook,
    ask: Ask,
) -> list[PlanItem]:
    """Return a dimension's items: one, or one for each condition that its takes are split by."""
    curve, remedy = ask.curves[dimension], REMEDIES[dimension]
    mended = estimate(outlook.mended(dimension, quota.takes), 3)
    verdict = verdict_words(dimension, quota, curve, mended, ask.image_policy)
    demonstrate = quota.decision.demonstrate
    base = PlanItem(
        id=f"{plan}:{dimension.value}",  # takes carry it, and it leads them back to the plan
        dimension=dimension,
        takes=0,
        remedy="demonstrate" if demonstrate else remedy.instead,
        why=f"{why_words(dimension, share, failures)} {verdict}",
        protocol=remedy.protocol if demonstrate else remedy.steps,
        share=round(share, 4),
        sensors=remedy.sensors,
        test=remedy.test,
    )
    if not quota.takes:
        return [base]
    setups = setups_for(dimension, failures, ask.conditions, ask.station)
    return _split(base, quota, setups, outlook, ask)


def _split(
    base: PlanItem, quota: DimensionQuota, setups: Setups, outlook: Outlook, ask: Ask
) -> list[PlanItem]:
    """Return an item for each part of the set-ups, with its takes, gain and hours."""
    curve = ask.curves[base.dimension]
    masses = [part.mass for part in setups.parts]
    all_takes = split_takes(quota.takes, masses, curve)
    first = split_takes(quota.first, masses, curve)
    gain = outlook.gain(base.dimension, quota.takes)
    found = []
    for part, total, now in zip(setups.parts, all_takes, first, strict=True):
        if not total:
            continue
        changes = setup_changes(total, part.every())
        hours = ask.effort.draw_hours(
            {base.dimension: total}, changes, np.random.default_rng(4), DRAWS
        )
        found.append(
            replace(
                base,
                id=base.id + part.suffix,
                takes=now,
                may_follow=total - now,
                conditions=part.conditions,
                vary=part.vary,
                gain_points=_points(part.mass * gain),
                hours=estimate(hours, 3),
            )
        )
    return found
