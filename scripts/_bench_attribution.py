"""Injected against diagnosed dimension, over freshly drawn gaps (sim-to-sim)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.scripts.bench import BenchConfig

ROLLOUTS: Final = 5
"""Rollouts of every drawn cell; those that fail are diagnosed."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Draw `n` cells of every dimension, roll out, diagnose; return the cross-table."""
    from gaploop.finetune.evaluation import wilson
    from gaploop.finetune.loop_report import confusion_figure
    from gaploop.finetune.sweep import accuracy, confusion, draw_stations, sweep

    draws = draw_stations(config.seed, config.n or 3)
    with options.progress("Cells", total=len(draws)) as advance:
        results = sweep(
            config.policy.required(),
            draws,
            folder / f"journals_{config.seed}",
            rollouts=ROLLOUTS,
            progress=advance,
        )
    confusion_figure(results).savefig(folder / "confusion.png", dpi=150)
    rows = confusion(results)
    right, named, every = accuracy(rows)
    return {
        "evidence": "sim-to-sim",
        "draws": [
            {
                "dimension": r.draw.dimension,
                "mechanism": r.draw.mechanism,
                "severity": r.draw.severity,
                "gap_seed": r.draw.gap_seed,
                "rollouts": r.rollouts,
                "failed": len(r.takes),
                "top": [t.top for t in r.takes],
            }
            for r in results
        ],
        "confusion": rows,
        "right_of_named": wilson(right, named) if named else None,
        "right_of_all": wilson(right, every) if every else None,
        "abstained": every - named,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the cross-table as Markdown; rows injected, columns diagnosed."""
    rows = result["confusion"]
    columns = list(next(iter(rows.values())))
    lines = [
        "| injected \\ diagnosed | " + " | ".join(c.replace("_", " ") for c in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, row in rows.items():
        cells = " | ".join(str(row[c] or "·") for c in columns)
        lines.append(f"| {name.replace('_', ' ')} | {cells} |")
    lines += [
        "",
        f"Right, of those named: {result['right_of_named']}; of all: {result['right_of_all']}; "
        f"abstained: {result['abstained']}. Sim-to-sim; takes of one cell are not independent, so "
        "the intervals are too narrow.",
    ]
    return "\n".join(lines)
