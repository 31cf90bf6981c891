"""Rollouts of a policy in LIBERO's scenes: one row each, kept as they come."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from benchmarks.libero.categories import StepState, category
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_lines, read_text
from gaploop.core.messages import FloatArray, Observation

NOMINAL: Final = "nominal"
CAMERAS: Final[Mapping[str, float]] = {NOMINAL: 0.0, "left 5 cm": -0.05, "right 5 cm": 0.05}
"""Where the agent-view camera is, to how far it was moved to its right [m]."""


@dataclass(frozen=True, order=True)
class TaskName:
    """A suite of LIBERO and the number of a task in it."""

    suite: str
    number: int

    def __str__(self) -> str:
        return f"{self.suite}/{self.number}"


def parse_tasks(names: Sequence[str]) -> list[TaskName]:
    """Return tasks of names such as `libero_object/3`.

    Raises:
        UnusableInputError: a name is no such thing, or stands twice.
    """
    found = []
    for name in names:
        suite, _, number = name.partition("/")
        if not suite or not number.isdecimal():
            raise UnusableInputError(
                f"--tasks: '{name}' isn't SUITE/NUMBER, such as libero_object/0."
            )
        found.append(TaskName(suite, int(number)))
    if len(set(found)) < len(found):
        raise UnusableInputError(f"--tasks names one twice: {', '.join(names)}.")
    return found


@dataclass(frozen=True)
class LiberoRow:
    """One rollout.

    Attributes:
        policy: id of the policy.
        suite: of the task.
        task: number of the task in its suite.
        seed: names the scene.
        camera: one of `CAMERAS`.
        success: LIBERO's predicates held.
        category: how it failed, one of `CATEGORIES`; "" where it didn't.
        steps: that it took.
        seconds: that they took here, resetting the scene included.
    """

    policy: str
    suite: str
    task: int
    seed: int
    camera: str
    success: bool
    category: str
    steps: int
    seconds: float

    @property
    def key(self) -> RolloutKey:
        """What it is a rollout of."""
        return RolloutKey(self.policy, TaskName(self.suite, self.task), self.camera, self.seed)


@dataclass(frozen=True, order=True)
class RolloutKey:
    """What names a rollout: a policy's id, a task, where the camera is, a scene's seed."""

    policy: str
    task: TaskName
    camera: str
    seed: int


COLUMNS: Final = tuple(f.name for f in fields(LiberoRow))


def append_rows(path: Path, rows: Sequence[LiberoRow]) -> None:
    """Write rows to a CSV file; they are on the disk when this returns."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    append_lines(path, stream.getvalue().splitlines())


def read_rows(path: Path) -> list[LiberoRow]:
    """Return the rows of a CSV file; none where there is no such file.

    Raises:
        UnusableInputError: a line isn't a row.
    """
    if not path.exists():
        return []
    whole = read_text(path).rpartition("\n")[0]  # a kill may have torn the last line
    rows = []
    for number, line in enumerate(csv.DictReader(whole.splitlines()), 2):
        try:
            rows.append(_row(line))
        except (KeyError, ValueError, TypeError):
            raise UnusableInputError(
                f"{path}, line {number}: not a rollout. Fix or remove that line."
            ) from None
    return rows


def _row(line: Mapping[str, Any]) -> LiberoRow:
    return LiberoRow(
        policy=line["policy"],
        suite=line["suite"],
        task=int(line["task"]),
        seed=int(line["seed"]),
        camera=line["camera"],
        success={"True": True, "False": False}[line["success"]],
        category=line["category"],
        steps=int(line["steps"]),
        seconds=float(line["seconds"]),
    )


def move_camera(model: Any, camera: str, right_m: float) -> None:
    """Move a camera of a MuJoCo model along the horizontal axis of its own picture.

    Args:
        model: its `cam_pos` is changed.
        camera: its name.
        right_m: how far to the right [m].
    """
    number = model.camera(camera).id
    w, x, y, z = model.cam_quat[number]
    right = np.array([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)])
    model.cam_pos[number] += right_m * right


class RolloutScene(Protocol):
    """What a rollout needs of a scene; see `lerobot_scene.Scene`."""

    max_steps: int

    def reset(self, seed: int, camera_m: float = 0.0) -> None:
        """Draw a scene."""
        ...

    def look(self) -> Observation:
        """Draw what a policy sees."""
        ...

    def step(self, action: FloatArray) -> bool:
        """Take an action; return whether the task is done."""
        ...

    def privileged(self, action: FloatArray) -> StepState:
        """Return what only simulation knows."""
        ...


class PlanningPolicy(Protocol):
    """What a rollout needs of a policy; `finetune.lerobot_policy.load_policy` returns such."""

    execute: int

    def reset(self) -> None:
        """Forget the episode before."""
        ...

    def plan(self, observation: Observation) -> FloatArray:
        """Return the next actions, shape (n, 7)."""
        ...


def roll_out(scene: RolloutScene, policy: PlanningPolicy, key: RolloutKey) -> LiberoRow:
    """Try a policy in one scene. Pictures are drawn where it plans, not at every step."""
    began_s = time.monotonic()
    scene.reset(key.seed, CAMERAS[key.camera])
    policy.reset()
    rest = np.zeros(7)
    trace, plan, done = [scene.privileged(rest)], list[FloatArray](), False
    while not done and len(trace) <= scene.max_steps:
        if not plan:
            plan = list(policy.plan(scene.look())[: policy.execute])
        action = plan.pop(0)
        done = scene.step(action)
        trace.append(scene.privileged(action))
    return LiberoRow(
        key.policy,
        key.task.suite,
        key.task.number,
        key.seed,
        key.camera,
        done,
        "" if done else category(trace),
        len(trace) - 1,
        round(time.monotonic() - began_s, 2),
    )
