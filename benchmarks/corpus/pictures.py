"""Draws the attribution benchmark: who is mistaken for whom, beside baselines, and naming less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.files import write_atomically
from gaploop.core.statistics import Estimate
from gaploop.failure_analysis.report.page import (
    ACCENT,
    PALE,
    SOFT,
    VERDICT,
    figure_png,
    new_figure,
)
from gaploop.failure_analysis.station import words

LINES: Final = (
    ("right_of_named", "right, of those named", ACCENT, "-"),
    ("mixed_safe", "two gaps: both named, or none", VERDICT["costs"], "-"),
    ("false_cause", "cause named without a gap", SOFT, ":"),
)
"""What is drawn over the share of single gaps that are named: figure, words, colour, line."""


def draw(result: Mapping[str, Any], folder: Path) -> None:
    """Write `confusion.png`, `top1.png` and `trade.png` of the strict part to `folder`."""
    rows = result["confusion"]
    counts = {(row, column): n for row, found in rows.items() for column, n in found.items()}
    grid = count_grid(list(rows), list(rows), counts, ("likeliest", "injected"))
    write_atomically(folder / "confusion.png", figure_png(grid))
    top1 = {name: figures["top1"] for name, figures in result["test"].items()}
    spans = {n: Estimate(f["value"], *f["interval"]) for n, f in top1.items() if f["interval"]}
    if spans:
        shares = {name: span.value for name, span in spans.items()}
        bars = share_bars(shares, "Likeliest cause is the injected one", intervals=spans)
        write_atomically(folder / "top1.png", figure_png(bars))
    here = result["test"]["ours"]["named"]["value"]
    write_atomically(folder / "trade.png", figure_png(_trade_figure(result["trade"], here)))


def _trade_figure(rows: Sequence[Mapping[str, Any]], here: float | None) -> Any:
    """Return what naming less single gaps brings, with the point that ships marked."""

    with new_figure(7.2, 3.4) as (figure, axes):
        for name, words, colour, line in LINES:
            points = [(r["named"], r[name]) for r in rows if None not in (r["named"], r[name])]
            if points:
                drawn = zip(*points, strict=True)
                axes.plot(*drawn, line, color=colour, marker="o", ms=3.5, label=words)
        figure.legend(loc="outside right center", frameon=False, labelcolor="linecolor")
        if here is not None:
            axes.axvline(here, color=SOFT, lw=0.8, ls="--")
            axes.text(here, 1.03, "ships", color=SOFT, fontsize=8, ha="center")
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.02, 1.02)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel("single gaps that are named at all")
        return figure


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
