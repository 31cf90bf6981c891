"""From a diagnosis to a plan: what to collect, and what to do instead of collecting.

Which gaps demonstrations fix was measured by fine-tuning under each of them (`responses.json`); of
noise and clutter it is assumed that they don't.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from gaploop.core.files import uuid7
from gaploop.core.plan import EXPECTED_CONFIDENCE, Alternative, Plan, PlanItem
from gaploop.core.station import Station
from gaploop.core.statistics import Estimate, TrialCounts, percent
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis
from gaploop.failure_analysis.planning.gains import (
    DRAWS,
    LEAST_GAIN,
    NO_RESPONSE,
    OPEN_RESPONSE,
    Budget,
    Curve,
    Decision,
    DimensionQuota,
    Failures,
    GainModel,
    affordable,
    best_order,
    expected_curves,
    next_gains,
    no_response,
    split_takes,
)
from gaploop.failure_analysis.planning.ledger import (
    RecordingEffort,
    effort_from,
    estimate,
    ledger_lines,
    setup_changes,
)
from gaploop.failure_analysis.planning.remedies import (
    REMEDIES,
    ROLLOUTS,
    STEPS,
    PlanContext,
    RemedyOffer,
    better_policy,
    commands,
    identify_first,
    machine_hours,
    measuring,
    mended_script,
    offers,
    setups_for,
)
from gaploop.failure_analysis.reference import Ground
from gaploop.failure_analysis.rules import DIRECT, INDIRECT
from gaploop.failure_analysis.station import LIKELY, POLICY, words

LEAST_SHARE: Final = 0.10
"""Of the failures: a dimension below this gets no item of its own."""
MENDED: Final = 3
"""So many faults that the episodes show by themselves are named in a plan."""
LEAST_TAKES: Final = 3
"""Failures whose cause must be named before demonstrations are paid for."""
MEASURE: Final = (
    "Measure first: gaploop identify --measure, then gaploop diagnose --twin=station_twin.yaml."
)
ASK_POLICY: Final = (
    "Ask the policy first: gaploop diagnose with --policy.path, and --trained_on its training set."
)
"""Outside the embedded cell, whose twin would be one of another scene."""
REPLAY: Final = (
    "Measure first: gaploop identify DATASET --env.scene=FILE (or --env.gym=ID), then gaploop "
    "diagnose --twin=station_twin.yaml."
)
"""In a simulation of somebody's own."""
FIND_OUT: Final = "Find out first:"
"""Begins the note of a plan that asks for more rollouts before it pays for episodes."""
COLLECT, RESIMULATE = "collect", "resimulate"
LEAST_POINTS: Final = 1.0
"""Percentage points of success that a remedy must be expected to bring to be weighed."""
LEAST_RESPONSE: Final = 0.5
"""Probability that demonstrations fix anything, below which the other remedy comes first: it
costs an hour where a campaign costs a day."""


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is made from, besides the diagnosis.

    Attributes:
        station: where it is recorded; its named conditions are varied where that helps.
        conditions: uid of a failed take to what was set up.
        image_policy: the policy sees pictures rather than tracked poses.
        about: what remedies that are commands are filled in with; without, only takes are weighed.
    """

    budget: Budget
    curves: Mapping[GapDimension, Curve] = field(default_factory=expected_curves)
    effort: RecordingEffort = field(default_factory=effort_from)
    station: Station = field(default_factory=lambda: Station("any"))
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    image_policy: bool = False
    about: PlanContext | None = None


def plan_for(diagnosis: Diagnosis, ask: PlanRequest) -> Plan:
    """Turn a diagnosis into a plan.

    A dimension gets an item if it was named, and has a fair share of the failures: nothing is
    bought against what a diagnosis only leans to; what to measure is said instead. Takes go where
    the next one brings most for its price, until the budget or the gain is used up. What
    demonstrations don't fix is done instead. Nothing is bought while policy, arm and cameras are
    put together wrongly.
    """
    if _is_script(ask):
        ask = replace(ask, curves=dict.fromkeys(ask.curves, NO_RESPONSE))
    failures = Failures.of(diagnosis)
    means = failures.posteriors.mean(axis=0).tolist() if failures.takes else []
    ranked = sorted(zip(means, GapDimension, strict=False), key=lambda pair: -pair[0])
    causes = () if diagnosis.summary.get("deployment") else failures.causes
    shares = {d: share for share, d in ranked if share >= LEAST_SHARE and d in causes}
    quotas = _quotas(failures, list(shares), ask)
    outlook = GainModel(failures, ask.curves)
    priced, instead = _weigh(quotas, failures, outlook, ask)
    left = _quotas(failures, [d for d in shares if d not in instead], ask)
    quotas = {d: left.get(d, DimensionQuota(Decision.INSTEAD)) for d in shares}
    plan_id = uuid7()
    items = []
    for dimension, share in shares.items():
        items += _items(plan_id, dimension, share, quotas[dimension], failures, outlook, ask)
    items = _carried_out(items, priced, instead, outlook, ask)
    gain = sum((outlook.gain(d, quota.takes) for d, quota in quotas.items()), np.zeros(DRAWS))
    gain += sum((outlook.gain_of(d, o.fixed) for d, o in instead.items()), np.zeros(DRAWS))
    takes = {d: quota.takes for d, quota in quotas.items()}
    changes = sum(_changes(d, n, failures, ask) for d, n in takes.items())
    hours = ask.effort.draw_hours(takes, changes, np.random.default_rng(3), DRAWS)
    hours += sum({o.remedy: o.hours.value for o in instead.values()}.values())
    now_h = sum(item.hours.value for item in items if item.hours and item.takes)
    known, rate = failures.rate_known, ask.effort.rate_per_hour
    machine_h, rollout_h = sum(o.machine_hours for o in instead.values()), 0.0
    if any(takes.values()):
        machine_h += machine_hours(ask.about or PlanContext(), ask.image_policy, 0)
        rollout_h = ROLLOUTS * (ask.effort.take.mean_s + ask.effort.reset.mean_s) / 3600.0
    measure: tuple[str, ...] = ()  # what brings better evidence; reproduced failures are best
    if ask.about and diagnosis.takes and "reproduction" not in diagnosis.summary:
        measure = measuring(ask.about, diagnosis.source)
    return Plan(
        plan_id,
        diagnosis.id,
        tuple(items),
        round(60 * now_h, 1),
        gain_points=estimate(gain, 1),
        gain_of="all rollouts" if known else "the failures",
        expected=estimate(np.minimum(gain / 100.0, outlook.rate), 4, EXPECTED_CONFIDENCE)
        if gain.any()
        else None,
        before=TrialCounts(failures.succeeded, failures.failed + failures.succeeded),
        success_now=estimate(1 - outlook.rate, 4) if known else None,
        success_then=estimate(1 - outlook.rate + gain / 100, 4) if known else None,
        hours=estimate(hours, 3),
        machine_hours=round(machine_h, 2),
        rollout_hours=round(rollout_h, 2),
        cost=None if rate is None else estimate(rate * hours),
        currency="" if rate is None else ask.effort.currency,
        stop=_stop_words(quotas, diagnosis.summary),
        notes=_notes(failures, diagnosis.summary, items, ask),
        measure=measure,
    )


def _weigh(
    quotas: Mapping[GapDimension, DimensionQuota],
    failures: Failures,
    outlook: GainModel,
    ask: PlanRequest,
) -> tuple[dict[GapDimension, tuple[Alternative, ...]], dict[GapDimension, RemedyOffer]]:
    """Return every remedy by dimension, priced, and the commands that are run instead of recording.

    Those are where a command brings most for an operator's hour. Takes in a twin show all that
    differs there: once they are recorded for one dimension, the others get them for nothing.
    """
    limit_h = ask.budget.hours
    offered = {d: offers(d, ask.about, ask.image_policy) if ask.about else () for d in quotas}
    offered = _of_their_dimensions(offered, failures)
    priced: dict[GapDimension, tuple[Alternative, ...]] = {}
    instead: dict[GapDimension, RemedyOffer] = {}
    for d, quota in quotas.items():
        ways = []
        for offer in offered[d]:
            gain = estimate(outlook.gain_of(d, offer.fixed), 1)
            ways.append(Alternative(offer.remedy, gain, offer.hours, offer.machine_hours))
        if quota.takes and ways:
            changes = _changes(d, quota.takes, failures, ask)
            rng = np.random.default_rng(4)
            hours = ask.effort.draw_hours({d: quota.takes}, changes, rng, DRAWS)
            gain = estimate(outlook.gain(d, quota.takes), 1)
            ways.append(Alternative(COLLECT, gain, estimate(hours, 3)))
        priced[d] = tuple(ways)
        worth = [
            way
            for way in ways
            if way.gain_points.value >= LEAST_POINTS
            and (way.remedy == COLLECT or limit_h is None or way.hours.value <= limit_h)
        ]
        best = max(worth, key=lambda way: way.points_per_hour, default=None)
        if best is not None and best.remedy != COLLECT:
            instead[d] = next(o for o in offered[d] if o.remedy == best.remedy)
    if any(offer.remedy == RESIMULATE for offer in instead.values()):
        for d in instead:
            same = [o for o in offered[d] if o.remedy == RESIMULATE]
            instead[d] = same[0] if same else instead[d]
    return priced, instead


def _of_their_dimensions(
    offered: Mapping[GapDimension, Sequence[RemedyOffer]], failures: Failures
) -> dict[GapDimension, tuple[RemedyOffer, ...]]:
    """Return offers whose share is of one dimension's failures, also where they were tried.

    A trial tells which share of all failures in the twin goes; those of the dimensions that the
    remedy is offered for share in it by their failures.
    """
    cost = {d: failures.cost(d) for d in offered}
    mine = Counter[str]()
    for d, ways in offered.items():
        mine.update({o.remedy: cost[d] for o in ways if o.tried})
    whole = sum(cost[d] for d, ways in offered.items() if any(o.tried for o in ways))
    return {
        d: tuple(
            replace(o, fixed=np.clip(o.fixed * whole / max(mine[o.remedy], 1e-9), -1.0, 1.0))
            if o.tried
            else o
            for o in ways
        )
        for d, ways in offered.items()
    }


def _carried_out(
    items: Sequence[PlanItem],
    priced: Mapping[GapDimension, Sequence[Alternative]],
    instead: Mapping[GapDimension, RemedyOffer],
    outlook: GainModel,
    ask: PlanRequest,
) -> list[PlanItem]:
    """Return the items with what is done instead, what else was weighed, and their commands."""
    found = []
    typed: set[str] = set()
    for item in items:
        why = item.why
        if (offer := instead.get(item.dimension)) is not None:
            fixed = estimate(offer.fixed, 3)
            why += (
                f" To {words(offer.remedy)} is expected to fix {percent(fixed)} of these failures "
                f"({offer.basis})."
            )
            item = replace(
                item,
                remedy=offer.remedy,
                protocol=STEPS[offer.remedy],
                gain_points=estimate(outlook.gain_of(item.dimension, offer.fixed), 1),
                hours=offer.hours,
                machine_hours=offer.machine_hours,
            )
        others = {way.remedy: way for way in priced[item.dimension]}
        mine = others.pop(item.remedy, None)
        if mine is not None and others:
            best = max(others.values(), key=lambda way: way.points_per_hour)
            ahead = mine.gain_points.value - best.gain_points.value
            this, other = words(item.remedy), words(best.remedy)
            why += (
                f" Points per operator's hour: {this} {mine.points_per_hour:.0f}, {other} "
                f"{best.points_per_hour:.0f}; points in all: {this} {ahead:+.1f} compared with "
                f"{other}."
            )
        item = replace(item, why=why, alternatives=tuple(others.values()))
        lines: tuple[str, ...] = ()
        if ask.about is not None and (item.takes or item.remedy != COLLECT):
            lines = commands(item.remedy, item.dimension, ask.about, ask.image_policy)
        if lines and lines[0] in typed:  # what serves several stands once
            serves = f"{item.protocol} The commands above serve this, too."
            hours = item.hours if item.takes else None
            found.append(replace(item, protocol=serves, hours=hours, machine_hours=0.0))
        else:
            found.append(replace(item, commands=lines))
        typed.update(lines)
    return found


def _quotas(
    failures: Failures, wanted: Sequence[GapDimension], ask: PlanRequest
) -> dict[GapDimension, DimensionQuota]:
    """Return what becomes of every wanted dimension, each named.

    Each take goes to where it is expected to help most. One or two takes alone may err: takes are
    paid for where three are clear, or where all failures together name the cause.
    """
    named = len(failures.named) >= LEAST_TAKES
    fixes = [d for d in wanted if ask.curves[d].responds >= LEAST_RESPONSE]
    points = {d: 100.0 * failures.cost(d) for d in fixes if named or d in failures.by_station}
    gains = next_gains(ask.curves, points)
    hourly = ask.budget.hours is not None
    price = {d: ask.effort.hours_per_take(d) if hourly else 1.0 for d in points}

    def expected_hours(takes: Mapping[GapDimension, int]) -> float:
        return sum(
            n * ask.effort.hours_per_take(d)
            + _changes(d, n, failures, ask) * ask.effort.setup.mean_s / 3600.0
            for d, n in takes.items()
        )

    allotted = affordable(best_order(gains, price, LEAST_GAIN), ask.budget, expected_hours)
    quotas = {}
    for d in wanted:
        if d not in gains:
            quotas[d] = DimensionQuota(Decision.UNCLEAR if d in fixes else Decision.NOT_FIXED)
            continue
        takes, line = allotted.get(d, 0), gains[d]
        left = float(line[takes]) if takes < len(line) else 0.0
        decision = Decision.NO_BUDGET if left >= LEAST_GAIN else Decision.NOT_WORTH
        quotas[d] = DimensionQuota(Decision.RECORD if takes else decision, takes, left)
    return quotas


def _changes(dimension: GapDimension, takes: int, failures: Failures, ask: PlanRequest) -> float:
    """Return about how many changes of set-up so many takes of a dimension need."""
    parts = setups_for(dimension, failures, ask.conditions, ask.station)
    return setup_changes(takes, [setup for part in parts for setup in part.every()])


def _items(
    plan: str,
    dimension: GapDimension,
    share: float,
    quota: DimensionQuota,
    failures: Failures,
    outlook: GainModel,
    ask: PlanRequest,
) -> list[PlanItem]:
    """Return a dimension's items: one, or one for each condition that its takes are split by."""
    mine = [t for t in failures.named if t.top == dimension.value]
    why = (
        f"{share:.0%} of {len(failures.takes)} failures ({len(mine)} episodes mainly; "
        f"{len(failures.takes) - len(failures.named)} abstained)."
    )
    modes = Counter(t.mode for t in mine).most_common(2)
    if modes:
        why += f" Seen as {', '.join(f'{words(mode)} ({n})' for mode, n in modes)}."
    # Typical: the evidence that most often stands first for this dimension, in the middle take.
    signals = {r.signal for r in (*DIRECT, *INDIRECT) if r.dimension is dimension}
    if dimension is GapDimension.TASK_SPECIFICATION:
        signals = {"end_distance_m"}
    firsts = [next((e for e in t.evidence if e.signal in signals), None) for t in mine]
    seen = [e for e in firsts if e is not None]
    if seen:
        name = Counter(e.signal for e in seen).most_common(1)[0][0]
        same = sorted((e for e in seen if e.signal == name), key=lambda e: (e.value, e.message))
        why += f" Typical: {same[len(same) // 2].message}."
    curve, remedy = ask.curves[dimension], REMEDIES[dimension]
    fixed = estimate(outlook.fixed(dimension, quota.takes), 3)
    verdict = ""
    if not _is_script(ask):
        verdict = _verdict_words(dimension, quota, curve, fixed, ask.image_policy)
    demonstrate = quota.decision.demonstrate
    base = PlanItem(
        id=f"{plan}:{dimension.value}",  # takes carry it, and it leads them back to the plan
        dimension=dimension,
        takes=0,
        remedy=COLLECT if demonstrate else remedy.instead,
        why=f"{why} {verdict}".rstrip(),
        protocol=remedy.protocol if demonstrate else remedy.steps,
        share=round(share, 4),
        sensors=remedy.sensors,
        test=remedy.test,
    )
    if not quota.takes:
        return [base]
    parts = setups_for(dimension, failures, ask.conditions, ask.station)
    masses = [part.mass for part in parts]
    split = split_takes(quota.takes, masses, curve)
    gain = outlook.gain(dimension, quota.takes)
    found = []
    for part, takes in zip(parts, split, strict=True):
        if takes:
            changes = setup_changes(takes, part.every())
            rng = np.random.default_rng(4)
            hours = ask.effort.draw_hours({dimension: takes}, changes, rng, DRAWS)
            item = replace(
                base,
                id=base.id + part.suffix,
                takes=takes,
                conditions=part.conditions,
                vary=part.vary,
                gain_points=estimate(part.mass * gain, 1),
                hours=estimate(hours, 3),
            )
            found.append(item)
    return found


def _verdict_words(
    dimension: GapDimension,
    quota: DimensionQuota,
    curve: Curve,
    fixed: Estimate,
    image_policy: bool,
) -> str:
    """Return what follows from the evidence; `fixed` is the share that the quota's takes fix."""
    chance = f"{curve.responds:.0%}"
    part = f"{percent(fixed)} of these failures"
    match quota.decision:
        case Decision.NOT_FIXED:
            _, why = no_response(dimension, image_policy)
            likely = "don't" if curve.responds < 0.2 else "probably don't"
            return f"Demonstrations {likely} fix this (chance that they do: {chance}): {why}."
        case Decision.INSTEAD:
            return ""
        case Decision.UNCLEAR:
            return "Too few failures with a named cause to pay for demonstrations yet."
        case Decision.NOT_WORTH:
            return (
                "Demonstrations aren't worth their time here: a first episode is expected to "
                f"bring {quota.next_gain:.2g} points."
            )
        case Decision.NO_BUDGET:
            return (
                f"The budget goes elsewhere; an episode would bring {quota.next_gain:.2g} points."
            )
        case Decision.RECORD:
            sure = curve.responds >= OPEN_RESPONSE
            doubt = "" if sure else f" Whether demonstrations fix this is open (chance {chance})."
            return f"{quota.takes} episodes are expected to fix {part}.{doubt}"


def _stop_words(quotas: Mapping[GapDimension, DimensionQuota], summary: Mapping[str, Any]) -> str:
    if mistakes := summary.get("deployment"):
        return (
            f"Don't collect yet: {words(mistakes[0]['kind'])} was found in the deployment. "
            f"{mistakes[0]['fix'].rstrip('.')}; then roll out and diagnose again."
        )
    may_go_on = (Decision.RECORD, Decision.NO_BUDGET)
    open_ones = {d: q for d, q in quotas.items() if q.decision in may_go_on}
    if not open_ones and any(q.decision is Decision.INSTEAD for q in quotas.values()):
        return "Don't collect yet: run the commands, roll out at the station and diagnose again."
    if not open_ones and summary.get("shown_alone"):
        return (
            "Don't collect yet: mend what the episodes show by themselves (below), roll out and "
            "diagnose again."
        )
    if not open_ones:
        unclear = any(q.decision is Decision.UNCLEAR for q in quotas.values())
        hidden = summary.get("evidence", {}).get("cannot_rule_out", ())
        reproduced = "reproduction" in summary
        # What it couldn't see, its twin has.
        if hidden and not unclear and not (quotas and reproduced):
            if reproduced:
                return _look_first(summary["station"])
            there = REPLAY if summary.get("sim_to_sim") else ASK_POLICY
            step = there if _is_elsewhere(summary) else MEASURE
            few = " or ".join(map(words, hidden)) if len(hidden) <= 2 else f"{len(hidden)} causes"
            return f"Not decided. {step} Nothing here rules out {few} yet."
        if summary.get("takes") and not summary.get("diagnosed", 1):
            return "Nothing failed: there is nothing to put right or to collect for."
        if not quotas and summary.get("takes"):
            return "No cause was named: there is nothing to put right or to collect for yet."
        return "" if unclear else "Don't collect: demonstrations would fix nothing that was found."
    dimension = max(open_ones, key=lambda d: open_ones[d].next_gain)
    gain = open_ones[dimension].next_gain
    what = f"the next episode ({dimension.value}) is expected to bring {gain:.2g} points"
    if gain >= LEAST_GAIN:
        return f"The budget ends it: {what}, still worth its time (from {LEAST_GAIN:g} points on)."
    return f"Stop here: {what}, below {LEAST_GAIN:g}. More demonstrations aren't worth their time."


def _look_first(station: Mapping[str, Any]) -> str:
    """Return what a person looks at where what was measured doesn't explain the failures."""
    if POLICY in station["named"]:
        return "Don't collect yet: what fails is the policy itself (below)."
    leading: str = station["leading"]
    likely = station["posterior"].get(leading, 0.0)
    if leading in list(GapDimension) and likely >= LIKELY:
        test = REMEDIES[GapDimension(leading)].test
        return f"Not decided: likeliest is {words(leading)} ({likely:.0%}), unmeasured. {test}"
    return (
        "Not decided: nothing that was measured explains the failures. Watch ten rollouts, label "
        "what you see (gaploop label), and diagnose again."
    )


def _is_script(ask: PlanRequest) -> bool:
    return ask.about is not None and bool(ask.about.world) and ask.about.is_script


def _is_elsewhere(summary: Mapping[str, Any]) -> bool:
    return bool(summary.get("ground") == Ground.ELSEWHERE)


def _notes(
    failures: Failures, summary: Mapping[str, Any], items: Sequence[PlanItem], ask: PlanRequest
) -> tuple[str, ...]:
    effort = ask.effort
    n, named = len(failures.takes), len(failures.named)
    unseen: Mapping[str, int] = summary.get("unseen", {})
    channels = ""
    if unseen:
        names = sorted(unseen, key=lambda name: (-unseen[name], name))[:3]
        channels = f" Not recorded in the episodes: {'; '.join(names)}."
    mended = {item.dimension.value for item in items if item.commands}
    first = [
        f for f in summary.get("shown_alone", ())
        # The plan's commands are about this lateness already.
        if f.get("kind") != "action_lag" or f["belongs_to"] not in mended
    ]  # fmt: skip
    notes = [f"Mend first: {f['what']} → {f['fix']}" for f in first[:MENDED]]
    nominal = summary.get("reproduction", {}).get("failing", {}).get("nominal") or [0.0]
    by_itself = POLICY in summary.get("station", {}).get("named", ())
    if by_itself and nominal[0] > 0:
        how, typed = better_policy(ask.about)
        notes.append(
            f"Fix the policy first: it fails in the nominal simulation, too. {how}, then roll out "
            "and diagnose again; no episodes of this station fix that."
            + (f" → {typed}" if typed else "")
        )
    if _is_script(ask) and failures.causes and ask.about is not None:
        notes.append(mended_script(ask.about))
    if n and named < LEAST_TAKES and not failures.by_station and not by_itself:
        notes.append(
            f"{FIND_OUT} {named} of {n} failures have a named cause, {LEAST_TAKES} are needed "
            "before more than a few episodes are paid for. Roll out ten more and diagnose again, "
            f"or label what you saw (gaploop label).{channels}"
        )
    elif 3 * named < 2 * n and not failures.by_station and not by_itself:
        notes.append(
            f"{n - named} of {n} failures have no named cause; they count by their posterior. "
            f"Label a dozen by hand before a long campaign (gaploop label).{channels}"
        )
    if not failures.rate_known:
        notes.append(
            "No rollout that was diagnosed succeeded: points are of success if these were all the "
            "rollouts there were, else of the failures alone."
        )
    if not effort.measured:
        notes.append(
            f"Times are {effort.take.basis} ({effort.take.mean_s:.0f} s an episode, "
            f"{effort.reset.mean_s:.0f} s to reset): --takes=DIR measures them from episodes."
        )
    if summary.get("sim_to_sim"):
        notes.append("Sim-to-sim: diagnosed in simulation, no evidence about a real robot.")
    if ask.about is None:
        return tuple(notes)
    notes += ledger_lines(ask.about.ledger)
    for name, trial in ask.about.tried.items():
        notes.append(f"To {words(name)} was {trial.message.rstrip('.')}.")
    untried = {o.remedy: o for i in items for o in offers(i.dimension, ask.about, ask.image_policy)}
    if untried and not ask.about.tried:
        minutes = 60 * sum(o.machine_hours for o in untried.values())
        notes.append(
            f"What remedies bring is known from made-up stations only. To try {len(untried)} of "
            f"them in the twin first takes about {minutes:.0f} min of the machine: the same "
            "command with --try."
        )
    no_twin = ask.about.twin is None and bool(failures.takes)
    if no_twin and not _is_elsewhere(summary):
        notes.append(
            "The station wasn't measured. With its twin (gaploop plan --twin=station_twin.yaml) "
            "remedies without an operator are weighed, too."
        )
        leading = next((item.dimension for item in items), None)
        known_here = ask.about.ledger or any(n.startswith(("Mend", "Fix")) for n in notes)
        if leading and not (known_here or ask.image_policy):  # what was seen here tells more
            notes = [*filter(None, [identify_first(leading)]), *notes]
    if "gym" in ask.about.world and not (ask.about.can_train or ask.about.is_script):
        notes.append(
            "Episodes can be recorded in the twin where it is known who shows the task there: "
            "--record_with='--policy.path=my_script:act'."
        )
    elif ((no_twin and not ask.about.other_arm) or any(item.takes for item in items)) and not (
        ask.about.record_with or ask.about.world
    ):
        what, without = "measuring and collecting", ""
        if ask.about.other_arm:
            what = "collecting"
        elif not ask.about.takes:
            without = "; without an arm, --takes=DIR of what was diagnosed"
        notes.append(
            f"To have {what} as commands, say how episodes are recorded here: "
            f"--record_with='--robot.type=… --robot.port=… --teleop.type=…'{without}."
        )
    return tuple(notes)
