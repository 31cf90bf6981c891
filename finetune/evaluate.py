"""Roll a policy out on the embedded cell and count: the same loop as recording, many seeds."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.session import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.station import SIM_STATION
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.finetune.evaluation import NOMINAL, Evaluation, Rollout, summarise
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy, policy_id, resolve
from gaploop.finetune.workers import single_threaded

MAX_S: Final = 8.0
"""A rollout's time limit [simulated s]; the scripted demonstrations take 3 to 4."""
EVALUATION_SEEDS: Final = 1_000_000
"""Scenes of evaluations begin here, demonstrations at 0: a policy never meets a scene it saw."""
CHUNK: Final = 4
"""Rollouts that a worker does between two reports; keeps both workers busy until the end."""


@dataclass(frozen=True)
class CellSpec:
    """The cell a policy is tried on, as plain data that can go to another process.

    Attributes:
        task: `pick_place`, `pick_lift` or `stack_cube`.
        gaps: gap dimension to severity in [0, 1].
        gap_seed: draws mechanism and direction of each gap.
        max_s: longest rollout [simulated s].
    """

    task: str = "pick_place"
    gaps: Mapping[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    max_s: float = MAX_S


def evaluate(
    policy_path: str | Path,
    n: int = 100,
    *,
    gaps: Mapping[str, float] | None = None,
    gap_seed: int = 0,
    conditions: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    workers: int = 2,
    task: str = "pick_place",
    max_s: float = MAX_S,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Try a policy on `n` scenes under each condition.

    Equal `seed` gives equal scenes whatever policy, gaps and conditions: results pair up.

    Args:
        policy_path: as for `load_policy`.
        n: rollouts under each condition.
        gaps: gap dimension to severity in [0, 1]; injected under every condition.
        gap_seed: draws mechanism and direction of each gap.
        conditions: settings to try one at a time; the plain cell if there are none.
        seed: first scene.
        workers: processes; 1 stays in this one.
        task: the cell's task.
        max_s: longest rollout [simulated s].
        progress: called with the number of rollouts just finished.

    Raises:
        UnusableInputError: no rollouts asked for, an unknown gap or condition, or no policy.
    """
    if n < 1:
        raise UnusableInputError(f"--n={n} must be at least 1; 100 gives ±10 points or better.")
    folder = resolve(policy_path)
    spec = CellSpec(task, dict(gaps or {}), gap_seed, max_s)
    for condition in conditions:
        SIM_STATION.check_conditions(condition, "--env.conditions")
    jobs = _jobs(list(conditions) or [{}], n, seed)
    rollouts: list[Rollout] = []
    for done in _run_jobs(folder, spec, jobs, workers):
        rollouts += done
        if progress:
            progress(len(done))
    is_target = any(conditions) or any(severity > 0 for severity in spec.gaps.values())
    return summarise(
        rollouts,
        domain=Domain.SIM_TARGET if is_target else Domain.SIM,
        policy=policy_id(folder),
        gaps=spec.gaps,
        gap_seed=gap_seed,
    )


def roll_out(
    rig: EmbeddedRig, policy: ActPolicy, seeds: Sequence[int], condition: str, max_s: float
) -> list[Rollout]:
    """Try a policy on a few scenes of one rig, without recording."""
    leader = PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)
    results = []
    for seed in seeds:
        take = run_take(rig, leader, seed=EVALUATION_SEEDS + seed, max_s=max_s)
        won = take.outcome is Outcome.SUCCESS
        results.append(Rollout(seed, condition, won, take.duration_s, take.reason))
    return results


def condition_name(condition: Mapping[str, Any]) -> str:
    """Return how results name a condition: `key=value`, or `nominal` where nothing is set."""
    parts = [f"{k}={json.dumps(v) if not isinstance(v, str) else v}" for k, v in condition.items()]
    return ", ".join(sorted(parts)) or NOMINAL


@dataclass(frozen=True)
class _Job:
    condition: Mapping[str, Any]
    seeds: tuple[int, ...]


def _jobs(conditions: Sequence[Mapping[str, Any]], n: int, seed: int) -> list[_Job]:
    scenes = range(seed, seed + n)
    return [
        _Job(condition, tuple(scenes[i : i + CHUNK]))
        for condition in conditions
        for i in range(0, n, CHUNK)
    ]


def _run_jobs(
    folder: Path, spec: CellSpec, jobs: Sequence[_Job], workers: int
) -> Iterator[list[Rollout]]:
    if workers <= 1 or len(jobs) == 1:
        worker = _Worker(folder, spec)
        try:
            for job in jobs:
                yield worker.run(job)
        finally:
            worker.close()
        return
    with (
        single_threaded(),
        ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), _start_worker, (folder, spec)
        ) as pool,
    ):
        futures: list[Future[list[Rollout]]] = [pool.submit(_run_in_worker, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


class _Worker:
    """A policy and the rig it was last tried on, kept between jobs."""

    def __init__(self, folder: Path, spec: CellSpec) -> None:
        self._policy, self._spec = load_policy(folder), spec
        self._rig: EmbeddedRig | None = None
        self._condition: Mapping[str, Any] = {}

    def run(self, job: _Job) -> list[Rollout]:
        rig = self._rig_for(job.condition)
        name = condition_name(job.condition)
        return roll_out(rig, self._policy, job.seeds, name, self._spec.max_s)

    def close(self) -> None:
        if self._rig is not None:
            self._rig.close()
            self._rig = None

    def _rig_for(self, condition: Mapping[str, Any]) -> EmbeddedRig:
        if self._rig is None or condition != self._condition:
            self.close()
            spec = self._spec
            self._rig = embedded_rig(
                task=spec.task, gaps=spec.gaps, gap_seed=spec.gap_seed, conditions=condition
            )
            self._condition = condition
        return self._rig


_worker: list[_Worker] = []


def _start_worker(folder: Path, spec: CellSpec) -> None:
    worker = _Worker(folder, spec)
    _worker[:] = [worker]
    # Before the interpreter's own exit handlers: those end EGL, and the renderer needs it.
    Finalize(None, worker.close, exitpriority=10)


def _run_in_worker(job: _Job) -> list[Rollout]:
    return _worker[0].run(job)
