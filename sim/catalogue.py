"""What the embedded cell has by name: its arms, with their joints' units, and its tasks.

`core.arms` describes the arms. `observation.state` and `action` follow LeRobot's so101_follower
with use_degrees: the arm's joints in degrees about the middle of their range, the gripper 0
(closed) to 100 (open). The MuJoCo model's zero is the middle of the calibrated range, so arm angles
map one to one. The tasks are scene files of this package.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gaploop.core.arm import CellArm
from gaploop.core.arms import CELL_ARMS, DEFAULT
from gaploop.core.errors import unknown_choice
from gaploop.core.schema import load_yaml
from gaploop.core.vocabulary import SEEN

SO101: Final = CELL_ARMS[DEFAULT]


def arm_named(name: str, where: str = "--env.robot") -> CellArm:
    """Return one of `CELL_ARMS`; `where` is the option that named it, for the message.

    Raises:
        UnusableInputError: no such arm, or the package with its model isn't installed.
    """
    if name not in CELL_ARMS:
        raise unknown_choice("arm of the embedded cell", name, CELL_ARMS, where)
    arm = CELL_ARMS[name]
    arm.model.find(f"{arm.label} ({name})")
    return arm


def arm_of(robot_type: str) -> CellArm:
    """Return the arm of a recording's robot type; the default for one that the cell hasn't."""
    return next((arm for arm in CELL_ARMS.values() if arm.robot_type == robot_type), SO101)


def to_degrees(q_rad: ArrayLike, arm: CellArm = SO101) -> NDArray[np.float64]:
    """Return joint angles [rad], gripper last, in LeRobot's units [°, gripper 0 to 100].

    Both have shape (..., n_joints).
    """
    q = np.asarray(q_rad, dtype=np.float64)
    out = np.degrees(q)
    closed, opened = arm.grip.travel_rad
    grips = arm.grippers
    out[..., grips] = 100.0 * (q[..., grips] - closed) / (opened - closed)
    return np.asarray(out)


def from_degrees(state: ArrayLike, arm: CellArm = SO101) -> NDArray[np.float64]:
    """Return joint angles [rad] from LeRobot's units; inverse of `to_degrees`."""
    values = np.asarray(state, dtype=np.float64)
    out = np.radians(values)
    closed, opened = arm.grip.travel_rad
    grips = arm.grippers
    out[..., grips] = closed + (opened - closed) * values[..., grips] / 100.0
    return np.asarray(out)


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
