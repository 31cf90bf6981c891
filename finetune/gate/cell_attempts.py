"""Attempts in the embedded cell: both policies stay loaded, each task keeps its cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.messages import Observation
from gaploop.core.suite import SuiteTask
from gaploop.core.vocabulary import Outcome
from gaploop.finetune.gate.folder import AttemptResult, GateAttempt
from gaploop.finetune.gate.station_attempts import StageEvidence, check_of
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy

SAFETY_TRIP: Final = "safety trip"


@contextmanager
def cell_attempts(
    policies: Mapping[str, Path], tasks: Sequence[SuiteTask]
) -> Iterator[Callable[[str, GateAttempt], AttemptResult]]:
    """Yield what tries policies on tasks of the embedded cell, one attempt at a time.

    Args:
        policies: side to the folder of its policy.

    Raises:
        UnusableInputError: no such policy, task, gap or check; said before anything is tried.
    """
    checks = [check_of(task) for task in tasks]
    loaded: dict[str, ActPolicy] = {side: load_policy(path) for side, path in policies.items()}
    with ExitStack() as stack:
        rigs = list[EmbeddedRig]()
        for task in tasks:
            rigs.append(_built(task, loaded["baseline"].fps))
            stack.callback(rigs[-1].close)

        def attempted(stage: str, attempt: GateAttempt) -> AttemptResult:
            task, rig, check = tasks[attempt.task], rigs[attempt.task], checks[attempt.task]
            leader = PolicyLeader(loaded[attempt.side], rig.follower, rig.fps, rig.control_hz)
            seen = list[Observation]()
            look = (seen.append,) if check else ()
            take = run_take(rig, leader, seed=attempt.scene, max_s=task.timeout_s, on_frame=look)
            won = take.outcome is Outcome.SUCCESS
            if check is not None:
                won = check(StageEvidence(task.instruction, seen))
            unsafe = take.reason == SAFETY_TRIP
            return AttemptResult(
                stage, attempt.number, won, unsafe, round(take.duration_s, 3), take.reason
            )

        yield attempted


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
