"""What changed, and when: the figures of several recordings of one station, oldest first.

A figure changes where it steps by more than both sides' intervals allow, by more than it scatters
from one recording to the next, and by more than matters. Some 40 figures are compared at once, so
their intervals are widened: a difference must be 3.5 standard errors (5 % over all, Bonferroni).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.statistics import Estimate
from gaploop.datasets.absolute.findings import Figure

WIDER: Final = 1.8
"""Two-sided 3.5 standard errors beside the 1.96 of an interval."""
SCATTERS: Final = 3.0
SCATTER_NEEDS: Final = 4
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


def _steps(sizes: Sequence[Estimate], least: float, start: int = 0) -> list[int]:
    """Return where a series steps, by splitting it at its clearest step, then both parts."""
    best, at = 1.0, 0
    for k in range(1, len(sizes)):
        a, b = pooled(sizes[:k]), pooled(sizes[k:])
        needed = max(least, WIDER * float(np.hypot(a.high - a.low, b.high - b.low)) / 2)
        if len(sizes) >= SCATTER_NEEDS:
            left = [s.value - side.value for s, side in
                    [*((s, a) for s in sizes[:k]), *((s, b) for s in sizes[k:])]]  # fmt: skip
            needed = max(needed, SCATTERS * 1.4826 * float(np.median(np.abs(left))))
        if abs(b.value - a.value) / needed > best:
            best, at = abs(b.value - a.value) / needed, k
    if not at:
        return []
    first = _steps(sizes[:at], least, start)
    return [*first, start + at, *_steps(sizes[at:], least, start + at)]


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
