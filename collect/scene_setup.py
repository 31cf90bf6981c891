"""What to set up next, for a person: in words, and as a sketch of the placement grid.

A grid cell is [row, column]: rows count from the right to the left of the arm as it looks at
its cell, columns from near to far, as in the embedded cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gaploop.collect.campaign import changed
from gaploop.core.messages import Image
from gaploop.core.vocabulary import CONDITIONS

AS_IT_STANDS: Final = "the station as usual"
_GONE: Final = {"grid_cell": "object anywhere", "human": "nobody in the cell"}
_PAPER: Final = (250, 250, 247)
_LINE: Final = (120, 120, 120)
_MARK: Final = (214, 69, 48)
_ARM: Final = (60, 72, 88)


def words(conditions: Mapping[str, Any], grid: tuple[int, int]) -> str:
    """Say in words what to set up, by `vocabulary.CONDITIONS` or free keys, on a placement grid."""
    order = [*(name for name in CONDITIONS if name in conditions)]
    order += [name for name in conditions if name not in CONDITIONS]
    return "; ".join(_phrase(name, conditions[name], grid) for name in order) or AS_IT_STANDS


def change_words(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], grid: tuple[int, int]
) -> str:
    """Say what has to be changed from one set-up to the next; everything where there is none."""
    if before is None:
        return words(after, grid)
    names = changed(before, after)
    new = words({n: after[n] for n in names if n in after}, grid)
    gone = [n for n in names if n not in after]
    back = [n.replace("_", " ") for n in gone if n not in _GONE]
    parts = [new] if any(n in after for n in names) else []
    parts += [_GONE[n] for n in gone if n in _GONE]
    parts += [f"{' and '.join(back)} back as usual"] if back else []
    return "; ".join(parts) or "nothing to change"


def _phrase(name: str, value: Any, grid: tuple[int, int]) -> str:
    if name == "distractors":
        return "no distractors" if not value else f"{value} distractor{'s' * (value != 1)}"
    if name == "grid_cell":
        row, column = value
        side = _third(row, grid[0], ("right", "middle", "left"))
        depth = _third(column, grid[1], ("near", "halfway", "far"))
        return f"object in grid cell row {row}, column {column} ({side}, {depth})"
    if name == "table_height":
        return f"table {1000 * float(value):+.0f} mm"
    if name == "camera_pose":
        metres = ", ".join(f"{1000 * float(v):+.0f}" for v in value[:3])
        degrees = ", ".join(f"{math.degrees(float(v)):+.1f}" for v in value[3:])
        return f"camera moved by ({metres}) mm and turned by ({degrees})°"
    return f"{name.replace('_', ' ')}: {value}"


def _third(index: int, count: int, names: Sequence[str]) -> str:
    return names[min(2, round(2 * index / max(1, count - 1)))] if count > 1 else names[1]


def sketch_text(conditions: Mapping[str, Any], grid: tuple[int, int]) -> str:
    """Return the placement grid as lines of text, with an X where the object goes.

    The arm stands below and looks up. "" where no grid cell is asked for.
    """
    if "grid_cell" not in conditions:
        return ""
    rows, columns = grid
    row, column = conditions["grid_cell"]
    width = 3 * rows
    lines = ["far".center(width)]
    for c in reversed(range(columns)):
        cells = (" X " if (r, c) == (row, column) else " . " for r in reversed(range(rows)))
        lines.append("".join(cells))
    lines.append("[arm]".center(width))
    return "\n".join(line.rstrip() for line in lines)


def sketch_image(conditions: Mapping[str, Any], grid: tuple[int, int], size_px: int = 160) -> Image:
    """Draw the placement grid as `sketch_text` does, RGB, uint8, shape (size_px, size_px, 3).

    `size_px` is 32 or more. No cell is filled where the conditions name none.
    """
    picture = np.full((size_px, size_px, 3), _PAPER, dtype=np.uint8)
    rows, columns = grid
    margin, arm = max(2, size_px // 16), size_px // 6
    side = min((size_px - 2 * margin) // rows, (size_px - 2 * margin - arm) // columns)
    left = (size_px - side * rows) // 2
    cell = conditions.get("grid_cell")
    marked = None if cell is None else (int(cell[0]), int(cell[1]))
    for row in range(rows):
        for column in range(columns):
            x = left + (rows - 1 - row) * side
            y = margin + (columns - 1 - column) * side
            box = picture[y : y + side + 1, x : x + side + 1]
            box[:] = _LINE
            box[1:-1, 1:-1] = _MARK if (row, column) == marked else _PAPER
    middle, base = size_px // 2, arm // 2
    picture[size_px - arm : size_px - margin, middle - base : middle + base] = _ARM
    return picture
