"""Pictures of an evaluation: success by setting, and where on the table it succeeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gaploop.core.statistics import points
from gaploop.failure_analysis.report.page import ACCENT, PALE, SOFT, VERDICT, figure_png, new_figure
from gaploop.finetune.evaluation import Drop, Evaluation, Rate
from gaploop.finetune.factors import factor_of, grid_cell, order, parts, words
from gaploop.sim.placement import (
    FLANK_ANGLE_RAD,
    SPAWN_CENTRE_M,
    SPAWN_HALF_ANGLE_RAD,
    SPAWN_RADIUS_M,
)

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
    """Return success by where the object starts, seen from above; None where that wasn't varied.

    Rows of the grid go from right to left of the arm, columns from near to far, as in the embedded
    cell; another station's grid is drawn in the same shape.
    """
    base = evaluation.base
    cells = {c: r for n, r in evaluation.by_condition.items() if (c := grid_cell(n, base))}
    if not cells:
        return None
    with new_figure(6.2, 5.0) as (figure, axes):
        rows, columns = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
        inner, outer = SPAWN_RADIUS_M
        turns = np.linspace(-SPAWN_HALF_ANGLE_RAD, SPAWN_HALF_ANGLE_RAD, rows + 1)
        radii = np.linspace(inner, outer, columns + 1)
        for (row, column), rate in cells.items():
            span = turns[row], turns[row + 1]
            _sector(axes, rate, span, (radii[column], radii[column + 1]))
        flank = SPAWN_HALF_ANGLE_RAD, SPAWN_HALF_ANGLE_RAD + FLANK_ANGLE_RAD
        for name, rate in evaluation.by_condition.items():  # what lies beside the spawn region
            placement = parts(name).get("placement")
            if placement == "inner":
                _sector(axes, rate, (-np.pi, np.pi), (0.0, inner), hatch="///")
            elif placement == "flank":
                other = -flank[1], -flank[0]
                _sector(axes, rate, flank, (inner, outer), hatch="///")
                _sector(axes, rate, other, (inner, outer), hatch="///", label=False)
        axes.plot(0, 0, "s", ms=16, color="#2b2e36")
        axes.text(0, -0.022, "arm", ha="center", va="top", fontsize=9, color=SOFT)
        axes.set_aspect("equal")
        axes.set_xlim(-0.17, 0.17)
        axes.set_ylim(-0.04, 0.30)
        axes.xaxis.set_major_formatter(lambda value, _: str(round(-100 * value)))
        axes.yaxis.set_major_formatter(lambda value, _: str(round(100 * value)))
        axes.set_xlabel("to the left of the arm [cm]")
        axes.set_ylabel("ahead of the arm [cm]")
        axes.tick_params(length=0)
        return figure_png(figure)


def _sector(
    axes: Any,
    rate: Rate,
    turn_rad: tuple[float, float],
    radius_m: tuple[float, float],
    hatch: str = "",
    label: bool = True,
) -> None:
    """Draw a part of a ring about the spawn region's centre; ahead is up, left is left."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Wedge

    colours = LinearSegmentedColormap.from_list("success", ["#c8604f", "#f1ead9", "#5f9f78"])
    centre = (-SPAWN_CENTRE_M[1], SPAWN_CENTRE_M[0])
    start, end = (np.degrees(t) + 90 for t in turn_rad)
    axes.add_patch(
        Wedge(
            centre,
            radius_m[1],
            start,
            end,
            width=radius_m[1] - radius_m[0],
            facecolor=colours(rate.rate),
            edgecolor="white",
            lw=1.5,
            hatch=hatch,
        )
    )
    whole = turn_rad[1] - turn_rad[0] > np.pi
    angle = 0.5 * (turn_rad[0] + turn_rad[1])
    radius = 0.0 if whole else 0.5 * (radius_m[0] + radius_m[1])
    if label:
        x = centre[0] - radius * np.sin(angle)
        y = centre[1] + radius * np.cos(angle)
        said = f"{rate.successes}/{rate.trials}"
        axes.text(x, y, said, ha="center", va="center", fontsize=9)
