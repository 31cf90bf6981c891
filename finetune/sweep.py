"""Injected against diagnosed: gaps are drawn, the policy fails, the failures are diagnosed.

Each draw of a gap is a station of its own. The diagnosing side gets its journal and nothing
else; what was injected is known here from the draw, never from the takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import Rig, embedded_rig
from gaploop.collect.session import Quota, SessionSpec, record_takes
from gaploop.core.journal_format import read_journal
from gaploop.core.vocabulary import GapDimension, TakeKind
from gaploop.failure_analysis.diagnosis import TakeDiagnosis, diagnose
from gaploop.finetune.evaluate import EVALUATION_SEEDS, MAX_S
from gaploop.finetune.lerobot_policy import load_policy, policy_id
from gaploop.finetune.workers import run_jobs
from gaploop.sim.gaps import draw_gaps

ABSTAINED: Final = "abstained"
LEAST_SEVERITY: Final = 0.5
"""Weaker gaps rarely make a policy fail, so that there would be little to diagnose."""


@dataclass(frozen=True)
class Draw:
    """One station: a gap dimension with severity, mechanism and direction drawn."""

    dimension: GapDimension
    severity: float
    gap_seed: int

    @property
    def mechanism(self) -> str:
        """Name of the drawn mechanism."""
        return draw_gaps({self.dimension.value: self.severity}, self.gap_seed)[0].mechanism


@dataclass(frozen=True)
class DrawResult:
    """What came of one draw: how many rollouts, and the diagnosis of each that failed."""

    draw: Draw
    rollouts: int
    takes: tuple[TakeDiagnosis, ...]


def draw_stations(seed: int, per_dimension: int) -> list[Draw]:
    """Draw `per_dimension` stations of every gap dimension."""
    rng = np.random.default_rng([seed, 77])
    return [
        Draw(d, round(float(rng.uniform(LEAST_SEVERITY, 1.0)), 2), int(rng.integers(1_000_000)))
        for _ in range(per_dimension)
        for d in GapDimension
    ]


def sweep(
    policy: str | Path,
    draws: Sequence[Draw],
    folder: Path,
    *,
    rollouts: int,
    workers: int = 2,
    progress: Callable[[int], None] = lambda _draws: None,
) -> list[DrawResult]:
    """Roll the policy out `rollouts` times on every draw and diagnose what failed.

    Args:
        folder: journals go to `folder/<number>-<dimension>`.
        workers: processes.
        progress: called with the number of draws just finished.
    """
    jobs = [
        _Job(n, policy, draw, folder / f"{n:02d}-{draw.dimension.value}", rollouts)
        for n, draw in enumerate(draws)
    ]
    found: dict[int, DrawResult] = {}
    for number, result in run_jobs(_one, jobs, workers):
        found[number] = result
        progress(1)
    return [found[n] for n in sorted(found)]


@dataclass(frozen=True)
class _Job:
    number: int
    policy: str | Path
    draw: Draw
    journal: Path
    rollouts: int


def _one(job: _Job) -> tuple[int, DrawResult]:
    draw, loaded = job.draw, load_policy(job.policy)

    def rig(conditions: Mapping[str, object]) -> Rig:
        gaps = {draw.dimension.value: draw.severity}
        return embedded_rig(gaps=gaps, gap_seed=draw.gap_seed, conditions=conditions)

    def leader(rig: Rig, seed: int) -> PolicyLeader:
        del seed  # a policy draws nothing
        return PolicyLeader(loaded, rig.follower, rig.fps, rig.control_hz)

    spec = SessionSpec(
        job.journal,
        "sweep",
        TakeKind.ROLLOUT,
        MAX_S,
        EVALUATION_SEEDS,
        policy=policy_id(job.policy),
        resume=True,
    )
    record_takes(spec, [Quota(job.rollouts)], rig, leader)
    takes = list(read_journal(job.journal))
    found = diagnose(takes, source=job.journal.name).takes
    return job.number, DrawResult(draw, len(takes), found)


def confusion(results: Sequence[DrawResult]) -> dict[str, dict[str, int]]:
    """Return injected dimension → diagnosed dimension (or "abstained") → number of takes."""
    columns = [*(d.value for d in GapDimension), ABSTAINED]
    rows = {d.value: dict.fromkeys(columns, 0) for d in GapDimension}
    for result in results:
        for take in result.takes:
            rows[result.draw.dimension.value][take.top or ABSTAINED] += 1
    return rows


def accuracy(rows: Mapping[str, Mapping[str, int]]) -> tuple[int, int, int]:
    """Return how many takes were attributed rightly, attributed at all, and diagnosed."""
    right = sum(row[name] for name, row in rows.items())
    every = sum(sum(row.values()) for row in rows.values())
    abstained = sum(row[ABSTAINED] for row in rows.values())
    return right, every - abstained, every
