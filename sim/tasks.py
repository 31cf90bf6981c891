"""The embedded cell's tasks: scene files of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import unknown_choice
from gaploop.core.schema import load_yaml
from gaploop.core.vocabulary import SEEN

TASKS: Final = ("pick_place", "pick_lift", "stack_cube")
TASK_FILES: Final = {task: Path(__file__).parent / "scenes" / f"{task}.yaml" for task in TASKS}
INSTRUCTIONS: Final = {
    task: str(load_yaml(path, "Scene")["instruction"]) for task, path in TASK_FILES.items()
}
"""Task to what an operator is told."""
WORDINGS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "paraphrased": {
        "pick_place": ("Place the cube on the disc", "Move the cube onto the disc",
                       "Set the cube down on the disc"),
        "pick_lift": ("Raise the cube", "Pick the cube up", "Lift the cube off the table"),
        "stack_cube": ("Place the red cube on the blue one", "Stack the red cube on the blue one",
                       "Set the red cube down on top of the blue one"),
    },
    "unseen": {
        "pick_place": ("Bring a red block to that round mat", "Carry a small box over to its goal"),
        "pick_lift": ("Hold a red block in mid air", "Take that small box up"),
        "stack_cube": ("Pile a crimson block over that navy block", "Build a tower, crimson last"),
    },
}  # fmt: skip
"""Other ways to say the same: with the things called alike, and with none of its words."""


def find_task(words: str) -> str:
    """Return the cell's task of this name, or told in these words; pick_place for others."""
    return next((task for task, told in INSTRUCTIONS.items() if words in (task, told)), TASKS[0])


def wording(task: str, level: str, seed: int) -> str:
    """Return an instruction as it was recorded (`SEEN`), or one of `WORDINGS` by the scene's seed.

    Raises:
        UnknownChoiceError: no such level.
    """
    if level == SEEN:
        return INSTRUCTIONS[task]
    if level not in WORDINGS:
        raise unknown_choice("wording", level, (SEEN, *WORDINGS), "instruction")
    known = WORDINGS[level][task]
    return known[int(np.random.default_rng([seed, 80]).integers(len(known)))]
