"""Faults that end a take, never the session: disk full, clock set, sensors lost, names taken."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.campaign import Quota
from gaploop.collect.encoder import Encoder
from gaploop.collect.journal import FrameRow, JournalWriter, Recorder, channels
from gaploop.collect.recovery import recover
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import record_takes
from gaploop.core.errors import DeviceError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader, read_end, read_take, take_folders
from gaploop.core.messages import (
    FloatArray,
    FollowerState,
    LeaderSample,
    SafeCommand,
    SafetyReason,
    Tick,
)
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets.check.dataset import check

SIZE = 128
WITHIN_S = 120.0
"""Something that hangs is given up after this long."""
CAMERA = {"top": {"width": SIZE, "height": SIZE, "fps": 50.0, "codec": "h264"}}
__all__ = ["DeviceError", "Encoder", "Outcome"]  # what the recording processes use
NOISE = np.random.default_rng(0).integers(0, 255, (8, SIZE, SIZE, 3), dtype=np.uint8)


def header(cameras: Mapping[str, Mapping[str, object]] = CAMERA) -> TakeHeader:
    info = TakeInfo(uuid7(), task="t", joint_names=("a",))
    wide = {f"arm.{k}.current_a": "A" for k in range(50)}
    return TakeHeader(info, (), cameras, wide)


def write(writer: JournalWriter, frames: int) -> None:
    for index in range(frames):
        for quarter in range(4):
            writer.telemetry((4 * index + quarter) * 5_000_000, np.full(50, float(index)))
        one = np.full(1, float(index))
        writer.frame(FrameRow(index / 50, one, one, one, pictures={"top": NOISE[index % 8]}))


_FULL = """
import resource, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_journal_faults as t
journal, who = Path(sys.argv[1]), sys.argv[3]
free, most = resource.getrlimit(resource.RLIMIT_FSIZE)
with t.Encoder() as encoder:
    encoder.start(t.CAMERA)
    pid = encoder.pid if who == "video" else 0
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (200_000 if pid else 100_000, most))
    try:
        with t.JournalWriter(journal, t.header(), encoder=encoder, waits=True) as writer:
            for _ in range(20):
                t.write(writer, 30)
                time.sleep(0.05)
    except t.DeviceError as error:
        print(error)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (free, most))
    with t.JournalWriter(journal, t.header(), encoder=encoder, waits=True) as writer:
        t.write(writer, 30)
        writer.seal(t.Outcome.SUCCESS)
"""


@pytest.mark.members(1)
@pytest.mark.parametrize("who", ["rows", "video"])
def test_a_full_disk_ends_the_take_with_one_line_and_the_next_take_is_whole(
    tmp_path: Path, who: str
) -> None:
    command = [sys.executable, "-c", _FULL, str(tmp_path), str(Path(__file__).parent), who]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "can't be written" in done.stdout
    full, whole = take_folders(tmp_path)
    sealed = read_end(whole)
    assert sealed is not None
    assert (read_end(full), sealed.frames) == (None, 30)
    (saved,) = recover(tmp_path).recovered
    assert saved.uid == full.name
    assert saved.frames >= 10
    assert len(list(read_take(full).cameras["top"]())) == saved.frames
    assert [f for f in check(tmp_path) if f.severity == "error"] == []


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "Make room in"), (errno.EROFS, "See to the disk of")]
)
def test_what_keeps_an_episode_from_the_disk_has_a_fix_that_works(
    number: int, fix: str, tmp_path: Path
) -> None:
    """A disk that had become read-only was to be given room."""
    with JournalWriter(tmp_path, header()) as writer:
        writer._flusher.fault = OSError(number, os.strerror(number))
        with pytest.raises(DeviceError, match=fix):
            write(writer, 1)


def test_a_session_goes_on_after_a_take_whose_encoder_died(tmp_path: Path) -> None:
    killed: list[int] = []

    class Killer:
        """Ends the encoder's process in the middle of the second take."""

        def __init__(self) -> None:
            self.reads = self.takes = 0

        def reset(self) -> None:
            self.reads, self.takes = 0, self.takes + 1

        def read(self, t_s: float) -> LeaderSample:
            self.reads += 1
            if self.reads == 30 and self.takes == 2 and not killed:
                killed.extend(_encoders())
                for pid in killed:
                    subprocess.run(["kill", "-9", str(pid)], check=True)
                time.sleep(0.1)
            return LeaderSample(t_s, np.zeros(6))

        def done(self) -> bool:
            return False

    end = record_takes(
        tmp_path,
        TakeInfo("", "t", kind=TakeKind.ROLLOUT),
        [Quota(3)],
        lambda _conditions: embedded_rig(),
        lambda _rig, _seed: Killer(),
        max_s=0.5,
    )
    assert len(killed) == 1
    assert (end.counted, end.wanted) == (3, 3)
    outcomes = [read_take(folder).outcome for folder in take_folders(tmp_path)]
    assert outcomes.count(Outcome.INTERRUPTED) == 1
    assert outcomes[1] is Outcome.INTERRUPTED
    assert len(outcomes) == 4


def _encoders() -> list[int]:
    """Return the encoder processes that are children of this one."""
    import os

    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            words = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if parent == os.getpid() and "encoder_process" in words:
            found.append(int(stat.parent.name))
    return found


def test_a_session_that_can_record_nothing_ends_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each episode that couldn't be recorded was told three times, in three ways."""
    rig = embedded_rig()

    class NoPicture:
        name = "overhead"

        def __init__(self) -> None:
            self.asked = 0

        def frame(self) -> object:
            self.asked += 1
            picture = rig.cameras[0].frame()
            if self.asked % 10:
                return picture
            return type(picture)(picture.image[:64], picture.t_capture_s)

    from dataclasses import replace

    broken = replace(rig, cameras=(NoPicture(),), tracker=None)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="3 episodes in a row could not be recorded"):
        record_takes(
            tmp_path,
            TakeInfo("", "t", kind=TakeKind.ROLLOUT),
            [Quota(5)],
            lambda _conditions: broken,
            lambda _rig, _seed: _Still(),
            max_s=0.5,
        )
    assert {read_take(f).outcome for f in take_folders(tmp_path)} == {Outcome.INTERRUPTED}
    assert len(caplog.messages) == 3


class _Still:
    def reset(self) -> None: ...

    def read(self, t_s: float) -> LeaderSample:
        return LeaderSample(t_s, np.zeros(6))

    def done(self) -> bool:
        return False


def test_dropped_pictures_are_found_by_check(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, header()) as writer:
        write(writer, 3)
        writer.dropped["top"] = 2
        writer.seal(Outcome.SUCCESS)
    (found,) = check(tmp_path)
    assert (found.code, found.severity) == ("dropped_pictures", "warning")
    assert "2 of 3" in found.message


class _Arm:
    name, robot_type, units = "follower", "t", "deg"
    joint_names = ("a", "b")

    def to_units(self, q_rad: FloatArray) -> FloatArray:
        return np.degrees(q_rad)


class _Wrist:
    """A force sensor that is silent for a while."""

    channels: Mapping[str, str] = {"wrist.fx_n": "N", "wrist.tz_nm": "Nm"}

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Mapping[str, float]:
        self.reads += 1
        if 3 <= self.reads <= 5:
            raise DeviceError("wrist: no answer. Check its cable.")
        return {"wrist.fx_n": float(self.reads), "wrist.tz_nm": float("inf")}


class _Servos(_Still):
    servo_joints = ("one", "two")


def _state(value: float) -> FollowerState:
    same = np.full(2, value)
    return FollowerState(0.0, same, same, same, same, same, same, np.zeros(2, dtype=np.int64))


def _tick(index: int, leader: FollowerState | None) -> Tick:
    q = np.full(2, 0.5)
    sample = LeaderSample(0.0, q, state=leader)
    command = SafeCommand(q, q, SafetyReason.NONE)
    return Tick(index, index * 0.005, 0.005, 0.0, sample, command, _state(1.0), {})


def test_sensors_and_the_leaders_own_servos_are_channels_of_the_record(tmp_path: Path) -> None:
    arm, wrist, leader = _Arm(), _Wrist(), _Servos()
    names = channels(arm, (wrist,), leader)  # type: ignore[arg-type]
    assert names["leader.one.current_a"] == "A"
    assert "leader.one.sent_rad" not in names
    info = TakeInfo(uuid7(), task="t", joint_names=arm.joint_names)
    with JournalWriter(tmp_path, TakeHeader(info, (), {}, names)) as writer:
        recorder = Recorder(writer, arm, (wrist,), leader)  # type: ignore[arg-type]
        for index in range(8):
            recorder.tick(_tick(index, None if index == 4 else _state(0.1 * index)))
        folder = writer.seal(Outcome.SUCCESS)
    record = read_take(folder).telemetry
    np.testing.assert_array_equal(
        record.columns["wrist.fx_n"], [1, 2, np.nan, np.nan, np.nan, 6, 7, 8]
    )
    assert np.isnan(record.columns["wrist.tz_nm"]).all()
    assert record.units["wrist.tz_nm"] == "Nm"
    own = record.stack("leader", "position_rad")
    np.testing.assert_allclose(own[:4, 1], [0, 0.1, 0.2, 0.3], atol=1e-12)
    assert np.isnan(own[4]).all()
    assert record.arms() == ("follower", "leader")
    np.testing.assert_array_equal(record.stack("follower", "voltage_v"), 1.0)
    np.testing.assert_array_equal(record.columns["loop.period_s"], 0.005)
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(e["event"], e["ok"]) for e in told] == [("sensor", False), ("sensor", True)]
