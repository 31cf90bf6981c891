"""Laws of the journal writer: sealed is whole; unsealed is readable up to its last batch."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.collect.recovery import recover
from gaploop.core import journal_format, labels, platform_calls
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.files import sha256, uuid7
from gaploop.core.journal_format import (
    TakeHeader,
    read_end,
    read_header,
    read_stream,
    read_take,
    take_folders,
)
from gaploop.core.messages import Image
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome

SIZE = 64
CAMERA = {"top": {"width": SIZE, "height": SIZE, "fps": 50.0, "codec": "h264"}}


def header(cameras: object = CAMERA, scene: tuple[str, ...] = ("x", "y")) -> TakeHeader:
    info = TakeInfo(uuid7(), task="t", joint_names=("a", "b", "c"), conditions={"distractors": 2})
    channels = {"arm.a.position_rad": "rad", "arm.a.current_a": "A"}
    return TakeHeader(info, scene, cameras, channels)  # type: ignore[arg-type]


def picture(index: int) -> Image:
    """A picture that says its number: brightness in steps that survive the codec."""
    return np.full((SIZE, SIZE, 3), 20 + 40 * (index % 6), dtype=np.uint8)


def number(image: Image) -> int:
    return round((float(image.mean()) - 20) / 40)


def row(index: int, *, cameras: bool = True, scene: int = 2) -> FrameRow:
    joints = np.array([index, 0.5, -0.5])
    return FrameRow(
        t_s=index / 50,
        state=joints,
        action=joints + 1,
        sent=joints + 2,
        environment_state=np.full(scene, index / 2),
        intervention=index % 2 == 1,
        safety=index % 4,
        camera_age_s={"top": 0.01} if cameras else {},
        pictures={"top": picture(index)} if cameras else {},
    )


def write(writer: JournalWriter, frames: int, *, cameras: bool = True, scene: int = 2) -> None:
    for index in range(frames):
        for half in (0, 1):
            t_ns = (2 * index + half) * 10_000_000
            writer.telemetry(t_ns, np.array([index, np.nan]))
        writer.frame(row(index, cameras=cameras, scene=scene))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, header()) as writer:
        write(writer, 120)
        writer.event(0.5, "mark", key="space")
        folder = writer.seal(Outcome.SUCCESS, "held")
    take = read_take(folder)
    assert (len(take.frames), len(take.telemetry), take.outcome) == (120, 240, Outcome.SUCCESS)
    np.testing.assert_array_equal(take.frames.state[:, 0], np.arange(120))
    np.testing.assert_array_equal(take.frames.sent - take.frames.action, 1)
    np.testing.assert_allclose(take.frames.t_s, np.arange(120) / 50)
    np.testing.assert_array_equal(take.frames.environment_state[:, 1], np.arange(120) / 2)
    np.testing.assert_array_equal(take.frames.safety, np.arange(120) % 4)
    assert take.frames.intervention.sum() == 60
    assert [number(image) for image in take.cameras["top"]()] == [k % 6 for k in range(120)]
    assert json.loads((folder / journal_format.EVENTS).read_text())["key"] == "space"


def test_nan_is_null_on_disk(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, header()) as writer:
        write(writer, 5)
        folder = writer.seal(Outcome.SUCCESS)
    table = read_stream(folder / journal_format.TELEMETRY)
    assert table["arm.a.current_a"].null_count == table.num_rows == 10
    assert table["arm.a.position_rad"].null_count == 0


def test_the_seal_has_counts_and_checksums(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, header()) as writer:
        write(writer, 30)
        folder = writer.seal(Outcome.FAILURE, "time ran out")
    end = read_end(folder)
    assert end is not None
    assert (end.outcome, end.reason) == (Outcome.FAILURE, "time ran out")
    assert (end.frames, end.telemetry_rows, end.dropped) == (30, 60, {"top": 0})
    names = {p.name for p in folder.iterdir()} - {journal_format.END}
    assert dict(end.checksums) == {name: sha256(folder / name) for name in names}


@pytest.mark.parametrize("frames", [0, 1, 40])
def test_a_take_without_cameras_or_scene_is_a_take(tmp_path: Path, frames: int) -> None:
    with JournalWriter(tmp_path, header({}, ())) as writer:
        write(writer, frames, cameras=False, scene=0)
        folder = writer.seal(Outcome.UNLABELLED)
    take = read_take(folder)
    assert (len(take.frames), len(take.telemetry)) == (frames, 2 * frames)


@pytest.mark.parametrize("scene", [("x", "y"), ()])
def test_zeros_that_a_power_cut_left_in_a_stream_end_it_before_their_batch(
    tmp_path: Path, scene: tuple[str, ...]
) -> None:
    """A file system gave a batch's length before its bytes: its rows read as zeros, in silence."""
    with JournalWriter(tmp_path, header({}, scene)) as writer:
        for index in range(100):
            writer.frame(row(index, cameras=False, scene=len(scene)))
            writer.telemetry(index * 20_000_000, np.array([index, np.nan]))
        folder = writer.seal(Outcome.UNLABELLED)
    for name in (journal_format.FRAMES, journal_format.TELEMETRY):
        path = folder / name
        whole, content = read_stream(path), path.read_bytes()
        assert whole.num_rows == 100
        for start in range(0, len(content), 256):
            path.write_bytes(content[:start] + bytes(256) + content[start + 256 :])
            table = read_stream(path)
            assert table.equals(whole.slice(0, table.num_rows)) or not table.num_columns


def test_an_exception_leaves_the_take_unsealed_with_everything_so_far(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, header())

    def fail() -> None:
        with writer:
            write(writer, 33)
            raise RuntimeError("a device fault")

    with pytest.raises(RuntimeError):
        fail()
    take = read_take(writer.folder)
    assert take.outcome is Outcome.INTERRUPTED
    assert len(take.frames) == 33
    assert len(list(take.cameras["top"]())) == 33


def test_recover_marks_once_and_leaves_open_and_sealed_takes_alone(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, header()) as lost:
        write(lost, 3)
    with JournalWriter(tmp_path, header()) as sealed:
        write(sealed, 3)
        sealed.seal(Outcome.SUCCESS)
    with JournalWriter(tmp_path, header()) as still_open:
        write(still_open, 3)
        assert [r.uid for r in recover(tmp_path).recovered] == [lost.folder.name]
        assert recover(tmp_path).recovered == ()
    said = labels.current(labels.read(tmp_path / journal_format.LABELS))
    assert said == {lost.header.info.uid: {"outcome": "interrupted"}}


def test_a_missing_or_misshapen_picture_is_refused_before_the_row_is_written(
    tmp_path: Path,
) -> None:
    with JournalWriter(tmp_path, header()) as writer:
        write(writer, 2)
        with pytest.raises(DeviceError, match="No picture of camera 'top'"):
            writer.frame(row(2, cameras=False))
        wrong = row(2)
        wrong.pictures["top"] = np.zeros((8, 8, 3), np.uint8)  # type: ignore[index]
        with pytest.raises(DeviceError, match="uint8"):
            writer.frame(wrong)
        folder = writer.seal(Outcome.SUCCESS)
    assert len(read_take(folder).frames) == 2


def test_what_a_take_held_is_let_go_of_as_it_is_sealed(tmp_path: Path) -> None:
    """Each take's rows waited for a full garbage collection: 60 kB more for every take."""
    gc.disable()
    try:
        with JournalWriter(tmp_path, header()) as writer:
            with writer._telemetry._writing:  # nothing is flushed meanwhile
                write(writer, 3)
                held = weakref.ref(writer._telemetry._waiting[-1][1])
            writer.seal(Outcome.SUCCESS)
        assert held() is None
    finally:
        gc.enable()


def test_a_sync_thread_that_dies_of_anything_ends_the_take_and_the_take_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS both sync threads ended for want of `os.fdatasync`; takes were sealed all the same,
    and nothing of them had been synced while they were recorded."""

    def missing(_handle: int, *, data_only: bool = False) -> None:
        if data_only:
            raise AttributeError("module 'os' has no attribute 'fdatasync'")

    monkeypatch.setattr(platform_calls, "sync", missing)
    with JournalWriter(tmp_path, header()) as writer:
        for thread in writer._flusher._threads:
            if thread.name == "journal sync":
                thread.join()
        with pytest.raises(DeviceError, match=r"is no longer written to disk .*fdatasync"):
            writer.telemetry(0, np.zeros(len(header().channels)))
        with pytest.raises(DeviceError, match="is no longer written to disk"):
            writer.seal(Outcome.SUCCESS)
    assert read_end(writer.folder) is None


def test_a_take_is_never_written_over(tmp_path: Path) -> None:
    same = header()
    with JournalWriter(tmp_path, same), pytest.raises(UnusableInputError, match="exists"):
        JournalWriter(tmp_path, same)


def test_odd_picture_sizes_are_refused_and_leave_no_take(tmp_path: Path) -> None:
    odd = {"top": {"width": 63, "height": 64, "fps": 50.0, "codec": "h264"}}
    with pytest.raises(UnusableInputError, match="even"):
        JournalWriter(tmp_path, header(odd))
    assert take_folders(tmp_path) == []


def test_a_journal_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("")
    with pytest.raises(UnusableInputError, match="--journal"):
        JournalWriter(tmp_path / "j", header())


_RECORD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_journal as t
from gaploop.collect.journal import JournalWriter, warm_up
from gaploop.core.vocabulary import Outcome
warm_up()
print("ready", flush=True)
while True:
    with JournalWriter(Path(sys.argv[1]), t.header()) as writer:
        start_s = time.monotonic()
        for index in range(60):
            print(writer.folder.name, index, time.monotonic(), flush=True)
            for half in (0, 1):
                writer.telemetry((2 * index + half) * 10_000_000, t.np.array([index, 0.0]))
            writer.frame(t.row(index))
            time.sleep(max(0.0, start_s + (index + 1) / 50 - time.monotonic()))
        writer.seal(Outcome.SUCCESS)
        print(writer.folder.name, "sealed", flush=True)
"""


@pytest.mark.members(2)
@pytest.mark.parametrize("after_s", [0.35, 0.9, 1.27, 1.9, 2.6])
def test_a_kill_loses_no_sealed_take_and_half_a_second_of_the_open_one(
    tmp_path: Path, after_s: float
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RECORD, str(tmp_path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(after_s)
    killed_s = time.monotonic()  # one clock for all processes
    process.send_signal(signal.SIGKILL)
    lines = process.communicate()[0].splitlines()
    whole = [line.split() for line in lines]
    sealed = {uid for uid, word, *_ in whole if word == "sealed"}
    asked = {
        uid: int(index) for uid, index, *at_s in whole if at_s and float(at_s[0]) < killed_s - 0.5
    }
    for folder in take_folders(tmp_path):
        read_header(folder)
        end, take = read_end(folder), read_take(folder)
        pictures = [number(image) for image in take.cameras["top"]()]
        assert pictures == [k % 6 for k in range(len(pictures))]
        if end is not None:
            sealed.discard(folder.name)
            assert len(take.frames) == len(pictures) == end.frames == 60
            continue
        held = asked.get(folder.name, 0)
        assert len(take.frames) >= held
        assert len(take.telemetry) >= 2 * held
        assert len(pictures) >= held
    assert not sealed
