"""The study's figures as plain values and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.proof import figures
from benchmarks.proof.design import FREE, StudyArm
from benchmarks.proof.figures import BEFORE, COMPARED, TENTH
from benchmarks.proof.lessons import TAUGHT, is_telling
from benchmarks.proof.rows import StudyRow

ARMS: Final = (
    StudyArm.TARGETED.value,
    TAUGHT,
    StudyArm.UNIFORM.value,
    StudyArm.HIDDEN_PART.value,
    StudyArm.OTHER_PART.value,
    StudyArm.ON_SITE.value,
    StudyArm.ORACLE.value,
    *(arm.value for arm in FREE),
)
"""Columns of arms."""
type Pair = tuple[str, str]
PAIRED: Final[tuple[Pair, ...]] = (
    (StudyArm.TARGETED.value, StudyArm.UNIFORM.value),
    (StudyArm.ON_SITE.value, StudyArm.UNIFORM.value),
    (StudyArm.TARGETED.value, StudyArm.ON_SITE.value),
    (TAUGHT, StudyArm.ON_SITE.value),
)
"""Arms whose difference is taken over the sites that both have run."""
WHY_LOST: Final = {
    "misnamed": "for a dimension that has no gap there",
    "not named": "none: what was hidden wasn't named",
    "elsewhere": "for a lesser suspect: what was named wasn't worth takes",
    "not collected": "none: the plan asked for none",
    "collected": "for what was hidden, and helped less",
}


def summary(rows: Sequence[StudyRow]) -> dict[str, Any]:
    """Return all figures as plain values, by task and gap and over the gaps of each task."""
    groups = figures.by_gap(rows)
    for task in dict.fromkeys(figures.setting(row) for row in rows):
        groups[f"{task} all"] = here = [row for row in rows if figures.setting(row) == task]
        mendable = {row.site for row in here if is_telling(row)}
        if 0 < len(mendable) < len({row.site for row in here}):
            groups[f"{task}, the base fails"] = [r for r in here if r.site in mendable]
            groups[f"{task}, it hardly fails"] = [r for r in here if r.site not in mendable]
    return {name: _group(found) for name, found in groups.items()}


def _group(rows: Sequence[StudyRow]) -> dict[str, Any]:
    named, targeted, uniform = (
        figures.attribution(rows),
        StudyArm.TARGETED.value,
        StudyArm.UNIFORM.value,
    )
    budgets = sorted({row.budget for row in rows if row.budget})
    paired = {
        _minus(pair): {n: figures.gains(rows, (pair[0], n), (pair[1], n)) for n in budgets}
        for pair in PAIRED
    }
    most = max((n for n in budgets if n <= COMPARED), default=COMPARED)
    compared = {
        "takes_saved": figures.takes_saved(rows, most),
        "hours_saved": figures.hours_saved(rows, most),
        "takes_saved_taught": figures.takes_saved(rows, most, TAUGHT),
        "targeted_tenth_minus_uniform": figures.gains(rows, (targeted, TENTH), (uniform, COMPARED)),
        "taught_tenth_minus_uniform": figures.gains(rows, (TAUGHT, TENTH), (uniform, COMPARED)),
    }
    return {
        "sites": len({row.site for row in rows}),
        "budgets": budgets,
        "compared": most,
        "success": {_cell(cell): asdict(e) for cell, e in figures.success(rows).items()},
        **{name: {n: asdict(e) for n, e in by.items() if e} for name, by in paired.items()},
        **{name: asdict(e) if e else None for name, e in compared.items()},
        "dont_collect": asdict(figures.plans(rows, most)),
        "attribution": asdict(named) if named else None,
        "hours": {_cell(cell): h for cell, h in figures.hours(rows).items()},
    }


def _cell(cell: tuple[str, int]) -> str:
    arm, budget = cell
    return f"{arm} {budget}" if budget else arm


def table(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    return "\n\n".join((_success(found), _saved(found)))


def _success(found: Mapping[str, Any]) -> str:
    cells = {cell for group in found.values() for cell in group["success"]}
    arms = [arm for arm in ARMS if any(cell.partition(" ")[0] == arm for cell in cells)]
    pairs = [pair for pair in PAIRED if set(pair) <= set(arms)]
    differences = " | ".join(f"{' - '.join(pair)} [points]" for pair in pairs)
    lines = [
        "Success at the site, mean over sites with 95 % intervals; in brackets, over how many, "
        "where not all have run. Hours of recording are means.",
        "",
        f"| gap | takes | before | {' | '.join(arms)} | {differences} "
        "| hours targeted | hours uniform |",
        f"|---|---|---|{'---|' * (len(arms) + len(pairs))}---|---|",
    ]
    for name, group in found.items():
        free = [0] if any(arm in group["success"] for arm in FREE) else []
        lines += [_at_budget(name, group, arms, pairs, n) for n in group["budgets"] + free]
    return "\n".join(lines)


def _minus(pair: Pair) -> str:
    return "_minus_".join(pair)


def _at_budget(
    name: str, group: Mapping[str, Any], arms: Sequence[str], pairs: Sequence[Pair], n: int
) -> str:
    sites, rates = group["sites"], group["success"]
    hours = [
        group["hours"].get(_cell((arm.value, n))) for arm in (StudyArm.TARGETED, StudyArm.UNIFORM)
    ]
    cells = [
        name, str(n or "none"), _rate(rates[BEFORE[0]], sites),
        *(_rate(rates.get(_cell((arm, n))), sites) for arm in arms),
        *(_points(group[_minus(pair)].get(n), sites) for pair in pairs),
        *("" if h is None else f"{h:.2f}" for h in hours),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _saved(found: Mapping[str, Any]) -> str:
    lines = [
        "Takes and hours saved: what uniform collection spends on its takes, over what targeted "
        "collection needs to succeed as often (0: it doesn't). Where uniform collection gains "
        "nothing, no takes reach it, too, which counts as all of them; so beside it, what "
        f"{TENTH} takes bring against its {COMPARED}. Taught: targeted collection by a prior that "
        "knows the sites of the other seeds.",
        "",
        "| gap | gap named | uniform takes | takes saved | hours saved | takes saved, taught "
        f"| targeted {TENTH} - uniform {COMPARED} [points] | taught {TENTH} - uniform {COMPARED} "
        '| "don\'t collect": plans | rightly | takes for nothing |',
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in found.items():
        plan, sites = group["dont_collect"], group["sites"]
        times = (group[n] for n in ("takes_saved", "hours_saved", "takes_saved_taught"))
        gains = (group[f"{arm}_tenth_minus_uniform"] for arm in (StudyArm.TARGETED.value, TAUGHT))
        cells = [
            name, _named(group), str(group["compared"]), *(_times(one, sites) for one in times),
            *(_points(one, sites) for one in gains),
            f"{plan['said']} of {plan['sites']}", str(plan["right"]), str(plan["missed"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(one: Mapping[str, Any] | None, sites: int) -> str:
    if one is None:
        return ""
    return f"{one['value']:.0%} [{one['low']:.0%}, {one['high']:.0%}]{_fewer(one, sites)}"


def _times(one: Mapping[str, Any] | None, sites: int) -> str:
    if one is None:
        return ""
    return f"{one['value']:.1f}x [{one['low']:.1f}, {one['high']:.1f}]{_fewer(one, sites)}"


def _points(one: Mapping[str, Any] | None, sites: int) -> str:
    if one is None:
        return ""
    value, low, high = (100 * one[name] for name in ("value", "low", "high"))
    return f"{value:+.0f} [{low:+.0f}, {high:+.0f}]{_fewer(one, sites)}"


def _fewer(one: Mapping[str, Any], sites: int) -> str:
    """Say over how many sites a figure is where that aren't all: a study may be under way."""
    return "" if one["sites"] == sites else f" ({one['sites']})"


def _named(group: Mapping[str, Any]) -> str:
    rate = group["attribution"]
    return f"{rate['successes']} of {rate['trials']}" if rate else ""


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
