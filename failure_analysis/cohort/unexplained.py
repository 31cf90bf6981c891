"""Groups among the failures that no signal explains, for a person to look at and name.

Takes are compared by their signals, in spreads from usual. They are split only where the groups are
tighter than those of one normal cloud with the same covariance (as SigClust asks: Liu, Hayes, Nobel
and Marron, JASA 103:1281, 2008), so that noise stays one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.reference import UsualValue
from gaploop.failure_analysis.signals.registry import TakeSignals, registry

LEAST_TAKES: Final = 6
"""Fewer unexplained failures than this are one group."""
MOST_GROUPS: Final = 6
SMALLEST: Final = 2
"""Takes of the smallest group worth naming."""
FURTHEST: Final = 6.0
"""Spreads from usual beyond which further doesn't count more."""
SEEN_SHARE: Final = 0.5
"""Of the takes: a signal seen in fewer isn't compared."""
FALSE_SPLIT: Final = 0.05
"""Chance that one cloud of failures is split."""
CLOUDS: Final = 19
MOST_COMPARED: Final = 200
"""Failures that groups are made from; each further one joins the nearest group."""
SIGNALS_SAID: Final = 3
SAID_FROM: Final = 1.0
"""Spreads by which a group must stand off the rest to be said to."""

type Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Failures that resemble each other, the most typical first; group A is the largest.

    Attributes:
        traits: what sets it apart, in words and numbers, the clearest first.
        modes: failure mode to how many of its takes show it.
    """

    name: str
    uids: tuple[str, ...]
    traits: tuple[str, ...]
    modes: Mapping[str, int]


@dataclass(frozen=True)
class Unexplained:
    """A failure without a clear cause."""

    uid: str
    mode: str
    measured: TakeSignals


def group_unexplained(
    takes: Sequence[Unexplained], usual: Mapping[str, UsualValue]
) -> tuple[Group, ...]:
    """Return groups of failures without a clear cause; the order of takes doesn't matter."""
    takes = sorted(takes, key=lambda t: t.uid)
    if not takes:
        return ()
    # Signals that enough takes have, in spreads from usual, shape (n_takes, n_signals).
    specs, columns = [], []
    for name, spec in registry().items():
        column = np.array([t.measured[name] for t in takes])
        if np.isfinite(column).mean() < SEEN_SHARE:
            continue
        nominal = usual.get(name)
        middle = nominal.mean if nominal else float(np.nanmedian(column))
        spread = nominal.std if nominal else float(np.nanstd(column))
        scaled = np.clip((column - middle) / max(spread, spec.floor), -FURTHEST, FURTHEST)
        specs.append(spec)
        columns.append(np.where(np.isfinite(scaled), scaled, np.nanmedian(scaled)))
    values = np.array(columns).T.reshape(len(takes), len(specs))
    label = _split(values)
    first = {k: takes[int(np.flatnonzero(label == k)[0])].uid for k in set(label)}
    found = []
    for n, k in enumerate(sorted(first, key=lambda k: (-int(np.sum(label == k)), first[k]))):
        mine = label == k
        centre = np.median(values[mine], axis=0)
        rest = np.median(values[~mine], axis=0) if not mine.all() else np.zeros(len(specs))
        inside = [t for t, m in zip(takes, mine, strict=True) if m]
        outside = [t for t, m in zip(takes, mine, strict=True) if not m]
        apart = np.abs(centre - rest)
        traits = []
        for place in np.argsort(-apart, kind="stable")[:SIGNALS_SAID]:
            if apart[place] < SAID_FROM:
                continue
            spec = specs[place]
            trait = spec.describe(float(np.nanmedian([t.measured[spec.name] for t in inside])))
            others = [t.measured[spec.name] for t in outside]
            if others and np.isfinite(others).any():
                there = spec.show(float(np.nanmedian(others)))
                trait += f"; {there} in the other unexplained failures"
            traits.append(trait)
        distance = np.linalg.norm(values[mine] - centre, axis=1)
        uids = tuple(inside[i].uid for i in np.argsort(distance, kind="stable"))
        modes = sorted(Counter(t.mode for t in inside).items(), key=lambda p: (-p[1], p[0]))
        found.append(Group(chr(ord("A") + n), uids, tuple(traits), dict(modes)))
    return tuple(found)


def _split(values: FloatArray) -> Labels:
    """Return each take's group; all 0 where splitting finds no more than in one cloud."""
    whole = np.zeros(len(values), dtype=np.int64)
    if len(values) < LEAST_TAKES or not values.shape[1] or not np.ptp(values, axis=0).any():
        return whole
    rng = np.random.default_rng(0)
    some = values[:: -(-len(values) // MOST_COMPARED)]
    best, label = _tightest(some)
    centred = (some - some.mean(axis=0)) / np.sqrt(len(some))
    clouds = (rng.standard_normal((len(some),) * 2) @ centred for _ in range(CLOUDS))
    as_tight = sum(_tightest(cloud)[0] >= best for cloud in clouds)
    if (1 + as_tight) / (1 + CLOUDS) > FALSE_SPLIT:
        return whole
    centres = np.array([some[label == k].mean(axis=0) for k in np.unique(label)])
    nearest = np.argmin(np.linalg.norm(values[:, None] - centres[None], axis=2), axis=1)
    return np.asarray(nearest, dtype=np.int64)


def _tightest(values: FloatArray) -> tuple[float, Labels]:
    """Return the best mean silhouette over numbers of groups (Rousseeuw 1987), and the groups."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist, squareform

    apart = pdist(values)
    tree, square = linkage(apart, method="ward"), squareform(apart)
    best, label = -1.0, np.zeros(len(values), dtype=np.int64)
    for k in range(2, min(MOST_GROUPS, len(values) // SMALLEST) + 1):
        tried = fcluster(tree, k, criterion="maxclust").astype(np.int64)
        counts = np.bincount(tried)[1:]
        if len(counts) < 2 or counts.min() < SMALLEST:
            continue
        mine = tried[:, None] == np.arange(1, len(counts) + 1)
        total = square @ mine
        own = total[mine] / (counts[tried - 1] - 1)
        other = np.where(mine, np.inf, total / counts).min(axis=1)
        score = float(np.mean((other - own) / np.maximum(np.maximum(own, other), 1e-300)))
        if score > best:
            best, label = score, tried
    return best, label
