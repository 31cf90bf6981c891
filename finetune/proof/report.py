"""The study's figures as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from gaploop.failure_analysis.report.figures import ACCENT, SOFT, STYLE, new_figure
from gaploop.failure_analysis.report.page import figure_png
from gaploop.finetune.proof import figures
from gaploop.finetune.proof.design import Arm
from gaploop.finetune.proof.figures import BEFORE, Estimate
from gaploop.finetune.proof.rows import Row

COLOURS: Final = {
    Arm.TARGETED.value: ACCENT,
    Arm.UNIFORM.value: "#c8553d",
    Arm.ORACLE.value: "#7a8b99",
    Arm.ON_SITE.value: "#8a6fb3",
}
COLUMNS: Final = 3


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return all figures as plain values, by task and gap and over the gaps of each task."""
    groups = figures.by_gap(rows)
    for task in dict.fromkeys(figures.setting(row) for row in rows):
        groups[f"{task} all"] = [row for row in rows if figures.setting(row) == task]
    return {name: _group(found) for name, found in groups.items()}


def _group(rows: Sequence[Row]) -> dict[str, Any]:
    saved, named = figures.takes_saved(rows), figures.attribution(rows)
    budgets = sorted({row.budget for row in rows if row.budget})
    paired = {
        n: figures.gains(rows, (Arm.TARGETED.value, n), (Arm.UNIFORM.value, n)) for n in budgets
    }
    return {
        "sites": len({row.site for row in rows}),
        "success": {_cell(cell): asdict(e) for cell, e in figures.success(rows).items()},
        "targeted_minus_uniform": {n: asdict(e) for n, e in paired.items() if e},
        "takes_saved": asdict(saved) if saved else None,
        "dont_collect": asdict(figures.plans(rows)),
        "attribution": asdict(named) if named else None,
        "hours": {_cell(cell): h for cell, h in figures.hours(rows).items()},
    }


def _cell(cell: tuple[str, int]) -> str:
    arm, budget = cell
    return f"{arm} {budget}" if budget else arm


def table(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    cells = list(dict.fromkeys(c for group in found.values() for c in group["success"]))
    cells = [c for c in cells if c != BEFORE[0]]
    lines = [
        "Success at the site, mean over sites with 95 % intervals; takes saved: 50 over the takes "
        "at which targeted collection reaches what uniform collection does with 50 (0: not "
        "reached).",
        "",
        f"| gap | sites | before | {' | '.join(cells)} | takes saved | attributed |",
        f"|---|---|---|{'---|' * len(cells)}---|---|",
    ]
    for name, group in found.items():
        rates = [_rate(group["success"].get(cell)) for cell in cells]
        lines.append(
            f"| {name} | {group['sites']} | {_rate(group['success'][BEFORE[0]])} | "
            f"{' | '.join(rates)} | {_times(group['takes_saved'])} | {_named(group)} |"
        )
    lines += ["", *(line for name, group in found.items() for line in _plans(name, group))]
    return "\n".join(lines)


def _rate(one: Mapping[str, Any] | None) -> str:
    return f"{one['value']:.0%} [{one['low']:.0%}, {one['high']:.0%}]" if one else ""


def _times(one: Mapping[str, Any] | None) -> str:
    return f"{one['value']:.1f}x [{one['low']:.1f}, {one['high']:.1f}]" if one else ""


def _named(group: Mapping[str, Any]) -> str:
    rate = group["attribution"]
    return f"{rate['successes']} of {rate['trials']}" if rate else ""


def _plans(name: str, group: Mapping[str, Any]) -> list[str]:
    plan = group["dont_collect"]
    if not plan["sites"]:
        return []
    return [
        f'{name}: {plan["said"]} of {plan["sites"]} plans said "don\'t collect", {plan["right"]} '
        f"rightly; {plan['missed']} asked for takes that uniform collection shows to be idle."
    ]


def picture(rows: Sequence[Row]) -> bytes:
    """Return success against takes, a panel for each gap, as a PNG."""
    import matplotlib as mpl

    groups = figures.by_gap(rows)
    lines = -(-len(groups) // COLUMNS)
    with mpl.rc_context(STYLE):
        figure, axes = new_figure(3.1 * COLUMNS, 2.5 * lines + 0.6)
        axes.remove()
        grid = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for place, axis in enumerate(grid.flat):
            axis.set_visible(place < len(groups))
        for axis, (name, found) in zip(grid.flat, groups.items(), strict=False):
            _panel(axis, name, found)
        grid[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
        figure.supxlabel("takes recorded for the site", fontsize=9)
        figure.supylabel("success, 95 % intervals", fontsize=9)
        return figure_png(figure)


def _panel(axis: Any, name: str, rows: Sequence[Row]) -> None:
    rates = figures.success(rows)
    before = rates[BEFORE]
    axis.axhspan(before.low, before.high, color="#e6eaee", lw=0)
    axis.axhline(before.value, color=SOFT, lw=0.8, ls=":")
    for shift, (arm, colour) in enumerate(COLOURS.items()):
        found = {n: e for (a, n), e in rates.items() if a == arm}
        if found:
            _line(axis, arm, colour, found, 1.0 + 0.04 * (shift - 1))
    axis.set_xscale("log")
    budgets = sorted({row.budget for row in rows if row.budget})
    axis.set_xticks(budgets, [str(n) for n in budgets])
    axis.minorticks_off()
    axis.set_ylim(-0.03, 1.03)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    task, _, gap = name.partition(" ")
    where = "" if task == "pick_place" else f"{task}: "
    axis.set_title(where + gap.replace("_", " "), loc="left", fontsize=9, color=SOFT)


def _line(axis: Any, arm: str, colour: str, found: Mapping[int, Estimate], shift: float) -> None:
    takes = [n * shift for n in found]
    values = [e.value for e in found.values()]
    spans = [[e.value - e.low for e in found.values()], [e.high - e.value for e in found.values()]]
    axis.errorbar(
        takes, values, yerr=spans, color=colour, marker="o", ms=4, lw=1.4, label=arm, capsize=2
    )
