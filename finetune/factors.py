"""What an evaluation varies, one factor at a time, and how such a setting is named and drawn."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.station import NAMED_CONDITIONS, SIM_STATION, Station
from gaploop.core.statistics import points
from gaploop.core.vocabulary import INSTRUCTION
from gaploop.failure_analysis.report.page import ACCENT, PALE, SOFT, VERDICT, figure_png, new_figure
from gaploop.finetune.evaluation import NOMINAL, Drop, Evaluation
from gaploop.sim.catalogue import WORDINGS
from gaploop.sim.conditions import PLACEMENTS

ALL: Final = "all"
DISTRACTORS: Final = (2, 4, 8)
CAMERA_OFFSET_M: Final = 0.05
TABLE_HEIGHTS_M: Final = (-0.02, -0.01, 0.01, 0.02)
PLACEMENT: Final = "placement"
"""Where the object starts: regions that no training scene starts in, in the embedded cell only."""
GRID: Final = "grid_cell"
FACTORS: Final = (
    "background",
    "lighting",
    "distractors",
    "object",
    "camera_pose",
    "table_height",
    "human",
    PLACEMENT,
    GRID,
    INSTRUCTION,
)


def levels(factor: str, station: Station = SIM_STATION) -> tuple[Any, ...]:
    """Return the values a factor takes beside the usual one; none where the station has none.

    Of names that a station defines, the first is how it usually is. The camera is moved 5 cm along
    each axis, both ways; the table by one and two centimetres.
    """
    if factor in NAMED_CONDITIONS:
        return station.conditions.get(factor, ())[1:]
    if factor == PLACEMENT:
        return PLACEMENTS[1:] if station is SIM_STATION else ()
    if factor == INSTRUCTION:
        return tuple(WORDINGS) if station is SIM_STATION else ()
    if factor == GRID:
        rows, columns = station.grid
        return tuple([row, column] for row in range(rows) for column in range(columns))
    if factor == "camera_pose":
        moves = ((axis, sign * CAMERA_OFFSET_M) for axis in range(3) for sign in (-1, 1))
        return tuple([by if n == axis else 0.0 for n in range(6)] for axis, by in moves)
    return {"distractors": DISTRACTORS, "table_height": TABLE_HEIGHTS_M}[factor]


def settings(
    factors: Sequence[Any],
    base: Mapping[str, Any] | None = None,
    station: Station = SIM_STATION,
    reads: bool = False,
) -> list[dict[str, Any]]:
    """Return the settings to try: the base, then each level of each factor by itself.

    Args:
        factors: names of `FACTORS`, or settings of somebody's own; `all` for every one that the
            station has levels of.
        base: what is set up under every setting; a factor set there takes its levels instead.
        reads: a policy that reads its instruction is tried in simulation.

    Raises:
        UnusableInputError: a factor that doesn't exist, or that the station defines no levels of.
    """
    base = dict(base or {})
    known = [name for name in FACTORS if levels(name, station)]
    if not reads and INSTRUCTION in known:
        known.remove(INSTRUCTION)
    wanted: list[str] = []
    own = [{**base, **setting} for setting in factors if isinstance(setting, Mapping)]
    if not reads and any(INSTRUCTION in setting for setting in own):
        raise unread()
    for name in factors:
        if isinstance(name, Mapping):
            continue
        if name == ALL:
            wanted += known
        elif name not in FACTORS:
            raise unknown_choice("factor", name, (*known, ALL), "--factors")
        elif name == INSTRUCTION and not reads:
            raise unread()
        elif name not in known:
            raise UnusableInputError(
                f"--factors: {station.where} defines no {name} but the usual one. It has levels "
                f"of: {', '.join(known)}. Add names under conditions in the station file."
            )
        else:
            wanted.append(name)
    found = [base]
    for name in dict.fromkeys(wanted):
        found += [{**base, name: level} for level in levels(name, station)]
    return found + own


def unread() -> UnusableInputError:
    """Return what to say where nothing reads the instruction."""
    return UnusableInputError(
        "instruction: gaploop evaluate words it otherwise in simulation, for a policy that reads "
        "it, such as SmolVLA; ACT and Diffusion read none. Leave it out."
    )


_AXES = ("x", "y", "z", "roll", "pitch", "yaw")


def parts(condition: str) -> dict[str, str]:
    """Return a setting's name as condition to value, both text; none of the nominal one."""
    if condition == NOMINAL:
        return {}
    pairs = (part.partition("=") for part in re.split(r", (?=\w+=)", condition))
    return {name: value for name, _, value in pairs}


def varied(condition: str, base: str) -> dict[str, str]:
    """Return what a setting sets otherwise than the base, condition to value."""
    usual = parts(base)
    return {n: v for n, v in parts(condition).items() if usual.get(n) != v}


def factor_of(condition: str, base: str) -> str:
    """Return the factor that a setting varies; "" for the base."""
    return next(iter(varied(condition, base)), "")


def grid_cell(condition: str, base: str) -> tuple[int, int] | None:
    """Return the grid cell that a setting varies, as row and column."""
    value = varied(condition, base).get(GRID)
    if value is None:
        return None
    row, column = json.loads(value)
    return int(row), int(column)


def words(condition: str, base: str = NOMINAL) -> str:
    """Return a setting in words, without what it shares with the base."""
    said = [_phrase(n, v) for n, v in varied(condition, base).items()]
    return "; ".join(said) or "as it is"


def order(condition: str, base: str) -> tuple[Any, ...]:
    """Return a key that sorts settings as people look for them: by factor, then by level."""
    factor = factor_of(condition, base)
    place = FACTORS.index(factor) if factor in FACTORS else len(FACTORS)
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", condition)]
    return (bool(factor), place, factor, numbers, condition)


def _phrase(name: str, value: str) -> str:
    if name == "camera_pose":
        offsets = list(zip(json.loads(value), _AXES, strict=True))
        said = [f"{1000 * v:+.0f} mm {axis}" for v, axis in offsets[:3] if v]
        said += [f"{math.degrees(v):+.1f}° {axis}" for v, axis in offsets[3:] if v]
        return "camera " + " ".join(said)
    if name == "table_height":
        return f"table {1000 * float(value):+.0f} mm"
    if name == GRID:
        row, column = json.loads(value)
        return f"row {row}, column {column}"
    if name == "distractors":
        return f"{value} distractors"
    return f"{name.replace('_', ' ')} {value.replace('_', ' ')}"


# -- what each costs, as pictures --------------------------------------------------------------

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
        axes.set_xlabel("success, 95 % intervals; right: difference to the first row")
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
