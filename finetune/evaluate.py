"""Roll a policy out on the embedded cell and count: the same loop as recording, many seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
from gaploop.finetune.workers import run_jobs

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
    identity = policy_id(folder)
    jobs = [
        _Job(folder, identity, spec, condition, seeds)
        for condition in list(conditions) or [{}]
        for seeds in _split(seed, n)
    ]
    rollouts: list[Rollout] = []
    for done in run_jobs(_run, jobs, 1 if len(jobs) == 1 else workers):
        rollouts += done
        if progress:
            progress(len(done))
    _forget()
    is_target = any(conditions) or any(severity > 0 for severity in spec.gaps.values())
    return summarise(
        rollouts,
        domain=Domain.SIM_TARGET if is_target else Domain.SIM,
        policy=identity,
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
    folder: Path
    policy: str
    spec: CellSpec
    condition: Mapping[str, Any]
    seeds: tuple[int, ...]


@dataclass(eq=False)
class _Station:
    """What a process keeps between jobs: the policy and the rig it used last."""

    policy: ActPolicy | None = None
    policy_id: str = ""
    rig: EmbeddedRig | None = None
    cell: tuple[CellSpec, Mapping[str, Any]] | None = None

    def policy_for(self, job: _Job) -> ActPolicy:
        if self.policy is None or self.policy_id != job.policy:
            self.policy, self.policy_id = load_policy(job.folder), job.policy
        return self.policy

    def rig_for(self, job: _Job) -> EmbeddedRig:
        wanted = (job.spec, job.condition)
        if self.rig is None or self.cell != wanted:
            self.close()
            spec = job.spec
            self.rig = embedded_rig(
                task=spec.task, gaps=spec.gaps, gap_seed=spec.gap_seed, conditions=job.condition
            )
            self.cell = wanted
            # Before the interpreter's own exit handlers: those end EGL, the renderer needs it.
            Finalize(self, self.close, exitpriority=10)
        return self.rig

    def close(self) -> None:
        if self.rig is not None:
            self.rig.close()
            self.rig = None


_station = _Station()


def _run(job: _Job) -> list[Rollout]:
    rig, policy = _station.rig_for(job), _station.policy_for(job)
    return roll_out(rig, policy, job.seeds, condition_name(job.condition), job.spec.max_s)


def _forget() -> None:
    """Free what this process itself rolled out with; workers keep theirs for the next call."""
    _station.close()
    _station.policy = None


def _split(seed: int, n: int) -> list[tuple[int, ...]]:
    return [tuple(range(i, min(i + CHUNK, seed + n))) for i in range(seed, seed + n, CHUNK)]
