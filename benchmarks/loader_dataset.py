"""The dataset of `benchmarks loader`: two 640×480 cameras, as LeRobot itself writes it."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.cameras import CAMERAS, HEIGHT, WIDTH, barcode, texture
from gaploop.scripts import options
from gaploop.teleop.emulator.arms import JOINTS

FPS: Final = 30
TAKE_S: Final = 10
REPO: Final = "bench/loader"


def make_dataset(folder: Path, takes: int) -> Path:
    """Return a dataset as LeRobot writes it with its default codec; made once per folder."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = folder / f"dataset_{takes}"
    if (root / "meta" / "stats.json").exists() and (folder / f"{root.name}.done").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    joints = {"dtype": "float32", "shape": (len(JOINTS),), "names": list(JOINTS)}
    shape, names = (HEIGHT, WIDTH, 3), ["height", "width", "channels"]
    features: dict[str, Any] = {"observation.state": joints, "action": joints}
    for camera in CAMERAS:
        features[feature(camera)] = {"dtype": "video", "shape": shape, "names": names}
    # A queue that holds a whole take: LeRobot drops pictures that come faster than it encodes.
    dataset = LeRobotDataset.create(
        REPO, FPS, features, root, streaming_encoding=True, encoder_queue_maxsize=TAKE_S * FPS
    )
    scenes = {camera: texture(k) for k, camera in enumerate(CAMERAS)}
    draw = np.random.default_rng(0)
    numbers = itertools.count()
    with options.progress("Making the dataset", takes) as advance:
        for _ in range(takes):
            for number in itertools.islice(numbers, TAKE_S * FPS):
                joints_now = draw.normal(size=len(JOINTS)).astype(np.float32)
                frame = {"observation.state": joints_now, "action": joints_now, "task": "bench"}
                dataset.add_frame(
                    {**frame, **{feature(c): barcode(number, scene) for c, scene in scenes.items()}}
                )
            dataset.save_episode()
            advance()
    dataset.finalize()
    (folder / f"{root.name}.done").touch()
    return root


def feature(camera: str) -> str:
    """Return the name under which a dataset holds a camera's pictures."""
    return f"observation.images.{camera}"
