"""A dataset's pictures into the frame cache: each video decoded once, from front to back."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.cache.folder import (
    CacheFolder,
    CacheOptions,
    Progress,
    default_folder,
    form_name,
    remove,
)
from gaploop.datasets.cache.lerobot_decode import Clip, Decoding, decoded, scaled
from gaploop.datasets.cache.packs import (
    Codec,
    Int64Array,
    PackedEpisode,
    PackWriter,
    PictureStore,
    encode,
    read_index,
)
from gaploop.datasets.video import sample_pictures

log = logging.getLogger(__name__)

MARGIN: Final = 1.3
"""JPEG sizes are guessed from a few key frames; this is added for what they don't show."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class NoRoomError(Exception):
    """The pictures don't fit; the message says what they take and what there is."""


def cache_pictures(
    clips: Sequence[Clip],
    rows: int,
    decoding: Decoding,
    options: CacheOptions,
    progress: Progress,
) -> tuple[CacheFolder, dict[str, PictureStore]]:
    """Return the stores of all cameras, after decoding what isn't cached yet.

    Args:
        clips: what is wanted.
        rows: rows of the loaded table.

    Raises:
        NoRoomError: neither form fits the bound and the disk.
        UnusableInputError: a video can't be read, or lacks a picture for some row.
    """
    try:
        folder = CacheFolder(decoding.root, options)
        ids = folder.video_ids(list(dict.fromkeys(c.video for c in clips)))
        cache = _Cache(folder, ids, decoding, options)
        codec = cache.fitting(clips)
        folder.use(cache.form(codec))
        if cache.missing(clips, codec):
            with folder.building():
                cache.build(cache.missing(clips, codec), codec, progress)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        where = error.filename or options.folder or default_folder()
        raise NoRoomError(f"{where}: {error.strerror}") from None
    return folder, cache.stores(clips, rows, codec)


class _Cache:
    """One dataset's packs, as far as the wanted clips go."""

    def __init__(
        self, folder: CacheFolder, ids: dict[str, str], decoding: Decoding, options: CacheOptions
    ) -> None:
        self.folder, self.ids, self.decoding, self.options = folder, ids, decoding, options

    def fitting(self, clips: Sequence[Clip]) -> Codec:
        """Return the form to keep pictures in: the first allowed one that fits."""
        allowed: tuple[Codec, ...] = ("raw", "jpeg")
        needs = []
        for codec in allowed:
            if self.options.mode in ("auto", codec):
                missing = self.missing(clips, codec)
                needed = self._raw_bytes(missing) if codec == "raw" else self._jpeg_bytes(missing)
                room = self.folder.room(needed, self.form(codec)) if missing else 0
                if needed <= room or not missing:
                    return codec
                needs.append(f"{needed / 1e9:.2f} GB as {codec}")
        raise NoRoomError(
            f"its pictures would take {' or '.join(needs)}, and {max(room, 0) / 1e9:.2f} GB of "
            f"{self.folder.base} may be used (--cache.max_gb={self.options.max_gb:g})"
        )

    def missing(self, clips: Sequence[Clip], codec: Codec) -> list[Clip]:
        """Return the clips that aren't cached."""
        held = {video: read_index(self._pack(video, codec)) for video in {c.video for c in clips}}
        return [c for c in clips if self._key(c) not in held[c.video]]

    def build(self, clips: Sequence[Clip], codec: Codec, progress: Progress) -> None:
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
            running = [pool.submit(self._decode, job, codec, advance, stop) for job in jobs]
            try:
                for job in running:
                    job.result()
            except BaseException as error:
                stop.set()
                pool.shutdown(cancel_futures=True)
                if isinstance(error, NoRoomError | OSError):
                    for clip in clips:  # a cache that can't be used takes no room either
                        remove(self._pack(clip.video, codec))
                raise

    def stores(self, clips: Sequence[Clip], rows: int, codec: Codec) -> dict[str, PictureStore]:
        """Return each camera's pictures.

        Raises:
            UnusableInputError: a camera's pictures are of several sizes.
        """
        result = {}
        held = {video: read_index(self._pack(video, codec)) for video in {c.video for c in clips}}
        for camera in dict.fromkeys(c.camera for c in clips):
            mine = [c for c in clips if c.camera == camera]
            videos = list(dict.fromkeys(c.video for c in mine))
            entries: list[tuple[int, PackedEpisode, Int64Array]] = [
                (videos.index(c.video), held[c.video][self._key(c)], c.rows) for c in mine
            ]
            sizes = {f"{e.shape[1]}x{e.shape[0]}" for _, e, _ in entries}
            if len(sizes) > 1:
                raise UnusableInputError(
                    f"{self.decoding.root}: pictures of {camera} have sizes {', '.join(sizes)}. "
                    "Give them one with --cache.size=WIDTHxHEIGHT."
                )
            packs = [self._pack(v, codec) for v in videos]
            result[camera] = PictureStore(codec, packs, entries, rows)
        return result

    def _decode(
        self,
        clips: Sequence[Clip],
        codec: Codec,
        advance: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        pack = self._pack(clips[0].video, codec)
        with PackWriter(pack, codec, self.options.quality) as writer:
            for clip, pictures in decoded(clips, self.decoding):
                if stop.is_set():
                    return
                writer.append(self._key(clip), pictures)
                advance(len(clip.rows))
                if codec == "jpeg" and self.folder.left() < 0:
                    raise NoRoomError(
                        "its pictures turned out larger than guessed and exceed "
                        f"--cache.max_gb={self.options.max_gb:g}"
                    )

    def form(self, codec: Codec) -> str:
        """Return the name of the folder that pictures go to."""
        return form_name(codec, self.options, self.decoding.backend)

    def _pack(self, video: str, codec: Codec) -> Path:
        return self.folder.pack(self.form(codec), video, self.ids[video])

    def _key(self, clip: Clip) -> str:
        digest = xxhash.xxh3_128(clip.times_s.tobytes())
        digest.update(repr((clip.camera, self.decoding.tolerance_s)).encode())
        return digest.hexdigest()

    def _raw_bytes(self, clips: Sequence[Clip]) -> int:
        shapes = ((self.decoding.size or c.shape, len(c.rows)) for c in clips)
        return sum(3 * height * width * n for (height, width), n in shapes)

    def _jpeg_bytes(self, clips: Sequence[Clip]) -> int:
        per_picture = {}
        for camera in {c.camera for c in clips}:
            video = next(c.video for c in clips if c.camera == camera)
            shown = sample_pictures(self.decoding.root / video, 4).transpose(0, 2, 3, 1)
            sizes = [
                len(encode(scaled(p, self.decoding.size), "jpeg", self.options.quality))
                for p in shown
            ]
            per_picture[camera] = MARGIN * float(np.mean(sizes))
        return int(sum(per_picture[c.camera] * len(c.rows) for c in clips))
