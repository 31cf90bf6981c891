"""What is left of takes that were never sealed: made whole up to their last intact instant.

A kill tears the last batch of a stream and the last cluster of a video, each at another row. The
longest prefix that all of them hold is written anew, with equal counts, and sealed
as `interrupted`: nothing is published unless a person says how the take went. Running it again
changes nothing, killing it neither, and sealed takes are never opened for writing.
"""

import contextlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import pyarrow as pa

from gaploop.collect.encoder_process import MATROSKA
from gaploop.core import files, journal_format, labels, platform_calls
from gaploop.core.errors import DAMAGE, GaploopError, UnusableInputError, file_words
from gaploop.core.journal_format import TakeEnd, camera_path, read_header, read_stream, take_folders
from gaploop.core.vocabulary import Outcome

log = logging.getLogger(__name__)

ENCODER_WAIT_S: Final = 15.0
"""How long the encoder of a killed recorder is given to finish its files [s]. Where eight programs
wanted each core it took more than three, and the episode was left for the next start."""
_NEW: Final = ".recovered"


@dataclass(frozen=True)
class Recovered:
    """What was saved of one take: its rows, with one picture per camera each, and its length [s].

    `cut_s` is what one stream held and another had lost already, so that it was cut off [s].
    """

    uid: str
    frames: int
    telemetry_rows: int
    duration_s: float
    cut_s: float


@dataclass(frozen=True)
class RecoveryReport:
    """What was found in a journal.

    Attributes:
        recovered: unsealed takes that were made whole and sealed now.
        open: uids of takes that somebody is writing.
        failed: uid to the reason why a take couldn't be recovered.
        headless: folders that a kill left in a take's first instant, with nothing in them yet.
    """

    recovered: tuple[Recovered, ...] = ()
    open: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    headless: tuple[str, ...] = ()


def recover(journal: Path) -> RecoveryReport:
    """Make whole and seal, as `interrupted`, what was never sealed and nobody is writing.

    That it was interrupted is a label event by the program too, below an operator's word. A take
    that can't be recovered is left as it is and named; the others are recovered still.

    Raises:
        UnusableInputError: the labels can't be read, or links lead out of the journal.
    """
    folders = take_folders(journal)
    said = labels.current(labels.read(journal / journal_format.LABELS))
    recovered, still_open, failed = [], [], []
    for folder in folders:
        if (folder / journal_format.END).exists():
            continue
        try:
            with held_take(folder) as is_ours:
                if not is_ours:
                    still_open.append(folder.name)
                    continue
                header = folder / journal_format.HEADER
                try:  # one that a power cut tore would keep the other takes from being read
                    files.read_json(header)
                except UnusableInputError as error:
                    os.replace(header, header.with_name(f"{header.name}.torn"))
                    raise UnusableInputError(f"{error} It is kept as {header.name}.torn.") from None
                recovered.append(_recover_take(folder))
                if "outcome" not in said.get(folder.name, {}):
                    interrupted = Outcome.INTERRUPTED.value
                    mark = labels.LabelEvent(
                        folder.name, "outcome", interrupted, "gaploop", "auto", note="not sealed"
                    )
                    labels.append(journal / journal_format.LABELS, mark)
        except (GaploopError, av.FFmpegError, *DAMAGE) as error:
            why = file_words(error) if isinstance(error, OSError) else str(error)
            failed.append((folder.name, why))
            log.warning("Episode %s can't be recovered: %s", folder.name, why)
    headless = [f for f in without_header(journal) if not _is_locked(f / journal_format.FRAMES)]
    names = tuple(folder.name for folder in headless)
    return RecoveryReport(tuple(recovered), tuple(still_open), tuple(failed), names)


def without_header(journal: Path) -> list[Path]:
    """Return folders that hold a take's rows, or are about to, and don't say whose they are."""
    folders = [path.parent for path in sorted(journal.glob(f"*/{journal_format.FRAMES}"))]
    return [folder for folder in folders if not (folder / journal_format.HEADER).exists()]


@contextlib.contextmanager
def held_take(folder: Path) -> Iterator[bool]:
    """Hold the take's lock; False where its recorder has it. A killed one's lock is gone."""
    frames = folder / journal_format.FRAMES
    if not frames.exists():
        yield True
        return
    with frames.open("rb") as stream:
        try:
            platform_calls.lock(stream.fileno(), wait=False)
        except BlockingIOError:
            yield False
            return
        until_s = time.monotonic() + ENCODER_WAIT_S
        while any(_is_locked(path) for path in folder.glob("*.mkv")):
            if time.monotonic() > until_s:
                yield False
                return
            time.sleep(0.02)
        if platform_calls.WINDOWS:
            stream.close()  # what is open can't be replaced there
        yield True


def _is_locked(path: Path) -> bool:
    with path.open("rb") as stream:
        try:
            platform_calls.lock(stream.fileno(), shared=True, wait=False)
        except BlockingIOError:
            return True
    return False


def _recover_take(folder: Path) -> Recovered:
    """Write the longest common prefix anew, each file by a rename, and seal it last."""
    header = read_header(folder)
    frames = read_stream(folder / journal_format.FRAMES)
    record = read_stream(folder / journal_format.TELEMETRY)
    rates_hz = {camera: float(spec["fps"]) for camera, spec in header.cameras.items()}
    videos = {c: _packets(camera_path(folder, c), fps) for c, fps in rates_hz.items()}
    rows = min((frames.num_rows, *videos.values()))
    held_s = max(_last_s(frames, record), 0.0)
    frames = frames.slice(0, rows)
    if record.num_rows and rows:  # up to one frame after the last row; without frames, all of it
        end_s = float(frames["t_s"][-1].as_py()) + 1 / header.info.fps
        t_ns = np.asarray(record["t_ns"], dtype=np.int64)
        record = record.slice(0, int(np.searchsorted(t_ns, round(end_s * 1e9))))
    for name, table in ((journal_format.FRAMES, frames), (journal_format.TELEMETRY, record)):
        if table.num_columns:
            new = folder / f"{name}{_NEW}"
            with new.open("wb") as stream:
                with pa.ipc.new_stream(stream, table.schema) as writer:
                    writer.write_table(table)
                stream.flush()
                platform_calls.sync(stream.fileno())
            os.replace(new, folder / name)
    for camera, fps in rates_hz.items():
        _rewrite_video(camera_path(folder, camera), rows, fps)
    kept_s = max(_last_s(frames, record), 0.0)
    events = _repair_events(folder / journal_format.EVENTS)
    dropped = Counter(
        event.get("camera")
        for event in events
        if event.get("event") == journal_format.DROPPED and event.get("frame", 0) < rows
    )
    for leftover in (*folder.glob(f"*{_NEW}"), *folder.glob(".*")):
        leftover.unlink()
    for path in folder.iterdir():
        platform_calls.sync_path(path)
    platform_calls.sync_path(folder)
    causes = [e["why"] for e in events if e.get("event") == journal_format.INTERRUPTED]
    end = TakeEnd(
        Outcome.INTERRUPTED,
        f"{causes[-1].rstrip('.') if causes else 'cut off'}; recovered up to {kept_s:.2f} s",
        rows,
        record.num_rows,
        {camera: dropped[camera] for camera in header.cameras},
        {path.name: files.sha256(path) for path in sorted(folder.iterdir())},
    )
    files.write_json(folder / journal_format.END, asdict(end))
    return Recovered(folder.name, rows, record.num_rows, kept_s, max(held_s - kept_s, 0.0))


def _last_s(frames: pa.Table, record: pa.Table) -> float:
    ends = [float(frames["t_s"][-1].as_py())] if frames.num_rows else []
    ends += [float(record["t_ns"][-1].as_py()) * 1e-9] if record.num_rows else []
    return max(ends, default=0.0)


def _packets(path: Path, fps: float) -> int:
    """Return how many whole pictures a video holds from its start, none left out; at `fps` [Hz]."""
    count = 0
    unreadable = contextlib.suppress(UnusableInputError, av.FFmpegError, *DAMAGE)
    with unreadable, files.open_video_file(path) as container:
        is_h264 = container.streams.video[0].codec_context.name == "h264"
        for packet in container.demux(video=0):
            # A block of zeros may hold whole pictures; the demuxer goes on behind it.
            if not packet.size or packet.is_corrupt or packet.pts is None:
                break
            if round(packet.pts * packet.time_base * fps) != count:
                break
            if is_h264 and not _is_whole(bytes(packet)):
                break
            count += 1
    return count


def _is_whole(packet: bytes) -> bool:
    """Whether no part of an H.264 packet, units behind their lengths, is a block of zeros.

    A unit neither holds three zeros in a row nor ends in one (ITU-T H.264, 7.4.1).
    """
    start = 0
    while start < len(packet):
        begin = start + 4
        start = begin + int.from_bytes(packet[start:begin], "big")
        unit = packet[begin:start]
        if not unit or start > len(packet) or not unit[-1] or bytes(3) in unit:
            return False
    return True


def _rewrite_video(path: Path, pictures: int, fps: float) -> None:
    """Copy the first packets into a new file; remove one that holds no picture."""
    if not pictures:
        path.unlink(missing_ok=True)
        return
    new = path.with_name(path.name + _NEW)
    with (
        files.open_video_file(path) as source,
        av.open(str(new), "w", format="matroska", options=MATROSKA) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
        for number, packet in enumerate(source.demux(video=0)):
            if number == pictures:
                break
            packet.stream = stream
            target.mux(packet)
    if _packets(new, fps) != pictures:
        new.unlink()
        raise UnusableInputError(f"{path} can't be copied. Keep the folder and inspect it.")
    platform_calls.sync_path(new)
    os.replace(new, path)


def _repair_events(path: Path) -> list[dict[str, Any]]:
    """Cut a torn last line off and return the events."""
    if not path.exists():
        return []
    lines, whole = files.read_content(path).split(b"\n"), []
    for line in lines[:-1]:
        try:
            whole.append(files.parse_json(line))
        except ValueError:
            break
    files.write_atomically(path, "".join(json.dumps(event) + "\n" for event in whole))
    return whole
