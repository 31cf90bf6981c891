"""Writes takes into the journal so that a kill at any instant loses at most half a second.

The format is `gaploop.core.journal_format`. Rows are batched and each batch is one write(2) of
a whole Arrow message; pictures are encoded as they come, one per frame row (see `streams`).
Encoding runs in the caller's process, where a 640×480 picture costs about 3 ms.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.collect.streams import ArrowStream, VideoStream
from gaploop.core import journal_format, labels, telemetry
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.files import sha256, sync_folder, write_json
from gaploop.core.journal_format import TakeEnd, TakeHeader
from gaploop.core.types import FloatArray, Image
from gaploop.core.vocabulary import Outcome


def warm_up() -> None:
    """Make the first `pa.array` now: it imports pandas, 0.45 s that no loop can spare."""
    pa.array(np.zeros(1), from_pandas=True)


@dataclass(frozen=True)
class FrameRow:
    """One row of `frames.arrows`; joints in the robot's LeRobot units.

    Attributes:
        t_s: time since the take began [s].
        state: `observation.state`, shape (n_joints,).
        action: what was requested, shape (n_joints,).
        sent: what was sent after the safety filter, shape (n_joints,).
        environment_state: tracked scene, shape (m,).
        intervention: a person had taken over.
        safety: `SafetyReason` bits.
        camera_age_s: camera to age of its picture [s].
        pictures: camera to its picture, one for every camera of the header.
    """

    t_s: float
    state: FloatArray
    action: FloatArray
    sent: FloatArray
    environment_state: FloatArray = field(default_factory=lambda: np.empty(0))
    intervention: bool = False
    safety: int = 0
    camera_age_s: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, Image] = field(default_factory=dict)


class JournalWriter:
    """Writes one take. Leaving it without `seal` leaves the take unsealed, which is `interrupted`.

    Args:
        journal: the folder of takes; made if it isn't there.
        header: what is known as the take begins; its uid names the folder.

    Raises:
        UnusableInputError: the folder can't be written, the take exists, a picture size is odd.
    """

    def __init__(self, journal: Path, header: TakeHeader) -> None:
        self.header = header
        self.folder = journal / header.info.uid
        self.sealed = False
        self._channels = tuple(header.channels)
        self._cleanup = contextlib.ExitStack()
        _make_folder(journal, self.folder)
        with contextlib.ExitStack() as undo:
            undo.callback(self._cleanup.close)
            self._open(header)
            write_json(self.folder / journal_format.HEADER, header.to_json())
            undo.pop_all()

    def _open(self, header: TakeHeader) -> None:
        n_joints, n_scene = len(header.info.joint_names), len(header.environment_state_names)
        cameras = tuple(header.cameras)
        self._frames = ArrowStream(
            self.folder / journal_format.FRAMES,
            journal_format.frames_schema(n_joints, n_scene, cameras),
            (1, n_joints, n_joints, n_joints, n_scene, 1, 1, *(1 for _ in cameras)),
        )
        self._cleanup.callback(self._frames.close)
        fcntl.flock(self._frames.handle, fcntl.LOCK_EX)  # `recover` leaves an open take alone
        self._telemetry = ArrowStream(
            self.folder / journal_format.TELEMETRY,
            telemetry.arrow_schema(header.channels),
            (1,) * (1 + len(self._channels)),
        )
        self._cleanup.callback(self._telemetry.close)
        self._videos: dict[str, VideoStream] = {}
        for camera, spec in header.cameras.items():
            video = VideoStream(
                self.folder / f"{camera}.mkv", spec["width"], spec["height"], spec["fps"]
            )
            self._videos[camera] = video
            self._cleanup.callback(video.close)

    @property
    def frames(self) -> int:
        """Frame rows taken so far."""
        return self._frames.rows

    def frame(self, row: FrameRow) -> None:
        """Add one policy frame and its pictures.

        Raises:
            DeviceError: a camera's picture is missing or has another size than the header says.
        """
        for camera, video in self._videos.items():
            if camera not in row.pictures:
                raise DeviceError(f"No picture of camera '{camera}' at {row.t_s:.3f} s. Check it.")
            video.check(row.pictures[camera], camera)
        ages = [row.camera_age_s.get(camera, np.nan) for camera in self._videos]
        values = np.concatenate(
            (
                [row.t_s],
                row.state,
                row.action,
                row.sent,
                row.environment_state,
                [float(row.intervention), float(row.safety), *ages],
            )
        )
        self._frames.append(values, row.t_s)
        for camera, video in self._videos.items():
            video.encode(row.pictures[camera])

    def telemetry(self, t_ns: int, values: FloatArray) -> None:
        """Add one row of telemetry.

        Args:
            t_ns: time since the take began [ns].
            values: in the order of the header's channels, shape (n_channels,); NaN is null on disk.
        """
        self._telemetry.append_after_time(t_ns, values)

    def telemetry_block(self, t_ns: NDArray[np.int64], values: FloatArray) -> None:
        """Add many rows at once, for imports.

        Args:
            t_ns: times since the take began [ns], shape (n,).
            values: in the order of the header's channels, shape (n, n_channels).
        """
        for t, row in zip(t_ns, values, strict=True):
            self._telemetry.append_after_time(int(t), row)

    def event(self, t_s: float, name: str, **details: Any) -> None:
        """Append one event (key, mark, intervention, trip) at `t_s` [s] to `events.jsonl`."""
        line = json.dumps({"t_s": t_s, "event": name, **details}, default=str) + "\n"
        with (self.folder / journal_format.EVENTS).open("a") as stream:
            stream.write(line)

    def seal(self, outcome: Outcome, reason: str = "") -> Path:
        """Finish every stream, then write `end.json`: from then on the take can't be lost.

        Returns:
            The take's folder.

        Raises:
            DeviceError: a video holds another number of pictures than there are frame rows.
        """
        for camera, video in self._videos.items():
            if video.pictures != self._frames.rows:
                raise DeviceError(
                    f"Camera '{camera}' has {video.pictures} pictures for {self._frames.rows} "
                    f"frames in {self.folder}. The take stays unsealed; record it again."
                )
            video.close()
        self._frames.finish()
        self._telemetry.finish()
        self._cleanup.close()
        sums = {p.name: _synced_sha256(p) for p in sorted(self.folder.iterdir()) if p.is_file()}
        end = TakeEnd(
            outcome,
            reason,
            self._frames.rows,
            self._telemetry.rows,
            dict.fromkeys(self._videos, 0),
            sums,
        )
        write_json(self.folder / journal_format.END, asdict(end))
        self.sealed = True
        return self.folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what still waits and close; the take is sealed only if `seal` was called."""
        if not self.sealed:
            with contextlib.suppress(OSError):  # a full disk: what was written stays readable
                self._frames.flush()
                self._telemetry.flush()
        self._cleanup.close()


def recover(journal: Path) -> list[Path]:
    """Mark takes that were never sealed and that nobody is writing as `interrupted`.

    The mark is a label event by the program, so that an operator's or engineer's word still
    stands above it. The take's files are left as they are: readable up to their last batch.

    Returns:
        The folders found now; those marked earlier are not listed again.
    """
    said = labels.current(labels.read(journal / journal_format.LABELS))
    found = []
    for folder in journal_format.take_folders(journal):
        if (folder / journal_format.END).exists() or "outcome" in said.get(folder.name, {}):
            continue
        if _is_open(folder):
            continue
        event = labels.LabelEvent(
            folder.name, "outcome", Outcome.INTERRUPTED.value, "gaploop", "auto", note="not sealed"
        )
        labels.append(journal / journal_format.LABELS, event)
        found.append(folder)
    return found


def _is_open(folder: Path) -> bool:
    """Say whether a writer holds the take's lock; a killed writer's lock is gone with it."""
    try:
        with (folder / journal_format.FRAMES).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _make_folder(journal: Path, folder: Path) -> None:
    if folder.exists():
        raise UnusableInputError(f"{folder} exists already. Give every take a new uid.")
    try:
        journal.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        sync_folder(journal)
    except OSError as error:
        raise UnusableInputError(
            f"Journal {journal} can't be written ({error.strerror}). Name another with --journal."
        ) from None


def _synced_sha256(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return sha256(path)
