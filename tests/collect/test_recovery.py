"""Laws of recovery: the longest intact stretch, equal counts, idempotent, sealed is sealed."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaploop.collect.encoder_process import camera_stream
from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.collect.recovery import _packets, recover
from gaploop.core import journal_format, labels
from gaploop.core.files import sha256, uuid7
from gaploop.core.journal_format import TakeHeader, read_end, read_journal, read_take
from gaploop.core.messages import Image
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.check.dataset import check
from gaploop.datasets.video import verify
from gaploop.scripts.cli import main

SIZE, FRAMES = 32, 100
CAMERAS = {
    name: {"width": SIZE, "height": SIZE, "fps": 50.0, "codec": "h264"} for name in ("top", "wrist")
}


def picture(index: int) -> Image:
    return np.full((SIZE, SIZE, 3), 20 + 40 * (index % 6), dtype=np.uint8)


def number(image: Image) -> int:
    return round((float(image.mean()) - 20) / 40)


def write_unsealed(journal: Path, frames: int = FRAMES) -> Path:
    info = TakeInfo(uuid7(), task="t", joint_names=("a", "b"), fps=50.0)
    with JournalWriter(
        journal, TakeHeader(info, (), CAMERAS, {"f.a.position_rad": "rad"})
    ) as writer:
        for index in range(frames):
            for quarter in range(4):
                writer.telemetry((4 * index + quarter) * 5_000_000, np.array([float(index)]))
            joints = np.full(2, float(index))
            shown = {c: picture(index) for c in CAMERAS}
            writer.frame(FrameRow(index / 50, joints, joints, joints, pictures=shown))
            if index == 7:
                writer.event(0.14, journal_format.DROPPED, camera="top", frame=7)
    return writer.folder


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unsealed(tmp_path_factory.mktemp("journal"))


def files(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.iterdir()}


CUT = ("frames.arrows", "telemetry.arrows", "top.mkv", "wrist.mkv", "events.jsonl")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kept=st.fixed_dictionaries({n: st.just(1.0) | st.floats(0.2, 1) | st.floats(0, 1) for n in CUT})
)
def test_streams_torn_anywhere_are_made_whole(
    unsealed: Path, tmp_path_factory: pytest.TempPathFactory, kept: dict[str, float]
) -> None:
    journal = tmp_path_factory.mktemp("torn")
    folder = Path(shutil.copytree(unsealed, journal / unsealed.name))
    for name, share in kept.items():
        path = folder / name
        with path.open("r+b") as stream:
            stream.truncate(int(share * path.stat().st_size))
    report = recover(journal)
    assert report.failed == report.open == ()
    (found,) = report.recovered
    end, take = read_end(folder), read_take(folder)
    assert end is not None
    assert (end.outcome, take.outcome) == (Outcome.INTERRUPTED, Outcome.INTERRUPTED)
    assert len(take.frames) == end.frames == found.frames
    np.testing.assert_array_equal(take.frames.state[:, 0], np.arange(found.frames))
    for camera in CAMERAS:
        shown = [number(image) for image in take.cameras[camera]()]
        assert shown == [k % 6 for k in range(found.frames)]
        if found.frames:
            verify(folder / f"{camera}.mkv", found.frames)
    np.testing.assert_allclose(np.diff(take.telemetry.t_s), 0.005)
    if found.frames:
        assert len(take.telemetry) <= 4 * found.frames
    assert [f for f in check(journal) if f.severity == "error"] == []
    before = files(folder)
    assert recover(journal).recovered == ()
    assert files(folder) == before


def test_nothing_is_lost_of_a_take_that_only_lacks_its_seal(unsealed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unsealed, tmp_path / unsealed.name))
    (found,) = recover(tmp_path).recovered
    assert (found.frames, found.telemetry_rows, found.cut_s) == (FRAMES, 4 * FRAMES, 0.0)
    end = read_end(folder)
    assert end is not None
    assert end.dropped == {"top": 1, "wrist": 0}
    assert dict(end.checksums) == {n: s for n, s in files(folder).items() if n != "end.json"}


def test_a_recovery_that_is_killed_between_two_files_is_done_again(
    unsealed: Path, tmp_path: Path
) -> None:
    """Killed after the rows were cut, the videos are still as long as they were."""
    folder = Path(shutil.copytree(unsealed, tmp_path / unsealed.name))
    with (folder / "top.mkv").open("r+b") as stream:
        stream.truncate((folder / "top.mkv").stat().st_size // 2)
    again = tmp_path / "again"
    shutil.copytree(folder, again / folder.name)
    recover(tmp_path)
    done = folder / journal_format.FRAMES
    shutil.copy(done, again / folder.name / journal_format.FRAMES)
    (again / folder.name / "wrist.mkv.recovered").write_bytes(b"half a file")
    recover(again)
    one, other = read_take(folder), read_take(again / folder.name)
    np.testing.assert_array_equal(one.frames.state, other.frames.state)
    for camera in CAMERAS:
        a, b = (list(take.cameras[camera]()) for take in (one, other))
        np.testing.assert_array_equal(a, b)
    assert sorted(files(again / folder.name)) == sorted(files(folder))


def test_sealed_takes_and_takes_that_are_written_are_left_alone(tmp_path: Path) -> None:
    info = TakeInfo(uuid7(), task="t", joint_names=("a", "b"))
    with JournalWriter(tmp_path, TakeHeader(info, (), {}, {})) as writer:
        sealed = writer.seal(Outcome.DISCARDED, "a sneeze")
    before, open_ = files(sealed), write_unsealed(tmp_path, 3)
    with (open_ / journal_format.FRAMES).open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        report = recover(tmp_path)
        assert (report.recovered, report.open) == ((), (open_.name,))
    assert files(sealed) == before


@pytest.mark.parametrize("why", ["", "stopped by the user", "The disk is full."])
def test_the_reason_is_one_sentence(why: str, tmp_path: Path) -> None:
    """It read "stopped by the user recovered up to 1.20 s"."""
    info = TakeInfo(uuid7(), task="t")
    with JournalWriter(tmp_path, TakeHeader(info, (), cameras={}, channels={})) as writer:
        if why:
            writer.event(0.0, journal_format.INTERRUPTED, why=why)
    recover(tmp_path)
    end = read_end(writer.folder)
    assert end is not None
    assert end.reason == f"{why.rstrip('.') or 'cut off'}; recovered up to 0.00 s"


def test_a_take_that_cannot_be_recovered_is_named_and_the_others_are(tmp_path: Path) -> None:
    bad, good = write_unsealed(tmp_path, 5), write_unsealed(tmp_path, 5)
    (bad / journal_format.HEADER).write_text("{")
    report = recover(tmp_path)
    assert [take.uid for take in report.recovered] == [good.name]
    ((uid, why),) = report.failed
    assert uid == bad.name
    assert "take.json.torn" in why
    assert [take.info.uid for take in read_journal(tmp_path)] == [good.name]


def test_the_command_says_what_was_saved_and_an_operators_word_publishes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "data"
    folder = write_unsealed(journal, 60)
    (journal / "headless").mkdir()
    (journal / "headless" / journal_format.FRAMES).write_bytes(b"")
    assert main(["check", str(journal), "--fix", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["recovered"][0]["frames"] == 60
    assert said["headless"] == ["headless"]
    publish = ["publish", f"--journal={journal}", f"--dataset.root={root}", "--json"]
    assert main(publish) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == {"interrupted": 1}
    event = labels.LabelEvent(folder.name, "outcome", "success", "ana", "operator")
    labels.append(journal / journal_format.LABELS, event)
    assert main(publish) == 0
    assert json.loads(capsys.readouterr().out)["published"] == [folder.name]
    assert main(["check", str(root), "--fix"]) == 0
    assert "nothing to fix" in capsys.readouterr().out


def test_a_picture_whose_block_was_never_written_ends_the_take(tmp_path: Path) -> None:
    """After a power cut a row stood beside a picture of which a part was zeros."""
    spec = {"width": 64, "height": 64, "fps": 50.0}
    stream = camera_stream(tmp_path, "top", spec)
    draw = np.random.default_rng(0)
    for _ in range(20):
        stream.encode(draw.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    stream.close()
    path = tmp_path / "top.mkv"
    assert _packets(path, 50.0) == 20
    data = bytearray(path.read_bytes())
    begin = len(data) // 2
    data[begin : begin + 64] = bytes(64)
    path.write_bytes(data)
    assert 5 < _packets(path, 50.0) < 15


@pytest.mark.members(1)
@pytest.mark.parametrize("sealed", [False, True], ids=["interrupted", "sealed"])
def test_a_power_cut_while_a_take_closes_costs_only_what_was_not_flushed(
    sealed: bool, tmp_path: Path
) -> None:
    """A video's header was written anew as it closed: torn, it took 1.6 s of pictures along.

    And blocks that were never written swallowed whole pictures: later ones stood beside the rows
    of those. What a file held at a flush stays; of each block that came later the disk has all,
    zeros, or nothing.
    """
    info = TakeInfo(uuid7(), task="t", joint_names=("a", "b"))
    with JournalWriter(tmp_path, TakeHeader(info, (), CAMERAS, {"f.x": "rad"})) as writer:
        for k in range(FRAMES):
            writer.telemetry(20_000_000 * k, np.array([float(k)]))
            joints, shown = np.full(2, float(k)), {c: picture(k) for c in CAMERAS}
            writer.frame(FrameRow(k / 50, joints, joints, joints, pictures=shown))
            if k == FRAMES // 2:
                while not (writer.folder / journal_format.HEADER).exists():
                    time.sleep(0.01)
                writer._write()
                flushed = Path(shutil.copytree(writer.folder, tmp_path / "flushed" / info.uid))
        if sealed:
            writer.seal(Outcome.SUCCESS)
            (writer.folder / journal_format.END).unlink()
    copies = {path.name: path.read_bytes() for path in flushed.iterdir()}
    (least,) = recover(flushed.parent).recovered
    assert least.frames > FRAMES // 4
    draw, block, most = np.random.default_rng(0), 512, 0
    for cut in range(30):
        folder = tmp_path / str(cut) / info.uid
        folder.mkdir(parents=True)
        for path in writer.folder.iterdir():
            old = copies.get(path.name, b"")
            new = path.read_bytes()
            assert new.startswith(old), f"{path.name} was written anew"
            content = bytearray(old)
            for begin in range(len(old), len(new), block):
                part, fate = new[begin : begin + block], draw.random()
                if fate < 0.95:
                    content += bytes(begin - len(content)) + (part if fate < 0.9 else bytes(block))
            (folder / path.name).write_bytes(content)
        report = recover(folder.parent)
        assert report.failed == ()
        (found,) = report.recovered
        assert found.frames >= least.frames
        take = read_take(folder)
        np.testing.assert_array_equal(take.frames.state[:, 0], np.arange(found.frames))
        for camera in CAMERAS:
            shown_again = [number(image) for image in take.cameras[camera]()]
            assert shown_again == [k % 6 for k in range(found.frames)]
        most = max(most, found.frames)
    assert most > least.frames
