"""The study as pictures: success against takes, and what targeting saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gaploop.failure_analysis.report.figures import ACCENT, SOFT, STYLE, new_figure
from gaploop.failure_analysis.report.page import figure_png
from gaploop.finetune.proof import figures
from gaploop.finetune.proof.design import Arm
from gaploop.finetune.proof.figures import BEFORE, COMPARED, TENTH, Estimate
from gaploop.finetune.proof.lessons import TAUGHT
from gaploop.finetune.proof.rows import Row

COLOURS: Final = {
    Arm.TARGETED.value: ACCENT,
    Arm.UNIFORM.value: "#c8553d",
    Arm.ORACLE.value: "#7a8b99",
    Arm.ON_SITE.value: "#8a6fb3",
    TAUGHT: "#3a9d6e",
}
COLUMNS: Final = 3
SPREAD: Final = 1.12
"""Arms of a budget are drawn this far apart, as a factor."""
SAVED: Final = (
    ("takes saved: uniform ones (how many) over\nthose that succeed as often",
     {Arm.TARGETED.value: "takes_saved", TAUGHT: "takes_saved_taught"}, 1.0),
    (f"success with {TENTH} takes\nminus uniform with {COMPARED} [points]",
     {Arm.TARGETED.value: "targeted_tenth_minus_uniform", TAUGHT: "taught_tenth_minus_uniform"},
     100.0),
)  # fmt: skip
"""Panels of `saved_picture`: title, figure by arm, and what it is multiplied with."""


def success_picture(rows: Sequence[Row]) -> bytes:
    """Return success against takes, a panel for each gap, as a PNG.

    Means are drawn where all sites of a gap have run: a line over other sites at each budget would
    show their differences, not what takes bring.
    """
    import matplotlib as mpl

    groups = figures.by_gap(rows)
    lines = -(-len(groups) // COLUMNS)
    with mpl.rc_context(STYLE):
        figure, axes = new_figure(3.1 * COLUMNS, 2.5 * lines + 0.6)
        axes.remove()
        grid = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for place, axis in enumerate(grid.flat):
            axis.set_visible(place < len(groups))
        several = len({figures.setting(row) for row in rows}) > 1
        for axis, (name, found) in zip(grid.flat, groups.items(), strict=False):
            task, _, gap = name.partition(" ")
            _panel(axis, f"{task}: {gap}" if several else gap, found)
        budgets = sorted({row.budget for row in rows if row.budget}) or [1]
        axis.set_xscale("log")  # of all panels: they share it
        axis.set_xlim(min(budgets) / 1.7, max(budgets) * 1.7)
        axis.set_xticks(budgets, [str(n) for n in budgets])
        axis.minorticks_off()
        named = [axis.get_legend_handles_labels() for axis in grid.flat]
        handles = {label: handle for each in named for handle, label in zip(*each, strict=True)}
        figure.legend(handles.values(), handles, frameon=False, ncols=len(handles), fontsize=8,
                      loc="outside upper center")  # fmt: skip
        figure.supxlabel("takes recorded for the site", fontsize=9)
        figure.supylabel("success: mean with 95 % interval, and each site", fontsize=9)
        return figure_png(figure)


def _panel(axis: Any, name: str, rows: Sequence[Row]) -> None:
    rates = figures.success(rows)
    before = rates[BEFORE]
    axis.axhspan(before.low, before.high, color="#e6eaee", lw=0)
    for shift, (arm, colour) in enumerate(COLOURS.items()):
        found = {n: e for (a, n), e in rates.items() if a == arm and e.sites == before.sites}
        if found:
            _line(axis, arm, colour, found, SPREAD ** (shift - 1.5))
        _dots(axis, colour, [r for r in rows if r.arm == arm], SPREAD ** (shift - 1.5))
    axis.axhline(before.value, color=SOFT, lw=0.8, ls=":", label="before")
    axis.set_ylim(-0.03, 1.03)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_title(name.replace("_", " "), loc="left", fontsize=9, color=SOFT)


def _line(axis: Any, arm: str, colour: str, found: Mapping[int, Estimate], shift: float) -> None:
    takes = [n * shift for n in found]
    values = [e.value for e in found.values()]
    spans = [[e.value - e.low for e in found.values()], [e.high - e.value for e in found.values()]]
    axis.errorbar(
        takes, values, yerr=spans, color=colour, marker="o", ms=4, lw=1.4, label=arm, capsize=2
    )


def _dots(axis: Any, colour: str, rows: Sequence[Row], shift: float) -> None:
    takes = [row.budget * shift * 1.04 for row in rows]
    rates = [row.after.count("1") / len(row.after) for row in rows]
    axis.scatter(takes, rates, s=9, color=colour, alpha=0.4, lw=0)


def saved_picture(found: Mapping[str, Any]) -> bytes:
    """Return what targeting saves, a line for each gap of a `report.summary`, as a PNG."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure, axes = new_figure(8.6, 0.34 * len(found) + 1.3)
        axes.remove()
        grid = figure.subplots(1, len(SAVED), sharey=True)
        for axis, (title, names, factor) in zip(grid, SAVED, strict=True):
            for shift, (arm, name) in enumerate(names.items()):
                known = {i: group[name] for i, group in enumerate(found.values()) if group[name]}
                _spans(axis, arm, known, factor, 0.16 - 0.32 * shift)
            axis.axvline(0.0, color=SOFT, lw=0.8, ls=":")
            axis.set_title(title, loc="left", fontsize=9, color=SOFT)
            axis.tick_params(labelsize=8)
        named = [f"{name} ({group['compared']})" for name, group in found.items()]
        grid[0].set_yticks(range(len(found)), [name.replace("_", " ") for name in named])
        grid[0].invert_yaxis()
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, ncols=2, fontsize=8,
                      loc="outside upper center")  # fmt: skip
        return figure_png(figure)


def _spans(
    axis: Any, arm: str, known: Mapping[int, Mapping[str, float]], factor: float, shift: float
) -> None:
    values = [factor * one["value"] for one in known.values()]
    low = [factor * (one["value"] - one["low"]) for one in known.values()]
    high = [factor * (one["high"] - one["value"]) for one in known.values()]
    axis.errorbar(
        values, [line - shift for line in known], xerr=[low, high], color=COLOURS[arm],
        marker="o", ms=4, lw=0, elinewidth=1.4, capsize=2, label=arm,
    )  # fmt: skip
