"""Pictures of an evaluation: success by setting, and where on the table it succeeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gaploop.core.statistics import points
from gaploop.failure_analysis.report.page import ACCENT, PALE, SOFT, VERDICT, figure_png, new_figure
from gaploop.finetune.evaluation import Drop, Evaluation
from gaploop.finetune.factors import factor_of, grid_cell, order, words

_FAR_LEFT: Final = -0.02


def success_png(evaluation: Evaluation, against: Sequence[Drop], title: str = "") -> bytes:
    """Return success by setting with 95 % intervals, those that cost something in red."""
    names = [n for n in evaluation.by_condition if grid_cell(n, evaluation.base) is None]
    names = sorted(names, key=lambda n: order(n, evaluation.base))
    drop = {d.condition: d for d in against}
    with new_figure(8.4, 0.29 * len(names) + 1.1) as (figure, axes):
        base = evaluation.by_condition.get(evaluation.base)
        low, high = base.interval if base else (0.0, 0.0)
        axes.axvspan(low, high, color=PALE, alpha=0.45, lw=0)
        last = None
        for place, name in enumerate(reversed(names)):
            rate, found = evaluation.by_condition[name], drop.get(name)
            colour = VERDICT[found.verdict] if found else ACCENT
            axes.plot(rate.interval, [place, place], color=colour, lw=1.6)
            axes.plot(rate.rate, place, "o", color=colour, ms=6)
            said = f"{rate.rate:.0%} of {rate.trials}"
            if found:
                said += f"    {points(found.difference)}"
            axes.text(1.03, place, said, va="center", fontsize=9, color=SOFT)
            factor = factor_of(name, evaluation.base)
            if last is not None and factor != last:
                axes.axhline(place - 0.5, color="#dfe4e9", lw=0.8)
            last = factor
        axes.set_yticks(range(len(names)), [words(n, evaluation.base) for n in reversed(names)])
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlim(_FAR_LEFT, 1.02)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel("success, 95 % intervals; right: difference to the base")
        axes.tick_params(length=0)
        if title:
            axes.set_title(title, loc="left", fontsize=10, color=SOFT)
        return figure_png(figure)


def positions_png(evaluation: Evaluation) -> bytes | None:
    """Return success by grid cell where the object starts; None where that wasn't varied.

    Rows go from right to left of the arm, columns from near to far, as in the embedded cell.
    """
    base = evaluation.base
    cells = {c: r for n, r in evaluation.by_condition.items() if (c := grid_cell(n, base))}
    if not cells:
        return None
    rows, columns = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
    rates = np.full((columns, rows), np.nan)
    with new_figure(1.2 + 1.1 * rows, 1.0 + 0.9 * columns) as (figure, axes):
        for (row, column), rate in cells.items():
            rates[column, row] = rate.rate
            said = f"{rate.successes}/{rate.trials}"
            axes.text(row, column, said, ha="center", va="center", fontsize=9)
        axes.imshow(rates, cmap="RdYlGn", vmin=0, vmax=1, alpha=0.6, aspect="auto")
        axes.set_xlim(rows - 0.5, -0.5)  # seen from above, the arm below: left is left
        axes.set_ylim(-0.5, columns - 0.5)
        axes.set_xticks(range(rows), [f"row {row}" for row in range(rows)])
        axes.set_yticks(range(columns), [f"column {column}" for column in range(columns)])
        axes.tick_params(length=0)
        return figure_png(figure)
