"""Laws of the encoder's process: pictures never shift, and its death costs one take."""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import av
import numpy as np
import pytest

from gaploop.collect import encoder as encoder_module
from gaploop.collect import encoder_process
from gaploop.collect.encoder import Encoder
from gaploop.collect.encoder_process import (
    LEAST_SLOTS,
    MOST_BYTES,
    SLACK_S,
    Ring,
    VideoStream,
)
from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.collect.recovery import recover
from gaploop.core.errors import DeviceError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import (
    TakeHeader,
    read_end,
    read_stream,
    read_take,
    take_folders,
)
from gaploop.core.messages import Image
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome

SIZE = 64
WITHIN_S = 120.0
"""Something that hangs is given up after this long."""
CAMERAS = {
    name: {"width": SIZE, "height": SIZE, "fps": 50.0, "codec": "h264"} for name in ("top", "wrist")
}


@pytest.fixture
def encoder() -> Iterator[Encoder]:
    with Encoder() as encoder:
        yield encoder


def catch_up(encoder: Encoder) -> None:
    """Wait until the encoder's process has worked off all pictures that it was handed."""
    process = encoder._process
    assert process is not None
    while any(len(process.free[name]) < len(slots) for name, slots in process.ring.slots.items()):
        assert not process.dead
        process.hear(0.1)


def header(cameras: dict[str, dict[str, object]] = CAMERAS) -> TakeHeader:  # type: ignore[assignment]
    info = TakeInfo(uuid7(), task="t", joint_names=("a", "b", "c"))
    return TakeHeader(info, (), cameras, {"arm.a.position_rad": "rad"})


def picture(number: int) -> Image:
    """A picture that says its number in 4×4 black and white blocks."""
    bits = np.array([(number >> i) & 1 for i in range(16)], dtype=np.uint8).reshape(4, 4)
    blocks = np.kron(bits * 200 + 20, np.ones((SIZE // 4, SIZE // 4), dtype=np.uint8))
    return np.repeat(blocks[:, :, None], 3, axis=2)


def number(image: Image) -> int:
    cell = SIZE // 4
    means = image.mean(axis=2).reshape(4, cell, 4, cell).mean(axis=(1, 3)).reshape(-1)
    return sum(1 << i for i, mean in enumerate(means) if mean > 120)


def row(index: int, pictures: dict[str, Image] | None = None) -> FrameRow:
    joints = np.full(3, float(index))
    shown = {c: picture(2 * index + k) for k, c in enumerate(CAMERAS)}
    ages = dict.fromkeys(CAMERAS, 0.01)
    return FrameRow(
        index / 50, joints, joints, joints, camera_age_s=ages, pictures=pictures or shown
    )


def write(writer: JournalWriter, frames: int) -> None:
    for index in range(frames):
        writer.telemetry(index * 20_000_000, np.array([float(index)]))
        writer.frame(row(index))


def numbers(folder: Path, camera: str) -> list[int]:
    return [number(image) for image in read_take(folder).cameras[camera]()]


def test_every_row_has_its_pictures_over_several_takes_of_one_process(
    tmp_path: Path, encoder: Encoder
) -> None:
    pids = set()
    for frames in (40, 1, 0, 90):
        with JournalWriter(tmp_path, header(), encoder=encoder, waits=True) as writer:
            write(writer, frames)
            folder = writer.seal(Outcome.SUCCESS)
        pids.add(encoder.pid)
        for k, camera in enumerate(CAMERAS):
            assert numbers(folder, camera) == [2 * i + k for i in range(frames)]
        end = read_end(folder)
        assert end is not None
        assert (end.frames, end.dropped) == (frames, {"top": 0, "wrist": 0})
    assert len(pids) == 1


def test_the_process_and_the_caller_encode_the_same_bits(tmp_path: Path, encoder: Encoder) -> None:
    videos = []
    for used in (encoder, None):
        with JournalWriter(tmp_path, header(), encoder=used, waits=True) as writer:
            write(writer, 60)
            folder = writer.seal(Outcome.SUCCESS)
        with av.open(str(folder / "top.mkv")) as container:
            videos.append([bytes(packet) for packet in container.demux(video=0)])
    assert videos[0] == videos[1]


def test_an_encoder_that_hangs_says_so_then_drops_pictures_but_never_shifts_them(
    tmp_path: Path, encoder: Encoder
) -> None:
    """Beside eight busy programs two of three pictures were dropped, and the operator only saw
    that afterwards. LeRobot's streaming encoder drops pictures too, and every later one is then a
    row early."""
    room = round(SLACK_S * 50)  # small pictures: memory is not what bounds it
    hung, over = room + 30, room + 35
    with JournalWriter(tmp_path, header(), encoder=encoder) as writer:
        write(writer, 2)
        catch_up(encoder)
        os.kill(encoder.pid, signal.SIGSTOP)
        try:
            for index in range(2, hung):
                writer.telemetry(index * 20_000_000, np.zeros(1))
                writer.frame(row(index))
            assert writer.behind_s() == pytest.approx(SLACK_S)
        finally:
            os.kill(encoder.pid, signal.SIGCONT)
        catch_up(encoder)
        assert writer.behind_s() == 0
        for index in range(hung, over):
            writer.frame(row(index))
        folder = writer.seal(Outcome.SUCCESS)
    end, take = read_end(folder), read_take(folder)
    assert end is not None
    assert end.dropped == dict.fromkeys(CAMERAS, hung - 2 - room)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if event["event"] == "dropped"]
    assert len(told) == sum(end.dropped.values())
    ages = take.frames.camera_age_s["top"]
    shown = numbers(folder, "top")
    assert len(shown) == len(take.frames) == over
    for index, (code, age_s) in enumerate(zip(shown, ages, strict=True)):
        taken_at_row = code // 2
        assert age_s == pytest.approx(0.01 + (index - taken_at_row) / 50)
    assert shown[hung:] == [2 * index for index in range(hung, over)]
    assert (np.array(shown) != 2 * np.arange(over)).sum() == end.dropped["top"]


@pytest.mark.parametrize("size", [(64, 48), (66, 50), (34, 2), (640, 480)])
def test_pictures_at_the_end_of_memory_are_encoded(tmp_path: Path, size: tuple[int, int]) -> None:
    """The encoder's process ended with a segmentation fault at the last of its slots: FFmpeg reads
    beyond the end of a row."""
    width, height = size
    length = -(-width * height * 3 // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, length), dtype=np.uint8)
    image = memory[length - width * height * 3 :].reshape(height, width, 3)
    stream = VideoStream(tmp_path / "top.mkv", width, height, 50.0)
    for index in range(40):
        image[:] = 6 * index
        stream.encode(image)
        stream.forget_source()
    stream.close()
    with av.open(str(tmp_path / "top.mkv")) as container:
        shown = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(video=0)]
    assert shown == pytest.approx([6.0 * index for index in range(40)], abs=14)


def test_slots_are_bounded_in_memory_and_never_too_few() -> None:
    big = {f"c{k}": {"width": 1920, "height": 1080, "fps": 60.0} for k in range(4)}
    ring = Ring(big)
    ring.close()
    held = sum(slots.nbytes for slots in ring.slots.values())
    assert held <= max(MOST_BYTES, 4 * LEAST_SLOTS * 1920 * 1080 * 3)
    assert all(len(slots) >= LEAST_SLOTS for slots in ring.slots.values())


def test_a_camera_slower_than_the_rows_repeats_its_picture_without_a_drop(
    tmp_path: Path, encoder: Encoder
) -> None:
    with JournalWriter(tmp_path, header(), encoder=encoder, waits=True) as writer:
        for index in range(30):
            if index % 3 == 0:
                shown = dict.fromkeys(CAMERAS, picture(index))
            writer.frame(row(index, shown))
        folder = writer.seal(Outcome.SUCCESS)
    assert numbers(folder, "wrist") == [3 * (index // 3) for index in range(30)]
    assert writer.dropped == {"top": 0, "wrist": 0}


def test_the_encoders_death_costs_one_take_which_is_recovered_and_the_next_is_whole(
    tmp_path: Path, encoder: Encoder
) -> None:
    writer = JournalWriter(tmp_path, header(), encoder=encoder, waits=True)
    with writer:
        write(writer, 60)
        before = encoder.pid
        os.kill(before, signal.SIGKILL)
        with pytest.raises(DeviceError, match="encoder's process has died"):
            write(writer, 60)
    with JournalWriter(tmp_path, header(), encoder=encoder, waits=True) as after:
        write(after, 10)
        whole = after.seal(Outcome.SUCCESS)
    assert encoder.pid != before
    assert numbers(whole, "top") == [2 * index for index in range(10)]
    (lost,) = recover(tmp_path).recovered
    assert lost.uid == writer.folder.name
    assert numbers(writer.folder, "wrist") == [2 * i + 1 for i in range(lost.frames)]
    assert len(read_take(writer.folder).frames) == lost.frames


def test_other_cameras_get_another_process(tmp_path: Path, encoder: Encoder) -> None:
    one_camera = {"top": CAMERAS["top"]}
    with JournalWriter(tmp_path, header(), encoder=encoder, waits=True) as writer:
        write(writer, 80)
        first = writer.seal(Outcome.SUCCESS)
    with JournalWriter(tmp_path, header(one_camera), encoder=encoder, waits=True) as writer:
        write(writer, 5)
        second = writer.seal(Outcome.SUCCESS)
    assert len(numbers(first, "wrist")) == 80
    assert len(numbers(second, "top")) == 5


class Closing:
    """An encoder's process that gets one thing done each time it is asked."""

    def __init__(self, things: int) -> None:
        self.closed: dict[str, dict[str, int]] = {}
        self.faults: dict[str, str] = {}
        self.dead, self.heard_s = False, time.monotonic()
        self._left = things

    def tell(self, _order: object) -> None:
        pass

    def hear(self, _timeout_s: float) -> None:
        if self._left:
            self._left -= 1
            self.heard_s = math.inf  # later than any clock says: it has just got something done
            return
        self.closed["slow"] = {"top": 5}

    def kill(self) -> None:
        self.dead = True


def test_an_encoder_that_is_slow_is_waited_for_and_one_that_hangs_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where eight programs wanted each core the videos took more than 20 s to close, and a whole
    take was lost though the encoder was at work all the time."""
    monkeypatch.setattr(encoder_module, "FINISH_S", -1.0)  # no time at all
    slow = encoder_module.RemoteTake(Closing(100), Path(), "slow", False)  # type: ignore[arg-type]
    slow._process.heard_s = math.inf
    assert slow.wait() == {"top": 5}
    hung = encoder_module.RemoteTake(Closing(0), Path(), "other", False)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="has died"):
        hung.wait()


class Said(encoder_process._Server):
    """A server whose answers are kept."""

    def __init__(self) -> None:
        self.said: list[dict[str, object]] = []
        ring = Ring(CAMERAS)
        super().__init__(ring, CAMERAS, 1)
        ring.close()

    def say(self, answer: Mapping[str, object]) -> None:
        self.said.append(dict(answer))


def test_whatever_keeps_the_videos_from_the_disk_is_said_once_and_ends_the_take(
    tmp_path: Path,
) -> None:
    """On macOS the encoder's sync thread ended for want of `os.fdatasync`, and nobody heard."""
    server = Said()
    server.obey({"open": "a", "folder": str(tmp_path)})

    def unsynced() -> None:
        raise AttributeError("module 'os' has no attribute 'fdatasync'")

    for stream in server._takes["a"].values():
        stream.sync = unsynced  # type: ignore[method-assign]
    server.sync()
    server.sync()
    server.close()
    faults = [answer for answer in server.said if answer.get("fault") == "a"]
    assert len(faults) == 1
    assert "fdatasync" in str(faults[0]["why"])


_RECORD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_encoder as t
encoder = t.Encoder()
writer = t.JournalWriter(Path(sys.argv[1]), t.header(), encoder=encoder, waits=True)
t.write(writer, 50)
print(encoder.pid, flush=True)
t.time.sleep(60)
"""


def test_when_the_recorder_is_killed_the_encoder_finishes_the_videos_and_ends(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RECORD, str(tmp_path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s and not all(
        read_stream(folder / "frames.arrows").num_rows == 50 for folder in tmp_path.iterdir()
    ):
        time.sleep(0.02)
    process.kill()
    process.communicate()
    (lost,) = recover(tmp_path).recovered
    assert lost.frames == 50
    (folder,) = take_folders(tmp_path)
    assert numbers(folder, "top") == [2 * index for index in range(50)]
    until_s = time.monotonic() + WITHIN_S
    while _is_alive(pid) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except OSError:
        return False
