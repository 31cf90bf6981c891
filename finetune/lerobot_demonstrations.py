"""Successes in anybody's simulation as a LeRobot dataset, for a policy to be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from gaploop.core.errors import UnusableInputError
from gaploop.sim.lerobot_worlds import GymAttempts


class Demonstrations:
    """Writes attempts that succeeded, as a policy would have seen them; a context manager."""

    def __init__(self, root: Path, task: str = "") -> None:
        """Take note of where they go.

        Args:
            task: the instruction; the environment's own if "".

        Raises:
            UnusableInputError: something is there already.
        """
        if root.exists() and any(root.iterdir()):
            raise UnusableInputError(
                f"{root} isn't empty: demonstrations go into a new dataset. Name another "
                "--dataset.root, and put both together with gaploop edit."
            )
        self._root, self._task = root, task
        self._dataset: Any = None

    def add(self, attempts: GymAttempts) -> None:
        """Write the last attempt."""
        frames = list[dict[str, Any]]()
        for seen, action in attempts.finished:
            frames.append({ACTION: action})
            if np.size(state := seen.get("agent_pos", ())):
                frames[-1][OBS_STATE] = np.asarray(state, dtype=np.float32)
            for name, image in seen.get("pixels", {}).items():
                frames[-1][f"{OBS_IMAGES}.{name}"] = image
        if self._dataset is None:
            self._dataset = LeRobotDataset.create(
                f"local/{self._root.name}",
                attempts.metadata["render_fps"],
                {key: _feature(key, value) for key, value in frames[0].items()},
                root=self._root,
                robot_type="simulation",
            )
        for frame in frames:
            self._dataset.add_frame({**frame, "task": self._task or attempts.task})
        self._dataset.save_episode()

    def __enter__(self) -> Demonstrations:
        if self._root.exists():
            self._root.rmdir()  # empty; LeRobot makes it itself
        return self

    def __exit__(self, *_error: object) -> None:
        if self._dataset is not None:
            self._dataset.finalize()


def _feature(key: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    if value.dtype == np.uint8:
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": value.shape, "names": names}
    names = [f"{key.rpartition('.')[2]}_{k}" for k in range(len(value))]
    return {"dtype": "float32", "shape": value.shape, "names": names}
