"""One take of a dataset or journal, read from nothing but files that lie inside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gaploop.core import journal_format
from gaploop.core.journal_format import read_header, read_take, take_folders
from gaploop.core.paths import inside
from gaploop.core.take import Take
from gaploop.datasets import columns, layout
from gaploop.datasets.frames import data_file
from gaploop.datasets.labels.labelled import FolderLabels
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import read_episode, video_of
from gaploop.datasets.telemetry_zarr import telemetry_path


@dataclass(frozen=True)
class CameraVideo:
    """Where a camera's pictures of one take are.

    Attributes:
        camera: its name.
        path: the video file.
        start_s: time of the take's first picture in it [s].
        frames: how many pictures; 0 where only the file knows.
        fps: frames per second.
    """

    camera: str
    path: Path
    start_s: float
    frames: int
    fps: float


class TakeSource:
    """Reads takes of one folder; refuses what its descriptions place outside it.

    Names in a dataset's or journal's descriptions are data: whoever wrote them could point at any
    file of this machine, with `..` or with a symbolic link.

    Args:
        folder: what is in it, from `open_labelled`.
    """

    def __init__(self, folder: FolderLabels) -> None:
        self.root = folder.root
        self._info: DatasetInfo | None = None if folder.journal else layout.read_info(folder.root)
        self._folders: dict[str, Path] = {}
        if folder.journal:
            paths = take_folders(folder.root)
            pairs = zip(folder.episodes, paths, strict=True)
            self._folders = {episode.info.uid: path for episode, path in pairs}

    def take(self, episode: EpisodeRow) -> Take:
        """Read a take, its pictures on demand.

        Raises:
            UnusableInputError: it can't be read, or lies outside the folder.
            OSError: it is gone.
        """
        if self._info is None:
            path = self._folders[episode.info.uid]
            names = (journal_format.HEADER, journal_format.FRAMES, journal_format.TELEMETRY)
            for name in names:
                self.inside(path / name)
            for picture in self.pictures(episode):
                self.inside(picture.path)
            return read_take(path, {})
        self.inside(data_file(self._info, episode))
        self.inside(telemetry_path(self.root, episode.info.uid))
        for picture in self.pictures(episode):
            self.inside(picture.path)
        return read_episode(self._info, episode)

    def pictures(self, episode: EpisodeRow) -> list[CameraVideo]:
        """Return where each camera's pictures of a take are; not whether they are inside."""
        if self._info is None:
            path = self._folders[episode.info.uid]
            fps = episode.info.fps
            names = read_header(path).cameras
            return [CameraVideo(c, journal_format.camera_path(path, c), 0.0, 0, fps) for c in names]
        found = []
        for key in self._info.video_keys:
            file, start_s = video_of(self._info, episode.row, key)
            if file is not None:
                camera = key.removeprefix(columns.IMAGES)
                found.append(CameraVideo(camera, file, start_s, episode.length, self._info.fps))
        return found

    def inside(self, path: Path) -> Path:
        """Return where a file really is.

        Raises:
            UnusableInputError: outside the folder.
        """
        below = path.relative_to(self.root)
        return inside(self.root, below, "file", of_snapshot=True).resolve()
