"""Attempts in anybody's simulation as a LeRobot dataset: to train on, or to diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from gaploop.core.errors import UnusableInputError
from gaploop.core.labels import LabelEvent
from gaploop.datasets.labels.store import open_labelled
from gaploop.sim.lerobot_worlds import GymAttempts


class Demonstrations:
    """Writes attempts that succeeded, as a policy would have seen them; a context manager.

    Attributes:
        failures: those that failed are written, too, and all are labelled as rollouts.
    """

    def __init__(self, root: Path, task: str = "", *, failures: bool = False) -> None:
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
        self._root, self._task, self.failures = root, task, failures
        self._won, self._domain = list[bool](), "sim"
        self._dataset: Any = None

    def add(self, attempts: GymAttempts, *, success: bool = True) -> None:
        """Write the last attempt, where it is wanted."""
        if not success and not self.failures:
            return
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
        self._won.append(success)
        self._domain = "sim_target" if attempts.world.injected else "sim"

    def __enter__(self) -> Demonstrations:
        if self._root.exists():
            self._root.rmdir()  # empty; LeRobot makes it itself
        return self

    def __exit__(self, *_error: object) -> None:
        if self._dataset is None:
            return
        self._dataset.finalize()
        if self.failures:
            store = open_labelled(self._root).add_columns()
            said = [
                LabelEvent(e.info.uid, name, value, "gaploop evaluate", "auto")
                for e, won in zip(store.episodes, self._won, strict=True)
                for name, value in (
                    ("outcome", "success" if won else "failure"), ("kind", "rollout"),
                    ("domain", self._domain),
                )
            ]  # fmt: skip
            store.say(said)


def _feature(key: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    if value.dtype == np.uint8:
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": value.shape, "names": names}
    names = [f"{key.rpartition('.')[2]}_{k}" for k in range(len(value))]
    return {"dtype": "float32", "shape": value.shape, "names": names}
