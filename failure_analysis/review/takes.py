"""The takes of the page: which are listed, what needs a person first; and one as the page shows it.

A journal's Matroska files don't play in browsers, and a dataset's MP4 holds hundreds of episodes:
each take gets one small MP4 per camera. The packets are copied without decoding, each at exactly
k / fps, so that seeking to a frame shows that frame; where that can't be, they are encoded anew.
"""

import contextlib
import hashlib
import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import av
import numpy as np

from gaploop.core import journal_format
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.grippers import Gripper
from gaploop.core.journal_format import read_header, read_take, take_folders
from gaploop.core.messages import Image
from gaploop.core.paths import inside
from gaploop.core.station import StationScene
from gaploop.core.take import Images, Take
from gaploop.core.vocabulary import Outcome, set_up
from gaploop.datasets import columns, layout
from gaploop.datasets.labels import LabelStore, where
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import pictures_of, read_episode, video_of
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.datasets.v3_files import data_file
from gaploop.datasets.video import (
    DamagedVideoError,
    VideoRange,
    VideoWriter,
    encode,
    open_video,
    pictures_at,
)
from gaploop.failure_analysis.diagnosis import NO_MODE, UNKNOWN_MODE, TakeDiagnosis
from gaploop.failure_analysis.review.signals import curves, options
from gaploop.failure_analysis.views.joints import grippers_of, in_units, units_of
from gaploop.sim.recolour import THE_CELLS, recoloured_take

ANY: Final = ""
SETTLED: Final = (Outcome.SUCCESS, Outcome.DISCARDED)
"""Outcomes that nobody has to look into."""


class Who(StrEnum):
    """What has been said about a take, as a filter."""

    NEEDS_YOU = "needs you"
    UNLABELLED = "unlabelled"
    LABELLED = "labelled by you"
    DISAGREEMENT = "people disagree"
    UNSURE = "no clear cause"


@dataclass(frozen=True)
class Filter:
    """Which takes are listed; an empty word asks for nothing.

    A dimension is one that they are tagged with, or that is suggested first; a condition is as
    `lighting=dim`. The text is words that stand in uid, task, conditions, operator, session or
    policy, or a query such as `lighting=dim phase=grasp`.
    """

    outcome: str = ANY
    mode: str = ANY
    dimension: str = ANY
    condition: str = ANY
    session: str = ANY
    policy: str = ANY
    who: str = ANY
    text: str = ANY


@dataclass(frozen=True)
class Listed:
    """One take as the list shows it to a labeller, with the diagnosis, if there is one."""

    episode: EpisodeRow
    done: bool
    differ: bool
    found: TakeDiagnosis | None

    @property
    def uid(self) -> str:
        """Its uid."""
        return self.episode.info.uid

    @property
    def needs(self) -> bool:
        """Whether the labeller still has to look at it."""
        return not self.done and self.episode.outcome not in SETTLED

    @property
    def mode(self) -> str:
        """The mode that is labelled, or else suggested."""
        seen = self.found and self.found.mode not in (NO_MODE, UNKNOWN_MODE)
        suggested = self.found.mode if self.found and seen else ""
        return self.episode.failure_mode or suggested

    @property
    def why(self) -> str:
        """The heaviest dimension that is labelled on a failure, or else suggested, or ""."""
        weights = self.episode.info.dimensions
        if weights and self.episode.outcome == Outcome.FAILURE:
            return max(weights, key=lambda name: weights[name])
        return self.found.top if self.found else ""

    @property
    def maybe(self) -> str:
        """The leading dimension of a diagnosis that abstains, while nobody named a cause, or ""."""
        settled = self.episode.outcome in SETTLED
        if self.found is None or not self.found.abstained or self.why or settled:
            return ""
        return self.found.leaning


def choose(takes: Sequence[Listed], by: Filter) -> list[Listed]:
    """Return the takes that a filter asks for, those that need a person first.

    Raises:
        UnusableInputError: its text is a query that can't be understood.
    """
    found, words = {t.episode.index for t in takes}, list[str]()
    if "=" in by.text:
        found = set(where(by.text, [t.episode for t in takes], "Search"))
    else:
        words = by.text.casefold().split()
    chosen = []
    for take in takes:
        info = take.episode.info
        yes = take.episode.index in found
        if words:
            known = (info.uid, info.task, info.operator, info.session, info.policy, info.plan)
            searched = (*known, *_conditions(info.conditions), f"#{take.episode.index}")
            haystack = " ".join(searched).casefold()
            yes = all(word in haystack for word in words)
        if (
            yes
            and by.outcome in (ANY, take.episode.outcome)
            and by.mode in (ANY, take.mode)
            and by.session in (ANY, info.session)
            and by.policy in (ANY, info.policy)
            and (by.dimension in (ANY, take.why) or by.dimension in info.dimensions)
            and (by.condition == ANY or by.condition in _conditions(info.conditions))
            and (by.who == ANY or _WHO[Who(by.who)](take))
        ):
            chosen.append(take)
    return sorted(chosen, key=_urgency)


def _urgency(take: Listed) -> tuple[int, float, int]:
    """Return what the list is sorted by: group, how clear the suggestion is, episode.

    First what people disagree on, then what the labeller hasn't seen, the least clear first; last
    what is done, and what went well.
    """
    if take.differ:
        return 0, 0.0, take.episode.index
    if not take.needs:
        return (3 if take.done else 4), 0.0, take.episode.index
    if take.found is None or take.found.abstained:
        return 1, 0.0, take.episode.index
    return 2, max(take.found.dimensions.values()), take.episode.index


_WHO: Final[Mapping[Who, Callable[[Listed], bool]]] = {
    Who.NEEDS_YOU: lambda t: t.needs,
    Who.UNLABELLED: lambda t: not t.episode.failure_mode and t.episode.outcome not in SETTLED,
    Who.LABELLED: lambda t: t.done,
    Who.DISAGREEMENT: lambda t: t.differ,
    Who.UNSURE: lambda t: t.found is not None and t.found.abstained,
}


def _conditions(conditions: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in set_up(conditions).items()]


MOST_OPTIONS: Final = 200
"""A list that is longer is no help; the search finds the others."""


def offered(takes: Sequence[Listed]) -> dict[str, list[str]]:
    """Return what the filters offer: field of `Filter` to values, the most frequent first."""
    infos = [t.episode.info for t in takes]
    values = {
        "outcome": [t.episode.outcome.value for t in takes],
        "mode": [t.mode for t in takes],
        "dimension": [t.why for t in takes],
        "condition": [c for info in infos for c in _conditions(info.conditions)],
        "session": [info.session for info in infos],
        "policy": [info.policy for info in infos],
    }
    counts = {name: Counter(v for v in found if v) for name, found in values.items()}
    return {name: [v for v, _ in n.most_common(MOST_OPTIONS)] for name, n in counts.items()}


REFERENCE_TAKES: Final = 40
"""As many say what is usual, and in what units joints are: reading all of them takes long."""


@dataclass(frozen=True)
class CameraVideo:
    """Where a camera's pictures of one take are: so many `frames`, 0 where only the file knows.

    `stored` are those that lie in the rows themselves, and not in a video.
    """

    camera: str
    path: Path
    start_s: float
    frames: int
    fps: float
    stored: Images | None = None


class TakeSource:
    """Reads takes of one folder; refuses what its descriptions place outside it.

    Names in a dataset's or journal's descriptions are data: whoever wrote them could point at any
    file of this machine, with `..` or with a symbolic link. `units` are those of joints of takes
    that don't say theirs, "" where they stay unknown.
    """

    def __init__(self, store: LabelStore, units: str = "", scene: StationScene = THE_CELLS) -> None:
        self.root, self._units, self._scene = store.root, units, scene
        self._first = store.episodes[:REFERENCE_TAKES]
        self._info: DatasetInfo | None = None if store.journal else layout.read_info(store.root)
        self._folders: dict[str, Path] = {}
        if store.journal:
            pairs = zip(store.episodes, take_folders(store.root), strict=True)
            self._folders = {episode.info.uid: path for episode, path in pairs}

    def take(self, episode: EpisodeRow) -> Take:
        """Read a take, its pictures on demand.

        Raises:
            UnusableInputError: it can't be read, or lies outside the folder.
            OSError: it is gone.
        """
        return replace(self._read(episode), grippers=self._grippers)

    @cached_property
    def _grippers(self) -> tuple[Gripper, ...] | None:
        return grippers_of(self._first_takes())

    def _first_takes(self) -> list[Take]:
        takes = []
        for episode in self._first:
            with contextlib.suppress(GaploopError, OSError, KeyError, ValueError):
                takes.append(self._read(episode))  # what can't be read is said once it is opened
        return takes

    def _read(self, episode: EpisodeRow) -> Take:
        uid = episode.info.uid
        if self._info is None:
            names = (journal_format.HEADER, journal_format.FRAMES, journal_format.TELEMETRY)
            files = [self._folders[uid] / name for name in names]
        else:
            files = [data_file(self._info, episode), telemetry_path(self.root, uid)]
        for path in files:
            self.inside(path)
        for picture in self.pictures(episode):
            self.inside(picture.path)
        if self._info is None:
            take = read_take(self._folders[uid], {})
        else:
            take = read_episode(self._info, episode)
        return in_units(recoloured_take(take, self._scene), self._units)

    def units(self, stated: str) -> str:
        """Return the units of joints of takes that don't say theirs, as the first ones tell.

        Raises:
            UnusableInputError: as of `units_of`, or the station's camera isn't there.
        """
        for episode in self._first:
            if names := sorted(picture.camera for picture in self.pictures(episode)):
                self._scene.camera_among(names, str(self.root))
        return units_of(self._first_takes(), stated)

    def pictures(self, episode: EpisodeRow) -> list[CameraVideo]:
        """Return where each camera's pictures of a take are; not whether they are inside."""
        if self._info is None:
            path = self._folders[episode.info.uid]
            fps = episode.info.fps
            names = read_header(path).cameras
            files = [journal_format.camera_path(path, c) for c in names]
            found = [CameraVideo(c, f, 0.0, 0, fps) for c, f in zip(names, files, strict=True)]
        else:
            found, info = [], self._info
            for key in dict.fromkeys([*info.video_keys, *info.camera_keys]):
                file, start_s = video_of(info, episode.row, key)
                stored = None
                if key not in info.video_keys:
                    file, stored = data_file(info, episode), pictures_of(info, episode, key)
                if file is not None:
                    where_ = key.removeprefix(columns.IMAGES), file, start_s, episode.length
                    found.append(CameraVideo(*where_, info.fps, stored))
        return sorted(found, key=lambda video: video.camera != self._scene.camera)

    def picture(self, episode: EpisodeRow, camera: str, row: int) -> Image:
        """Return one picture as it was recorded, RGB, shape (height, width, 3).

        Raises:
            UnusableInputError: there is no such camera or picture, or it lies outside the folder.
        """
        for video in self.pictures(episode):
            if video.camera == camera:
                self.inside(video.path)
                some = video.path, video.start_s, video.frames or row + 1, video.fps
                for _, picture in pictures_at(video.stored or VideoRange(*some), [row]):
                    return picture
        raise UnusableInputError(f"This episode has no picture {row} of camera {camera!r}.")

    def inside(self, path: Path) -> Path:
        """Return where a file really is.

        Raises:
            UnusableInputError: outside the folder.
        """
        below = path.relative_to(self.root)
        return inside(self.root, below, "file", of_snapshot=True).resolve()


PLAYABLE: Final = ("h264", "av1", "vp9")
"""What browsers on Linux, macOS and Windows play without asking the system for help."""
SUBSAMPLED: Final = "yuv420p"
"""The only pixel format that they all play."""
MOST_FILES: Final = 240


class Media:
    """Makes and keeps the videos of takes looked at last; whoever made the folder empties it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: OrderedDict[str, Path] = OrderedDict()
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def video(self, uid: str, picture: CameraVideo) -> Path:
        """Return a take's video of one camera, made when first asked for.

        The caller has checked that the pictures lie where they may.

        Raises:
            UnusableInputError: it can't be read.
            OSError: there is no room.
        """
        name = hashlib.sha256(f"{uid}/{picture.camera}".encode()).hexdigest()[:24]
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            path = self._made.get(name)
            if path is None or not path.exists():
                path = self._folder / f"{name}.mp4"
                part = path.with_suffix(".part")
                make_playable(picture, part)
                part.replace(path)
            with self._lock:
                self._made[name] = path
                self._made.move_to_end(name)
                while len(self._made) > MOST_FILES:
                    _, oldest = self._made.popitem(last=False)
                    oldest.unlink(missing_ok=True)
            return path


def make_playable(picture: CameraVideo, target: Path) -> None:
    """Write a take's pictures to an MP4 that browsers play, its first one at time 0.

    Raises:
        UnusableInputError: they can't be read, or there are none.
    """
    frames, plays = picture.frames, False
    if picture.stored is None:
        with open_video(picture.path) as container:
            context = container.streams.video[0].codec_context
            plays = context.codec.canonical_name in PLAYABLE and context.pix_fmt == SUBSAMPLED
            if not frames:  # up to where a kill may have torn the file
                with contextlib.suppress(av.FFmpegError):
                    for packet in container.demux(video=0):
                        frames += bool(packet.size) and not packet.is_corrupt
    if not frames:
        raise UnusableInputError(f"{picture.path} holds no whole picture. The episode was cut off.")
    if plays:
        with contextlib.suppress(UnusableInputError), VideoWriter(target, picture.fps) as writer:
            writer.append_part(picture.path, picture.start_s, frames)
            return
    options = {"crf": "18", "g": "10", "bf": "0", "preset": "veryfast"}
    encoding = "libx264", options, SUBSAMPLED
    if not encode(_decoded(picture, frames), target, picture.fps, encoding):
        raise UnusableInputError(f"{picture.path} can't be decoded. Restore it from a copy.")


def _decoded(picture: CameraVideo, frames: int) -> Iterator[av.VideoFrame]:
    """Yield pictures of even sizes from the first one on, up to where the file may be torn."""
    of_video = VideoRange(picture.path, picture.start_s, frames, picture.fps)
    with contextlib.suppress(DamagedVideoError):
        for image in (picture.stored or of_video)():
            height, width = (n - n % 2 for n in image.shape[:2])
            even = np.ascontiguousarray(image[:height, :width])
            yield av.VideoFrame.from_ndarray(even, format="rgb24")


MOST_TAKES: Final = 24


@dataclass(frozen=True)
class Prepared:
    """What the page shows of a take: its videos' addresses by camera, or a message in their place.

    The signals are options for ECharts, as JSON, "" where there is nothing to draw; marks say from
    and to [s] what is so then.
    """

    cameras: Mapping[str, str]
    frame_t_s: Sequence[float]
    fps: float
    signals: str = ""
    marks: Sequence[tuple[float, float, str]] = ()
    message: str = ""


class Preparer:
    """Reads takes, from any thread, and keeps the last ones."""

    def __init__(self, source: TakeSource, media: Media) -> None:
        self._source = source
        self._media = media
        self._kept: OrderedDict[str, Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, episode: EpisodeRow) -> Prepared:
        """Return a take as the page shows it; what can't be read is said in its message."""
        uid, fps = episode.info.uid, episode.info.fps
        with self._lock:
            found = self._kept.get(uid)
        if found is not None:
            return found
        try:
            drawn = curves(self._source.take(episode))
            pictures = self._source.pictures(episode)
        except (GaploopError, OSError, KeyError, ValueError) as error:
            found = Prepared({}, (), fps, message=" ".join(str(error).split()))
        else:
            address = f"media/{quote(uid, safe='')}"
            cameras = {p.camera: f"{address}/{quote(p.camera, safe='')}" for p in pictures}
            message = "" if cameras else "This episode has no pictures."
            signals = json.dumps(options(drawn)) if drawn.strips else ""
            marks = [(span.start_s, span.end_s, span.label) for span in drawn.spans]
            found = Prepared(cameras, drawn.frame_t_s.tolist(), fps, signals, marks, message)
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
