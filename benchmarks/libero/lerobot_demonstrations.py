"""Scripted demonstrations of LIBERO's tasks as a LeRobot dataset, with LIBERO's usual features."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from lerobot.configs.video import RGBEncoderConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from benchmarks.libero.lerobot_scene import CAMERAS, FPS, PICTURE_PX, Scene
from benchmarks.libero.rollouts import TaskName
from benchmarks.libero.scripted import demonstrate
from gaploop.core.errors import GaploopError
from gaploop.core.types import FloatArray, Observation

STATE: Final = ("x", "y", "z", "turn_x", "turn_y", "turn_z", "finger_left", "finger_right")
ACTION: Final = ("x", "y", "z", "turn_x", "turn_y", "turn_z", "gripper")
SHAKE: Final = 0.2
"""Spread of the noise on what is executed; what is kept is what was asked for, so that policies
also see how one gets back."""
TRIES: Final = 3
"""The script may need so many scenes for each success."""


def record(
    task: TaskName,
    folder: Path,
    n: int,
    seed: int,
    cameras: Sequence[str] = tuple(CAMERAS),
    advance: Callable[[], None] = lambda: None,
) -> Path:
    """Record `n` successful demonstrations, and return `folder`; nothing is done where it is there.

    Args:
        task: which.
        folder: becomes a LeRobot dataset once all are recorded.
        n: how many.
        seed: of the first scene; further ones follow.
        cameras: those that are drawn, of `CAMERAS`.
        advance: called after each.

    Raises:
        GaploopError: the script fails too often.
    """
    if folder.exists():
        return folder
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # what a kill left
    video = {"dtype": "video", "shape": (PICTURE_PX, PICTURE_PX, 3),
             "names": ["height", "width", "channels"]}  # fmt: skip
    dataset = LeRobotDataset.create(
        f"local/{folder.name}",
        FPS,
        {
            **{f"observation.images.{name}": video for name in cameras},
            "observation.state": {"dtype": "float32", "shape": (8,), "names": list(STATE)},
            "action": {"dtype": "float32", "shape": (7,), "names": list(ACTION)},
        },
        root=part,
        robot_type="panda",
        rgb_encoder=RGBEncoderConfig(vcodec="h264", crf=18, preset="veryfast"),
    )
    scene = Scene(task, cameras)
    try:
        for number in range(n * TRIES):
            if dataset.meta.total_episodes == n:
                break
            frames = _demonstration(scene, seed + number)
            for observation, action in frames:
                dataset.add_frame({**_frame(observation, action), "task": scene.instruction})
            if frames:
                dataset.save_episode()
                advance()
        found = dataset.meta.total_episodes
        dataset.finalize()
    finally:
        scene.close()
    if found < n:
        raise GaploopError(
            f"{task}: the script did it in {found} of {n * TRIES} scenes, and {n} are needed. "
            "Name recorded demonstrations with --data=DIR, or other tasks."
        )
    os.replace(part, folder)
    return folder


def _demonstration(scene: Scene, seed: int) -> list[tuple[Observation, FloatArray]]:
    """Return what was seen and done; nothing where it failed."""
    scene.reset(seed)
    rng, frames = np.random.default_rng(seed), list[tuple[Observation, FloatArray]]()
    for action in demonstrate(scene):
        frames.append((scene.look(), action))
        noise = np.append(SHAKE * rng.standard_normal(6) * (np.abs(action[:6]).max() > 0), 0.0)
        if scene.step(action + noise):
            return frames
    return []


def _frame(observation: Observation, action: FloatArray) -> dict[str, Any]:
    return {
        **{f"observation.images.{name}": image for name, image in observation.images.items()},
        "observation.state": observation.state.astype(np.float32),
        "action": action.astype(np.float32),
    }
