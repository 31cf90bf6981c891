"""Two sets of trials compared like with like: sim beside real, one policy beside the next.

Where scenes pair up one to one, the interval is that of matched pairs, which is narrower the more
the two agree; otherwise circumstances are strata, weighted as by Mantel and Haenszel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gaploop.core.statistics import (
    CONFIDENCE,
    Estimate,
    TrialCounts,
    paired_difference,
    rate,
    weighted_sum,
)
from gaploop.failure_analysis.across.trials import SCENES, Trials

LEAST_PAIRS: Final = 2

type Stratum = tuple[str, ...]


@dataclass(frozen=True)
class Matched:
    """The first set's success minus the second's, over what both have tried.

    Attributes:
        difference: -1 to 1.
        first: the first set's raw rate, over what both have tried.
        second: the second's.
        strata: circumstances that both have tried.
        pairs: matched pairs, 0 where circumstances are strata.
        trials: trials in them, of the first and the second set.
        unmatched: trials without a counterpart, of the first and the second set.
    """

    difference: Estimate
    first: Estimate
    second: Estimate
    strata: int
    pairs: int
    trials: tuple[int, int]
    unmatched: tuple[int, int]


def matched(
    first: Sequence[Trials],
    second: Sequence[Trials],
    *,
    besides: Collection[str] = (),
    confidence: float = CONFIDENCE,
) -> Matched | None:
    """Return the difference between two sets of trials, or None where nothing matches.

    Args:
        first: such as simulation.
        second: such as the real robot.
        besides: factors that may differ between counterparts, such as the station.
        confidence: of the interval, two-sided.
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
    compare = _by_pairs if pairs else _by_strata
    return Matched(
        compare(one, two, shared, confidence),
        rate(sum(one[s][0] for s in shared), inside[0], confidence),
        rate(sum(two[s][0] for s in shared), inside[1], confidence),
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


def _by_pairs(
    one: Mapping[Stratum, tuple[int, int]], two: Mapping[Stratum, tuple[int, int]],
    shared: Sequence[Stratum], confidence: float,
) -> Estimate:  # fmt: skip
    seen = [(one[s][0], two[s][0]) for s in shared]
    both, first, second, neither = (seen.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0)))
    return paired_difference(both, first, second, neither, confidence)


def _by_strata(
    one: Mapping[Stratum, tuple[int, int]], two: Mapping[Stratum, tuple[int, int]],
    shared: Sequence[Stratum], confidence: float,
) -> Estimate:  # fmt: skip
    weights = {s: one[s][1] * two[s][1] / (one[s][1] + two[s][1]) for s in shared}
    total = sum(weights.values())

    def cells(counts: Mapping[Stratum, tuple[int, int]]) -> list[TrialCounts]:
        return [TrialCounts(*counts[s], weights[s] / total) for s in shared]

    return weighted_sum([(1.0, cells(one)), (-1.0, cells(two))], confidence)
