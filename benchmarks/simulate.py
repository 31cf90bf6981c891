"""`benchmarks simulate`: simulated takes and rollouts a minute, beside plain physics.

Takes of the scripted expert in the embedded cell go to a journal, with two cameras (overhead and
wrist), one or none, in `--workers` processes at most. Beside them stands what only steps physics,
on as many threads: mujoco.rollout on the same cell, and so101-nexus's batch environment with its
rewards, where mjbatch and the MuJoCo that it was built for are installed (0.1.4: mujoco==3.14.0).
"""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

TAKES: Final = 20
SIZE_PX: Final = 224
SEEN: Final[Mapping[str, Mapping[str, Any]]] = {"overhead": {}, "wrist": {}}
WORLDS: Final = 8
PHYSICS_S: Final = 200.0
"""Simulated by the programs that only step physics, all worlds together [s]."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Measure takes, rollouts of --policy.path, and physics, from one worker to `--workers`."""
    n, most, address = config.n or TAKES, max(config.workers, 1), config.ray.address
    runs: dict[str, Callable[[], tuple[int, float]]] = {}
    for count in sorted({1, most}):
        runs |= {
            f"takes with two cameras, {count} workers": partial(_takes, folder, n, count, 2),
            f"takes with one, {count} workers": partial(_takes, folder, n, count, 1),
            f"takes without, {count} workers": partial(_takes, folder, n, count, 0),
            f"evaluate, {count} workers": partial(_rollouts, config, n, count),
            f"mujoco.rollout, {count} workers": partial(_mujoco, count),
            f"so101-nexus, {count} workers": partial(_nexus, count),
        }
    if address:
        nodes, cores = _cluster(address)
        runs[f"evaluate, Ray of {nodes} nodes with {cores} cores"] = partial(
            _rollouts, config, n, 1, address
        )
    found: dict[str, Any] = {}
    with options.progress("Simulating", len(runs)) as advance:
        for name, run in runs.items():
            began_s = time.monotonic()
            done, simulated_s = run()
            took_s = time.monotonic() - began_s
            about = {"takes_a_minute": 60 * done / took_s} if done else {}
            found[name] = about | {"simulated_s_per_s": simulated_s / took_s}
            advance()
    return {"picture_px": SIZE_PX, "evidence": "simulated", "runs": found}


def _takes(folder: Path, n: int, workers: int, cameras: int) -> tuple[int, float]:
    """Record about `n` takes of the scripted expert, split over processes; how many, how long."""
    journal = folder / "takes"
    shutil.rmtree(journal, ignore_errors=True)
    jobs = [(journal / str(k), -(-n // workers), 1000 * k, cameras) for k in range(workers)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(_record, jobs))
    return sum(done for done, _ in parts), sum(seconds for _, seconds in parts)


def _record(job: tuple[Path, int, int, int]) -> tuple[int, float]:
    from gaploop.collect.campaign import Quota
    from gaploop.collect.rig import Rig, embedded_rig, scripted_leader
    from gaploop.collect.take import record_takes
    from gaploop.core.take import TakeInfo

    journal, n, seed, cameras = job

    def rig(_conditions: Mapping[str, object]) -> Rig:
        made = embedded_rig(image_size=SIZE_PX, cameras=SEEN if cameras > 1 else None)
        return made if cameras else replace(made, cameras=(), tracker=None)

    journal.mkdir(parents=True)
    end = record_takes(journal, TakeInfo("", "bench"), [Quota(n)], rig, scripted_leader, seed=seed)
    return len(end.takes), sum(take.duration_s for take in end.takes)


def _cluster(address: str) -> tuple[int, int]:
    """Return how many machines a Ray cluster has, and how many cores together."""
    import ray

    ray.init(address, log_to_driver=False, logging_level="error")
    try:
        return len(ray.nodes()), int(ray.cluster_resources()["CPU"])
    finally:
        ray.shutdown()


def _rollouts(config: BenchConfig, n: int, workers: int, ray: str = "") -> tuple[int, float]:
    from gaploop.finetune.evaluate import evaluate

    path = config.policy.required()
    result = evaluate(path, n, seed=config.seed, workers=workers, ray=ray)
    return result.trials, sum(rollout.duration_s for rollout in result.outcomes)


def _mujoco(threads: int) -> tuple[int, float]:
    import mujoco
    import numpy as np
    from mujoco import rollout

    from gaploop.sim.cell import SimCell

    with SimCell() as cell:
        cell.reset(0)
        model, state = cell.model, mujoco.mjtState.mjSTATE_FULLPHYSICS
        initial = np.empty(mujoco.mj_stateSize(model, state))
        mujoco.mj_getState(model, cell.data, initial, state)
        steps = round(PHYSICS_S / WORLDS / model.opt.timestep)
        control = np.tile(cell.data.ctrl, (WORLDS, steps, 1))
        data = [mujoco.MjData(model) for _ in range(threads)]
        rollout.rollout(model, data, np.tile(initial, (WORLDS, 1)), control)
    return 0, WORLDS * steps * model.opt.timestep


def _nexus(threads: int) -> tuple[int, float]:
    import gymnasium

    importlib.import_module("so101_nexus.mjbatch")  # registers its environments
    try:
        worlds = gymnasium.make_vec("MJBatchPickLift-v1", num_envs=WORLDS, num_threads=threads)
    except ImportError:
        return 0, 0.0
    worlds.reset(seed=0)
    step_s = 1.0 / worlds.metadata["render_fps"]
    steps = round(PHYSICS_S / WORLDS / step_s)
    for _ in range(steps):
        worlds.step(worlds.action_space.sample())
    worlds.close()
    return 0, WORLDS * steps * step_s


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as lines."""
    return "\n".join(
        f"{name}: {run['simulated_s_per_s']:.1f} simulated seconds a second"
        + (f", {run['takes_a_minute']:.0f} a minute" if "takes_a_minute" in run else "")
        if run["simulated_s_per_s"] else f"{name}: not installed"
        for name, run in result["runs"].items()
    )  # fmt: skip
