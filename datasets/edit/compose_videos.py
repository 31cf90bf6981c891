"""Videos of chosen episodes into a new dataset, without decoding them.

A file all of whose episodes are chosen is taken as it is. Others are cut packet by packet, so
that nothing of the episodes left out stays in a file.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import staging
from gaploop.datasets.edit.compose_rows import CHUNK_FILES
from gaploop.datasets.edit.pieces import DatasetPiece, damaged
from gaploop.datasets.layout import EpisodeRow
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.video import (
    MAX_FILE_BYTES,
    DamagedVideoError,
    VideoWriter,
    count_frames,
    encode_part,
)

type Clip = tuple[int, EpisodeRow, float]
"""Index in the new dataset, episode, start in its file [s]."""
_REENCODE: Final = "Allow those episodes to be encoded again, with a loss, with --reencode=true."


@dataclass(frozen=True)
class VideoRules:
    """How videos may be brought over.

    Attributes:
        link: whole files become hard links: only where the source is about to be replaced.
        reencode: what can't be cut is decoded and encoded again.
    """

    link: bool = False
    reencode: bool = False


@dataclass
class VideosDone:
    """What was done with videos.

    Attributes:
        rows: per episode of the new dataset, the columns of `meta/episodes` about videos.
        whole: files taken as they are.
        cut: episodes cut out packet by packet.
        encoded: episodes encoded again.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    whole: int = 0
    cut: int = 0
    encoded: int = 0


def write_videos(pieces: Sequence[DatasetPiece], stage: Path, rules: VideoRules) -> VideosDone:
    """Write the videos of a dataset made of `pieces`.

    Raises:
        UnusableInputError: a video is missing or damaged, or can't be cut and must not be encoded
            again.
    """
    done = VideosDone([{} for piece in pieces for _ in piece.chosen])
    for key in pieces[0].info.video_keys:
        shelf = _Shelf(stage, key, pieces, rules, done)
        with contextlib.closing(shelf):
            _write_camera(pieces, key, shelf)
    return done


def _write_camera(pieces: Sequence[DatasetPiece], key: str, shelf: _Shelf) -> None:
    first = 0
    for piece in pieces:
        held = Counter(video_of(piece.info, e.row, key)[0] for e in piece.held)
        for path, clips in _by_file(piece, key, first).items():
            if len(clips) == held[path]:
                shelf.take(piece, path, clips)
            else:
                for clip in clips:
                    shelf.cut(path, clip)
        first += len(piece.chosen)


def _by_file(piece: DatasetPiece, key: str, first: int) -> dict[Path, list[Clip]]:
    """Return each file with the chosen episodes in it; `first` is the new index of the first."""
    files: dict[Path, list[Clip]] = {}
    for new, episode in enumerate(piece.episodes, first):
        path, start_s = video_of(piece.info, episode.row, key)
        if path is None:
            raise damaged(piece, f"episode {episode.index} doesn't say where its {key} is.")
        if not path.exists():
            raise UnusableInputError(
                f"{path} is missing. Restore it, or go on without pictures: gaploop import "
                f"{piece.info.root} --format=lerobot --drop_videos=true --output_dir=OUT"
            )
        files.setdefault(path, []).append((new, episode, start_s))
    return files


class _Shelf:
    """The new dataset's video files of one camera."""

    def __init__(
        self,
        stage: Path,
        key: str,
        pieces: Sequence[DatasetPiece],
        rules: VideoRules,
        done: VideosDone,
    ) -> None:
        self._stage, self._key, self._info = stage, key, pieces[0].info
        self._rules, self._done = rules, done
        self._writer: VideoWriter | None = None
        self._number = -1

    def take(self, piece: DatasetPiece, path: Path, clips: Sequence[Clip]) -> None:
        """Take a file as it is."""
        self.close()
        needed = max(round(start_s * self._info.fps) + e.length for _, e, start_s in clips)
        held = count_frames(path)
        if held < needed:
            raise damaged(piece, f"{path.name} holds {held} pictures for {needed} rows.")
        target = self._next()
        if self._rules.link:
            staging.link(path, target)
        else:
            shutil.copy2(path, target)
        self._done.whole += 1
        for new, episode, start_s in clips:
            self._note(new, start_s, episode.length)

    def cut(self, path: Path, clip: Clip) -> None:
        """Append one episode of a file."""
        new, episode, start_s = clip
        if self._writer is not None and self._writer.size_bytes >= MAX_FILE_BYTES:
            self.close()
        try:
            first = self._append(path, start_s, episode.length)
            self._done.cut += 1
        except DamagedVideoError:
            raise  # decoding it wouldn't go better
        except UnusableInputError as error:
            if not self._rules.reencode:
                raise UnusableInputError(f"{error} {_REENCODE}") from None
            first = self._encode(path, start_s, episode.length)
            self._done.encoded += 1
        self._note(new, first / self._info.fps, episode.length)

    def _append(self, path: Path, start_s: float, frames: int) -> int:
        """Append part of a file to the open one, or to the next; return its first frame there."""
        if self._writer is not None:
            first = self._writer.frames
            if self._writer.append_part(path, start_s, frames):
                return first
            self.close()
        writer = VideoWriter(self._next(), self._info.fps)
        try:
            writer.append_part(path, start_s, frames)
        except UnusableInputError:
            self._number -= 1  # nothing was written: the next file gets this number
            raise
        self._writer = writer
        return 0

    def _encode(self, path: Path, start_s: float, frames: int) -> int:
        with tempfile.TemporaryDirectory(dir=self._stage) as scratch:
            clip = Path(scratch, "clip.mp4")
            encode_part(path, start_s, frames, self._info.fps, clip)
            return self._append(clip, 0.0, frames)

    def _next(self) -> Path:
        self._number += 1
        chunk, file = divmod(self._number, CHUNK_FILES)
        name = self._info.video_name(self._key, chunk, file)
        path = self._stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _note(self, new: int, start_s: float, frames: int) -> None:
        chunk, file = divmod(self._number, CHUNK_FILES)
        self._done.rows[new] |= {
            f"videos/{self._key}/chunk_index": chunk,
            f"videos/{self._key}/file_index": file,
            f"videos/{self._key}/from_timestamp": start_s,
            f"videos/{self._key}/to_timestamp": start_s + frames / self._info.fps,
        }

    def close(self) -> None:
        """Finish the open file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
