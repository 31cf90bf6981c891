"""What changed, and when: the figures of several recordings of one station, oldest first.

A figure changes where it steps by more than both sides' intervals allow, by more than it scatters
from one recording to the next, and by more than matters. Some 40 figures are compared at every
place where they may step, so a step must be 4.3 standard errors (5 % over all, Bonferroni, t
distribution of ten episodes).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.statistics import Estimate
from gaploop.datasets.absolute.findings import Figure

CLEAR: Final = 4.3
"""Standard errors that a step must be."""
SCATTER_NEEDS: Final = 5
"""Recordings before their scatter is known."""

type Day = tuple[str, Sequence[Figure]]
"""A recording's name, such as a folder or a date, and its figures."""


@dataclass(frozen=True)
class Trend:
    """One figure that changed.

    Attributes:
        stretches: first and last recording of each stretch in which it stayed the same, and its
            value there.
        share: the largest step, in changes that matter; ranks the sentences.
    """

    figure: Figure
    stretches: tuple[tuple[str, str, Estimate], ...]
    share: float

    def line(self) -> str:
        """Say what it was, until when, and what it is since."""
        parts = list[str]()
        for n, (first, last, size) in enumerate(self.stretches):
            when = f"until {last}" if n == 0 else f"from {first}"
            if 0 < n < len(self.stretches) - 1:
                when = f"from {first} to {last}" if first != last else f"in {first}"
            value = f"{size.value:.3g} {self.figure.unit}".strip().replace(" °", "°")
            parts.append(f"{value} [{size.low:.3g}, {size.high:.3g}] {when}")
        return f"{self.figure.name}: {', '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        f = self.figure
        stretches = [
            {"first": a, "last": b, "value": s.value, "low": s.low, "high": s.high}
            for a, b, s in self.stretches
        ]
        return {"what": f.what, "about": f.about, "unit": f.unit, "stretches": stretches}


def trends(days: Sequence[Day]) -> list[Trend]:
    """Return the figures that changed over recordings, the largest change first."""
    series: dict[tuple[str, str], list[tuple[str, Figure]]] = {}
    for name, figures in days:
        for figure in figures:
            series.setdefault((figure.what, figure.about), []).append((name, figure))
    found = []
    for points in series.values():
        edges = [0, *_steps([f.size for _, f in points], points[-1][1].least), len(points)]
        if len(edges) == 2:
            continue
        parts = [points[a:b] for a, b in itertools.pairwise(edges)]
        sizes = [pooled([f.size for _, f in part]) for part in parts]
        steps = np.abs(np.diff([s.value for s in sizes]))
        stretches = [(p[0][0], p[-1][0], s) for p, s in zip(parts, sizes, strict=True)]
        figure = points[-1][1]
        found.append(Trend(figure, tuple(stretches), float(steps.max()) / figure.least))
    return sorted(found, key=lambda trend: -trend.share)


def pooled(sizes: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates, with an interval from theirs and from how they scatter."""
    values = np.array([s.value for s in sizes])
    halves = np.array([(s.high - s.low) / 2 for s in sizes])
    n, mean = len(values), float(values.mean())
    half = float(np.sqrt((halves**2).mean() / n))
    if n > 2:
        half = max(half, 1.96 * float(values.std(ddof=1)) / n**0.5)
    return Estimate(mean, mean - half, mean + half)


def _steps(sizes: Sequence[Estimate], least: float) -> list[int]:
    """Return where a series steps: the cheapest split into level stretches.

    A stretch costs its squared distances from its mean, in standard errors, and each step
    `CLEAR` squared (optimal partitioning: Jackson et al. 2005).
    """
    n, x = len(sizes), np.array([s.value for s in sizes])
    halves = np.array([max(s.high - s.low, 0.5 * least) / 2 for s in sizes])
    scatter = 0.0
    if n >= SCATTER_NEEDS:  # steps are few: a quarter of the differences are of none
        scatter = float(np.percentile(np.abs(np.diff(x)), 25)) / 0.45
    weight = 1.0 / ((halves / 1.96) ** 2 + scatter**2)
    w, wx, wxx = (np.r_[0.0, np.cumsum(v)] for v in (weight, weight * x, weight * x * x))
    cost, last = np.r_[-(CLEAR**2), np.full(n, np.inf)], np.zeros(n + 1, dtype=int)
    for end in range(1, n + 1):
        starts = np.arange(end)
        own = wxx[end] - wxx[starts] - (wx[end] - wx[starts]) ** 2 / (w[end] - w[starts])
        total = cost[starts] + own + CLEAR**2
        last[end] = int(total.argmin())
        cost[end] = total[last[end]]
    edges, at = list[int](), n
    while (at := int(last[at])) > 0:
        edges.insert(0, at)
    k = 0
    while k < len(edges):  # steps of less than matters are none
        parts = [0, *edges, n]
        a, b = (pooled(sizes[parts[k + i] : parts[k + i + 1]]) for i in (0, 1))
        if abs(b.value - a.value) > max(least, 1.1 * (a.high - a.low), 1.1 * (b.high - b.low)):
            k += 1
        else:
            del edges[k]
            k = 0
    return edges


def figures_to_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Return figures as they are kept from day to day."""
    return [
        {
            "what": f.what, "about": f.about, "unit": f.unit, "least": f.least,
            "value": f.size.value, "low": f.size.low, "high": f.size.high,
        }
        for f in figures
    ]  # fmt: skip


def figures_from_json(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return figures that were kept; raises KeyError, TypeError or ValueError of damaged ones."""
    return [
        Figure(
            str(r["what"]), str(r["about"]), str(r["unit"]),
            Estimate(float(r["value"]), float(r["low"]), float(r["high"])), float(r["least"]),
        )
        for r in rows
    ]  # fmt: skip
