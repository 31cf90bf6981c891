"""A take as the page shows it, read ahead so that the next one is there when it is opened."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from gaploop.core.errors import GaploopError
from gaploop.datasets.layout import EpisodeRow
from gaploop.failure_analysis.review.chart import options
from gaploop.failure_analysis.review.curves import curves
from gaploop.failure_analysis.review.media import Media
from gaploop.failure_analysis.review.source import TakeSource

MOST_TAKES: Final = 24


@dataclass(frozen=True)
class Prepared:
    """What the page shows of a take.

    Attributes:
        cameras: camera to address of its video.
        frame_t_s: when each frame was recorded [s].
        fps: frames per second of the videos.
        signals: options for ECharts, as JSON; "" where there is nothing to draw.
        marks: from and to [s], and what is so then, in words.
        message: what is said in place of a video, or "".
    """

    cameras: Mapping[str, str]
    frame_t_s: Sequence[float]
    fps: float
    signals: str = ""
    marks: Sequence[tuple[float, float, str]] = ()
    message: str = ""


class Preparer:
    """Reads takes, from any thread, and keeps the last ones.

    Args:
        source: where they are.
        media: where their videos go.
    """

    def __init__(self, source: TakeSource, media: Media) -> None:
        self._source = source
        self._media = media
        self._kept: OrderedDict[str, Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, episode: EpisodeRow) -> Prepared:
        """Return a take as the page shows it; what can't be read is said in its message."""
        uid = episode.info.uid
        with self._lock:
            found = self._kept.get(uid)
        if found is None:
            found = self._read(episode)
            with self._lock:
                self._kept[uid] = found
                while len(self._kept) > MOST_TAKES:
                    self._kept.popitem(last=False)
        return found

    def ahead(self, episode: EpisodeRow) -> None:
        """Read a take and make its videos, for later; what fails is said once it is opened."""
        self.take(episode)
        with contextlib.suppress(GaploopError, OSError):
            for picture in self._source.pictures(episode):
                self._source.inside(picture.path)
                self._media.video(episode.info.uid, picture)

    def _read(self, episode: EpisodeRow) -> Prepared:
        fps = episode.info.fps
        try:
            found = curves(self._source.take(episode))
            pictures = self._source.pictures(episode)
        except (GaploopError, OSError, KeyError, ValueError) as error:
            return Prepared({}, (), fps, message=" ".join(str(error).split()))
        uid = quote(episode.info.uid, safe="")
        cameras = {p.camera: f"/media/{uid}/{quote(p.camera, safe='')}" for p in pictures}
        message = "" if cameras else "This take has no video."
        signals = json.dumps(options(found)) if found.strips else ""
        marks = [(span.start_s, span.end_s, span.says) for span in found.spans]
        return Prepared(cameras, found.frame_t_s.tolist(), fps, signals, marks, message)
