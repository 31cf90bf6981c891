"""Which condition costs success: differences in percentage points, all other factors alike.

One logistic regression on all factors at once, with Firth's penalty, read as differences of rates
(g-computation), since people think in points, not in odds: how much more often would the trials at
a level have gone well at the reference, everything else as it was in them. Averaging over those
trials only, nothing is said about combinations that nobody tried. Chosen over

- a mixed-effects regression: statsmodels fits it by a variational approximation that states too
  narrow intervals, and with the handful of sessions that a station has, the variance between them
  can't be estimated; leaving out one session after the other (jackknife, CR3, with a t interval)
  holds its level there (MacKinnon, Nielsen and Webb, J Econometrics 232:272, 2023);
- Mantel-Haenszel over strata: with several conditions varied at once nearly every stratum holds
  one arm only. `matched` compares like with like where strata are full.

Every difference has its own 95 % interval. What is called a cost or a gain is so at 5 % for all
differences of a table together (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from gaploop.core.statistics import CONFIDENCE, Estimate, holm, rate
from gaploop.core.types import FloatArray
from gaploop.failure_analysis.across.design import DesignMatrix, make_design
from gaploop.failure_analysis.across.model import Fit, difference_of_rates, fit_logistic
from gaploop.failure_analysis.across.trials import Trials, gathered

FAMILY_ERROR: Final = 0.05
"""Chance that a table calls any factor a cost or gain that is none."""
LEAST_CLUSTERS: Final = 5
"""Fewer sessions than this say nothing about how sessions differ."""
LEAST_WITH_LEVEL: Final = 3
"""Sessions that a level must have been tried in to allow for differences between sessions."""


@dataclass(frozen=True)
class Effect:
    """What a level of a factor does to success, beside the factor's reference level.

    Attributes:
        factor: such as lighting.
        level: such as dim.
        successes: raw count.
        trials: raw count.
        difference: success of its trials minus what it would have been at the reference, all else
            as it was, -1 to 1.
        odds_ratio: the same as odds, all else alike.
        p: two-sided, for this difference alone.
        p_family: the same, allowing for all differences of the table (Holm).
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
    """What every factor does to success.

    Attributes:
        successes: in all.
        trials: in all.
        effects: one for each level but the reference, the costliest first.
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


def factor_table(
    rows: Sequence[Trials],
    references: Mapping[str, str] | None = None,
    confidence: float = CONFIDENCE,
) -> FactorTable:
    """Return what each factor does to success; the order of rows doesn't matter.

    Args:
        rows: trials, all with the same factors.
        references: factor to the level that others are compared with, where not the usual one.
        confidence: of each interval, two-sided.

    Raises:
        UnusableInputError: no trials, or a reference that isn't there.
    """
    design = make_design(gathered(rows), references)
    fit = fit_logistic(design.matrix, design.successes, design.trials)
    left_out = _left_out(design, fit)
    effects = [_effect(design, fit, left_out, pair, confidence) for pair in sorted(design.columns)]
    adjusted = holm([e.p for e in effects])
    final = [Effect(**{**vars(e), "p_family": p}) for e, p in zip(effects, adjusted, strict=True)]
    total = int(design.successes.sum()), int(design.trials.sum())
    references_at = {
        f: (level, rate(*_count(design, f, level))) for f, level in design.references.items()
    }
    return FactorTable(
        *total,
        tuple(sorted(final, key=lambda e: (e.difference.value, e.factor, e.level))),
        references_at,
        design.aside,
        len(left_out),
    )


def _effect(
    design: DesignMatrix,
    fit: Fit,
    left_out: Sequence[tuple[str, FloatArray | None]],
    pair: tuple[str, str],
    confidence: float,
) -> Effect:
    factor, level = pair
    column = design.columns[pair]
    base, other = design.at(factor, design.references[factor]), design.at(factor, level)
    weight = design.trials * design.is_at(factor, level)
    value, gradient = difference_of_rates(fit.coefficients, base, other, weight)
    se = math.sqrt(max(float(gradient @ fit.covariance @ gradient), 0.0))
    se_log_odds = math.sqrt(float(fit.covariance[column, column]))
    freedom, note = math.inf, ""
    if left_out:
        with_level = min(
            _clusters_with(design, factor, v) for v in (level, design.references[factor])
        )
        if with_level >= LEAST_WITH_LEVEL:
            betas = [b for _, b in left_out if b is not None and np.isfinite(b[column])]
            moved = [difference_of_rates(b, base, other, weight)[0] for b in _whole(betas)]
            se = max(se, _jackknife(moved))
            se_log_odds = max(se_log_odds, _jackknife([b[column] for b in betas]))
            freedom = with_level - 1
        else:
            note = (
                f"tried in {with_level} of {len(left_out)} clusters only: what else differs "
                "between clusters may be the cause"
            )
    reach = float(stats.t.ppf(0.5 + confidence / 2, freedom))
    log_odds = float(fit.coefficients[column])
    p = 2 * float(stats.t.sf(abs(value) / se, freedom)) if se > 0 else 1.0
    return Effect(
        factor,
        level,
        *_count(design, factor, level),
        Estimate(value, max(value - reach * se, -1.0), min(value + reach * se, 1.0)),
        Estimate(*(_exp(log_odds + k * reach * se_log_odds) for k in (0, -1, 1))),
        p,
        p,
        note,
    )


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _whole(betas: Sequence[FloatArray]) -> list[FloatArray]:
    """Return coefficients with those that a left-out cluster took along at zero."""
    return [np.nan_to_num(b) for b in betas]


def _left_out(design: DesignMatrix, fit: Fit) -> list[tuple[str, FloatArray | None]]:
    """Return each cluster with the coefficients without it; NaN where only it had a level."""
    names = sorted(set(design.clusters))
    if "" in names or len(names) < LEAST_CLUSTERS:
        return []
    of = np.array(design.clusters)
    return [(name, _without(design, of != name, fit)) for name in names]


def _without(design: DesignMatrix, keep: FloatArray, fit: Fit) -> FloatArray | None:
    matrix = design.matrix[keep]
    alive = matrix.any(axis=0)
    if np.linalg.matrix_rank(matrix[:, alive]) < alive.sum():
        return None
    beta = np.full(matrix.shape[1], np.nan)
    beta[alive] = fit_logistic(
        matrix[:, alive], design.successes[keep], design.trials[keep], fit.coefficients[alive]
    ).coefficients
    return beta


def _jackknife(values: Sequence[float]) -> float:
    """Return the standard error from estimates that leave out one cluster each (CR3)."""
    n = len(values)
    return math.sqrt((n - 1) / n * float(np.sum((np.array(values) - np.mean(values)) ** 2)))


def _clusters_with(design: DesignMatrix, factor: str, level: str) -> int:
    pairs = zip(design.levels, design.clusters, strict=True)
    return len({cluster for levels, cluster in pairs if levels[factor] == level})


def _count(design: DesignMatrix, factor: str, level: str) -> tuple[int, int]:
    mine = design.is_at(factor, level)
    return int(design.successes[mine].sum()), int(design.trials[mine].sum())
