"""Attempts in the embedded cell: both policies stay loaded, each task keeps its cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.session import run_take
from gaploop.core.suite import SuiteTask
from gaploop.core.types import Observation
from gaploop.core.vocabulary import Outcome
from gaploop.finetune.gate.folder import AttemptResult, GateAttempt
from gaploop.finetune.gate.station_attempts import StageEvidence, check_of
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy

SAFETY_TRIP: Final = "safety trip"


class CellAttempts:
    """Tries policies on tasks of the embedded cell.

    Args:
        policies: side to the folder of its policy.

    Raises:
        UnusableInputError: no such policy, task, gap or check; said before anything is tried.
    """

    def __init__(self, policies: Mapping[str, Path], tasks: Sequence[SuiteTask]) -> None:
        self._tasks = tuple(tasks)
        self._checks = [check_of(task) for task in tasks]
        self._policies: dict[str, ActPolicy] = {s: load_policy(p) for s, p in policies.items()}
        with ExitStack() as stack:
            self._rigs: list[EmbeddedRig] = []
            fps = self._policies["baseline"].fps
            for task in tasks:
                self._rigs.append(_built(task, fps))
                stack.callback(self._rigs[-1].close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close the cells."""
        self._stack.close()

    def __call__(self, stage: str, attempt: GateAttempt) -> AttemptResult:
        """Make one attempt."""
        task, rig = self._tasks[attempt.task], self._rigs[attempt.task]
        leader = PolicyLeader(self._policies[attempt.side], rig.follower, rig.fps, rig.control_hz)
        check, seen = self._checks[attempt.task], list[Observation]()
        look = (seen.append,) if check else ()
        take = run_take(rig, leader, seed=attempt.scene, max_s=task.timeout_s, on_frame=look)
        won = take.outcome is Outcome.SUCCESS
        if check is not None:
            won = check(StageEvidence(task.instruction, seen))
        unsafe = take.reason == SAFETY_TRIP
        return AttemptResult(
            stage, attempt.number, won, unsafe, round(take.duration_s, 3), take.reason
        )


def _built(task: SuiteTask, fps: float | None = None) -> EmbeddedRig:
    return embedded_rig(
        task=task.task, gaps=task.gaps, gap_seed=task.gap_seed, conditions=task.conditions, fps=fps
    )


def check_tasks(tasks: Sequence[SuiteTask]) -> None:
    """Check that the embedded cell can be set up for all tasks, before hours are spent on some.

    Raises:
        UnusableInputError: no such task, gap or check.
    """
    for task in tasks:
        check_of(task)
        _built(task).close()
