"""Records a corpus: every station's takes into a journal of its own, by the normal path.

A station is recorded beside and moved into place when it is whole, so that a run that was stopped
goes on with the next station. What was injected goes to `truth.jsonl` only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.corpus.design import POLICY, SCRIPT, DrawnStation
from benchmarks.corpus.errant import ErrantLeader
from benchmarks.oracle import Oracle
from benchmarks.sight import by_tracker
from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.protocols import Leader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import TakeKind
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy, policy_id
from gaploop.finetune.workers import run_jobs
from gaploop.sim.catalogue import INSTRUCTIONS
from gaploop.sim.tracker import Tracker

SCHEMA: Final = "gaploop.corpus.v2"
INDEX: Final = "corpus.json"
STATIONS: Final = "stations"
TAKE_S: Final = 6.5
"""Longest take [simulated s]; nominal ones last 2 to 4.3."""


def record_corpus(
    stations: Sequence[DrawnStation],
    folder: Path,
    policy: str | Path,
    *,
    workers: int = 1,
    progress: Callable[[int], None] = lambda _takes: None,
) -> None:
    """Record every station that `folder` doesn't hold yet.

    Args:
        stations: from `draw_corpus`.
        folder: of the corpus.
        policy: who drives the stations of controller `POLICY`.
        workers: processes.
        progress: called with the number of takes just finished.

    Raises:
        UnusableInputError: the folder holds another corpus.
    """
    index = {
        "schema": SCHEMA,
        "policy": policy_id(policy),
        "stations": [asdict(station) for station in stations],
    }
    write_json(folder / INDEX, _with_held(folder, index))
    (folder / STATIONS).mkdir(exist_ok=True)
    jobs = []
    for station in stations:
        if (folder / STATIONS / station.key).exists():
            progress(len(station.scenes))
        else:
            jobs.append(_Job(station, folder / STATIONS, policy))
    for takes in run_jobs(_record, jobs, workers):
        progress(takes)


def _with_held(folder: Path, index: dict[str, Any]) -> dict[str, Any]:
    """Return the index with what the folder holds besides; a larger corpus holds a smaller one.

    Raises:
        UnusableInputError: the folder holds other takes.
    """
    path = folder / INDEX
    if not path.exists():
        return index
    held, wanted = read_json(path), _as_read(index)
    known = {s["key"]: s for s in held.get("stations", ())}
    same = all(known.get(s["key"], s) == s for s in wanted["stations"])
    if not same or held.get("policy") != wanted["policy"] or held.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{folder} holds another corpus (other --seed, policy or version). Name an empty "
            "--output_dir, or the one that this corpus was begun in."
        )
    stations = {**{s["key"]: s for s in wanted["stations"]}, **known}
    return {**wanted, "stations": list(stations.values())}


def _as_read(value: Any) -> Any:
    """Return `value` as it comes back from JSON: tuples are lists there."""
    if isinstance(value, dict):
        return {k: _as_read(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_as_read(v) for v in value]
    return value


@dataclass(frozen=True)
class _Job:
    station: DrawnStation
    folder: Path
    policy: str | Path


def _record(job: _Job) -> int:
    """Record one station; return how many takes."""
    station, part = job.station, job.folder / f".{job.station.key}-{os.getpid()}"
    if (job.folder / station.key).exists():  # by another process, meanwhile
        return len(station.scenes)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    with contextlib.closing(_rig(station)) as rig:
        for scene in station.scenes:
            _take(job, rig, scene, part)
    with contextlib.suppress(OSError):  # another process was faster
        part.rename(job.folder / station.key)
    shutil.rmtree(part, ignore_errors=True)
    return len(station.scenes)


def _rig(station: DrawnStation) -> EmbeddedRig:
    return embedded_rig(
        task=station.task,
        gaps=station.gaps,
        gap_seed=station.gap_seed,
        conditions=station.conditions,
        sensors={"wrist": {}, "fingertips": {}},
    )


def _take(job: _Job, rig: EmbeddedRig, scene: int, journal: Path) -> None:
    station = job.station
    said = {"station": station.key, "scene": scene, "controller": station.controller}
    oracle = Oracle(rig.cell)
    rig = replace(rig, truth=lambda: {**oracle.truth(), **said})
    rig.reset(scene)
    leader = _leader(job, rig, scene)
    header = rig.header(TakeInfo("", INSTRUCTIONS[station.task], kind=TakeKind.ROLLOUT))
    with JournalWriter(journal, header) as writer:
        run_take(rig, leader, seed=scene, max_s=TAKE_S, writer=writer, sinks=(oracle,))


def _leader(job: _Job, rig: EmbeddedRig, scene: int) -> Leader:
    controller = job.station.controller
    if controller == POLICY:
        return PolicyLeader(_policy(job.policy), rig.follower, rig.fps, rig.control_hz)
    if controller == SCRIPT:
        tracker = Tracker.nominal(rig.cell.image_size, task=rig.cell.task)
        return by_tracker(rig.cell, scene, tracker)
    return ErrantLeader(rig.cell, controller, scene, job.station.gap_seed)


@functools.cache
def _policy(path: str | Path) -> ActPolicy:
    return load_policy(path)
