"""Scripted demonstrations of LIBERO's tasks, each a LeRobot dataset with LIBERO's features."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from lerobot.configs.video import RGBEncoderConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from benchmarks.libero.lerobot_scene import FPS, PICTURE_PX, Scene, open_scene
from benchmarks.libero.rollouts import TaskName
from benchmarks.libero.scripted import demonstrate
from gaploop.core.messages import FloatArray, Observation

STATE: Final = ("x", "y", "z", "turn_x", "turn_y", "turn_z", "finger_left", "finger_right")
ACTION: Final = ("x", "y", "z", "turn_x", "turn_y", "turn_z", "gripper")
SHAKE: Final = 0.2
"""Spread of the noise on what is executed; what is kept is what was asked for, so that policies
also see how one gets back."""
FAILED: Final = "failed"
"""Of a scene in which the script failed, beside the datasets."""


@dataclass(frozen=True)
class DemonstrationJob:
    """One scene to demonstrate a task in.

    Attributes:
        task: which.
        folder: gets a dataset of one episode, named by the seed, or a note that the script failed.
        seed: names the scene.
        cameras: those that are drawn, of `CAMERAS`.
    """

    task: TaskName
    folder: Path
    seed: int
    cameras: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The dataset."""
        return self.folder / str(self.seed)

    @property
    def note(self) -> Path:
        """What says that the script failed."""
        return self.folder / f"{self.seed}.{FAILED}"


def record(job: DemonstrationJob) -> bool:
    """Record a demonstration where it isn't there yet, and return whether the script did it."""
    if job.root.exists() or job.note.exists():
        return job.root.exists()
    scene = open_scene(job.task, job.cameras)
    frames = _demonstration(scene, job.seed)
    job.folder.mkdir(parents=True, exist_ok=True)
    if not frames:
        job.note.touch()
        return False
    part = job.folder / f"{job.seed}.part"
    shutil.rmtree(part, ignore_errors=True)  # what a kill left
    video = {"dtype": "video", "shape": (PICTURE_PX, PICTURE_PX, 3),
             "names": ["height", "width", "channels"]}  # fmt: skip
    dataset = LeRobotDataset.create(
        f"local/{job.folder.name}",
        FPS,
        {
            **{f"observation.images.{name}": video for name in job.cameras},
            "observation.state": {"dtype": "float32", "shape": (8,), "names": list(STATE)},
            "action": {"dtype": "float32", "shape": (7,), "names": list(ACTION)},
        },
        root=part,
        robot_type="panda",
        rgb_encoder=RGBEncoderConfig(vcodec="h264", crf=18, preset="veryfast"),
    )
    for observation, action in frames:
        dataset.add_frame({**_frame(observation, action), "task": scene.instruction})
    dataset.save_episode()
    dataset.finalize()
    os.replace(part, job.root)
    return True


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
