"""The command `gaploop publish`."""

from dataclasses import dataclass, field
from pathlib import Path

from gaploop.scripts.options import PublishedDataset


@dataclass
class PublishConfig:
    """Publish a journal's episodes to a LeRobot v3 dataset, without re-encoding their videos.

    Episodes that the dataset has already are left alone, labels given since then are brought over.
    Discarded, interrupted and unsealed episodes stay in the journal, and so do episodes with people
    whose consent to publishing isn't valid today. Safe to kill at any instant. Exit code 1 where a
    sealed episode couldn't be published.
    """

    journal: Path | None = None
    """Folder of recorded episodes."""
    dataset: PublishedDataset = field(default_factory=PublishedDataset)
    json: bool = False
    """Print {"published", "present", "skipped", "refused", "labels", "withheld", "push"}."""


RARE = ("dataset.private",)
EXAMPLE = """
gaploop publish --journal=recordings/journal --dataset.root=recordings/pick_place \\
                --dataset.repo_id=me/pick_place
"""
