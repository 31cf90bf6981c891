"""All absolute tests of a dataset: arm, cameras, episodes."""

from __future__ import annotations

from pathlib import Path

from gaploop.datasets import layout
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.episodes import EpisodeTests
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.recording import read_recording


def examine(root: Path, *, pictures: bool = True) -> AbsoluteReport:
    """Examine a LeRobot v3 dataset; what it says needs no reference, label or outcome.

    Args:
        pictures: look at videos, too: seconds for two cameras.

    Raises:
        UnusableInputError: it isn't one, or its tables can't be read.
    """
    report = AbsoluteReport(root)
    with layout.reraise_for(root):
        recording = read_recording(root)
        ArmTests(recording, report).run()
        EpisodeTests(recording, report).run()
        if pictures:
            from gaploop.datasets.absolute.cameras import CameraTests, look

            CameraTests(recording, report, look(recording)).run()
    report.rank()
    return report
