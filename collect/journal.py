"""Writes takes into the journal so that a kill at any instant loses at most half a second.

`Recorder` subscribes to the control loop and makes rows of its turns; `JournalWriter` keeps them.
The format is `gaploop.core.journal_format`. Rows are batched and each batch is one write(2) of a
whole Arrow message; pictures are encoded as they come, one per frame row (see
`encoder`). What a kill leaves is put right by `recovery`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa

from gaploop.collect.encoder import Encoder, LocalTake, TakeEncoding
from gaploop.collect.encoder_process import check_sizes
from gaploop.core import journal_format, platform_calls, telemetry
from gaploop.core.errors import DeviceError, GaploopError, UnusableInputError
from gaploop.core.files import make_folder, sha256, write_json
from gaploop.core.journal_format import TakeEnd, TakeHeader, batch_checksum
from gaploop.core.messages import FloatArray, FollowerState, Image, SafetyReason, Tick, is_depth
from gaploop.core.paths import plain_name
from gaploop.core.protocols import Follower, Leader, SensorSource
from gaploop.core.telemetry import JOINT_QUANTITIES, LOOP_CHANNELS, joint_columns
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.stopping import CleanupStep, one_line


def warm_up() -> None:
    """Make the first `pa.array` now: it imports pandas, 0.45 s that no loop can spare."""
    pa.array(np.zeros(1), from_pandas=True)


class JournalWriter:
    """Writes one take. Leaving it without `seal` leaves the take unsealed, which is `interrupted`.

    Rows are copied here and written, synced and sealed behind: the control loop never waits for
    the disk or for the encoder.

    Args:
        encoder: encodes in its own process; in the caller's where it is None.
        waits: where the encoder is behind, wait for it rather than drop: for simulated time.

    Raises:
        UnusableInputError: the folder can't be written, the take exists, a picture size is odd.
        DeviceError: the encoder doesn't start.
    """

    def __init__(
        self,
        journal: Path,
        header: TakeHeader,
        *,
        encoder: Encoder | None = None,
        waits: bool = False,
    ) -> None:
        self.header = header
        self.folder = journal / plain_name(header.info.uid, "uid")
        self.sealed = False
        self.dropped = dict.fromkeys(header.cameras, 0)
        self._shown_at_s = dict.fromkeys(header.cameras, math.nan)
        self._t_s = 0.0
        self._is_header_new = False
        self._synced_names: set[str] = set()
        self._cleanup = contextlib.ExitStack()
        for camera in header.cameras:  # each becomes a file, here or in the encoder's process
            plain_name(camera, "camera", "take.json")
        check_sizes(header.cameras)
        if encoder is not None and header.cameras:
            encoder.start(header.cameras)
        if self.folder.exists():
            raise UnusableInputError(f"{self.folder} exists already. Give every episode a new uid.")
        try:
            platform_calls.require_posix("Recording")
            make_folder(journal)
            if full := no_room(journal):
                raise UnusableInputError(full)
            self.folder.mkdir()
        except OSError as error:
            raise _unusable(journal, error) from None
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            undo.callback(self._cleanup.close)
            n_joints, n_scene = len(header.info.joint_names), len(header.environment_state_names)
            rows = journal_format.frames_schema(n_joints, n_scene, tuple(header.cameras))
            try:
                self._frames = self._opened(journal_format.FRAMES, rows)
                platform_calls.lock(self._frames.handle)  # `recover` leaves an open take alone
                columns = telemetry.arrow_schema(header.channels)
                self._telemetry = self._opened(journal_format.TELEMETRY, columns)
                self._events = EventStream(self.folder / journal_format.EVENTS)
            except OSError as error:
                raise _unusable(journal, error) from None
            self._encoding: TakeEncoding = (
                LocalTake(self.folder, header.cameras)
                if encoder is None or not header.cameras
                else encoder.take(self.folder, header.info.uid, header.cameras, waits=waits)
            )
            self._flusher = Flusher(
                self._write_header,
                self._write,
                (
                    self._frames.sync,
                    self._telemetry.sync,
                    self._events.sync,
                    self._encoding.sync,
                    self._sync_names,
                ),
            )
            undo.pop_all()

    def _opened(self, name: str, schema: pa.Schema) -> ArrowStream:
        stream = ArrowStream(self.folder / name, schema, lambda: self._flusher.wake())
        self._cleanup.callback(stream.close)
        return stream

    def _write_header(self) -> None:
        """Write take.json, whole or not at all; no row waits until it is on the disk."""
        new = self.folder / f".{journal_format.HEADER}"
        new.write_text(json.dumps(self.header.to_json(), indent=1, default=str) + "\n")
        os.replace(new, self.folder / journal_format.HEADER)
        self._is_header_new = True

    def _sync_names(self) -> None:
        """Bring take.json to the disk, once, and the names in the folder whenever one is new.

        A video's comes with its first picture, the events' with the first event.
        """
        names = set(os.listdir(self.folder))
        if self._is_header_new:
            self._is_header_new = False
            platform_calls.sync_path(self.folder.parent)
            platform_calls.sync_path(self.folder / journal_format.HEADER)
        if names != self._synced_names:
            platform_calls.sync_path(self.folder)
            self._synced_names = names

    def _write(self) -> None:
        for stream in (self._frames, self._telemetry, self._events):
            stream.flush()

    def frame(self, row: FrameRow) -> None:
        """Add one policy frame and its pictures.

        Where the encoder is behind and pictures don't fit into memory any more, the row stands
        beside the picture before: its age says so, an event names the camera, and `dropped` counts
        it.

        Raises:
            DeviceError: a camera's picture is missing or has another size than the header says;
                or the take can't be written any more.
        """
        row.check(self.header.cameras)
        dropped = self._encoding.show(row.pictures)
        ages_s = []
        for camera in self.header.cameras:
            if camera not in dropped:
                ages_s.append(row.camera_age_s.get(camera, math.nan))
                self._shown_at_s[camera] = row.t_s - ages_s[-1]
                continue
            ages_s.append(row.t_s - self._shown_at_s[camera])
            self.dropped[camera] += 1
            self.event(row.t_s, journal_format.DROPPED, camera=camera, frame=self._frames.rows)
        with self._writable():
            self._frames.append(row.values(ages_s), row.t_s)

    def behind_s(self) -> float:
        """Return the time whose pictures wait now [s], 0 where that isn't unusual; any thread."""
        return self._encoding.behind_s()

    def telemetry(self, t_ns: int, values: FloatArray) -> None:
        """Add a row at `t_ns` [ns] since the take began, shape (n_channels,); NaN is null on disk.

        Raises DeviceError where the take can't be written any more.
        """
        self._t_s = t_ns * 1e-9
        with self._writable():
            self._telemetry.append(values, self._t_s, t_ns)

    def event(self, t_s: float, name: str, **details: Any) -> None:
        """Append one event (key, mark, intervention, trip) at `t_s` [s] to `events.jsonl`."""
        self._events.append(t_s, name, details)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        """Raise DeviceError where the disk doesn't take the take, now or behind our back."""
        fault = self._flusher.fault
        try:
            if isinstance(fault, OSError):
                raise fault
            if fault is not None:
                raise DeviceError(
                    f"Episode {self.header.info.uid} is no longer written to disk "
                    f"({type(fault).__name__}: {one_line(fault)}). Report this; until it is fixed, "
                    "record on another machine."
                )
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            fix = "Make room in" if is_full else "See to the disk of"
            raise DeviceError(
                f"Episode {self.header.info.uid} can't be written beyond {self._t_s:.1f} s "
                f"({error.strerror or error}). "
                f"{fix} {self.folder.parent} or name another folder with --journal."
            ) from None

    def seal(self, outcome: Outcome, reason: str = "") -> Path:
        """Finish every stream, then write `end.json`: from then on the take can't be lost.

        Raises:
            DeviceError: a video holds another number of pictures than there are frame rows, or
                the disk doesn't take the take; it stays unsealed.
        """
        try:
            self._encoding.finish()
            self._flusher.stop()
            with self._writable():
                self._frames.finish()
                self._telemetry.finish()
                self._events.flush()
                videos = self._encoding.wait()
                rows = self._frames.rows, self._telemetry.rows
                for camera, video in videos.items():
                    if video["pictures"] != rows[0]:
                        raise DeviceError(
                            f"Camera '{camera}' has {video['pictures']} pictures for {rows[0]} "
                            f"frames in {self.folder}. The episode stays unsealed; record it again."
                        )
                self._sync_names()
                files = sorted(self.folder.iterdir())
                for path in files:
                    platform_calls.sync_path(path)
                sums = {path.name: sha256(path) for path in files}
                stats = {camera: video["statistics"] for camera, video in videos.items()}
                end = TakeEnd(outcome, reason, *rows, self.dropped, sums, stats)
                write_json(self.folder / journal_format.END, asdict(end))
            self.sealed = True
        finally:
            self._close()
        return self.folder

    def _close(self) -> None:
        """Write what still waits, as far as the disk takes it, and let go of the files."""
        self._flusher.stop()
        with contextlib.suppress(OSError):  # a full disk: what was written stays readable
            self._write()
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close the take, sealed only if `seal` was called."""
        if self.sealed:
            return
        if isinstance(error, GaploopError):
            self.event(self._t_s, journal_format.INTERRUPTED, why=str(error))
        self._encoding.finish()
        with contextlib.suppress(DeviceError):  # what the videos hold stays readable
            self._encoding.wait()
        self._close()


ROOM_BYTES: Final = 64_000_000
"""Room that an episode is begun with: a minute and a half of two 640×480 cameras at 50 Hz."""


def no_room(journal: Path) -> str:
    """Return why no take can be begun in a journal, "" where its disk has room."""
    left = shutil.disk_usage(journal).free if journal.exists() else ROOM_BYTES
    if left >= ROOM_BYTES:
        return ""
    return (
        f"Journal {journal} has {left / 1e6:.0f} MB of room left; a new episode needs "
        f"{ROOM_BYTES / 1e6:.0f} MB or more. Make room or name another with --journal."
    )


def _unusable(journal: Path, error: OSError) -> UnusableInputError:
    return UnusableInputError(
        f"Journal {journal} can't be written ({error.strerror}). Name another with --journal."
    )


@dataclass(frozen=True)
class FrameRow:
    """One row of `frames.arrows`; joints in the robot's LeRobot units.

    Attributes:
        t_s: time since the take began [s].
        state: `observation.state`, shape (n_joints,).
        action: what was requested, shape (n_joints,).
        sent: what was sent after the safety filter, shape (n_joints,).
        environment_state: tracked scene, shape (m,).
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

    def check(self, cameras: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise DeviceError unless every camera's picture is there and of the size it should be."""
        for camera, spec in cameras.items():
            if camera not in self.pictures:
                raise DeviceError(f"No picture of camera '{camera}' at {self.t_s:.3f} s. Check it.")
            picture, shape = self.pictures[camera], (spec["height"], spec["width"])
            kind = np.dtype(np.uint16 if is_depth(spec) else np.uint8)
            shape += () if is_depth(spec) else (3,)
            if picture.shape != shape or picture.dtype != kind:
                raise DeviceError(
                    f"Camera '{camera}' gave {picture.dtype} {picture.shape}, not {kind} {shape}. "
                    "Set its size and restart."
                )

    def values(self, ages_s: Sequence[float]) -> FloatArray:
        """Return the row's numbers as in `frames.arrows`, given the ages of its pictures [s]."""
        flags = [float(self.intervention), float(self.safety), *ages_s]
        joints = self.state, self.action, self.sent
        return np.concatenate(([self.t_s], *joints, self.environment_state, flags))


# -- from a turn of the loop to a row -------------------------------------------------------------

_CLAMPS: Final = (
    SafetyReason.JOINT_LIMIT
    | SafetyReason.VELOCITY
    | SafetyReason.ACCELERATION
    | SafetyReason.RELATIVE_TARGET
)
"""Reasons that are ordinary while moving: in the rows, not worth an event each."""
_ASKED: Final = 3
"""So many of `JOINT_QUANTITIES` are of the arm that is commanded; the others servos report."""
_REPORTED: Final = tuple(JOINT_QUANTITIES)[_ASKED:]
LEADER: Final = "leader"
"""Prefix of the telemetry columns of a leader's own servos."""


def servo_joints(leader: Leader | None) -> tuple[str, ...]:
    """Return the joints of a leader's own servos, whose readings are in its samples' `state`."""
    return tuple(getattr(leader, "servo_joints", ()))


def channels(
    follower: Follower, sensors: Sequence[SensorSource] = (), leader: Leader | None = None
) -> dict[str, str]:
    """Return the telemetry columns that a recorder writes, name to unit.

    A leader with servos of its own names their joints as `servo_joints`.
    """
    names = joint_columns(follower.name, follower.joint_names)
    names |= {
        f"{LEADER}.{joint}.{quantity}": JOINT_QUANTITIES[quantity]
        for joint in servo_joints(leader)
        for quantity in _REPORTED
    }
    for sensor in sensors:
        names |= sensor.channels
    return {**names, **LOOP_CHANNELS}


class TakeWriter(Protocol):
    """What a recorder hands a take to: a `JournalWriter`, or memory."""

    def event(self, t_s: float, name: str, **details: Any) -> None:
        """Take note of something that happened at `t_s` [s]."""

    def telemetry(self, t_ns: int, values: FloatArray) -> None:
        """Take a row of `channels` at `t_ns` [ns]; the array is used again for the next."""

    def frame(self, row: FrameRow) -> None:
        """Take a policy frame."""


class Recorder:
    """A `TakeSink` that writes telemetry on every turn and a frame row on every policy frame.

    The writer's header has the channels of `channels`. A sensor that fails is null in the record,
    from one event to the next, and doesn't end the take.
    """

    def __init__(
        self,
        writer: TakeWriter,
        follower: Follower,
        sensors: Sequence[SensorSource] = (),
        leader: Leader | None = None,
    ) -> None:
        self.fault = ""
        """Why nothing is written any more."""
        self._writer, self._follower = writer, follower
        self._sensors = [_Sensor(sensor, writer) for sensor in sensors]
        arm = len(follower.joint_names) * len(JOINT_QUANTITIES)
        servos = len(servo_joints(leader)) * len(_REPORTED)
        self._row = np.full(len(channels(follower, sensors, leader)), np.nan)
        self._joints = self._row[:arm].reshape(-1, len(JOINT_QUANTITIES))
        self._leader = self._row[arm : arm + servos].reshape(-1, len(_REPORTED))
        self._measured = self._row[arm + servos : -len(LOOP_CHANNELS)]
        self._reasons = SafetyReason.NONE
        self._intervention = False

    def tick(self, tick: Tick) -> None:
        """Write one turn.

        Raises:
            DeviceError: a picture is missing or has the wrong size, the encoder died, or the
                disk doesn't take the take. `fault` says so too, and the take should end.
        """
        try:
            reasons, intervention = tick.command.reasons & ~_CLAMPS, tick.leader.intervention
            if reasons != self._reasons:
                self._reasons = reasons
                self._writer.event(tick.t_s, "safety", reasons=reasons.name or "NONE")
            if intervention != self._intervention:
                self._intervention = intervention
                self._writer.event(tick.t_s, "intervention", on=intervention)
            joints = self._joints
            joints[:, 0] = _finite(tick.leader.q_rad)
            joints[:, 1] = _finite(tick.command.requested_rad)
            joints[:, 2] = tick.command.sent_rad
            _fill(joints[:, _ASKED:], tick.state)
            if len(self._leader):
                self._leader[:] = np.nan
                if tick.leader.state is not None:
                    _fill(self._leader, tick.leader.state)
            readings = (sensor.read(tick.t_s) for sensor in self._sensors)
            self._measured[:] = list(itertools.chain.from_iterable(readings))
            self._row[-4:] = tick.period_s, tick.lateness_s, tick.latency_s, tick.overruns
            self._writer.telemetry(round(tick.t_s * 1e9), self._row)
            if tick.policy_frame:
                to_units = self._follower.to_units
                now_s = tick.state.t_s  # what a picture is as old as: it stands beside this state
                scene, pictures = tick.environment_state, tick.frames.items()
                row = FrameRow(
                    t_s=tick.t_s,
                    state=to_units(tick.state.position_rad),
                    action=to_units(_finite(tick.command.requested_rad)),
                    sent=to_units(tick.command.sent_rad),
                    environment_state=np.empty(0) if scene is None else scene,
                    intervention=tick.leader.intervention,
                    safety=int(tick.command.reasons),
                    camera_age_s={c: max(now_s - f.t_capture_s, 0.0) for c, f in pictures},
                    pictures={c: f.image for c, f in pictures},
                )
                self._writer.frame(row)
        except DeviceError as error:
            self.fault = str(error)
            raise


class _Sensor:
    """A sensor whose failing is an event and not the take's end."""

    def __init__(self, sensor: SensorSource, writer: TakeWriter) -> None:
        self.names = tuple(sensor.channels)
        self._sensor, self._writer = sensor, writer
        self._is_failing = False

    def read(self, t_s: float) -> list[float]:
        values: Mapping[str, float] = {}
        why = ""
        try:
            values = self._sensor.read()
        except (DeviceError, OSError) as error:
            why = str(error)
        if bool(why) != self._is_failing:
            self._is_failing = bool(why)
            self._writer.event(t_s, "sensor", channels=self.names, ok=not why, why=why)
        found = (float(values.get(name, np.nan)) for name in self.names)
        return [value if np.isfinite(value) else np.nan for value in found]


def _fill(block: FloatArray, state: FollowerState) -> None:
    """Write what servos report into the columns of `_REPORTED`, shape (n_joints, 7)."""
    for column, quantity in enumerate(_REPORTED):
        block[:, column] = getattr(state, quantity)


def _finite(q_rad: FloatArray) -> FloatArray:
    """Return `q_rad` with what isn't finite as NaN: stored records hold no infinities."""
    if np.isfinite(q_rad).all():
        return q_rad
    return np.where(np.isfinite(q_rad), q_rad, np.nan)


# -- Streams of rows. Appending only copies the row; a `Flusher` writes and syncs behind the
# recorder's back, in two threads, so that the control loop never waits for the disk.

WRITE_EVERY_S: Final = 0.25
"""Rows wait at most this long for their batch, in take time and in wall time [s]."""


class ArrowStream:
    """An Arrow IPC stream of numeric columns. One thread appends; any may flush.

    Args:
        path: the file; it must not exist.
        schema: columns; lists are of fixed size, and `t_ns`, if there, is first.
        on_due: called when rows have waited long enough.
    """

    def __init__(self, path: Path, schema: pa.Schema, on_due: Callable[[], None]) -> None:
        self.rows = 0
        self._schema, self._on_due = schema, on_due
        self._waiting: list[tuple[int, FloatArray]] = []
        self._first_s = 0.0
        self._swapping, self._writing = threading.Lock(), threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self.handle = os.open(path, flags, 0o644)
        self._unsynced = True
        self._encoded = io.BytesIO()
        self._encoder = pa.ipc.new_stream(self._encoded, schema)
        self._write()

    def append(self, values: FloatArray, t_s: float, t_ns: int = 0) -> None:
        """Add a row at take time `t_s` [s]; a column `t_ns` [ns] is kept as an integer."""
        if self.handle < 0:
            return
        with self._swapping:
            if not self._waiting:
                self._first_s = t_s
            self._waiting.append((t_ns, values.copy()))
            self.rows += 1
            is_due = t_s - self._first_s >= WRITE_EVERY_S
        if is_due:
            self._on_due()

    def flush(self) -> None:
        """Write the rows that wait; raises OSError where the disk doesn't take them."""
        with self._writing:
            with self._swapping:
                rows, self._waiting = self._waiting, []
            if rows:
                batch = self._batch(rows)
                self._encoder.write_batch(batch, custom_metadata=batch_checksum(batch))
                self._write()

    def sync(self) -> None:
        """Wait until what was written is on the disk; raises OSError."""
        if self.handle >= 0 and self._unsynced:
            self._unsynced = False
            platform_calls.sync(self.handle, data_only=True)

    def finish(self) -> None:
        """Write what waits and the end-of-stream mark."""
        self.flush()
        with self._writing:
            self._encoder.close()
            self._write()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self._writing:
            if self.handle >= 0:
                os.close(self.handle)
                self.handle = -1

    def _write(self) -> None:
        """Write what the encoder made since the last time: the schema, a batch or the end."""
        view = memoryview(self._encoded.getvalue())
        self._encoded.seek(0)
        self._encoded.truncate()
        self._unsynced = True
        while view:
            view = view[os.write(self.handle, view) :]

    def _batch(self, rows: Sequence[tuple[int, FloatArray]]) -> pa.RecordBatch:
        block, arrays, start = np.array([values for _, values in rows]), [], 0
        for spec in self._schema:
            if spec.name == "t_ns":
                arrays.append(pa.array([t_ns for t_ns, _ in rows], type=spec.type))
                continue
            is_list = pa.types.is_fixed_size_list(spec.type)
            width = spec.type.list_size if is_list else 1
            values = np.ascontiguousarray(block[:, start : start + width]).reshape(-1)
            start += width
            if not width:  # a list that carries no length of its own
                arrays.append(pa.array([[]] * len(block), type=spec.type))
            elif is_list:
                arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(values), width))
            else:  # NaN becomes null
                arrays.append(pa.array(values, type=spec.type, from_pandas=True))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class EventStream:
    """Events as JSON lines. Made with its first event: most takes have none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[str] = []
        self._unsynced = False
        self._using = threading.Lock()

    def append(self, t_s: float, name: str, details: dict[str, Any]) -> None:
        """Add an event at take time `t_s` [s]."""
        line = json.dumps({"t_s": t_s, "event": name, **details}, default=str) + "\n"
        with self._using:
            self._waiting.append(line)

    def flush(self) -> None:
        """Write the events that wait, one thread at a time; raises OSError."""
        with self._using:
            lines, self._waiting = self._waiting, []
        if lines:
            with self._path.open("a") as stream:
                stream.write("".join(lines))
            self._unsynced = True

    def sync(self) -> None:
        """Wait until what was written is on the disk; raises OSError."""
        if self._unsynced:
            self._unsynced = False
            with self._path.open("a") as stream:
                platform_calls.sync(stream.fileno(), data_only=True)


AFTER_S: Final = 0.02
"""What isn't urgent waits this long for the episode to begin: it would hold the interpreter [s]."""


class Flusher:
    """Calls `write` when told and every `WRITE_EVERY_S`, and `syncs` after each.

    `first` is done once before anything else, `AFTER_S` after the start.
    """

    def __init__(
        self,
        first: Callable[[], None],
        write: Callable[[], None],
        syncs: Sequence[Callable[[], None]],
    ) -> None:
        self.fault: Exception | None = None
        """What ended one of the threads: from then on nothing is brought to the disk."""
        self._first, self._write, self._syncs = first, write, syncs
        self._due, self._over, self._written = (threading.Event() for _ in range(3))
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for name, loop in (
                ("journal", self._keep_writing),
                ("journal sync", self._keep_syncing),
            )
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Have what waits written soon."""
        self._due.set()

    def stop(self) -> None:
        """End both threads, after what they are doing; safe to call twice."""
        self._over.set()
        self._due.set()
        self._written.set()
        for thread in self._threads:
            thread.join()

    def _guard(self, loop: Callable[[], None]) -> None:
        with CleanupStep() as attempt:
            loop()
        self.fault = attempt.error or self.fault

    def _keep_writing(self) -> None:
        self._over.wait(AFTER_S)
        self._first()
        self._written.set()
        while not self._over.is_set():
            self._due.wait(WRITE_EVERY_S)
            self._due.clear()
            self._write()
            self._written.set()

    def _keep_syncing(self) -> None:
        """Sync apart from writing: a disk that takes its time must not hold the rows up."""
        while self._written.wait() and not self._over.is_set():
            self._written.clear()
            for sync in self._syncs:
                sync()
