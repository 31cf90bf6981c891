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
WHY_LOST: Final = {
    "misnamed": "for a dimension that has no gap there",
    "not collected": "none: the plan said that they don't help",
    "collected": "for what was hidden, and helped less",
}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return all figures as plain values, by task and gap and over the gaps of each task."""
    groups = figures.by_gap(rows)
    for task in dict.fromkeys(figures.setting(row) for row in rows):
        groups[f"{task} all"] = [row for row in rows if figures.setting(row) == task]
    return {name: _group(found) for name, found in groups.items()}


def _group(rows: Sequence[Row]) -> dict[str, Any]:
    saved, named = figures.takes_saved(rows), figures.attribution(rows)
    hours, taught = figures.hours_saved(rows), figures.takes_saved(rows, arm=TAUGHT)
    budgets = sorted({row.budget for row in rows if row.budget})
    paired = {
        n: figures.gains(rows, (Arm.TARGETED.value, n), (Arm.UNIFORM.value, n)) for n in budgets
    }
    return {
        "sites": len({row.site for row in rows}),
        "success": {_cell(cell): asdict(e) for cell, e in figures.success(rows).items()},
        "targeted_minus_uniform": {n: asdict(e) for n, e in paired.items() if e},
        "takes_saved": asdict(saved) if saved else None,
        "hours_saved": asdict(hours) if hours else None,
        "takes_saved_taught": asdict(taught) if taught else None,
        "dont_collect": asdict(figures.plans(rows)),
        "attribution": asdict(named) if named else None,
        "hours": {_cell(cell): h for cell, h in figures.hours(rows).items()},
    }


def _cell(cell: tuple[str, int]) -> str:
    arm, budget = cell
    return f"{arm} {budget}" if budget else arm


def table(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    return "\n\n".join((_success(found), _cost(found), _plans(found)))


def _success(found: Mapping[str, Any]) -> str:
    cells = list(dict.fromkeys(c for group in found.values() for c in group["success"]))
    cells = [c for c in cells if c != BEFORE[0]]
    lines = [
        "Success at the site, mean over sites with 95 % intervals; in brackets, over how many, "
        "where not all have run.",
        "",
        f"| gap | sites | before | {' | '.join(cells)} | attributed |",
        f"|---|---|---|{'---|' * len(cells)}---|",
    ]
    for name, group in found.items():
        rates = [_rate(group["success"].get(cell), group["sites"]) for cell in cells]
        lines.append(
            f"| {name} | {group['sites']} | {_rate(group['success'][BEFORE[0]], group['sites'])} | "
            f"{' | '.join(rates)} | {_named(group)} |"
        )
    return "\n".join(lines)


def _cost(found: Mapping[str, Any]) -> str:
    cells = list(dict.fromkeys(c for group in found.values() for c in group["hours"]))
    lines = [
        "Hours of recording, mean over sites; saved: what uniform collection spends on 50 takes, "
        "over what targeted collection needs to succeed as often (0: it doesn't). Taught: targeted "
        "collection by a prior that knows the sites of the other seeds.",
        "",
        f"| gap | {' | '.join(cells)} | takes saved | hours saved | takes saved, taught |",
        f"|---|{'---|' * len(cells)}---|---|---|",
    ]
    for name, group in found.items():
        hours = [
            f"{h:.2f}" if (h := group["hours"].get(cell)) is not None else "" for cell in cells
        ]
        lines.append(
            f"| {name} | {' | '.join(hours)} | {_times(group, 'takes_saved')} | "
            f"{_times(group, 'hours_saved')} | {_times(group, 'takes_saved_taught')} |"
        )
    return "\n".join(lines)


def _rate(one: Mapping[str, Any] | None, sites: int) -> str:
    if one is None:
        return ""
    return f"{one['value']:.0%} [{one['low']:.0%}, {one['high']:.0%}]{_fewer(one, sites)}"


def _times(group: Mapping[str, Any], name: str) -> str:
    one = group[name]
    if one is None:
        return ""
    return f"{one['value']:.1f}x [{one['low']:.1f}, {one['high']:.1f}]{_fewer(one, group['sites'])}"


def _fewer(one: Mapping[str, Any], sites: int) -> str:
    """Say over how many sites a figure is where that aren't all: a study may be under way."""
    return "" if one["sites"] == sites else f" ({one['sites']})"


def _named(group: Mapping[str, Any]) -> str:
    rate = group["attribution"]
    return f"{rate['successes']} of {rate['trials']}" if rate else ""


def _plans(found: Mapping[str, Any]) -> str:
    return "\n".join(
        f'- {name}: {plan["said"]} of {plan["sites"]} plans said "don\'t collect", '
        f"{plan['right']} rightly; {plan['missed']} asked for takes that mended nothing, as "
        "uniform ones did."
        for name, group in found.items()
        if (plan := group["dont_collect"])["sites"]
    )


def losses(found: Sequence[Mapping[str, Any]]) -> str:
    """Return where `targeted` lost as Markdown."""
    lines = [
        "Where uniform collection did better than targeted by over 10 points.",
        "",
        "| site | takes | hidden | behind by | targeted takes were |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {loss['site']} | {loss['budget']} | {loss['gap']} | {100 * loss['behind']:.0f} points "
        f"| {WHY_LOST[loss['why']]} |"
        for loss in found
    ]
    return "\n".join(lines) if found else ""


def picture(rows: Sequence[Row]) -> bytes:
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
        for axis, (name, found) in zip(grid.flat, groups.items(), strict=False):
            _panel(axis, name, found)
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
        _points(axis, colour, [r for r in rows if r.arm == arm], SPREAD ** (shift - 1.5))
    axis.axhline(before.value, color=SOFT, lw=0.8, ls=":", label="before")
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


def _points(axis: Any, colour: str, rows: Sequence[Row], shift: float) -> None:
    takes = [row.budget * shift * 1.04 for row in rows]
    rates = [row.after.count("1") / len(row.after) for row in rows]
    axis.scatter(takes, rates, s=9, color=colour, alpha=0.4, lw=0)
