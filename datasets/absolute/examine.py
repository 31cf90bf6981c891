"""All absolute tests of a dataset, of several of one station, and of two versions of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.paths import relative_path
from gaploop.datasets import layout
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.episodes import EpisodeTests
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.heat import examine_heat
from gaploop.datasets.absolute.history import Day, Trend, trends
from gaploop.datasets.absolute.recording import read_recording

if TYPE_CHECKING:
    from gaploop.datasets.absolute.versions import SetComparison

LARGEST: Final = 5000
"""Episodes of a training set that are compared; of a larger one so many, spread evenly."""
TRAIN_CONFIG: Final = "train_config.json"
PLACES: Final = ("", "pretrained_model", "checkpoints/last/pretrained_model")
"""Where LeRobot keeps it in a checkpoint, and in a training's folder."""


def examine(
    root: Path, *, pictures: bool = True, opened: Callable[[Path], Any] | None = None
) -> AbsoluteReport:
    """Examine a LeRobot v3 dataset; what it says needs no reference, label or outcome.

    Args:
        pictures: look at videos, too: seconds for two cameras.
        opened: opens a video that isn't at its path, such as one on a Hub.

    Raises:
        UnusableInputError: it isn't one, or its tables can't be read.
    """
    report = AbsoluteReport(root)
    with layout.reraise_for(root):
        recording = read_recording(root)
        ArmTests(recording, report).run()
        EpisodeTests(recording, report).run()
        examine_heat(recording, report)
        if pictures:
            from gaploop.datasets.absolute.cameras import CameraTests, look
            from gaploop.datasets.video import open_video

            CameraTests(recording, report, look(recording, opened or open_video)).run()
    report.rank()
    return report


@dataclass(frozen=True)
class TrainingSet:
    """A dataset, and which of its episodes a training used; None is all."""

    name: str
    root: Path
    only: tuple[int, ...] | None = None


def training_set(path: Path) -> TrainingSet:
    """Return the dataset at a path, or the one that the checkpoint there was trained on.

    Raises:
        UnusableInputError: neither, or the checkpoint's dataset isn't on this machine.
    """
    if layout.is_dataset(path):
        return TrainingSet(str(path), path)
    found = [path / place / TRAIN_CONFIG for place in PLACES]
    config = next((file for file in found if file.is_file()), None)
    if config is None:
        raise UnusableInputError(
            f"{path} is neither a dataset nor a checkpoint with a {TRAIN_CONFIG}. Name one of them."
        )
    about: Any = read_json(config).get("dataset")
    about = about if isinstance(about, dict) else {}
    repo_id, root = str(about.get("repo_id") or ""), about.get("root")
    home = Path(os.environ.get("HF_LEROBOT_HOME") or Path.home() / ".cache/huggingface/lerobot")
    places = [Path(root)] if isinstance(root, str) else []
    places += [home / relative_path(repo_id, "dataset.repo_id", config)] if repo_id else []
    there = next((place for place in places if layout.is_dataset(place)), None)
    if there is None:
        named = " or ".join(map(str, places)) or "no dataset"
        raise UnusableInputError(
            f"{config} names {named}, which is not on this machine. Name the dataset itself."
        )
    episodes = about.get("episodes")
    only = tuple(map(int, episodes)) if isinstance(episodes, list) else None
    return TrainingSet(str(path), there, only)


def compare_sets(
    sets: Sequence[TrainingSet], advance: Callable[[], Any] = lambda: None
) -> tuple[list[Trend], SetComparison, list[str]]:
    """Return what changed over several datasets, oldest first.

    Returns:
        Figures of arm and cameras that changed, and between which; what the episodes of the last
        two hold that differs; and which datasets show too little for figures.

    Raises:
        UnusableInputError: one of them isn't a dataset, or its tables can't be read.
    """
    from gaploop.datasets.absolute.cameras import CameraTests, look
    from gaploop.datasets.absolute.versions import compare, contents

    short = [Path(one.name).name for one in sets]
    names = short if len(set(short)) == len(sets) else [one.name for one in sets]
    days, silent, held = list[Day](), list[str](), []
    for n, (name, one) in enumerate(zip(names, sets, strict=True)):
        report = AbsoluteReport(one.root)
        with layout.reraise_for(one.root):
            recording = read_recording(one.root)
            ArmTests(recording, report).run()
            EpisodeTests(recording, report).run()
            looks = look(recording)
            CameraTests(recording, report, looks).run()
            days.append((name, report.figures))
            if not report.figures:
                silent.append(f"{name}: {recording.why_not or 'fewer than five episodes'}")
            advance()
            if n >= len(sets) - 2:
                whole = read_recording(one.root, at_most=LARGEST)
                held.append(contents(name, whole, looks, report, one.only))
    return trends(days), compare(*held), silent
