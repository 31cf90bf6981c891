"""Trials compared like with like: sim beside real, one policy beside the next, before beside after.

Where scenes pair up one to one, the interval is that of matched pairs; otherwise circumstances are
strata, weighted as by Mantel and Haenszel. A change is looked for with a CUSUM of residuals, each
trial's outcome minus the rate of its own circumstances. Its threshold is that of the same residuals
in shuffled order: if nothing changed, one in twenty is flagged, whatever the number of trials.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import (
    CONFIDENCE,
    Estimate,
    TrialCounts,
    paired_difference,
    rate,
    weighted_sum,
)
from gaploop.failure_analysis.cohort.trials import SCENES, Trials

LEAST_PAIRS: Final = 2
FALSE_ALARM: Final = 0.05
"""Chance that a change is flagged where there is none."""
LEAST_TRIALS: Final = 20
"""Fewer trials than this can't show when a change came."""
LEAST_SESSIONS: Final = 8
"""Fewer sessions than this are too few to shuffle whole; single takes are shuffled then."""
MOST_UNITS: Final = 400
"""Trials beyond this are looked at in blocks of neighbours: a change's place needs no more."""
SHUFFLES: Final = 999
TIME: Final = ("policy",)
"""Factors that change with time by themselves: what a change is looked for in, not allowed for."""

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
    first: Sequence[Trials],
    second: Sequence[Trials],
    *,
    besides: Collection[str] = (),
    confidence: float = CONFIDENCE,
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
        difference = paired_difference(both, only_first, only_second, neither, confidence)
    else:
        weights = {s: one[s][1] * two[s][1] / (one[s][1] + two[s][1]) for s in shared}
        total = sum(weights.values())
        cells = [[TrialCounts(*counts[s], weights[s] / total) for s in shared]
                 for counts in (one, two)]  # fmt: skip
        difference = weighted_sum([(1.0, cells[0]), (-1.0, cells[1])], confidence)
    return Matched(
        difference,
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


@dataclass(frozen=True)
class Version:
    """One policy version beside the one before it, over what both have tried, if anything.

    It is flagged where they differ, at 5 % for all versions together (Bonferroni).
    """

    policy: str
    successes: int
    trials: int
    since_before: Matched | None
    flagged: bool

    @property
    def rate(self) -> Estimate:
        """Raw success rate."""
        return rate(self.successes, self.trials)


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
    shuffled = "sessions" if by_session else "takes"
    return Change(rows[cut].t0_ns, rows[cut].uid, before, after, difference, p, shuffled)


def _highest(sums: FloatArray, sizes: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return the largest standardised CUSUM of each row and after which unit it stands."""
    total = sizes.sum(axis=1, keepdims=True)
    done = np.cumsum(sizes, axis=1)[:, :-1]
    height = np.abs(np.cumsum(sums, axis=1)[:, :-1]) / np.sqrt(done * (total - done) / total)
    edge = np.maximum(5.0, 0.05 * total)  # nearer the ends a single trial would do
    height = np.where((done >= edge) & (total - done >= edge), height, 0.0)
    return height.max(axis=1), height.argmax(axis=1)


def versions(rows: Sequence[Trials]) -> tuple[Version, ...]:
    """Return the policy versions in order of first use, each beside the one before it."""
    groups: dict[str, list[Trials]] = {}
    for row in sorted(rows, key=lambda r: (r.t0_ns, r.uid)):
        groups.setdefault(row.levels.get("policy", ""), []).append(row)
    groups.pop("", None)
    groups.pop("unknown", None)
    names = list(groups)
    confidence = 1 - (1 - CONFIDENCE) / max(len(names) - 1, 1)
    found = []
    for k, name in enumerate(names):
        pair = (groups[name], groups[names[k - 1]]) if k else None
        beside = matched(*pair, besides=TIME) if pair else None
        strict = matched(*pair, besides=TIME, confidence=confidence) if pair else None
        counts = sum(r.successes for r in groups[name]), sum(r.trials for r in groups[name])
        found.append(
            Version(name, *counts, beside, bool(strict and strict.difference.excludes_zero))
        )
    return tuple(found)
