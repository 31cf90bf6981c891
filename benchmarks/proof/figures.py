"""From rows to the study's figures: success by arm and budget, takes saved, plans, attribution."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.proof.design import StudyArm
from benchmarks.proof.rows import StudyRow, won
from gaploop.core.messages import FloatArray
from gaploop.finetune.evaluation import Rate, wilson
from gaploop.sim.catalogue import SO101

DRAWS: Final = 2000
WORTH: Final = 0.10
"""Uniform collection that gains less wasn't worth recording: "don't collect" was right."""
COMPARED: Final = 50
"""Takes of `uniform` whose success `targeted` has to reach."""
TENTH: Final = COMPARED // 10
"""Takes of `targeted` that are compared with those."""
LOST: Final = 0.10
"""Where `uniform` succeeds in this much more, `targeted` lost a site."""
_HOURS: Final = "hours of "
"""Before an arm's name: what it spent, averaged beside its success."""

type Bits = Mapping[tuple[str, int], FloatArray]
"""(arm, budget) to success scene by scene, 0 or 1; ("before", 0) is the base."""
BEFORE: Final = ("before", 0)


@dataclass(frozen=True)
class SiteFigure:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float
    sites: int


@dataclass(frozen=True)
class Plans:
    """What became of plans that said "don't collect", at the largest budget of `uniform`.

    Attributes:
        said: sites whose plan asked for no takes.
        right: of them, those where `uniform` gained less than `WORTH`.
        missed: sites whose plan asked for takes that brought less, as `uniform` did.
        sites: looked at.
    """

    said: int
    right: int
    missed: int
    sites: int


@dataclass(frozen=True)
class Loss:
    """A site where `uniform` did better than `targeted` with the same budget, and why.

    Attributes:
        site: its name.
        budget: takes.
        gap: what was hidden.
        behind: by how much `targeted` succeeds less, in 0 to 1.
        why: what its takes were for: a key of `report.WHY_LOST`.
    """

    site: str
    budget: int
    gap: str
    behind: float
    why: str


def by_gap(rows: Sequence[StudyRow]) -> dict[str, list[StudyRow]]:
    """Return rows by "task gap", in the order in which they come; another arm is named first."""
    found: dict[str, list[StudyRow]] = {}
    for row in rows:
        found.setdefault(f"{setting(row)} {row.gap}", []).append(row)
    return found


def setting(row: StudyRow) -> str:
    """Return the row's task, with the arm where it isn't the default one."""
    return row.task if row.robot == SO101.name else f"{row.robot}:{row.task}"


def sites_of(rows: Sequence[StudyRow]) -> list[Bits]:
    """Return each site's outcomes."""
    found: dict[str, dict[tuple[str, int], FloatArray]] = {}
    for row in rows:
        site = found.setdefault(row.site, {})
        site[BEFORE], site[row.arm, row.budget] = won(row.before), won(row.after)
    return list(found.values())


def success(rows: Sequence[StudyRow]) -> dict[tuple[str, int], SiteFigure]:
    """Return success by (arm, budget), and before; over the sites that have it."""
    found = {}
    for cell in sorted({BEFORE, *((row.arm, row.budget) for row in rows)}):
        sites = [site for site in sites_of(rows) if cell in site]
        found[cell] = _estimate(sites, operator.itemgetter(cell))
    return found


def gains(
    rows: Sequence[StudyRow], one: tuple[str, int], other: tuple[str, int]
) -> SiteFigure | None:
    """Return by how much more `one` succeeds than `other`, paired; None without common sites."""
    sites = [site for site in sites_of(rows) if one in site and other in site]
    return _estimate(sites, lambda rates: rates[one] - rates[other]) if sites else None


def takes_saved(
    rows: Sequence[StudyRow], compared: int = COMPARED, arm: str = StudyArm.TARGETED.value
) -> SiteFigure | None:
    """Return `compared` over the takes at which `arm` reaches what `uniform` does with them.

    0 stands for "not reached". None where no site has both arms at that budget.
    """
    wanted = {(StudyArm.UNIFORM.value, compared), (arm, compared)}
    sites = [site for site in sites_of(rows) if wanted <= site.keys()]
    if not sites:
        return None
    return _estimate(sites, lambda rates: compared / _takes_needed(rates, arm, compared))


def hours_saved(rows: Sequence[StudyRow], compared: int = COMPARED) -> SiteFigure | None:
    """Return what `targeted` saves in hours of recording: attempts, and a set-up a dimension.

    What it spends is interpolated over the takes; where it records nothing, it is the ratio of the
    takes. 0 and None as in `takes_saved`.
    """
    spent: dict[str, dict[tuple[str, int], FloatArray]] = {}
    for row in rows:
        cell = (_HOURS + row.arm, row.budget)
        spent.setdefault(row.site, {})[cell] = np.full(len(row.after), row.hours)
    wanted = {(StudyArm.UNIFORM.value, compared), (StudyArm.TARGETED.value, compared)}
    sites = [
        {**site, **hours}
        for site, hours in zip(sites_of(rows), spent.values(), strict=True)
        if wanted <= site.keys()
    ]
    return _estimate(sites, lambda rates: _hours_ratio(rates, compared)) if sites else None


def plans(rows: Sequence[StudyRow], compared: int = COMPARED) -> Plans:
    """Return what became of plans that said "don't collect"."""
    at = {(r.site, r.arm): r for r in rows if r.budget == compared}
    said = right = missed = sites = 0
    for (site, arm), row in at.items():
        uniform = at.get((site, StudyArm.UNIFORM.value))
        if arm != StudyArm.TARGETED.value or uniform is None:
            continue
        gain, own = (float((won(r.after) - won(r.before)).mean()) for r in (uniform, row))
        silent = not row.planned
        sites += 1
        said += silent
        right += silent and gain < WORTH
        missed += not silent and gain < WORTH and own < WORTH
    return Plans(said, right, missed, sites)


def losses(rows: Sequence[StudyRow]) -> list[Loss]:
    """Return where `targeted` lost to `uniform` by more than `LOST`, the worst first."""
    uniform = {(r.site, r.budget): r for r in rows if r.arm == StudyArm.UNIFORM.value}
    found = []
    for row in rows:
        other = uniform.get((row.site, row.budget))
        if row.arm != StudyArm.TARGETED.value or other is None:
            continue
        behind = float((won(other.after) - won(row.after)).mean())
        if behind > LOST:
            found.append(Loss(row.site, row.budget, ", ".join(row.gaps), behind, _why_lost(row)))
    return sorted(found, key=lambda loss: -loss.behind)


def _why_lost(row: StudyRow) -> str:
    named = row.found in row.dimensions
    if not row.planned:
        return "not collected" if named else "not named"
    if set(row.planned) & set(row.dimensions):
        return "collected"
    return "elsewhere" if named else "misnamed"


def attribution(rows: Sequence[StudyRow]) -> Rate | None:
    """Return at how many sites the diagnosis named a dimension that was hidden there."""
    sites = {row.site: row for row in rows if row.failures}
    named = [row.found in row.dimensions for row in sites.values()]
    return wilson(sum(named), len(named)) if named else None


def hours(rows: Sequence[StudyRow]) -> dict[tuple[str, int], float]:
    """Return the mean hours of recording by (arm, budget)."""
    cells: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        cells.setdefault((row.arm, row.budget), []).append(row.hours)
    return {cell: float(np.mean(found)) for cell, found in sorted(cells.items())}


def reached(budgets: Sequence[int], rates: Sequence[float], before: float, level: float) -> float:
    """Return how many takes reach a level of success, from 1 up; infinite where none do.

    By linear interpolation over the logarithm of the takes, on the running maximum, from 1 take
    (success before) on.
    """
    takes = np.array([1.0, *budgets])
    best = np.maximum.accumulate([before, *rates])
    place = int(np.argmax(best >= level))
    if best[place] < level:
        return math.inf
    if place == 0:
        return 1.0
    share = (level - best[place - 1]) / (best[place] - best[place - 1])
    return float(takes[place - 1] * (takes[place] / takes[place - 1]) ** share)


def _curve(rates: Mapping[tuple[str, int], float], name: str) -> tuple[list[int], list[float]]:
    found = sorted((n, value) for (arm, n), value in rates.items() if arm == name)
    return [n for n, _ in found], [value for _, value in found]


def _takes_needed(rates: Mapping[tuple[str, int], float], arm: str, compared: int) -> float:
    level = rates[StudyArm.UNIFORM.value, compared]
    return reached(*_curve(rates, arm), rates[BEFORE], level)


def _hours_ratio(rates: Mapping[tuple[str, int], float], compared: int) -> float:
    needed = _takes_needed(rates, StudyArm.TARGETED.value, compared)
    if math.isinf(needed):
        return 0.0
    budgets, spent = _curve(rates, _HOURS + StudyArm.TARGETED.value)
    spent_h = float(np.interp(needed, [0, *budgets], [0.0, *spent]))
    return (
        rates[_HOURS + StudyArm.UNIFORM.value, compared] / spent_h if spent_h else compared / needed
    )


def _estimate(
    sites: Sequence[Bits], figure: Callable[[Mapping[tuple[str, int], float]], float]
) -> SiteFigure:
    """Return a figure of the mean rates with a bootstrap interval: sites, then scenes within.

    Only cells that all sites have are averaged; scenes are drawn once for all cells of a site, so
    that comparisons stay paired.
    """
    cells = sorted(set.intersection(*(set(site) for site in sites)))
    blocks = [np.array([site[cell] for cell in cells]) for site in sites]  # (cells, scenes) each
    rng, slots = np.random.default_rng(0), np.arange(len(blocks))
    scenes = np.array([_means_of_scenes_drawn(block, rng) for block in blocks])
    picked = rng.integers(len(blocks), size=(DRAWS, len(blocks)))
    rows = (np.arange(DRAWS)[:, None] + 7 * slots) % DRAWS  # a site picked twice has other scenes
    means = scenes[picked, rows].mean(axis=1)  # (draws, cells)
    whole = np.mean([block.mean(axis=1) for block in blocks], axis=0)
    value, *draws = (figure(dict(zip(cells, row, strict=True))) for row in (whole, *means))
    low, high = np.quantile(draws, (0.025, 0.975))
    return SiteFigure(float(value), float(low), float(high), len(sites))


def _means_of_scenes_drawn(block: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return means over scenes drawn with replacement, the same scenes for all cells."""
    scenes = block.shape[1]
    counts = rng.multinomial(scenes, np.full(scenes, 1 / scenes), size=DRAWS)  # (draws, scenes)
    return np.asarray(counts @ block.T / scenes)
