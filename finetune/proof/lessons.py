"""What the study teaches the planner: trials for its prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gaploop.finetune.proof.rows import Row


def trials(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the cells with takes for the one hidden dimension, as `responses.json` holds trials.

    Arms that recorded the same takes count once, and sites with several gaps not at all: there it
    can't be told what mended what.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        if len(row.dimensions) == 1 and row.takes and set(row.planned) == set(row.dimensions):
            found.setdefault(
                row.data,
                {
                    "id": f"study/{row.site}-{row.takes}",
                    "dimension": row.dimensions[0],
                    "takes": row.takes,
                    "before": [row.before.count("1"), len(row.before)],
                    "after": [row.after.count("1"), len(row.after)],
                },
            )
    return list(found.values())
