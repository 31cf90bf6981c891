"""Figures of diagnosis reports, in one style; each returns a matplotlib figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, points
from gaploop.failure_analysis.report.page import FONTS
from gaploop.failure_analysis.station import words

INK: Final = "#1c2430"
SOFT: Final = "#5d6875"
ACCENT: Final = "#1f5fa8"
PALE: Final = "#c9d6e6"
VERDICT: Final = {"costs": "#b3402e", "helps": "#2c7a4b", "not shown": "#8a95a1"}
"""Colours of effects by what is shown of them."""
STYLE: Final = {
    **FONTS,
    "font.size": 10,
    "axes.edgecolor": "#aab3bd",
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": SOFT,
    "ytick.color": INK,
    "text.color": INK,
}


@contextmanager
def new_figure(width_in: float, height_in: float, **subplots: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, drawn in the report's style, without a display.

    One pair of axes, or as many as `subplots` says, as of matplotlib's `Figure.subplots`.
    """
    import matplotlib as mpl  # here: reports only
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(width_in, height_in), layout="constrained")
        yield drawn, drawn.subplots(**subplots)


def share_bars(
    shares: Mapping[str, float],
    title: str = "Share of the failures",
    intervals: Mapping[str, Estimate] | None = None,
) -> Any:
    """Return horizontal bars of shares, 0 to 1, largest first, with the intervals there are."""
    names = sorted(shares, key=lambda name: shares[name])
    with new_figure(7.2, 0.34 * len(names) + 0.8) as (figure, axes):
        top = max(shares.values(), default=0.0)
        colours = [ACCENT if shares[n] == top and top > 0 else PALE for n in names]
        axes.barh([words(n) for n in names], [shares[n] for n in names], color=colours, height=0.66)
        ends = dict(shares)
        for name, span in (intervals or {}).items():
            ends[name] = span.high
            axes.plot([span.low, span.high], [names.index(name)] * 2, color=SOFT, lw=1.2)
        for row, name in enumerate(names):
            share = f"{shares[name]:.0%}"
            axes.text(ends[name] + 0.008, row, share, va="center", fontsize=9, color=SOFT)
        axes.set_xlim(0, max(1.12 * max(ends.values(), default=0.0), 0.2))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel(title)
        axes.tick_params(length=0)
        return figure


def count_grid(
    rows: Sequence[str], columns: Sequence[str], counts: Mapping[tuple[str, str], int],
    labels: tuple[str, str] = ("", ""),
) -> Any:  # fmt: skip
    """Return a shaded table of counts by (row, column); `labels` say what columns and rows are."""
    values = np.array([[counts.get((r, c), 0) for c in columns] for r in rows], dtype=float)
    with new_figure(1.9 + 0.78 * len(columns), 0.9 + 0.40 * len(rows)) as (figure, axes):
        axes.imshow(values, cmap="Blues", vmin=0, vmax=max(values.max(initial=0.0), 1) * 1.5,
                    aspect="auto")  # fmt: skip
        axes.set_xticks(range(len(columns)), [words(c) for c in columns], rotation=30, ha="left")
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(rows)), [words(r) for r in rows])
        for r, c in np.argwhere(values > 0):
            axes.text(c, r, f"{values[r, c]:.0f}", ha="center", va="center", fontsize=10)
        axes.set_xlabel(labels[0])
        axes.xaxis.set_label_position("top")
        axes.set_ylabel(labels[1])
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        return figure


def familiarity_figure(scores: Mapping[str, FloatArray], usual: float) -> Any:
    """Return how unfamiliar a camera's pictures, one every 0.1 s, are over each take.

    Beside `usual`, the median of a training take.
    """
    with new_figure(7.6, 2.4) as (figure, axes):
        for score in scores.values():
            axes.plot(0.1 * np.arange(len(score)), score, color=ACCENT, lw=0.8, alpha=0.45)
        axes.axhline(usual, color=SOFT, lw=1, ls="--")
        axes.text(0, usual, " usual in training", va="bottom", fontsize=8, color=SOFT)
        axes.set_xlabel("time in the take [s]")
        axes.set_ylabel("distance, 1 = training's reach")
        return figure


def effect_figure(rows: Sequence[tuple[str, Estimate, str]]) -> Any:
    """Return differences in success, -1 to 1, with intervals and verdict, one row each by name."""
    with new_figure(7.6, 0.32 * len(rows) + 0.9) as (figure, axes):
        axes.axvline(0, color="#aab3bd", lw=1)
        places = range(len(rows) - 1, -1, -1)
        right = max(d.high for _, d, _ in rows)
        for place, (_, d, verdict) in zip(places, rows, strict=True):
            axes.plot([d.low, d.high], [place, place], color=VERDICT[verdict], lw=1.6)
            axes.plot(d.value, place, "o", color=VERDICT[verdict], ms=6)
            axes.text(right + 0.03, place, points(d), va="center", fontsize=9, color=SOFT)
        axes.set_yticks(list(places), [name for name, _, _ in rows])
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f}" if value else "0")
        axes.set_xlabel("difference in success [points], 95 % intervals, all else alike")
        axes.tick_params(length=0)
        return figure
