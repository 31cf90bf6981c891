"""A page with each absolute sentence and its curve: command and reading, or first pictures."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from markupsafe import Markup

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Image
from gaploop.datasets import layout
from gaploop.datasets.absolute.findings import SHOWN, AbsoluteFinding, AbsoluteReport
from gaploop.datasets.absolute.recording import MotionRecording, read_recording
from gaploop.datasets.columns import IMAGES
from gaploop.datasets.lerobot_read import pictures_at
from gaploop.failure_analysis.report.page import (
    Section,
    command,
    figure,
    figure_png,
    new_figure,
    page,
    section,
    text,
)
from gaploop.failure_analysis.views.pictures import picture_png

PICTURE_PX: Final = (320, 240)


def absolute_page(report: AbsoluteReport) -> str:
    """Return what a dataset shows by itself as a page, each sentence with a curve or pictures.

    Raises:
        UnusableInputError: the dataset can't be read any more.
    """
    recording, sections = read_recording(report.root), list[Section]()
    for finding in report.findings[:SHOWN]:
        blocks = [command(finding.command), _figure(recording, finding)]
        sections.append(section(finding.line(), "", blocks))
    untested = [f"{what} ({why})" for what, why in report.untested.items()]
    for title, said in (
        ("Tested and good", list(report.good.values())),
        ("Could not be tested", untested),
    ):
        sections.append(section(title, "", [text(f"{'; '.join(said) or 'nothing'}.")]))
    return page(report.root.name, sections)


def _figure(recording: MotionRecording, finding: AbsoluteFinding) -> Markup:
    shown = {e.index: e for e in recording.episodes}
    worst = finding.worst if finding.worst is not None else next(iter(finding.episodes), None)
    cameras = {key.removeprefix(IMAGES): key for key in recording.info.video_keys}
    if about := [cameras[name] for name in finding.about.split(", ") if name in cameras]:
        other = next((e for e in sorted(recording.lengths) if e not in finding.episodes), None)
        pair = [e for e in dict.fromkeys((other, worst)) if e is not None]
        found = [_picture(recording, key, e) for key in about for e in pair]
        images = [image for image in found if image is not None]
        caption = f"First pictures: {' and '.join(f'episode {e}' for e in pair)}"
        return figure(picture_png(np.hstack(images)), caption) if images else Markup("")
    if worst not in shown:
        return Markup("")
    episode, names = shown[worst], [j.name for j in recording.joints]
    own = [names.index(name) for name in finding.about.split(", ") if name in names]
    lines = [(names[k], episode.reading[:, k]) for k in recording.arm]
    if own:
        both = (("command", episode.command), ("reading", episode.reading))
        lines = [(f"{names[k]} {what}", x[:, k]) for k in own for what, x in both]
    with new_figure(7.6, 2.4) as (drawn, axes):
        for name, values in lines:
            axes.plot(np.arange(len(values)) / recording.info.fps, values, lw=1.2, label=name)
        axes.legend(fontsize=8, ncols=4, frameon=False)
        axes.set_xlabel("s")
        axes.set_ylabel(recording.unit or "units")
        return figure(figure_png(drawn), f"Episode {worst}")


def _picture(recording: MotionRecording, key: str, episode: int) -> Image | None:
    try:
        (one,) = layout.read_episodes(recording.info, [episode])
        first = pictures_at(recording.info, one, key, [0])[0]
        return np.asarray(cv2.resize(first, PICTURE_PX), dtype=np.uint8)
    except (UnusableInputError, OSError, KeyError, TypeError, ValueError):
        return None
