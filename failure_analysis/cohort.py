"""What a set of takes says together, beside what each failure says by itself.

What conditions cost (`factors`), how far simulation is ahead, and whether success changed. Trials
are compared like with like: where scenes pair up one to one, the interval is that of matched pairs;
otherwise circumstances are strata, weighted as by Mantel and Haenszel. A change is looked for with
a CUSUM of residuals, each trial's outcome minus the rate of its own circumstances. Its threshold is
that of the same residuals in shuffled order: if nothing changed, one in twenty is flagged, whatever
the number of trials.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import (
    Estimate,
    TrialCounts,
    paired_difference,
    percent,
    points,
    rate,
    weighted_sum,
)
from gaploop.core.vocabulary import Domain
from gaploop.failure_analysis.factors import (
    SCENES,
    Attempt,
    Effect,
    FactorTable,
    Trials,
    attempted,
    factor_table,
    trials_of,
    without,
)
from gaploop.failure_analysis.station import words

SCHEMA: Final = "gaploop.across.v1"
SHOWN: Final = 12
"""Effects in a short list; all of them are in the JSON and in the figure."""
LEAST_PAIRS: Final = 2
FALSE_ALARM: Final = 0.05
"""Chance that a change is flagged where there is none."""
LEAST_TRIALS: Final = 20
"""Fewer trials than this can't show when a change came."""
LEAST_SESSIONS: Final = 8
"""Fewer sessions than this are too few to shuffle whole; single episodes are shuffled then."""
MOST_UNITS: Final = 400
"""Trials beyond this are looked at in blocks of neighbours: a change's place needs no more."""
SHUFFLES: Final = 999
TIME: Final = ("policy",)
"""Factors that change with time by themselves: what a change is looked for in, not allowed for."""

BESIDES: Final = ("domain", "station", "operator")
"""What differs between simulation and the real cell by its nature."""


type Stratum = tuple[str, ...]


@dataclass(frozen=True)
class Matched:
    """The first set's success minus the second's, over what both have tried, and the raw rates.

    Attributes:
        strata: circumstances that both have tried.
        pairs: matched pairs, 0 where circumstances are strata.
        trials: trials in them, of the first and the second set.
        unmatched: trials without a counterpart, likewise.
    """

    difference: Estimate
    first: Estimate
    second: Estimate
    strata: int
    pairs: int
    trials: tuple[int, int]
    unmatched: tuple[int, int]


def matched(
    first: Sequence[Trials], second: Sequence[Trials], *, besides: Collection[str] = ()
) -> Matched | None:
    """Return the difference between two sets of trials, or None where nothing matches.

    Counterparts may differ in the factors `besides`, such as the station.
    """
    names = sorted({n for row in (*first, *second) for n in row.levels} - set(besides))
    one, two = _strata(first, names), _strata(second, names)
    shared = sorted(set(one) & set(two))
    if not shared:
        return None
    inside = sum(one[s][1] for s in shared), sum(two[s][1] for s in shared)
    every = sum(n for _, n in one.values()), sum(n for _, n in two.values())
    single = all(one[s][1] == two[s][1] == 1 for s in shared)
    pairs = len(shared) if single and set(names) & set(SCENES) and len(shared) >= LEAST_PAIRS else 0
    if pairs:
        seen = [(one[s][0], two[s][0]) for s in shared]
        both, only_first, only_second, neither = (
            seen.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0))
        )
        difference = paired_difference(both, only_first, only_second, neither)
    else:
        weights = {s: one[s][1] * two[s][1] / (one[s][1] + two[s][1]) for s in shared}
        total = sum(weights.values())
        cells = [[TrialCounts(*counts[s], weights[s] / total) for s in shared]
                 for counts in (one, two)]  # fmt: skip
        difference = weighted_sum([(1.0, cells[0]), (-1.0, cells[1])])
    return Matched(
        difference,
        rate(sum(one[s][0] for s in shared), inside[0]),
        rate(sum(two[s][0] for s in shared), inside[1]),
        len(shared),
        pairs,
        inside,
        (every[0] - inside[0], every[1] - inside[1]),
    )


def _strata(rows: Sequence[Trials], names: Sequence[str]) -> dict[Stratum, tuple[int, int]]:
    found: dict[Stratum, tuple[int, int]] = {}
    for row in rows:
        stratum = tuple(row.levels.get(name, "") for name in names)
        successes, trials = found.get(stratum, (0, 0))
        found[stratum] = successes + row.successes, trials + row.trials
    return found


@dataclass(frozen=True)
class Change:
    """Where success, as raw rates, changed most.

    Attributes:
        at_ns: when the first trial after it began [ns since 1970, UTC].
        difference: after minus before. The place was chosen for being large: a bit too large.
        p: how often shuffled trials show as much.
        shuffled: what was shuffled, `sessions` or `takes`.
    """

    at_ns: int
    uid: str
    before: Estimate
    after: Estimate
    difference: Estimate
    p: float
    shuffled: str

    @property
    def flagged(self) -> bool:
        """It is more than chance would show, one time in twenty."""
        return self.p <= FALSE_ALARM


def change(rows: Sequence[Trials], shuffles: int = SHUFFLES) -> Change | None:
    """Return where success changed most over time, or None where that can't be said.

    Rows are single trials with their times, in any order; shuffles are the same ones every time.
    """
    rows = sorted((r for r in rows if r.t0_ns and r.trials == 1), key=lambda r: (r.t0_ns, r.uid))
    if len(rows) < LEAST_TRIALS:
        return None
    # What is shuffled: sessions where there are enough, else takes, or blocks of many takes.
    names = [r.cluster for r in rows]
    fresh = [k for k in range(len(rows)) if k == 0 or names[k] != names[k - 1]]
    by_session = all(names) and LEAST_SESSIONS <= len(fresh) == len(set(names))
    block = -(-len(rows) // MOST_UNITS)
    starts = np.array(fresh) if by_session else np.arange(0, len(rows), block)
    # Each outcome minus the rate of its own circumstances.
    outcome = np.array([float(r.successes) for r in rows])
    keys = [tuple(sorted((f, v) for f, v in r.levels.items() if f not in TIME)) for r in rows]
    number = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    which = np.array([number[key] for key in keys])
    residual = outcome - (np.bincount(which, outcome) / np.bincount(which))[which]
    ends = np.append(starts[1:], len(rows))
    sums = np.add.reduceat(residual, starts)
    sizes = (ends - starts).astype(np.float64)
    if len(starts) < 4 or not sums.any():
        return None
    height, place = _highest(sums[None], sizes[None])
    order = np.random.default_rng(0).permuted(
        np.tile(np.arange(len(starts)), (shuffles, 1)), axis=1
    )
    chance, _ = _highest(sums[order], sizes[order])
    # A hair's breadth below counts as equal: sums of the same numbers in another order.
    p = (1 + int(np.sum(chance >= height[0] - 1e-9))) / (shuffles + 1)
    cut = int(ends[place[0]])
    counts = [(sum(r.successes for r in part), len(part)) for part in (rows[:cut], rows[cut:])]
    cells = [[TrialCounts(*count)] for count in counts]
    difference = weighted_sum([(-1.0, cells[0]), (1.0, cells[1])])
    before, after = rate(*counts[0]), rate(*counts[1])
    shuffled = "sessions" if by_session else "episodes"
    return Change(rows[cut].t0_ns, rows[cut].uid, before, after, difference, p, shuffled)


def _highest(sums: FloatArray, sizes: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the largest standardised CUSUM of each row and after which unit it stands."""
    total = sizes.sum(axis=1, keepdims=True)
    done = np.cumsum(sizes, axis=1)[:, :-1]
    height = np.abs(np.cumsum(sums, axis=1)[:, :-1]) / np.sqrt(done * (total - done) / total)
    edge = np.maximum(5.0, 0.05 * total)  # nearer the ends a single trial would do
    height = np.where((done >= edge) & (total - done >= edge), height, 0.0)
    return height.max(axis=1), height.argmax(axis=1)


@dataclass(frozen=True)
class CohortStatistics:
    """What a set of takes, in words `counted`, says together.

    `table` is None where no take says how it ended; `gaps` are simulation's success minus that in
    another domain, like with like.
    """

    counted: str
    table: FactorTable | None
    gaps: Mapping[str, Matched]
    change: Change | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types, for `summary.across` of a diagnosis and for `factors.json`."""
        table: dict[str, Any] = {"trials": 0, "effects": []}
        if self.table is not None:
            references = self.table.references
            effects = [
                {
                    **_json(effect, "factor", "level"),
                    "reference": references[effect.factor][0],
                    **_json(
                        effect, "successes", "trials", "rate", "difference", "odds_ratio", "p",
                        "p_family", "verdict", "note",
                    ),
                }
                for effect in self.table.effects
            ]  # fmt: skip
            table = {
                **_json(self.table, "successes", "trials", "rate", "clusters"),
                "references": {
                    f: {"level": level, "rate": _estimate_json(rate)}
                    for f, (level, rate) in references.items()
                },
                "effects": effects,
                "not_judged": dict(self.table.aside),
            }
        return {
            "schema": SCHEMA,
            "counted": self.counted,
            **table,
            "sim_gap": {domain: _matched_json(gap) for domain, gap in self.gaps.items()},
            "change": None if self.change is None else _json(
                self.change, "flagged", "p", "at_ns", "uid", "before", "after", "difference",
                "shuffled",
            ),
        }  # fmt: skip


def cohort_of_takes(attempts: Sequence[Attempt]) -> CohortStatistics:
    """Return what takes or episodes that were judged say together, in any order."""
    judged, counted = attempted(attempts)
    return cohort_of_trials(trials_of(judged), counted)


def cohort_of_trials(rows: Sequence[Trials], counted: str = "trials") -> CohortStatistics:
    """Return what trials, all with the same factors, say together."""
    conditions = without(rows, SCENES)  # what names a scene isn't what may cost success
    table = factor_table(conditions) if rows else None
    return CohortStatistics(counted, table, sim_gaps(rows), change(conditions))


def sim_gaps(rows: Sequence[Trials]) -> dict[str, Matched]:
    """Return simulation's success minus that of each other domain, over what both have tried."""
    by_domain: dict[str, list[Trials]] = {}
    for row in rows:
        by_domain.setdefault(row.levels.get("domain", ""), []).append(row)
    sim = by_domain.get(Domain.SIM.value, [])
    compared = {
        domain: matched(sim, by_domain[domain], besides=BESIDES)
        for domain in (Domain.REAL.value, Domain.SIM_TARGET.value)
        if sim and domain in by_domain
    }
    return {domain: found for domain, found in compared.items() if found is not None}


def _json(of: Effect | FactorTable | Change, *names: str) -> dict[str, Any]:
    """Return what something calls by these names as JSON types, under the same names."""
    values = {name: getattr(of, name) for name in names}
    return {n: _estimate_json(v) if isinstance(v, Estimate) else v for n, v in values.items()}


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": round(estimate.value, 6),
        "interval": [round(estimate.low, 6), round(estimate.high, 6)],
    }


def _matched_json(found: Matched) -> dict[str, Any]:
    return {
        "difference": _estimate_json(found.difference),
        "rates": [_estimate_json(found.first), _estimate_json(found.second)],
        "trials": list(found.trials),
        "pairs": found.pairs,
        "strata": found.strata,
        "unmatched": list(found.unmatched),
    }


def effect_words(effect: Effect, reference: str) -> str:
    """Return one difference in words and numbers."""
    said = (
        f"{words(effect.factor)} {effect.level}: {points(effect.difference)} against {reference}, "
        f"{effect.verdict} ({effect.successes}/{effect.trials})"
    )
    return f"{said}; {effect.note}" if effect.note else said


def gap_words(domain: str, gap: Matched) -> str:
    """Return the matched gap of one domain in words and numbers."""
    there = "the real robot" if domain == "real" else "the cell with injected gaps (sim-to-sim)"
    how = f"{gap.pairs} matched scenes" if gap.pairs else f"{gap.strata} matched circumstances"
    said = (
        f"simulation {percent(gap.first)}, {there} {percent(gap.second)}: "
        f"gap {points(gap.difference)} over {how}"
    )
    left = sum(gap.unmatched)
    return f"{said}; {left} episodes without a counterpart left out" if left else said


def change_words(change: Change) -> str:
    """Return in words whether success has changed over time."""
    when = datetime.fromtimestamp(change.at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
    if not change.flagged:
        return f"no change over time shown (p {change.p:.2f})"
    return (
        f"success changed around {when} UTC, from {percent(change.before)} to "
        f"{percent(change.after)} (p {change.p:.3f}; one false alarm in 20 unchanged sets)"
    )


def cohort_lines(cohort: CohortStatistics) -> Iterator[str]:
    """Yield what takes say together; of conditions, the costliest first."""
    if cohort.table is None:
        yield "no episode has an outcome: nothing to compare"
        return
    table = cohort.table
    yield f"success {percent(table.rate)} ({table.successes}/{table.trials})"
    shown = [e for e in table.effects if e.verdict != "not shown"]
    shown += [e for e in table.effects if e.verdict == "not shown"][: max(0, SHOWN - len(shown))]
    for effect in sorted(shown, key=lambda e: e.difference.value):
        yield "  " + effect_words(effect, table.references[effect.factor][0])
    if len(table.effects) > len(shown):
        yield f"  … and {len(table.effects) - len(shown)} more, not shown to matter"
    for factor, why in table.aside.items():
        yield f"  {words(factor)}: not judged, {why}"
    for domain, gap in cohort.gaps.items():
        yield gap_words(domain, gap)
    if cohort.change is not None:
        yield change_words(cohort.change)
