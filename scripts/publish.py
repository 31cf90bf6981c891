"""The command `gaploop publish`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import is_journal, take_folders
from gaploop.datasets.lerobot_publish import PublishReport, publish_takes
from gaploop.scripts.cli import command
from gaploop.scripts.options import PublishedDataset, counted, emit, progress, required
from gaploop.scripts.push import push_after


@dataclass
class PublishConfig:
    """Publish a journal's episodes to a LeRobot v3 dataset, without re-encoding their videos.

    Only those in which people are blurred are encoded again. Episodes that the dataset has already
    are left alone, labels given since then are brought over. Discarded, interrupted and unsealed
    episodes stay in the journal, and so do episodes with people whose consent to publishing isn't
    valid today. Safe to kill at any instant. Exit code 1 where a sealed episode couldn't be
    published.
    """

    journal: Path | None = None
    """Folder of recorded episodes."""
    dataset: PublishedDataset = field(default_factory=PublishedDataset)
    blur_people: str = ""
    """Blur faces and people in new episodes: true for OpenCV's detectors, or an ONNX file of a YOLO
    detector. A help that misses people; the journal keeps its pictures."""
    json: bool = False
    """Print {"published", "present", "skipped", "refused", "labels", "withheld", "people",
    "push"}."""


RARE = ("dataset.private", "blur_people")
EXAMPLE = """
gaploop publish --journal=recordings/journal --dataset.root=recordings/pick_place \\
                --dataset.repo_id=me/pick_place
"""


def run(config: PublishConfig) -> int:
    """Publish what is new; 1 if a sealed episode was refused."""
    report = publish(config)
    root = config.dataset.folder()
    pushed = push_after(config.dataset, root, blur_people=config.blur_people)
    lines = [f"{len(report.published)} episodes published to {root}, {report.present} were there."]
    lines += [
        f"{count} {outcome.replace('_', ' ')} left in the journal."
        for outcome, count in report.skipped.items()
    ]
    for reason, count in Counter(report.withheld.values()).items():
        lines.append(f"{counted(count, 'episode')} not published: {reason}.")
    lines += [f"Episode {uid} not published: {why}." for uid, why in report.refused.items()]
    if config.blur_people:
        shown = [n for n in report.people.values() if n]
        lines.append(
            f"{sum(shown)} faces and people blurred in {counted(len(shown), 'episode')}. Detectors "
            "miss people: look at the pictures."
        )
    if report.labels:
        lines.append(f"{report.labels} label events brought over.")
    emit(config.json, {**asdict(report), "push": pushed}, "\n".join(lines))
    return int(bool(report.refused))


@command
def publish(config: PublishConfig) -> PublishReport:
    """Publish a journal's episodes to a LeRobot v3 dataset; `gaploop push` pushes it.

    Raises:
        UnusableInputError: the journal or the dataset can't be used.
    """
    from gaploop.datasets.people import people_detector

    named = config.dataset.root
    if config.journal is None and named is not None and is_journal(named):
        raise UnusableInputError(
            f"{named} is a journal. Publish it with: gaploop publish --journal={named} "
            "--dataset.root=DIR, the dataset's folder."
        )
    journal = required(config.journal, "Which journal? Name its folder with --journal=DIR.")
    root, blur = config.dataset.folder(), people_detector(config.blur_people)
    folders = len(take_folders(journal))
    with progress("Publishing", folders) as advance:

        def on_take(done: int, total: int) -> None:
            advance(1 if done > 1 else 1 + folders - total)  # those that are there already, too

        return publish_takes(journal, root, on_take=on_take, blur=blur)
