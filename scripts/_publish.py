"""What `gaploop publish` does."""

from collections import Counter
from dataclasses import asdict

from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import is_journal, take_folders
from gaploop.datasets.lerobot_publish import PublishReport, publish_takes
from gaploop.scripts.cli import command
from gaploop.scripts.options import counted, emit, progress, required
from gaploop.scripts.publish import PublishConfig
from gaploop.scripts.push import push_after


def run(config: PublishConfig) -> int:
    """Publish what is new; 1 if a sealed episode was refused."""
    report = publish(config)
    root = config.dataset.folder()
    pushed = push_after(config.dataset, root)
    new = counted(len(report.published), "episode")
    lines = [f"{new} published to {root}, {report.present} were there."]
    lines += [
        f"{count} {outcome.replace('_', ' ')} left in the journal."
        for outcome, count in report.skipped.items()
    ]
    for reason, count in Counter(report.withheld.values()).items():
        lines.append(f"{counted(count, 'episode')} not published: {reason}.")
    for uid, why in report.refused.items():
        lines.append(f"Episode {uid} not published: {why.rstrip('.')}.")
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
    named = config.dataset.root
    if config.journal is None and named is not None and is_journal(named):
        raise UnusableInputError(
            f"{named} is a journal. Publish it with: gaploop publish --journal={named} "
            "--dataset.root=DIR, the dataset's folder."
        )
    journal = required(config.journal, "Which journal? Name its folder with --journal=DIR.")
    root, folders = config.dataset.folder(), len(take_folders(journal))
    with progress("Publishing", folders) as advance:

        def on_take(done: int, total: int) -> None:
            advance(1 if done > 1 else 1 + folders - total)  # those that are there already, too

        return publish_takes(journal, root, on_take=on_take)
