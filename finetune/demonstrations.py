"""Scripted demonstrations of the nominal cell, straight into memory.

A base needs hundreds of takes and only their joint and scene states. The same loop as
`gaploop record` drives the same scripted person, but nothing is encoded or published; the takes
are a pure function of (task, takes, seed), so that the command alone rebuilds the base.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.session import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.protocols import Follower
from gaploop.core.types import FloatArray, Tick
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.finetune.batches import Signature, TrainingEpisode, TrainingSource
from gaploop.finetune.workers import run_jobs
from gaploop.sim.arms import SO101

MAX_S: Final = 10.0
"""A demonstration's time limit [simulated s]."""
CHUNK: Final = 10
"""Takes that a worker records between two reports."""


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
    *,
    task: str = "pick_place",
    seed: int = 0,
    workers: int = 2,
    progress: Callable[[int], None] | None = None,
    robot: str = SO101.name,
) -> TrainingSource:
    """Record scripted demonstrations of the nominal cell; failed ones are left out.

    Args:
        takes: attempts; scenes `seed` to `seed + takes - 1`.
        task: the cell's task.
        seed: first scene.
        workers: processes; the result doesn't depend on it.
        progress: called with the number of attempts just finished.
        robot: the cell's arm.

    Raises:
        UnusableInputError: no takes asked for, or none succeeded.
    """
    if takes < 1:
        raise UnusableInputError(f"--takes={takes} must be at least 1; the base was made of 400.")
    jobs = [
        (task, robot, range(i, min(i + CHUNK, seed + takes)))
        for i in range(seed, seed + takes, CHUNK)
    ]
    episodes: list[TrainingEpisode] = []
    for done, attempts in run_jobs(_record, jobs, workers):
        episodes += done
        if progress:
            progress(attempts)
    if not episodes:
        raise UnusableInputError(f"None of {takes} scripted takes of {task} succeeded.")
    return TrainingSource(
        _name(task, takes, seed, robot),
        Domain.SIM,
        _signature(task, robot),
        tuple(sorted(episodes, key=lambda e: e.index)),
    )


def _name(task: str, takes: int, seed: int, robot: str) -> str:
    name = f"scripted:{task}?takes={takes}&seed={seed}"
    return name if robot == SO101.name else f"{name}&robot={robot}"


def _record(job: tuple[str, str, range]) -> tuple[list[TrainingEpisode], int]:
    task, robot, scenes = job
    rig = embedded_rig(task=task, robot=robot)
    try:
        taken = [_take(rig, scene) for scene in scenes]
    finally:
        rig.close()
    return [episode for episode in taken if episode is not None], len(scenes)


def _take(rig: EmbeddedRig, scene: int) -> TrainingEpisode | None:
    rig.reset(scene)
    memory = _Memory(rig.follower)
    leader = rig.scripted_leader(scene)
    result = run_take(rig, leader, seed=scene, max_s=MAX_S, sinks=(memory,))
    if result.outcome is not Outcome.SUCCESS:
        return None
    return memory.episode(f"scripted-{scene}", scene)


def _signature(task: str, robot: str) -> Signature:
    rig = embedded_rig(task=task, robot=robot)
    try:
        joints = tuple(f"{name}.pos" for name in rig.follower.joint_names)
        names = rig.tracker.names if rig.tracker is not None else ()
        return Signature(
            rig.fps, joints, tuple(names), joints, rig.follower.units, rig.follower.robot_type
        )
    finally:
        rig.close()


def save_source(source: TrainingSource, path: Path) -> None:
    """Keep recorded demonstrations, so that a resumed run needn't record them again."""
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        name=source.root,
        index=[e.index for e in source.episodes],
        length=[len(e.action) for e in source.episodes],
        state=np.concatenate([e.state for e in source.episodes]),
        environment=np.concatenate([e.environment for e in source.episodes]),
        action=np.concatenate([e.action for e in source.episodes]),
    )
    os.replace(part, path)


def load_source(
    path: Path, task: str, takes: int, seed: int, robot: str = SO101.name
) -> TrainingSource | None:
    """Return what `save_source` kept under `path`, or None where that is something else."""
    if not path.exists():
        return None
    name = _name(task, takes, seed, robot)
    with np.load(path) as kept:
        if str(kept["name"]) != name:
            return None
        cuts = np.cumsum(kept["length"])[:-1]
        parts = [np.split(kept[k], cuts) for k in ("state", "environment", "action")]
        episodes = tuple(
            TrainingEpisode(f"scripted-{i}", int(i), s, e, a, np.ones(len(s), dtype=bool))
            for i, s, e, a in zip(kept["index"], *parts, strict=True)
        )
    return TrainingSource(name, Domain.SIM, _signature(task, robot), episodes)
