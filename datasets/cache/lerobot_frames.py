"""A dataset's pictures into the frame cache: each video decoded once, from front to back."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import av
import cv2
import numpy as np
import torch
import xxhash
from lerobot.datasets.video_utils import (
    FrameTimestampError,
    VideoDecoderCache,
    decode_video_frames_torchcodec,
)
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Image
from gaploop.datasets.cache import folder
from gaploop.datasets.layout import reraise_as_damaged
from gaploop.datasets.video import open_video

log = logging.getLogger(__name__)

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
JUMP_S: Final = 5.0
"""Pictures that nobody wants are decoded up to this long a stretch [s], and jumped over beyond."""
AT_ONCE: Final = 32
"""Pictures asked of torchcodec in one call."""


class NoRoomError(Exception):
    """The pictures don't fit; the message says what they take and what there is."""


def cache_pictures(
    clips: Sequence[Clip],
    rows: int,
    decoding: Decoding,
    options: folder.CacheOptions,
    progress: folder.Progress,
) -> tuple[folder.CacheFolder, dict[str, folder.PictureStore]]:
    """Return the stores of all cameras, for a table of `rows`, after decoding what isn't cached.

    Raises:
        NoRoomError: they don't fit the bound and the disk.
        UnusableInputError: a video can't be read, or lacks a picture for some row.
    """
    try:
        cache = _Cache(clips, decoding, options)
        cache.make_room()
        cache.folder.use(cache.form)
        if cache.missing():
            with cache.folder.building():
                cache.build(cache.missing(), progress)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        where = error.filename or options.dir or folder.default_folder()
        raise NoRoomError(f"{where}: {error.strerror}") from None
    return cache.folder, cache.stores(rows)


class _Cache:
    """One dataset's packs, as far as the wanted clips go."""

    def __init__(
        self, clips: Sequence[Clip], decoding: Decoding, options: folder.CacheOptions
    ) -> None:
        self.clips, self.decoding, self.options = clips, decoding, options
        self.folder = folder.CacheFolder(decoding.root, options)
        self.ids = self.folder.video_ids(list(dict.fromkeys(c.video for c in clips)))

        size = "native" if options.shape is None else f"{options.shape[1]}x{options.shape[0]}"
        self.form = f"raw-{size}-{decoding.backend}"

    def make_room(self) -> None:
        """Make room for what isn't cached, or raise NoRoomError."""
        shapes = ((self.decoding.size or c.shape, len(c.rows)) for c in self.missing())
        needed = sum(3 * height * width * n for (height, width), n in shapes)
        if needed and needed > (room := self.folder.room(needed, self.form)):
            raise NoRoomError(
                f"its pictures take {needed / 1e9:.2f} GB, and {max(room, 0) / 1e9:.2f} GB of "
                f"{self.folder.base} may be used (--cache.max_gb={self.options.max_gb:g})"
            )

    def missing(self) -> list[Clip]:
        """Return the clips that aren't cached."""
        held = self._held()
        return [c for c in self.clips if self._key(c) not in held[c.video]]

    def _held(self) -> dict[str, dict[str, folder.PackedEpisode]]:
        return {video: folder.read_index(self._pack(video)) for video in self.ids}

    def build(self, clips: Sequence[Clip], progress: folder.Progress) -> None:
        """Decode clips into their packs, several videos at once; call with the lock held."""
        if not clips:
            return
        by_video = sorted(clips, key=lambda c: (c.video, c.times_s[0]))
        jobs = [list(group) for _, group in groupby(by_video, key=lambda c: c.video)]
        log.info("Decoding the videos of %s once, into %s.", self.decoding.root, self.folder.path)
        stop = threading.Event()
        with (
            progress("Caching pictures", sum(len(c.rows) for c in clips)) as advance,
            ThreadPoolExecutor(max_workers=min(len(jobs), os.cpu_count() or 1)) as pool,
        ):
            running = [pool.submit(self._decode, job, advance, stop) for job in jobs]
            try:
                for job in running:
                    job.result()
            except BaseException as error:
                stop.set()
                pool.shutdown(cancel_futures=True)
                if isinstance(error, OSError):
                    for clip in clips:  # a cache that can't be used takes no room either
                        folder.remove(self._pack(clip.video))
                raise

    def stores(self, rows: int) -> dict[str, folder.PictureStore]:
        """Return each camera's pictures."""
        result, held = {}, self._held()
        for camera in dict.fromkeys(c.camera for c in self.clips):
            mine = [c for c in self.clips if c.camera == camera]
            videos = list(dict.fromkeys(c.video for c in mine))
            entries: list[tuple[int, folder.PackedEpisode, folder.Int64Array]] = [
                (videos.index(c.video), held[c.video][self._key(c)], c.rows) for c in mine
            ]
            sizes = {f"{e.shape[1]}x{e.shape[0]}" for _, e, _ in entries}
            if len(sizes) > 1:
                raise UnusableInputError(
                    f"{self.decoding.root}: pictures of {camera} have sizes {', '.join(sizes)}. "
                    "Give them one with --cache.size=WIDTHxHEIGHT."
                )
            packs = [self._pack(v) for v in videos]
            result[camera] = folder.PictureStore(packs, entries, rows)
        return result

    def _decode(
        self, clips: Sequence[Clip], advance: Callable[[int], None], stop: threading.Event
    ) -> None:
        def episodes() -> Iterator[tuple[str, Iterator[Image]]]:
            for clip, pictures in decoded(clips, self.decoding):
                if stop.is_set():
                    return
                yield self._key(clip), pictures
                advance(len(clip.rows))

        folder.append_episodes(self._pack(clips[0].video), episodes())

    def _pack(self, video: str) -> Path:
        name = f"{video.replace('/', '_')}.{self.ids[video]}{folder.PACK}"
        return self.folder.path / self.form / name

    def _key(self, clip: Clip) -> str:
        digest = xxhash.xxh3_128(clip.times_s.tobytes())
        digest.update(repr((clip.camera, self.decoding.tolerance_s)).encode())
        return digest.hexdigest()


# Videos into pictures, as LeRobot's reader would return them for every row: the same decoder, the
# same choice of the nearest frame in single precision, the same tolerance; but each file is opened
# once and decoded from front to back.


@dataclass(frozen=True)
class Clip:
    """The pictures of one episode and camera in a video file.

    Attributes:
        camera: feature.
        video: name of the file, relative to the dataset.
        times_s: when each row's picture is shown in the file [s], shape (n,).
        rows: rows of the loaded table, shape (n,).
        shape: height and width as `meta/info.json` says [px].
    """

    episode: int
    camera: str
    video: str
    times_s: NDArray[np.float64]
    rows: folder.Int64Array
    shape: tuple[int, int]


@dataclass(frozen=True)
class Decoding:
    """How videos are read, as in `LeRobotDataset`, and the size that pictures are scaled to."""

    root: Path
    backend: str
    tolerance_s: float
    size: tuple[int, int] | None


def scaled(picture: Image, size: tuple[int, int] | None) -> Image:
    """Return an RGB picture (height, width, 3) scaled to a size, by averaging over areas."""
    if size is None or picture.shape[:2] == size:
        return picture
    height, width = size
    result = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(result, dtype=np.uint8)


def all_scaled(pictures: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return RGB pictures (…, 3, height, width), uint8, scaled by `scaled`."""
    flat = pictures.reshape(-1, *pictures.shape[-3:]).permute(0, 2, 3, 1).cpu().numpy()
    done = np.stack([scaled(picture, size).transpose(2, 0, 1) for picture in flat])
    return torch.from_numpy(done).reshape(*pictures.shape[:-2], *size).to(pictures.device)


def decoded(clips: Sequence[Clip], decoding: Decoding) -> Iterator[tuple[Clip, Iterator[Image]]]:
    """Yield each clip of a video file, in order of time, with its pictures, to be taken in turn."""
    path = decoding.root / clips[0].video
    if decoding.backend == "torchcodec":
        # Not in LeRobot's common cache of decoders: worker processes would share its file handles.
        decoders = VideoDecoderCache()
        try:
            yield from ((c, _by_torchcodec(path, c, decoding, decoders)) for c in clips)
        finally:
            decoders.clear()
        return
    with open_video(path) as container:
        stream = _Frames(container)
        for clip in clips:
            yield clip, _in_order(path, stream, clip, decoding)


class _Frames:
    """The frames of an open video in order of time, around a moving point in time."""

    def __init__(self, container: Any) -> None:
        self._container, self._stream = container, container.streams.video[0]
        self._stream.thread_type = "AUTO"
        self._frames: Iterator[Any] = iter(())
        self.before: Any = None
        self.after: Any = None
        self._at_s = -np.inf

    def go_to(self, time_s: float) -> None:
        """Make `before` and `after` the neighbours of a time; they show None past either end."""
        if not self._at_s <= time_s <= self._at_s + JUMP_S:
            # As LeRobot: to the key frame before, with a margin of one tick.
            tick = round(time_s / self._stream.time_base) - 1
            self._container.seek(tick, backward=True, any_frame=False, stream=self._stream)
            self._frames = iter(self._container.decode(self._stream))
            self.before, self.after = None, self._next()
        self._at_s = time_s
        while self.after is not None and self.time_s(self.after) < time_s:
            self.before, self.after = self.after, self._next()

    def time_s(self, frame: Any) -> float:
        return float(frame.pts * self._stream.time_base)

    def _next(self) -> Any:
        return next((f for f in self._frames if f.pts is not None), None)


def _in_order(path: Path, frames: _Frames, clip: Clip, decoding: Decoding) -> Iterator[Image]:
    shown, picture = None, None
    fix = f"Restore it, or leave episode {clip.episode} out."
    with reraise_as_damaged(f"{path} can't be decoded", fix, (av.FFmpegError,)):
        for k, time_s in enumerate(clip.times_s.tolist()):
            frames.go_to(time_s)
            near = [f for f in (frames.before, frames.after) if f is not None]
            # In single precision, as LeRobot compares; the earlier one wins a tie.
            away = [abs(np.float32(time_s) - np.float32(frames.time_s(f))) for f in near]
            best = int(np.argmin(away)) if away else -1
            if not away or not away[best] < np.float32(decoding.tolerance_s):
                nearest = "the video ends before"
                if away:
                    nearest = f"the nearest is {min(away):.4f} s off"
                raise UnusableInputError(
                    f"{path} has no picture for frame {k} of episode {clip.episode} at "
                    f"{time_s:.4f} s; {nearest}. See gaploop check, or leave the episode out with "
                    "--dataset.episodes."
                )
            if near[best] is not shown or picture is None:
                shown = near[best]
                picture = scaled(shown.to_ndarray(format="rgb24"), decoding.size)
            yield picture


def _by_torchcodec(
    path: Path, clip: Clip, decoding: Decoding, decoders: VideoDecoderCache
) -> Iterator[Image]:
    for first in range(0, len(clip.times_s), AT_ONCE):
        times_s = clip.times_s[first : first + AT_ONCE].tolist()
        problem = f"{path}: episode {clip.episode} can't be decoded"
        errors = (FrameTimestampError, RuntimeError, IndexError)
        with reraise_as_damaged(problem, "See gaploop check.", errors):
            found = decode_video_frames_torchcodec(
                path, times_s, decoding.tolerance_s, decoder_cache=decoders, return_uint8=True
            )
        for picture in found.permute(0, 2, 3, 1).numpy():
            yield scaled(picture, decoding.size)
