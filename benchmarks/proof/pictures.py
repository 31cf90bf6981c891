"""The study as pictures: what each arm came to, what takes bring, and what targeting saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.proof import figures
from benchmarks.proof.design import StudyArm
from benchmarks.proof.figures import BEFORE, SiteFigure
from benchmarks.proof.lessons import TAUGHT
from benchmarks.proof.rows import StudyRow
from gaploop.failure_analysis.report.page import ACCENT, INK, SOFT, figure_png, new_figure
from gaploop.failure_analysis.station import words

BASE: Final = BEFORE[0]
COLOURS: Final = {
    BASE: INK,
    StudyArm.UNIFORM.value: "#c8553d",
    StudyArm.ON_SITE.value: "#8a6fb3",
    StudyArm.TARGETED.value: ACCENT,
    TAUGHT: "#3a9d6e",
    StudyArm.ORACLE.value: "#7a8b99",
}
"""Arms that are drawn, in the order in which they are."""
PALEST: Final = "#e6eaee"
COLUMNS: Final = 3
SPREAD: Final = 1.12
"""Arms of a budget are drawn this far apart, as a factor."""
ARMS_APART: Final = 0.13
"""So far apart are arms drawn in a gap's line, of which it is 1 high."""
SAVED: Final = {StudyArm.TARGETED.value: "takes_saved", TAUGHT: "takes_saved_taught"}


def success_picture(rows: Sequence[StudyRow]) -> bytes:
    """Return what each arm came to at the budget that most sites have run, as a PNG.

    A panel for each task and robot arm, a line for each gap; arms that not all of its sites have
    run are left out.
    """
    budget = most_run(rows)
    groups = {name: figures.success(found) for name, found in figures.by_gap(rows).items()}
    shown: dict[str, dict[str, SiteFigure]] = {arm: {} for arm in COLOURS}
    for name, rates in groups.items():
        for arm, here in shown.items():
            one = rates.get(BEFORE if arm == BASE else (arm, budget))
            if one and one.sites == rates[BEFORE].sites:
                here[name] = _percent(one)
    return _panels(list(groups), shown, f"success at the site with {budget} takes [%]")


def saved_picture(found: Mapping[str, Any]) -> bytes:
    """Return what targeting saves by a `report.summary`, as a PNG; panels and lines as above."""
    names = [name for name in found if "," not in name]  # no parts of a task's sites
    shown = {
        arm: {n: SiteFigure(**found[n][figure]) for n in names if found[n][figure]}
        for arm, figure in SAVED.items()
    }
    title = "takes saved: uniform ones (how many) over targeted ones that succeed as often"
    most = {name.partition(" ")[0]: f" ({found[name]['compared']})" for name in names}
    return _panels(names, shown, title, most)


def most_run(rows: Sequence[StudyRow]) -> int:
    """Return the budget at which most sites have run, the largest of several."""
    sites = {(row.budget, row.site) for row in rows if row.budget}
    budgets = [budget for budget, _ in sites]
    return max(budgets, key=lambda n: (budgets.count(n), n), default=0)


def _percent(one: SiteFigure) -> SiteFigure:
    return SiteFigure(100 * one.value, 100 * one.low, 100 * one.high, one.sites)


def _panels(
    names: Sequence[str],
    shown: Mapping[str, Mapping[str, SiteFigure]],
    title: str,
    notes: Mapping[str, str] | None = None,
) -> bytes:
    """Return a panel for each setting of "setting gap", a line for each gap, arms below another."""
    settings, gaps = (list(dict.fromkeys(name.partition(" ")[i] for name in names)) for i in (0, 2))
    drawn = [arm for arm in COLOURS if shown.get(arm)]
    with new_figure(2.0 + 1.9 * len(settings), 1.1 + 0.62 * len(gaps)) as (figure, axes):
        axes.remove()
        same = notes is None  # panels of one quantity
        axes = figure.subplots(1, len(settings), sharex=same, sharey=True, squeeze=False).flat
        for axis, setting in zip(axes, settings, strict=True):
            for place, arm in enumerate(drawn):
                here = {
                    line: shown[arm][f"{setting} {gap}"]
                    for line, gap in enumerate(gaps)
                    if f"{setting} {gap}" in shown[arm]
                }
                _spans(axis, arm, here, ARMS_APART * (place - (len(drawn) - 1) / 2))
            _lines(axis, _words(setting) + (notes or {}).get(setting, ""), gaps)
        _legend(figure)
        figure.supxlabel(title, fontsize=9)
        return figure_png(figure)


def _lines(axis: Any, title: str, gaps: Sequence[str]) -> None:
    for edge in range(1, len(gaps)):
        axis.axhline(edge - 0.5, color=PALEST, lw=0.8, zorder=0)
    axis.set_yticks(range(len(gaps)), [words(gap) for gap in gaps])
    axis.set_ylim(len(gaps) - 0.5, -0.5)
    axis.set_title(title, loc="left", fontsize=9, color=SOFT)
    axis.tick_params(labelsize=8, left=False)


def _spans(axis: Any, arm: str, here: Mapping[int, SiteFigure], shift: float) -> None:
    values, spans = _spread(here.values())
    axis.errorbar(
        values, [line + shift for line in here], xerr=spans, color=COLOURS[arm],
        marker="|" if arm == BASE else "o", ms=7 if arm == BASE else 4, lw=0,
        elinewidth=1.2, label=arm,
    )  # fmt: skip


def curves_picture(rows: Sequence[StudyRow]) -> bytes | None:
    """Return success against takes, a panel for each gap, as a PNG; None without several budgets.

    Means are drawn where all sites of a gap have run: a line over other sites at each budget would
    show their differences, not what takes bring.
    """
    groups = {
        name: found for name, found in figures.by_gap(rows).items()
        if len({row.budget for row in found if row.budget}) > 1
    }  # fmt: skip
    if not groups:
        return None
    lines = -(-len(groups) // COLUMNS)
    with new_figure(3.1 * COLUMNS, 2.5 * lines + 0.6) as (figure, axes):
        axes.remove()
        grid = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for place, axis in enumerate(grid.flat):
            axis.set_visible(place < len(groups))
        for axis, (name, found) in zip(grid.flat, groups.items(), strict=False):
            _panel(axis, _words(name.replace(" ", ":")), found)
        budgets = sorted({row.budget for found in groups.values() for row in found if row.budget})
        axis.set_xscale("log")  # of all panels: they share it
        axis.set_xlim(min(budgets) / 1.7, max(budgets) * 1.7)
        axis.set_xticks(budgets, [str(n) for n in budgets])
        axis.minorticks_off()
        _legend(figure)
        figure.supxlabel("takes recorded for the site", fontsize=9)
        figure.supylabel("success: mean with 95 % interval, and each site", fontsize=9)
        return figure_png(figure)


def _panel(axis: Any, name: str, rows: Sequence[StudyRow]) -> None:
    rates = figures.success(rows)
    before = rates[BEFORE]
    axis.axhspan(before.low, before.high, color=PALEST, lw=0)
    for place, (arm, colour) in enumerate(COLOURS.items()):
        shift = SPREAD ** (place - (len(COLOURS) - 1) / 2)
        found = {n: e for (a, n), e in rates.items() if a == arm and n and e.sites == before.sites}
        if found:
            _line(axis, arm, colour, found, shift)
            _dots(axis, colour, [r for r in rows if r.arm == arm], shift)
    axis.axhline(before.value, color=SOFT, lw=0.8, ls=":", label=BASE)
    axis.set_ylim(-0.03, 1.03)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_title(name, loc="left", fontsize=9, color=SOFT)


def _line(axis: Any, arm: str, colour: str, found: Mapping[int, SiteFigure], shift: float) -> None:
    takes = [n * shift for n in found]
    values, spans = _spread(found.values())
    axis.errorbar(
        takes, values, yerr=spans, color=colour, marker="o", ms=4, lw=1.4, label=arm, capsize=2
    )


def _dots(axis: Any, colour: str, rows: Sequence[StudyRow], shift: float) -> None:
    takes = [row.budget * shift * 1.04 for row in rows]
    rates = [row.after.count("1") / len(row.after) for row in rows]
    axis.scatter(takes, rates, s=9, color=colour, alpha=0.4, lw=0)


def _spread(found: Iterable[SiteFigure]) -> tuple[list[float], list[list[float]]]:
    """Return the values, and how far their intervals reach below and above."""
    known = list(found)
    below, above = [e.value - e.low for e in known], [e.high - e.value for e in known]
    return [e.value for e in known], [below, above]


def _legend(figure: Any) -> None:
    named = [axis.get_legend_handles_labels() for axis in figure.axes]
    handles = {label: handle for each in named for handle, label in zip(*each, strict=True)}
    order = [label for label in COLOURS if label in handles]
    figure.legend([handles[label] for label in order], order, frameon=False, ncols=len(order),
                  fontsize=8, loc="outside upper center")  # fmt: skip


def _words(name: str) -> str:
    return words(name.replace(":", ": "))
