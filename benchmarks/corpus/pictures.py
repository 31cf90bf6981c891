"""Draws the attribution benchmark: who is mistaken for whom, beside baselines, and naming less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core.files import write_atomically
from gaploop.core.statistics import Estimate
from gaploop.failure_analysis.report.figures import (
    ACCENT,
    SOFT,
    VERDICT,
    count_grid,
    new_figure,
    share_bars,
)
from gaploop.failure_analysis.report.page import figure_png

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
