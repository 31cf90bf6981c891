"""Which condition costs success, by trials with what was set in each: differences in percentage
points, all other factors alike.

One logistic regression on all factors at once, with Firth's penalty, read as differences of rates
(g-computation): how much more often would the trials at a level have gone well at the reference,
everything else as it was in them. Nothing is said about combinations that nobody tried.

A mixed-effects regression states too narrow intervals in statsmodels, and can't estimate the
variance between a station's handful of sessions; leaving out one after the other (jackknife, CR3,
with a t interval) holds its level there (MacKinnon, Nielsen and Webb, J Econometrics 232:272,
2023). Mantel-Haenszel wants full strata, which several conditions varied at once don't leave.

Where a level never failed, or never succeeded, maximum likelihood runs off to infinity. Firth's
penalty (Biometrika 80:27, 1993; Heinze and Schemper, Stat Med 21:2409, 2002) keeps the estimate
finite and takes out its first-order bias; it adds half of each row's leverage to successes and to
failures. Every difference has its own 95 % interval; what is called a cost or a gain is so at 5 %
for all differences of a table together (Holm).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import CONFIDENCE, Estimate, holm, percent, points, rate
from gaploop.core.take import Take
from gaploop.core.vocabulary import CONDITIONS, Outcome, TakeKind, set_up
from gaploop.datasets.layout import EpisodeRow
from gaploop.failure_analysis.station import words

NOMINAL: Final = "nominal"
"""Level of a condition that wasn't set: the station as it usually is."""
OTHER: Final = "other"
"""Level that rare ones are gathered in."""
FEWEST: Final = 3
"""Trials of a level that gets an estimate of its own."""
MOST_LEVELS: Final = 6
"""Different numbers in a condition above which they are gathered in ranges."""
ABOUT: Final = ("task", "policy", "operator", "station", "domain")
"""What is known about an episode besides its conditions and may cost success."""
SCENES: Final = ("scene", "seed")
"""Free conditions that name a scene; where two sets have them, their trials pair up."""


type Attempt = Take | EpisodeRow
"""What is known about an attempt, and how it ended."""


@dataclass(frozen=True)
class Trials:
    """Trials under equal circumstances, one row of a table.

    Attributes:
        levels: factor to its level in these trials, such as lighting to dim.
        cluster: trials of one cluster aren't independent; "" where nothing is known.
    """

    levels: Mapping[str, str]
    successes: int
    trials: int
    cluster: str = ""


def attempted[A: Take | EpisodeRow](attempts: Iterable[A]) -> tuple[list[A], str]:
    """Return the takes that say how often the robot succeeds, and in words which these are.

    Rollouts of policies where there are any: demonstrations succeed because people choose them.
    """
    judged = [a for a in attempts if a.outcome in (Outcome.SUCCESS, Outcome.FAILURE)]
    rollouts = [a for a in judged if a.info.kind == TakeKind.ROLLOUT]
    if not rollouts:
        return judged, "episodes that ended in success or failure"
    left = len(judged) - len(rollouts)
    return rollouts, "rollouts" + (
        f"; {left} episodes that aren't rollouts left out" if left else ""
    )


def trials_of(attempts: Iterable[Attempt]) -> tuple[Trials, ...]:
    """Return one row a take: its conditions, and task, policy, operator, station, domain."""
    attempts = list(attempts)
    raw = []
    for attempt in attempts:
        about = {name: str(getattr(attempt.info, name)) for name in ABOUT}
        known = {name: value for name, value in about.items() if value}
        raw.append({**set_up(attempt.info.conditions), **known})
    names = list(dict.fromkeys(name for row in raw for name in row))
    order = [*CONDITIONS, *sorted(set(names) - set(CONDITIONS) - set(ABOUT)), *ABOUT]
    columns = {
        name: _levels([row.get(name) for row in raw], name) for name in order if name in names
    }
    return tuple(
        Trials(
            {name: levels[n] for name, levels in columns.items()},
            int(a.outcome == Outcome.SUCCESS),
            1,
            a.info.session,  # one light, wear and mood: less than as many sessions would say
        )
        for n, a in enumerate(attempts)
    )


def _levels(values: Sequence[Any], name: str) -> list[str]:
    """Return values as levels; what is nominal has one name, many numbers become ranges."""
    if name in ABOUT or name in SCENES:  # names, also where they are numbers
        return ["unknown" if value in (None, "") else str(value) for value in values]
    sizes = [_size(value) for value in values]
    different = {s for s in sizes if s}
    if None in sizes or len(different) <= MOST_LEVELS:
        return [_word(value) for value in values]
    known = sorted(s for s in sizes if s)
    edges = [known[round(share * (len(known) - 1))] for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    spans = list(itertools.pairwise(edges))

    def span_words(size: float) -> str:
        low, high = next((span for span in spans if size <= span[1]), spans[-1])
        return f"{low:.3g} to {high:.3g}"

    return [span_words(size) if size else NOMINAL for size in sizes]


def _size(value: Any) -> float | None:
    """Return how far from nominal a value is: its amount, a camera offset's length [m]; or None."""
    if value is None or _word(value) == NOMINAL:
        return 0.0
    if isinstance(value, int | float):
        return float(value)
    return math.hypot(*value[:3]) if _is_offset(value) else None


def _is_offset(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) >= 3
        and all(isinstance(v, int | float) for v in value)
    )


def _word(value: Any) -> str:
    if value is None or value in ("", "nominal", "default", "none", False):
        return NOMINAL
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:g}" if value else NOMINAL
    if _is_offset(value):
        if not any(value):
            return NOMINAL
        shown = value if any(value[3:]) else value[:3]  # an offset [m, rad] that may have no turn
        return ", ".join(f"{v:g}" for v in shown)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def without(rows: Sequence[Trials], factors: Collection[str]) -> tuple[Trials, ...]:
    """Return rows without some of their factors."""
    return tuple(
        replace(row, levels={f: v for f, v in row.levels.items() if f not in factors})
        for row in rows
    )


def gathered(rows: Sequence[Trials]) -> tuple[Trials, ...]:
    """Return rows whose rare levels are one, `other`, so that each level has some trials."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts.update(dict.fromkeys(row.levels.items(), row.trials))
    rare = {pair for pair, n in counts.items() if n < FEWEST and pair[1] != NOMINAL}
    if not rare:
        return tuple(rows)
    return tuple(
        replace(row, levels={f: OTHER if (f, v) in rare else v for f, v in row.levels.items()})
        for row in rows
    )


FAMILY_ERROR: Final = 0.05
"""Chance that a table calls any factor a cost or gain that is none."""
LEAST_CLUSTERS: Final = 5
"""Fewer sessions than this say nothing about how sessions differ."""
LEAST_WITH_LEVEL: Final = 3
"""Sessions that a level must have been tried in to allow for differences between sessions."""
USUAL: Final = (NOMINAL, "base", "baseline", "clean", "default", "none", "0")
"""Words for a factor's reference level, best first; else it is the level with most trials."""
TRIALS_PER_LEVEL: Final = 3
"""Fewer trials a coefficient than this, and factors are set aside, the last ones first."""
MAX_TURNS: Final = 200
TOLERANCE: Final = 1e-8
LONGEST_STEP: Final = 2.0
"""In any coefficient, in log odds; longer ones overshoot."""


@dataclass(frozen=True)
class Effect:
    """What a level of a factor does to success, beside the factor's reference level.

    Attributes:
        difference: success of its trials minus what it would have been at the reference, all else
            as it was, -1 to 1; `odds_ratio` says the same as odds.
        p_family: as `p`, allowing for all differences of the table (Holm).
        note: what the interval doesn't allow for, in words.
    """

    factor: str
    level: str
    successes: int
    trials: int
    difference: Estimate
    odds_ratio: Estimate
    p: float
    p_family: float
    note: str = ""

    @property
    def rate(self) -> Estimate:
        """Raw success rate at this level."""
        return rate(self.successes, self.trials)

    @property
    def verdict(self) -> str:
        """`costs`, `helps`, or `not shown`."""
        if self.p_family > FAMILY_ERROR:
            return "not shown"
        return "costs" if self.difference.value < 0 else "helps"


@dataclass(frozen=True)
class FactorTable:
    """What every factor does to success: an effect for each level but the reference, worst first.

    Attributes:
        references: factor to its reference level and success there.
        aside: factor that varied but couldn't be judged, to why.
        clusters: how many there are; 0 where the interval takes trials as independent.
    """

    successes: int
    trials: int
    effects: tuple[Effect, ...]
    references: Mapping[str, tuple[str, Estimate]]
    aside: Mapping[str, str]
    clusters: int

    @property
    def rate(self) -> Estimate:
        """Success in all."""
        return rate(self.successes, self.trials)

    @property
    def worst(self) -> Effect | None:
        """The level that is shown to cost most, if any is."""
        return next((e for e in self.effects if e.verdict == "costs"), None)


def factor_table(rows: Sequence[Trials]) -> FactorTable:
    """Return what each factor does to success; the order of rows doesn't matter.

    All trials have the same factors; levels are compared with the usual one.

    Raises:
        UnusableInputError: no trials.
    """
    design = make_design(gathered(rows))
    beta, covariance = fit_logistic(design.matrix, design.successes, design.trials)
    left_out = _left_out(design, beta)
    effects = []
    for (factor, level), column in sorted(design.columns.items()):
        reference = design.references[factor]
        base, other = design.at(factor, reference), design.at(factor, level)
        weight = design.trials * design.is_at(factor, level)
        value, gradient = difference_of_rates(beta, base, other, weight)
        se = math.sqrt(max(float(gradient @ covariance @ gradient), 0.0))
        se_log_odds = math.sqrt(float(covariance[column, column]))
        freedom, note = math.inf, ""
        with_level = min(design.clusters_at(factor, at) for at in (level, reference))
        if left_out and with_level < LEAST_WITH_LEVEL:
            note = (
                f"tried in {with_level} of {len(left_out)} sessions only: what else differs "
                "between sessions may be the cause"
            )
        elif left_out:
            betas = [b for b in left_out if b is not None and np.isfinite(b[column])]
            # Coefficients that the left-out cluster took along count as zero.
            moved = [difference_of_rates(np.nan_to_num(b), base, other, weight)[0] for b in betas]
            se = max(se, _jackknife(moved))
            se_log_odds = max(se_log_odds, _jackknife([b[column] for b in betas]))
            freedom = with_level - 1
        reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))
        log_odds = float(beta[column])
        odds = (math.exp(min(log_odds + k * reach * se_log_odds, 700.0)) for k in (0, -1, 1))
        p = 2 * float(stats.t.sf(abs(value) / se, freedom)) if se > 0 else 1.0
        difference = Estimate(value, max(value - reach * se, -1.0), min(value + reach * se, 1.0))
        counts = design.count(factor, level)
        effects.append(Effect(factor, level, *counts, difference, Estimate(*odds), p, p, note))
    adjusted = holm([e.p for e in effects])
    final = [replace(e, p_family=p) for e, p in zip(effects, adjusted, strict=True)]
    return FactorTable(
        int(design.successes.sum()),
        int(design.trials.sum()),
        tuple(sorted(final, key=lambda e: (e.difference.value, e.factor, e.level))),
        {f: (level, rate(*design.count(f, level))) for f, level in design.references.items()},
        design.aside,
        len(left_out),
    )


def _jackknife(values: Sequence[float]) -> float:
    """Return the standard error from estimates that leave out one cluster each (CR3)."""
    n = len(values)
    return math.sqrt((n - 1) / n * float(np.sum((np.array(values) - np.mean(values)) ** 2)))


def _left_out(design: DesignMatrix, start: FloatArray) -> list[FloatArray | None]:
    """Return the coefficients without each cluster in turn; NaN where only it had a level.

    None where the rest doesn't tell the coefficients apart; empty where clusters are too few.
    """
    names = sorted(set(design.clusters))
    if "" in names or len(names) < LEAST_CLUSTERS:
        return []
    found: list[FloatArray | None] = []
    for name in names:
        keep = np.array(design.clusters) != name
        matrix = design.matrix[keep]
        alive = matrix.any(axis=0)
        if np.linalg.matrix_rank(matrix[:, alive]) < alive.sum():
            found.append(None)
            continue
        beta = np.full(matrix.shape[1], np.nan)
        beta[alive], _ = fit_logistic(
            matrix[:, alive], design.successes[keep], design.trials[keep], start[alive]
        )
        found.append(beta)
    return found


@dataclass(frozen=True)
class DesignMatrix:
    """Rows of equal circumstances, and the coefficients that tell them apart.

    Attributes:
        levels: each row's levels by factor.
        matrix: intercept and one column a level but the reference, shape (n, p).
        columns: (factor, level) to its column.
        references: factor to its reference level, for the factors that are in.
        aside: factor that varies but isn't in, to why.
    """

    levels: tuple[Mapping[str, str], ...]
    clusters: tuple[str, ...]
    matrix: FloatArray
    successes: FloatArray
    trials: FloatArray
    columns: Mapping[tuple[str, str], int]
    references: Mapping[str, str]
    aside: Mapping[str, str]

    def is_at(self, factor: str, level: str) -> NDArray[np.bool_]:
        """Return which rows were tried at a level, shape (n,)."""
        return np.array([levels[factor] == level for levels in self.levels])

    def at(self, factor: str, level: str) -> FloatArray:
        """Return the matrix as it would be, were `factor` at `level` in every row."""
        changed = self.matrix.copy()
        changed[:, [c for (name, _), c in self.columns.items() if name == factor]] = 0.0
        if level != self.references[factor]:
            changed[:, self.columns[factor, level]] = 1.0
        return changed

    def count(self, factor: str, level: str) -> tuple[int, int]:
        """Return successes and trials at a level."""
        mine = self.is_at(factor, level)
        return int(self.successes[mine].sum()), int(self.trials[mine].sum())

    def clusters_at(self, factor: str, level: str) -> int:
        """Return in how many clusters a level was tried."""
        pairs = zip(self.levels, self.clusters, strict=True)
        return len({cluster for levels, cluster in pairs if levels[factor] == level})


def make_design(rows: Sequence[Trials]) -> DesignMatrix:
    """Return the design of some trials, as of `factor_table`; their order doesn't matter.

    Factors are told apart first come first; the others are set aside with the reason.
    """
    names = list(rows[0].levels) if rows else []
    sums: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for row in rows:
        held = sums.setdefault((tuple(row.levels[n] for n in names), row.cluster), [0, 0])
        held[0] += row.successes
        held[1] += row.trials
    merged = [  # one row for each combination of levels and cluster, in an order of their own
        Trials(dict(zip(names, levels, strict=True)), successes, trials, cluster)
        for (levels, cluster), (successes, trials) in sorted(sums.items())
        if trials
    ]
    if not merged:
        raise UnusableInputError(
            "No trial ended in success or failure: nothing to compare."
            " Label their outcomes first: gaploop label --help"
        )
    counts: dict[str, Counter[str]] = {factor: Counter() for factor in names}
    for row in merged:
        for factor, level in row.levels.items():
            counts[factor][level] += row.trials
    usual: dict[str, str] = {}
    for factor, tried in counts.items():
        by_word = {level.lower(): level for level in sorted(tried)}
        known = [by_word[word] for word in USUAL if word in by_word]
        usual[factor] = (known or [max(sorted(tried), key=tried.__getitem__)])[0]
    others = {f: sorted(set(n) - {usual[f]}) for f, n in counts.items()}
    trials = np.array([r.trials for r in merged], dtype=np.float64)
    matrix: FloatArray = np.ones((len(merged), 1))
    kept: dict[str, FloatArray] = {}
    aside: dict[str, str] = {}
    for factor in (f for f in names if others[f]):
        block = np.array(
            [[float(r.levels[factor] == level) for level in others[factor]] for r in merged]
        )
        both = np.column_stack([matrix, block])
        if both.shape[1] * TRIALS_PER_LEVEL > trials.sum():
            aside[factor] = "too few trials to allow for it as well"
        elif np.linalg.matrix_rank(both) < both.shape[1]:
            # With one of the factors that are in, or with them taken together only.
            ones = np.ones((len(block), 1))
            pairs = {f: np.column_stack([ones, theirs, block]) for f, theirs in kept.items()}
            partner = [f for f, m in pairs.items() if np.linalg.matrix_rank(m) < m.shape[1]]
            aside[factor] = "changed together with " + (
                f"{partner[0]}: their costs can't be told apart"
                if partner
                else f"{', '.join(kept)} taken together: it can't be separated from them"
            )
        else:
            kept[factor], matrix = block, both
    columns = [(factor, level) for factor in kept for level in others[factor]]
    return DesignMatrix(
        tuple(r.levels for r in merged),
        tuple(r.cluster for r in merged),
        matrix,
        np.array([r.successes for r in merged], dtype=np.float64),
        trials,
        {pair: column for column, pair in enumerate(columns, 1)},
        {f: usual[f] for f in kept},
        aside,
    )


def fit_logistic(
    design: FloatArray, successes: FloatArray, trials: FloatArray, start: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Fit successes out of trials, shape (n,) each, with Firth's penalty.

    Returns log odds, shape (p,), and their covariance by the penalised likelihood. The design,
    shape (n, p), is of full column rank over rows that have trials.
    """
    beta = np.zeros(design.shape[1]) if start is None else start.copy()
    for _ in range(MAX_TURNS):
        chance = expit(design @ beta)
        weight = trials * chance * (1 - chance)
        covariance = _inverse(design, weight)
        leverage = weight * np.einsum("ij,jk,ik->i", design, covariance, design)
        score = design.T @ (successes - trials * chance + leverage * (0.5 - chance))
        step = covariance @ score
        step *= min(1.0, LONGEST_STEP / max(float(np.abs(step).max()), 1e-300))
        beta = beta + step
        if float(np.abs(step).max()) < TOLERANCE:
            break
    chance = expit(design @ beta)
    return beta, _inverse(design, trials * chance * (1 - chance))


def _inverse(design: FloatArray, weight: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.inv(design.T @ (design * weight[:, None])), dtype=np.float64)


def difference_of_rates(
    beta: FloatArray, design: FloatArray, other: FloatArray, weight: FloatArray
) -> tuple[float, FloatArray]:
    """Return mean success under `other` minus under `design`, and its gradient in `beta`.

    Standardised over the rows by weight, shape (n,): everything but what differs between the two
    designs, shape (n, p), stays as it was observed.
    """
    weight = weight / weight.sum()
    p, q = expit(other @ beta), expit(design @ beta)
    gradient = (weight * p * (1 - p)) @ other - (weight * q * (1 - q)) @ design
    return float(weight @ (p - q)), gradient


# -- all takes of a set together ----------------------------------------------------------------


COHORT_SCHEMA: Final = "gaploop.across.v1"
SHOWN: Final = 12
"""Effects in a short list; all of them are in the JSON and in the figure."""


@dataclass(frozen=True)
class CohortStatistics:
    """What a set of takes, in words `counted`, says together.

    `table` is None where no take says how it ended.
    """

    counted: str
    table: FactorTable | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types, for `summary.across` of a diagnosis and for `factors.json`."""
        table: dict[str, Any] = {"trials": 0, "effects": []}
        if (found := self.table) is not None:
            table = {
                **_json(found, "successes", "trials", "rate", "clusters"),
                "references": {
                    f: {"level": level, "rate": _estimate_json(rate)}
                    for f, (level, rate) in found.references.items()
                },
                "effects": [
                    {"factor": e.factor, "level": e.level,
                     "reference": found.references[e.factor][0],
                     **_json(e, "successes", "trials", "rate", "difference", "odds_ratio", "p",
                             "p_family", "verdict", "note")}
                    for e in found.effects
                ],
                "not_judged": dict(found.aside),
            }  # fmt: skip
        return {"schema": COHORT_SCHEMA, "counted": self.counted, **table}


def cohort_of_takes(attempts: Sequence[Attempt]) -> CohortStatistics:
    """Return what takes or episodes that were judged say together, in any order."""
    judged, counted = attempted(attempts)
    return cohort_of_trials(trials_of(judged), counted)


def cohort_of_trials(rows: Sequence[Trials], counted: str = "trials") -> CohortStatistics:
    """Return what trials, all with the same factors, say together."""
    conditions = without(rows, SCENES)  # what names a scene isn't what may cost success
    return CohortStatistics(counted, factor_table(conditions) if rows else None)


def _json(of: Effect | FactorTable, *names: str) -> dict[str, Any]:
    """Return what something calls by these names as JSON types, under the same names."""
    values = {name: getattr(of, name) for name in names}
    return {n: _estimate_json(v) if isinstance(v, Estimate) else v for n, v in values.items()}


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": round(estimate.value, 6),
        "interval": [round(estimate.low, 6), round(estimate.high, 6)],
    }


def effect_words(effect: Effect, reference: str) -> str:
    """Return one difference in words and numbers."""
    said = (
        f"{words(effect.factor)} {effect.level}: {points(effect.difference)} against {reference}, "
        f"{effect.verdict} ({effect.successes}/{effect.trials})"
    )
    return f"{said}; {effect.note}" if effect.note else said


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
