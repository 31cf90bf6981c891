"""What is usual in the nominal cell: the reference that diagnosis ships with (simulation only).

Of the task in --tasks, with a base of that task as --policy.path. Copy the file that it writes to
failure_analysis/.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record nominal takes and write `reference_so101_cell_<task>.json` to `folder`."""
    from gaploop.core.errors import GaploopError
    from gaploop.failure_analysis.reference import SHIPPED
    from gaploop.finetune.closed_loop import (
        REFERENCE_SCENES,
        REFERENCE_TAKES,
        TargetCell,
        record_reference,
    )

    count, first = config.n or REFERENCE_TAKES, REFERENCE_SCENES + config.seed * 1000
    task = config.tasks[0] if config.tasks else "pick_place"
    nominal, path = TargetCell({}, 0, task), folder / SHIPPED.format(task=task)
    with options.progress("Recording", total=2 * count) as advance:
        try:
            built = record_reference(config.policy.required(), path, nominal, count, first, advance)
        except GaploopError:
            return {"takes": 0, "signals": {}}
    signals = {name: [n.mean, n.std] for name, n in built.signals.items()}
    return {"takes": built.takes, "file": str(path), "signals": signals}


def table(result: Mapping[str, Any]) -> str:
    """Return the usual values as lines."""
    lines = [f"{result['takes']} nominal takes that went well"]
    lines += [f"  {name}: {m:.5g} ± {s:.3g}" for name, (m, s) in result["signals"].items()]
    return "\n".join([*lines, str(result.get("file", "too few takes went well"))])
