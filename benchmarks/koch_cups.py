"""A plain LeRobot dataset of an emulated Koch arm whose leader was calibrated 17 degrees apart.

The arm is led over its bus as in `benchmarks/emulated_episodes.py`; LeRobot's own writer stores
what any recording has: action, state, pictures, a task. No outcome, no column of gaploop's.

    python -m benchmarks.koch_cups cups 6     # or without the number: 20 episodes
"""

from __future__ import annotations

import sys
from pathlib import Path

import av.logging
import cv2
import numpy as np

from benchmarks.emulated_episodes import record
from gaploop.core.messages import FloatArray, Image
from gaploop.core.progress import lines_while, setup_logging

FPS = 30
OFF_DEG = {"shoulder_lift": 17.0}
SIZE = (160, 120)


def main(root: Path, episodes: int = 20) -> None:
    """Write the dataset to `root`, a new folder."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names, _ = record("koch", 0, episodes=0)
    apart = np.array([OFF_DEG.get(name, 0.0) for name in names])
    names, made = record("koch", 7, episodes=episodes, fps=FPS, sent=lambda u, _episode: u + apart)
    vector = {"dtype": "float32", "shape": (6,), "names": [f"{n}.pos" for n in names]}
    camera = {"dtype": "video", "shape": (*SIZE[::-1], 3), "names": ["height", "width", "channels"]}
    features = {"action": vector, "observation.state": vector, "observation.images.desk": camera}
    dataset = LeRobotDataset.create(
        "me/cups", FPS, features, root=root, robot_type="koch_follower", use_videos=True,
        # Without a PNG of each picture; none is dropped, however slow the encoder is.
        streaming_encoding=True, encoder_queue_maxsize=10_000,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    desk = cv2.GaussianBlur(rng.uniform(60, 200, (*SIZE[::-1], 3)).astype(np.float32), (0, 0), 3)
    desk = np.clip(2 * desk - 130, 0, 255).astype(np.uint8)
    for n, (command, reading) in enumerate(made):
        for u, y in zip(command, reading, strict=True):
            frame = {
                "action": np.float32(u),
                "observation.state": np.float32(y),
                "observation.images.desk": picture(desk, y, rng),
                "task": "Stack the cups." if n % 5 == 4 else "Stack the cups",
            }
            dataset.add_frame(frame)
        dataset.save_episode()
    dataset.finalize()


def picture(desk: Image, q_deg: FloatArray, rng: np.random.Generator) -> Image:
    """Draw the arm's links, seen from the side, before the desk."""
    shown = desk.copy()
    at, angle = np.array([50.0 + 0.4 * q_deg[0], 115.0]), np.radians(80.0)
    for length, bend in ((45, q_deg[1]), (40, q_deg[2]), (25, q_deg[3])):
        angle -= np.radians(bend)
        to = at + length * np.array([np.cos(angle), -np.sin(angle)])
        cv2.line(shown, at.astype(int).tolist(), to.astype(int).tolist(), (20, 20, 20), 9)
        at = to
    noisy = rng.normal(0, 2.0, shown.shape)
    noisy += shown
    return np.clip(noisy, 0, 255, out=noisy).astype(np.uint8)


if __name__ == "__main__":
    setup_logging()  # without what LeRobot and the encoder say to themselves
    av.logging.set_libav_level(av.logging.ERROR)
    with lines_while(lambda: "Making episodes …"):
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
