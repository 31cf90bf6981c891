"""The embedded cell's tasks: scene files of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gaploop.core.schema import load_yaml

TASKS: Final = ("pick_place", "pick_lift", "stack_cube")
TASK_FILES: Final = {task: Path(__file__).parent / "scenes" / f"{task}.yaml" for task in TASKS}
INSTRUCTIONS: Final = {
    task: str(load_yaml(path, "Scene")["instruction"]) for task, path in TASK_FILES.items()
}
"""Task to what an operator is told."""


def find_task(words: str) -> str:
    """Return the cell's task of this name, or told in these words; pick_place for others."""
    return next((task for task, told in INSTRUCTIONS.items() if words in (task, told)), TASKS[0])
