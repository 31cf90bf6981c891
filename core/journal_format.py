"""The journal on disk: what a take's folder holds, and how to read it back.

    journal/<uid>/take.json        header, written atomically first
                  frames.arrows    Arrow IPC stream, policy rate
                  telemetry.arrows Arrow IPC stream, control rate
                  <camera>.mkv     one picture per frame row, streamed encode; depth lossless
                  <camera>.after.png  the scene once the arm is out of the way, where it looked
                  events.jsonl     keys, phase marks, interventions, safety trips
                  end.json         written atomically last; its presence is the seal

Streams are readable up to their last whole batch however the writer ended. The writer is
`gaploop.collect.journal`; publishing is `gaploop.datasets`.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from gaploop.core import labels, platform_calls
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import open_video_file, read_json, regular_file, sha256
from gaploop.core.messages import FloatArray, Image, is_depth
from gaploop.core.paths import plain_name, refuse_links_out
from gaploop.core.take import Frames, Images, Take, TakeInfo, frames_per_second
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Domain, Outcome, TakeKind, outcome

HEADER: Final = "take.json"
FRAMES: Final = "frames.arrows"
TELEMETRY: Final = "telemetry.arrows"
EVENTS: Final = "events.jsonl"
END: Final = "end.json"
LABELS: Final = "labels.jsonl"
TRUTH: Final = "truth.jsonl"
"""What was injected, beside the journal's episodes. Only scoring opens it, never diagnosis."""
SCHEMA: Final = "gaploop.take.v1"
_TEXTS: Final = tuple(f.name for f in fields(TakeInfo) if f.type == "str")
DROPPED: Final = "dropped"
"""Event of a frame row that stands beside the picture before: {"camera": …, "frame": index}."""
PICTURES: Final = "pictures"
"""Event at the end of an episode with a slow or frozen camera: {"camera": …, "why": …}."""
INTERRUPTED: Final = "interrupted"
"""Event of an episode that was cut off: {"why": …}."""


@dataclass(frozen=True)
class TakeHeader:
    """`take.json`: everything that is fixed when a take begins.

    Attributes:
        environment_state_names: names of the tracked scene's entries; empty where nothing tracks.
        cameras: camera to {"width", "height", "fps", "codec"}; a depth stream's codec is
            `DEPTH_CODEC`.
        channels: telemetry column to unit, without `t_ns`.
        observed: sensors among them that policies see, as `observation.force.<sensor>`.
    """

    info: TakeInfo
    environment_state_names: tuple[str, ...] = ()
    cameras: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)
    observed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what `take.json` holds."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> TakeHeader:
        """Read what `to_json` wrote.

        Raises:
            UnusableInputError: another schema, fields missing, or a uid or camera that can't name
                a file.
        """
        schema = value.get("schema") if isinstance(value, Mapping) else None
        if schema != SCHEMA:
            raise UnusableInputError(
                f"{where} has schema {schema!r}, this version reads {SCHEMA!r}. "
                "Use the gaploop that wrote it, or record again."
            )
        try:
            known = {f.name for f in fields(TakeInfo)}
            raw = {k: v for k, v in value["info"].items() if k in known}
            raw["kind"], raw["domain"] = TakeKind(raw["kind"]), Domain(raw["domain"])
            raw["joint_names"] = tuple(map(str, raw["joint_names"]))
            raw["fps"] = frames_per_second(raw.get("fps", TakeInfo.fps))
            raw["t0_ns"] = int(raw.get("t0_ns", 0))
            raw |= {name: str(raw.get(name, "")) for name in _TEXTS}
            raw |= {name: dict(raw.get(name, {})) for name in ("dimensions", "conditions")}
            cameras = {str(camera): dict(spec) for camera, spec in value["cameras"].items()}
            plain_name(raw["uid"], "uid", where)
            for camera in cameras:
                plain_name(camera, "camera", where)
            return cls(
                TakeInfo(**raw),
                tuple(map(str, value["environment_state_names"])),
                cameras,
                {str(name): str(unit) for name, unit in value["channels"].items()},
                tuple(map(str, value.get("observed", ()))),
            )
        except DAMAGE as error:
            raise UnusableInputError(
                f"{where} is not an episode header ({error}). Restore it."
            ) from None


@dataclass(frozen=True)
class TakeEnd:
    """`end.json`: how a take ended. Its presence seals the take.

    Attributes:
        outcome: how it ended, when sealed; label events may say otherwise later.
        reason: why it ended or was discarded, in words.
        dropped: camera to pictures that the encoder could not take; those rows stand beside the
            picture before, as its age in the row says.
        checksums: file name to SHA-256.
        statistics: camera to what `core.pixels` states of its pictures; episodes sealed before
            2026-11-27, recovered ones and depth cameras have none.
    """

    outcome: Outcome
    reason: str = ""
    frames: int = 0
    telemetry_rows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)


def frames_schema(
    n_joints: int, n_environment: int = 0, cameras: tuple[str, ...] = ()
) -> pa.Schema:
    """Return the schema of `frames.arrows`; times in seconds, joints in LeRobot units."""
    vector = pa.list_(pa.float64(), n_joints)
    columns = [
        pa.field("t_s", pa.float64()),
        pa.field("state", vector),
        pa.field("action", vector),
        pa.field("sent", vector),
        pa.field("environment_state", pa.list_(pa.float64(), n_environment)),
        pa.field("intervention", pa.bool_()),
        pa.field("safety", pa.int64()),
    ]
    columns += [pa.field(f"cam_age.{camera}", pa.float64()) for camera in cameras]
    return pa.schema(columns)


def take_folders(journal: Path) -> list[Path]:
    """Return the folders of a journal's takes, oldest first (UUIDv7 names sort by time).

    Raises:
        UnusableInputError: the journal has links that lead out of it.
    """
    refuse_links_out(journal)
    return sorted(p.parent for p in journal.glob(f"*/{HEADER}"))


def is_journal(folder: Path) -> bool:
    """Say whether `folder` holds journal takes."""
    return next(folder.glob(f"*/{HEADER}"), None) is not None


def camera_path(folder: Path, camera: str) -> Path:
    """Return where a take keeps a camera's pictures."""
    return folder / f"{plain_name(camera, 'camera', folder)}.mkv"


def after_path(folder: Path, camera: str) -> Path:
    """Return where a take keeps what a camera showed afterwards, with the arm out of the way."""
    return folder / f"{plain_name(camera, 'camera', folder)}.after.png"


def read_header(folder: Path) -> TakeHeader:
    """Read a take's header: the door through which every take comes in.

    Raises:
        UnusableInputError: it is no header, or the folder has links that lead out.
    """
    refuse_links_out(folder)
    return TakeHeader.from_json(read_json(folder / HEADER), str(folder / HEADER))


def read_end(folder: Path) -> TakeEnd | None:
    """Read a take's seal; None where the take was never sealed. Raises UnusableInputError."""
    path = folder / END
    if not path.exists():
        return None
    value = read_json(path)
    try:
        value.pop("coarse", None)  # counted before 2026-11-27
        end = TakeEnd(**{**value, "outcome": outcome(value["outcome"], str(path))})
        return replace(
            end,
            frames=int(end.frames),
            telemetry_rows=int(end.telemetry_rows),
            dropped={str(camera): int(n) for camera, n in end.dropped.items()},
            checksums=dict(end.checksums),
            statistics=dict(end.statistics),
        )
    except DAMAGE as error:
        raise UnusableInputError(
            f"{path} is not an episode's seal ({error}). Restore it."
        ) from None


def require_as_sealed(folder: Path) -> None:
    """Raise UnusableInputError for a take of which a file was changed after it was sealed."""
    header, end = read_header(folder), read_end(folder)
    sealed = end.checksums if end is not None else {}
    videos = (camera_path(folder, camera) for camera in header.cameras)
    for path in (*(folder / name for name in (HEADER, FRAMES, TELEMETRY, EVENTS)), *videos):
        if sealed.get(path.name) != (sha256(path) if path.exists() else None):
            raise UnusableInputError(
                f"{path} isn't what was sealed. Restore it from a copy, or leave the episode out: "
                f"gaploop label {shlex.quote(str(folder.parent))} --episodes={folder.name} "
                "--outcome=discarded"
            )


def read_stream(path: Path) -> pa.Table:
    """Read an Arrow IPC stream up to its last whole batch; a missing or torn head gives no rows.

    A kill can tear the last batch, and a power cut can leave zeros in the middle of it, which the
    batch's checksum tells; what comes before it is right.
    """
    batches: list[pa.RecordBatch] = []
    try:
        file = regular_file(path)
        # What is mapped can't be replaced on Windows, as `recover` does.
        opened = pa.OSFile if platform_calls.WINDOWS else pa.memory_map
        with opened(str(file)) as source, pa.ipc.open_stream(source) as reader:
            schema = reader.schema
            with contextlib.suppress(StopIteration, pa.ArrowException, *DAMAGE):
                while True:  # ends with StopIteration
                    batch, checksum = reader.read_next_batch_with_custom_metadata()
                    batch.validate(full=True)  # offsets that lead out of the file would end us
                    if checksum is not None and dict(checksum) != batch_checksum(batch):
                        break
                    batches.append(batch)
            return pa.Table.from_batches(batches, schema)
    except (UnusableInputError, pa.ArrowException, *DAMAGE):
        return pa.table({})


def batch_checksum(batch: pa.RecordBatch) -> dict[bytes, bytes]:
    """Return what a batch of a take's stream carries as metadata: the CRC-32 of its Arrow bytes."""
    return {b"crc32": str(zlib.crc32(batch.serialize())).encode()}


def read_take(folder: Path, events: Mapping[str, Mapping[str, Any]] | None = None) -> Take:
    """Read one take of a journal, with the labels that stand now.

    `events` are `labels.current` of the journal, if the caller has read it already.
    """
    header = read_header(folder)
    end = read_end(folder)
    if events is None:
        events = labels.current(labels.read(folder.parent / LABELS))
    said = events.get(header.info.uid, {})
    sealed = end.outcome if end else Outcome.INTERRUPTED
    info = header.info
    if "dimensions" in said:
        info = replace(info, dimensions=said["dimensions"])
    try:
        frames = _frames(read_stream(folder / FRAMES), header)
    except (pa.ArrowException, *DAMAGE) as error:
        raise UnusableInputError(
            f"{folder / FRAMES} doesn't hold what {HEADER} says ({error}). Restore it from a copy."
        ) from None
    table = read_stream(folder / TELEMETRY)
    telemetry = Telemetry(np.empty(0), {})
    if table.num_columns:
        telemetry = Telemetry.from_table(table, str(folder / TELEMETRY))
    return Take(
        info=info,
        outcome=Outcome(said.get("outcome", sealed)),
        frames=frames,
        telemetry=telemetry,
        failure_mode=said.get("failure_mode", ""),
        phase=said.get("phase", ""),
        cameras=_streams(folder, header, depth=False),
        depth=_streams(folder, header, depth=True),
    )


def read_journal(journal: Path) -> Iterator[Take]:
    """Yield every take of a journal, oldest first, with its labels."""
    events = labels.current(labels.read(journal / LABELS))
    for folder in take_folders(journal):
        yield read_take(folder, events)


def append_truth(folder: Path, uid: str, truth: Mapping[str, Any]) -> None:
    """Append what was injected into a take to `truth.jsonl` in `folder`."""
    with (folder / TRUTH).open("a") as stream:
        stream.write(json.dumps({"uid": uid, **truth}) + "\n")


def _frames(table: pa.Table, header: TakeHeader) -> Frames:
    n_joints = len(header.info.joint_names)
    if not table.num_rows:
        return Frames.empty(n_joints)

    def matrix(name: str, width: int) -> FloatArray:
        values = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values, dtype=np.float64).reshape(table.num_rows, width)

    return Frames(
        t_s=table["t_s"].to_numpy(),
        state=matrix("state", n_joints),
        action=matrix("action", n_joints),
        sent=matrix("sent", n_joints),
        environment_state=matrix("environment_state", len(header.environment_state_names)),
        intervention=table["intervention"].to_numpy().astype(bool),
        safety=table["safety"].to_numpy().astype(np.int64),
        camera_age_s={
            camera: table[f"cam_age.{camera}"].to_numpy()
            for camera in header.cameras
            if f"cam_age.{camera}" in table.column_names
        },
        environment_names=header.environment_state_names,
    )


def _streams(folder: Path, header: TakeHeader, *, depth: bool) -> dict[str, Images]:
    kind = "gray16le" if depth else "rgb24"
    wanted = (c for c, spec in header.cameras.items() if is_depth(spec) == depth)
    return {camera: _video(camera_path(folder, camera), kind) for camera in wanted}


def _video(path: Path, kind: str) -> Images:
    def pictures() -> Iterator[Image]:
        import av  # here: reading headers and telemetry needs no codec

        try:
            with open_video_file(path) as container:
                for frame in container.decode(video=0):
                    yield frame.to_ndarray(format=kind)
        except (UnusableInputError, av.FFmpegError, *DAMAGE):
            return  # a kill tore the tail: what was whole has been yielded

    return pictures
