"""Whether plain LeRobot reads a dataset, asked of LeRobot itself."""

from __future__ import annotations

from pathlib import Path

from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

from gaploop.core.errors import UnusableInputError


def require_loads(root: Path) -> None:
    """Refuse a dataset whose metadata LeRobot can't read.

    Only the metadata: opening the frames would leave a copy of them in Hugging Face's cache.
    `gaploop check` compares frames and videos with it.

    Raises:
        UnusableInputError: LeRobot's reason, and how to find out more.
    """
    try:
        metadata = LeRobotDatasetMetadata(f"local/{root.name}", root=root)
        if metadata.episodes is None or not len(metadata.episodes):
            raise ValueError("it has no episodes")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableInputError(
            f"LeRobot can't load {root} ({reason}). Find out more with: gaploop check {root}"
        ) from None
