"""Scripted demonstrations of the nominal, a randomised or a station's cell, straight into memory.

A base needs hundreds of takes and only their joint and scene states. The same loop as
`gaploop record` drives the same scripted person, but nothing is encoded or published; the takes
are a pure function of cell, takes and seed, so that the command alone rebuilds the base.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Tick
from gaploop.core.protocols import Follower
from gaploop.core.twin import Randomisation, as_yaml
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.finetune.batches import Signature, TrainingEpisode, TrainingSource
from gaploop.finetune.workers import run_jobs
from gaploop.sim.catalogue import INSTRUCTIONS, SO101
from gaploop.sim.gaps.mechanism import Values

MAX_S: Final = 20.0
"""A demonstration's time limit for each arm of the cell [simulated s]."""
CHUNK: Final = 10
"""Takes that a worker records between two reports."""


@dataclass(frozen=True)
class TargetCell:
    """A cell that takes show or a policy is tried in: the embedded one, with gaps or a twin's.

    Attributes:
        gaps: gap dimension to severity in [0, 1]; it then stands for a real cell.
        gap_seed: draws mechanism and direction.
        task: `pick_place`, `pick_lift` or `stack_cube`.
        parameters: what is known of it, as a twin's; as of `SimCell`.
        randomise: what every take's cell is drawn from; as of `SimCell`.
        cameras: those that policies see by; as of `SimCell`.
    """

    gaps: Mapping[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    task: str = "pick_place"
    robot: str = SO101.name
    parameters: Mapping[str, Values] = field(default_factory=dict)
    randomise: Randomisation | None = None
    cameras: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def instruction(self) -> str:
        """What an operator is told to do."""
        return INSTRUCTIONS[self.task]

    def rig(
        self, conditions: Mapping[str, object] | None = None, fps: float | None = None
    ) -> EmbeddedRig:
        """Build it with `conditions` set up, at a frame rate [Hz]."""
        return embedded_rig(
            task=self.task, gaps=self.gaps, gap_seed=self.gap_seed, conditions=conditions,
            fps=fps, robot=self.robot, parameters=self.parameters, randomise=self.randomise,
            cameras=self.cameras,
        )  # fmt: skip

    def name(self, takes: int, seed: int) -> str:
        """Return what such demonstrations are called in lineage."""
        name = f"scripted:{self.task}?takes={takes}&seed={seed}"
        if self.robot != SO101.name:
            name += f"&robot={self.robot}"
        if self.parameters:
            name += f"&cell={_digest(json.dumps(self.parameters, sort_keys=True))}"
        if self.randomise is not None:
            ranges = _digest(as_yaml(self.randomise))
            name += f"&randomise={self.randomise.name}:{self.randomise.strength:g}:{ranges}"
        return name


class _Memory:
    """A sink that keeps what training reads of every policy frame."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.state: list[FloatArray] = []
        self.environment: list[FloatArray] = []
        self.action: list[FloatArray] = []

    def tick(self, tick: Tick) -> None:
        if not tick.policy_frame or tick.environment_state is None:
            return
        self.state.append(self._follower.to_units(tick.state.position_rad))
        self.environment.append(tick.environment_state)
        self.action.append(self._follower.to_units(tick.leader.q_rad))

    def episode(self, uid: str, index: int) -> TrainingEpisode:
        state, environment, action = (
            np.asarray(v, dtype=np.float32) for v in (self.state, self.environment, self.action)
        )
        return TrainingEpisode(
            uid, index, state, environment, action, np.ones(len(state), dtype=bool)
        )


def scripted_source(
    takes: int,
    cell: TargetCell = TargetCell(),
    *,
    seed: int = 0,
    workers: int = 2,
    progress: Callable[[int], None] | None = None,
) -> TrainingSource:
    """Record scripted demonstrations; failed ones are left out.

    Args:
        takes: attempts; scenes `seed` to `seed + takes - 1`.
        workers: processes; the result doesn't depend on it.
        progress: called with the number of attempts just finished.

    Raises:
        UnusableInputError: no takes asked for, or none succeeded.
    """
    if takes < 1:
        raise UnusableInputError(
            f"--sim_takes={takes} must be at least 1; the base was made of 400."
        )
    jobs = [
        (cell, range(i, min(i + CHUNK, seed + takes))) for i in range(seed, seed + takes, CHUNK)
    ]
    episodes: list[TrainingEpisode] = []
    for done, attempts in run_jobs(_record, jobs, workers):
        episodes += done
        if progress:
            progress(attempts)
    if not episodes:
        raise UnusableInputError(f"None of {takes} scripted episodes of {cell.task} succeeded.")
    return TrainingSource(
        cell.name(takes, seed),
        Domain.SIM,
        _signature(cell),
        tuple(sorted(episodes, key=lambda e: e.index)),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _record(job: tuple[TargetCell, range]) -> tuple[list[TrainingEpisode], int]:
    (cell, scenes), episodes = job, list[TrainingEpisode]()
    with contextlib.closing(cell.rig()) as rig:
        for scene in scenes:
            rig.reset(scene)
            memory = _Memory(rig.follower)
            leader = rig.scripted_leader(scene)
            longest_s = MAX_S * len(rig.cell.arm.arms)
            result = run_take(rig, leader, seed=scene, max_s=longest_s, sinks=(memory,))
            if result.outcome is Outcome.SUCCESS:
                episodes.append(memory.episode(f"scripted-{scene}", scene))
    return episodes, len(scenes)


def _signature(cell: TargetCell) -> Signature:
    with contextlib.closing(cell.rig()) as rig:
        arm, names = rig.follower, rig.tracker.names if rig.tracker is not None else ()
        joints = tuple(f"{name}.pos" for name in arm.joint_names)
        return Signature(rig.fps, joints, tuple(names), joints, arm.units, arm.robot_type)
