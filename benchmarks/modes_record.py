"""Records the takes that `bench modes` judges, with what really happened beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.oracle import Oracle
from benchmarks.provoke import WAYS, Provoked
from benchmarks.sight import by_tracker
from gaploop.collect.campaign import Quota
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, Rig, embedded_rig
from gaploop.collect.take import Operator, TakeResult, record_takes, run_take
from gaploop.core.errors import GaploopError
from gaploop.core.protocols import Leader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import TakeKind
from gaploop.finetune.lerobot_policy import load_policy, policy_id
from gaploop.teleop.loop import OnFrame

MAX_S: Final = 8.0
"""Longest take [simulated s]; nominal ones last 2 to 4.3."""


@dataclass(frozen=True)
class RecordingJob:
    """Takes of one station: a gap or a provoked failure, one task, one controller.

    Attributes:
        name: of the journal.
        task: of the cell.
        controller: "policy", or "scripted" by what the tracker sees.
        policy: path or name of the policy.
        gaps: "dimension.mechanism" to severity.
        way: how it is provoked, "" where it isn't.
        gap_seed: draws the gap's direction.
        scene: seed of the first scene.
        takes: how many.
        folder: where journals go.
    """

    name: str
    task: str
    controller: str
    policy: str | Path
    gaps: Mapping[str, float]
    way: str
    gap_seed: int
    scene: int
    takes: int
    folder: Path


class _Watched(Operator):
    """Has every take watched by the oracle, and its word written beside what was injected."""

    def __init__(self, job: RecordingJob) -> None:
        super().__init__()
        self._said = {"controller": job.controller, "way": job.way}

    def run(self, rig: Rig, leader: Leader, **given: Any) -> TakeResult:
        """Run a take, called as `run_take`."""
        oracle = Oracle(_cell(rig).cell)
        driver = leader.leader if isinstance(leader, Provoked) else leader
        hidden: tuple[OnFrame, ...] = ()
        if isinstance(driver, PolicyLeader) and driver is not leader:
            hidden = (driver.observe,)  # run_take shows a policy its frames only where it leads
        return run_take(
            replace(rig, truth=lambda: {**oracle.truth(), **self._said}),
            leader,
            sinks=(oracle,),
            on_frame=hidden,
            until_success=isinstance(driver, PolicyLeader),
            **given,
        )


def record(job: RecordingJob) -> str:
    """Record a job's takes; return its name. What is there already counts."""
    obstacle = bool(job.way) and WAYS[job.way].obstacle
    conditions = {"distractors": 1} if obstacle else {}

    def make_rig(_: Mapping[str, object]) -> Rig:
        return embedded_rig(
            task=job.task, gaps=job.gaps, gap_seed=job.gap_seed, conditions=conditions
        )

    def make_leader(rig: Rig, seed: int) -> Leader:
        cell = _cell(rig).cell
        driver: Leader = by_tracker(cell, seed)
        if job.controller == "policy":
            driver = PolicyLeader(load_policy(job.policy), rig.follower, rig.fps, rig.control_hz)
        return Provoked(driver, cell, job.way, seed, rig.safety.estop) if job.way else driver

    policy = policy_id(job.policy) if job.controller == "policy" else ""
    record_takes(
        job.folder / job.name,
        TakeInfo("", job.task, kind=TakeKind.ROLLOUT, policy=policy),
        [Quota(job.takes)],
        make_rig,
        make_leader,
        operator=_Watched(job),
        max_s=MAX_S,
        seed=job.scene,
        resume=True,
    )
    return job.name


def _cell(rig: Rig) -> EmbeddedRig:
    if not isinstance(rig, EmbeddedRig):
        raise GaploopError(f"only the embedded cell can be watched, got {rig.follower.robot_type}.")
    return rig
