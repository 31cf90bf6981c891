"""The attempts of a benchmark: every policy on the same hidden scenes, in an order drawn for each.

A scene is tried once under one setting, so that scenes are independent of each other; policies that
come later meet the same ones. The log of each policy stands under a name that only the secret gives
it, and what was rolled out is kept: after Ctrl-C or a kill the rest is rolled out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final

import av
import numpy as np

from benchmarks.board.policy_box import BoxedPolicy
from benchmarks.board.sandbox import EndedError, Limits
from benchmarks.board.signing import Server
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig
from gaploop.collect.take import run_take
from gaploop.core.errors import GaploopError
from gaploop.core.messages import Image, Observation
from gaploop.finetune.evaluate import CellSpec, condition_name, rig_of, roll_out
from gaploop.finetune.evaluation import Rollout, RolloutLog
from gaploop.finetune.workers import run_jobs
from gaploop.sim.catalogue import INSTRUCTIONS

STRIKES: Final = 3
"""So often a policy may fail to answer; then it isn't tried any more."""
CHUNK: Final = 4
"""Scenes between two writes to the logs."""
SHOWN: Final = (7, 8)
"""Scenes that are filmed. They count for nothing, so they may be seen."""
FILM_FPS: Final = 25


@dataclass(frozen=True)
class Tried:
    """A policy that passed the look.

    Attributes:
        alias: what it is called where attempts are made.
        folder: its files, which only the server writes.
    """

    alias: str
    folder: Path
    policy: str


@dataclass(frozen=True)
class Job:
    """A few scenes under one setting.

    Attributes:
        scenes: seed of each scene, and the policies that try it, in their order.
    """

    spec: CellSpec
    condition: Mapping[str, Any]
    scenes: tuple[tuple[int, tuple[Tried, ...]], ...]
    limits: Limits


@dataclass(frozen=True)
class Attempted:
    """What came of a job.

    Attributes:
        rollouts: alias to its rollouts.
        given_up: alias to why it isn't tried any more.
    """

    rollouts: Mapping[str, Sequence[Rollout]]
    given_up: Mapping[str, str]


type Attempt = Callable[[Job], Attempted]


class _Hall:
    """What a process keeps between jobs: policies in their boxes, cells of the last setting."""

    def __init__(self) -> None:
        self._boxes: dict[str, BoxedPolicy] = {}
        self._rigs: dict[float, EmbeddedRig] = {}
        self._cell: tuple[CellSpec, Mapping[str, Any]] | None = None
        self._strikes: dict[str, int] = {}
        self.given_up: dict[str, str] = {}

    def box(self, tried: Tried, limits: Limits, task: str) -> BoxedPolicy:
        if tried.alias not in self._boxes:
            self._boxes[tried.alias] = BoxedPolicy(tried.folder, limits, INSTRUCTIONS[task])
            Finalize(self, self.close, exitpriority=10)  # before EGL ends
        return self._boxes[tried.alias]

    def rig(self, spec: CellSpec, condition: Mapping[str, Any], fps: float) -> EmbeddedRig:
        if self._cell != (spec, condition):
            self._close_rigs()
            self._cell = (spec, condition)
        if fps not in self._rigs:
            self._rigs[fps] = rig_of(spec, condition, fps)
        return self._rigs[fps]

    def strike(self, tried: Tried, reason: str) -> None:
        if tried.alias in self._boxes:
            self._boxes.pop(tried.alias).close()
        self._strikes[tried.alias] = self._strikes.get(tried.alias, 0) + 1
        if self._strikes[tried.alias] >= STRIKES:
            self.given_up[tried.alias] = reason

    def _close_rigs(self) -> None:
        while self._rigs:
            self._rigs.popitem()[1].close()

    def close(self) -> None:
        while self._boxes:
            self._boxes.popitem()[1].close()
        self._close_rigs()
        self._strikes, self.given_up, self._cell = {}, {}, None


_hall = _Hall()


def attempt(job: Job) -> Attempted:
    """Make the attempts of a job; one in which the policy doesn't answer has failed."""
    found: dict[str, list[Rollout]] = {}
    name = condition_name(job.condition)
    for seed, order in job.scenes:
        for tried in order:
            if tried.alias in _hall.given_up:
                continue
            try:
                box = _hall.box(tried, job.limits, job.spec.task)
                rig = _hall.rig(job.spec, job.condition, box.fps)
                rows = roll_out(rig, box, [seed], name, job.spec.max_s, sees=job.spec.sees)
            except EndedError as error:
                _hall.strike(tried, error.reason)
                rows = [Rollout(seed, name, False, reason=error.reason)]
            found.setdefault(tried.alias, []).extend(rows)
    return Attempted(found, {k: v for k, v in _hall.given_up.items() if k in found})


def trial(tried: Tried, spec: CellSpec, limits: Limits) -> str:
    """Load a policy in its box and set up the cell at its rate; return why that fails, or ""."""
    try:
        _hall.rig(spec, {}, _hall.box(tried, limits, spec.task).fps)
    except EndedError as error:
        return error.reason
    except GaploopError as error:
        return " ".join(str(error).split())
    return ""


def close() -> None:
    """End the policies and cells that this process keeps."""
    _hall.close()


def scenes(server: Server, condition: Mapping[str, Any], n: int) -> list[int]:
    """Return the seeds of a setting's scenes; no two settings share one."""
    name = condition_name(condition)
    return [server.drawn("scene", name, number) for number in range(n)]


def contest(
    server: Server, tried: Sequence[Tried], spec: CellSpec, conditions: Sequence[Mapping[str, Any]],
    n: int, folder: Path, limits: Limits, *, workers: int = 1, make: Attempt = attempt,
    progress: Callable[[int], None] = lambda _attempts: None,
) -> tuple[dict[str, list[Rollout]], dict[str, str]]:  # fmt: skip
    """Let policies try all scenes, as far as they haven't; keep every attempt.

    Args:
        folder: of the logs, one folder for each alias.
        progress: called with the number of attempts just made or found.

    Returns:
        alias to all of its rollouts, and alias to why a policy was given up.
    """
    cell = {"task": spec.task, "robot": spec.robot, "max_s": spec.max_s, "by": server.commitment}
    for one in tried:
        (folder / one.alias).mkdir(parents=True, exist_ok=True)
    logs = {t.alias: RolloutLog(folder / t.alias, {"policy": t.policy, **cell}) for t in tried}
    rollouts = {alias: list(log.held.values()) for alias, log in logs.items()}
    progress(sum(map(len, rollouts.values())))
    gone: dict[str, str] = {}
    jobs = _jobs(server, tried, logs, spec, conditions, n, limits, gone)
    with contextlib.closing(run_jobs(make, jobs, workers)) as done:  # type: ignore[type-var]
        for found in done:
            for alias, rows in found.rollouts.items():
                logs[alias].add(rows)
                rollouts[alias] += rows
                progress(len(rows))
            gone |= found.given_up
    return rollouts, gone


def _jobs(
    server: Server, tried: Sequence[Tried], logs: Mapping[str, RolloutLog], spec: CellSpec,
    conditions: Sequence[Mapping[str, Any]], n: int, limits: Limits, gone: Mapping[str, str],
) -> Iterator[Job]:  # fmt: skip
    """Yield what is left to do; who is given up meanwhile isn't asked for more."""
    for condition in conditions:
        name, seeds = condition_name(condition), scenes(server, condition, n)
        for first in range(0, n, CHUNK):
            chunk = []
            for seed in seeds[first : first + CHUNK]:
                left = [t for t in tried if (name, seed) not in logs[t.alias].held]
                left = [t for t in left if t.alias not in gone]
                order = np.random.default_rng(server.drawn("order", name, seed))
                chunk.append((seed, tuple(left[k] for k in order.permutation(len(left)))))
            if any(order for _, order in chunk):
                yield Job(spec, condition, tuple(chunk), limits)


def film(tried: Tried, spec: CellSpec, limits: Limits, path: Path) -> None:
    """Write a video of a policy on the scenes that are for show, in the base setting.

    Raises:
        EndedError: it doesn't answer.
    """
    box = _hall.box(tried, limits, spec.task)
    rig, pictures = _hall.rig(spec, {}, box.fps), list[Image]()
    every = max(round(box.fps / FILM_FPS), 1)
    for seed in SHOWN:
        seen = list[Image]()

        def look(observation: Observation, seen: list[Image] = seen) -> None:
            seen.append(next(iter(observation.images.values())))

        leader = PolicyLeader(box, rig.follower, rig.fps, rig.control_hz)
        run_take(rig, leader, seed=seed, max_s=spec.max_s, on_frame=(look,))
        pictures += seen[::every]
    options = {"crf": "26", "preset": "veryfast"}
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as written:
        stream: Any = written.add_stream("libx264", rate=FILM_FPS, options=options)
        stream.height, stream.width = (size - size % 2 for size in pictures[0].shape[:2])
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            whole = np.ascontiguousarray(picture[: stream.height, : stream.width])
            written.mux(stream.encode(av.VideoFrame.from_ndarray(whole, format="rgb24")))
        written.mux(stream.encode(None))
