"""Publishing: once is enough, order is kept, nothing is lost, every picture stands by its row."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import append_truth, read_journal
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.columns import EPISODE_COLUMNS, take_hash
from gaploop.datasets.lerobot_publish import publish, publish_takes
from gaploop.datasets.lerobot_read import read_takes

Write = Callable[..., str]


def uids(root: Path) -> list[str]:
    return [take.info.uid for take in read_takes(root)]


def test_publishing_twice_equals_once(tmp_path: Path, write_take: Write) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    written = [write_take(journal, code=100 * i) for i in range(3)]
    assert publish(journal, root, "me/x") == 3
    files = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()}
    assert publish(journal, root, "me/x") == 0
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()} == files
    assert uids(root) == written


def test_a_then_b_equals_both_in_order(tmp_path: Path, write_take: Write) -> None:
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "set"
    first = [write_take(a, code=10), write_take(a, code=20)]
    second = [write_take(b, code=30)]
    assert publish(a, root, "me/x") == 2
    assert publish(b, root, "me/x") == 1
    assert uids(root) == first + second


def test_what_was_recorded_comes_back(tmp_path: Path, write_take: Write) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(
        journal,
        dimensions={"object_property": 0.5},
        conditions={"distractors": 2, "object": "large_cube"},
        policy="p1",
        plan="item-1",
    )
    publish(journal, root, "me/x")
    [before], [after] = list(read_journal(journal)), list(read_takes(root))
    assert after.info == before.info
    assert after.outcome == before.outcome
    for name in ("state", "action", "sent", "environment_state", "t_s"):
        np.testing.assert_allclose(
            getattr(after.frames, name), getattr(before.frames, name), rtol=1e-6
        )
    assert after.frames.intervention.tolist() == before.frames.intervention.tolist()
    assert after.frames.safety.tolist() == before.frames.safety.tolist()
    assert list(after.telemetry.columns) == list(before.telemetry.columns)
    for name, values in before.telemetry.columns.items():
        np.testing.assert_array_equal(after.telemetry.columns[name], values)
    assert after.telemetry.units == before.telemetry.units


def test_a_camera_may_be_called_image(tmp_path: Path, write_take: Write) -> None:
    """LeRobot takes each feature with `image` in its name for a picture: publishing a camera called
    so ended in a traceback about the shape of its ages' statistics."""
    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(journal, cameras=("image", "wrist_image"))
    publish(journal, root, "me/x")
    [take] = read_takes(root)
    assert set(take.cameras) == set(take.frames.camera_age_s) == {"image", "wrist_image"}


@pytest.mark.members(1)
@pytest.mark.parametrize("fps", [50.0, 30.0])
def test_plain_lerobot_decodes_the_right_picture_for_every_row(
    tmp_path: Path, write_take: Write, barcodes: tuple, fps: float
) -> None:
    """A naive remux of millisecond times made LeRobot refuse 112 of 171 frames at 30 fps."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    _, read_barcode = barcodes
    journal, root = tmp_path / "journal", tmp_path / "set"
    for code, frames in ((100, 23), (200, 31)):
        write_take(journal, frames, code=code, fps=fps, cameras=("overhead", "wrist"))
    publish(journal, root, "me/x")
    write_take(journal, 12, code=300, fps=fps, cameras=("overhead", "wrist"))
    publish(journal, root, "me/x")
    dataset = LeRobotDataset("me/x", root=root)
    assert len(dataset) == 23 + 31 + 12
    expected = [100 + k for k in range(23)] + [200 + k for k in range(31)]
    expected += [300 + k for k in range(12)]
    for camera in ("overhead", "wrist"):
        seen = [
            read_barcode(item[f"observation.images.{camera}"].numpy().transpose(1, 2, 0) * 255)
            for item in dataset
        ]
        assert seen == expected
    takes = list(read_takes(root))
    ours = [read_barcode(p) for take in takes for p in take.cameras["wrist"]()]
    assert ours == expected


def test_policies_see_no_gap_column_and_statistics_exist(tmp_path: Path, write_take: Write) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
    from lerobot.utils.feature_utils import dataset_to_policy_features

    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(journal, 25)
    publish(journal, root, "me/x")
    meta = LeRobotDatasetMetadata("me/x", root=root)
    assert not [name for name in dataset_to_policy_features(meta.features) if "gap" in name]
    picture = meta.stats["observation.images.overhead"]
    assert picture["mean"].shape == (3, 1, 1)
    assert 0 < picture["mean"].mean() < 1
    assert meta.stats["action"]["std"].shape == (3,)


def test_episode_columns_keep_their_types_when_all_are_empty(
    tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(journal)
    publish(journal, root, "me/x")
    write_take(journal, dimensions={"spatial_geometry": 1.0})
    publish(journal, root, "me/x")
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    assert len(files) == 2
    for path in files:
        schema = pq.read_schema(path)
        assert {n: schema.field(n).type for n in EPISODE_COLUMNS} == EPISODE_COLUMNS
        assert not any(pa.types.is_null(field.type) for field in schema)


def test_gap_take_finds_the_uid_again(tmp_path: Path, write_take: Write) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    uid = write_take(journal)
    publish(journal, root, "me/x")
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    assert set(table["gap.take"].to_pylist()) == {take_hash(uid)}
    assert table.schema.field("gap.take").type == pa.int64()


def test_only_sealed_takes_worth_keeping_are_published(tmp_path: Path, write_take: Write) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    good = [write_take(journal, outcome=o) for o in (Outcome.SUCCESS, Outcome.FAILURE)]
    good.append(write_take(journal, outcome=Outcome.UNLABELLED))
    write_take(journal, outcome=Outcome.DISCARDED)
    write_take(journal, outcome=None)
    report = publish_takes(journal, root, "me/x")
    assert list(report.published) == good
    assert report.skipped == {"discarded": 1, "unsealed": 1}


def test_a_take_with_nan_state_is_refused_and_the_others_go_through(
    tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    bad = write_take(journal, bad_state_at=3)
    good = write_take(journal)
    done: list[tuple[int, int]] = []
    report = publish_takes(journal, root, "me/x", on_take=lambda *now: done.append(now))
    assert report.published == (good,)
    assert "first at 3" in report.refused[bad]
    assert done == [(1, 2), (2, 2)]


def test_labels_given_later_reach_the_episode_columns(tmp_path: Path, write_take: Write) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    uid = write_take(journal, outcome=Outcome.UNLABELLED)
    publish(journal, root, "me/x")
    for event in (
        LabelEvent(uid, "outcome", "failure", "ana", "operator"),
        LabelEvent(uid, "failure_mode", "slip", "ana", "operator"),
        LabelEvent(uid, "dimensions", {"contact_dynamics": 0.8}, "ana", "operator"),
        LabelEvent("another", "outcome", "failure", "ana", "operator"),
    ):
        labels.append(journal / "labels.jsonl", event)
    report = publish_takes(journal, root, "me/x")
    assert (report.published, report.labels) == ((), 3)
    [take] = list(read_takes(root))
    assert (take.outcome, take.failure_mode) == (Outcome.FAILURE, "slip")
    assert take.info.dimensions == {"contact_dynamics": 0.8}
    assert publish_takes(journal, root, "me/x").labels == 0


def test_lines_that_are_no_truth_are_left(tmp_path: Path, write_take: Callable[..., str]) -> None:
    """A torn or foreign line of truth.jsonl ended `publish` in a traceback."""
    journal, root = tmp_path / "journal", tmp_path / "set"
    uid = write_take(journal)
    append_truth(journal, uid, {"gaps": {}})
    with (journal / "truth.jsonl").open("ab") as stream:
        stream.write(b'[]\n{"uid": ["a"]}\n\xff\n{"uid": "' + b"[" * 9999)
    publish(journal, root, "me/set")
    assert [json.loads(x)["uid"] for x in (root / "truth.jsonl").open()] == [uid]


def test_truth_lies_in_its_own_file_and_only_for_published_takes(
    tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    uid, gone = write_take(journal), write_take(journal, outcome=Outcome.DISCARDED)
    for name in (uid, gone):
        append_truth(journal, name, {"gaps": {"contact_dynamics": 0.61234}})
    publish(journal, root, "me/x")
    assert [json.loads(x)["uid"] for x in (root / "truth.jsonl").open()] == [uid]
    others = [p for p in root.rglob("*") if p.is_file() and p.name != "truth.jsonl"]
    assert not [p for p in others if b"0.61234" in p.read_bytes()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fps": 30.0}, "30 fps"),
        ({"joints": ("pan", "lift")}, "2 joints"),
        ({"cameras": ()}, "observation.images.overhead"),
        ({"scene": ()}, "observation.environment_state"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, write_take: Write, change: dict, said: str
) -> None:
    a, b, root = tmp_path / "a", tmp_path / "b", tmp_path / "set"
    write_take(a)
    publish(a, root, "me/x")
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    write_take(b, **change)
    with pytest.raises(UnusableInputError, match=said):
        publish(b, root, "me/x")
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == before


def test_one_episode_that_does_not_fit_keeps_no_other_out(
    tmp_path: Path, write_take: Write
) -> None:
    """Two sessions recorded into one journal with pictures of two sizes: from then on nothing of it
    could be published, to whichever folder."""
    journal, root = tmp_path / "journal", tmp_path / "set"
    good, other = write_take(journal), write_take(journal, fps=30.0)
    report = publish_takes(journal, root, "me/x")
    assert (report.published, set(report.refused)) == ((good,), {other})
    assert "30 fps" in report.refused[other]
    more = write_take(journal)
    assert publish_takes(journal, root, "me/x").published == (more,)
    with pytest.raises(UnusableInputError, match="30 fps"):
        publish(journal, root, "me/x")


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "foreign"])
def test_unusable_folders_are_named(tmp_path: Path, write_take: Write, kind: str) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    if kind == "empty":
        journal.mkdir()
    elif kind == "file":
        journal.write_text("")
    elif kind == "foreign":
        write_take(journal)
        root.mkdir()
        (root / "notes.txt").write_text("mine")
    with pytest.raises(UnusableInputError, match=str(tmp_path)):
        publish(journal, root, "me/x")


def test_an_empty_folder_may_become_the_dataset(tmp_path: Path, write_take: Write) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(journal)
    root.mkdir()
    assert publish(journal, root, "me/x") == 1
    assert len(uids(root)) == 1


def test_damage_in_one_take_does_not_keep_the_others_back(
    tmp_path: Path, write_take: Write
) -> None:
    journal, root = tmp_path / "journal", tmp_path / "set"
    cut, infinite, good = (write_take(journal, code=i) for i in range(3))
    video = journal / cut / "overhead.mkv"
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    schema = pa.schema([("t_ns", pa.int64()), ("wrist.fx_n", pa.float64())])
    table = pa.table({"t_ns": [0], "wrist.fx_n": [float("inf")]}, schema=schema)
    with pa.ipc.new_stream(journal / infinite / "telemetry.arrows", schema) as stream:
        stream.write_table(table)
    report = publish_takes(journal, root, "me/x")
    assert report.published == (good,)
    assert set(report.refused) == {cut, infinite}


def test_an_unwritable_place_is_one_clear_error(tmp_path: Path, write_take: Write) -> None:
    write_take(tmp_path / "journal")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableInputError, match=r"--dataset\.root"):
        publish(tmp_path / "journal", tmp_path / "file" / "set", "me/x")


def test_what_fails_for_want_of_room_keeps_none(tmp_path: Path, write_take: Write) -> None:
    """Half a copy of the dataset stayed on the full disk."""
    journal, root = tmp_path / "journal", tmp_path / "set"
    write_take(journal)
    publish(journal, root, "me/x")
    write_take(journal)

    def is_full(step: str) -> None:
        if step == "take written":
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        publish_takes(journal, root, "me/x", hook=is_full)
    assert {path.name for path in tmp_path.iterdir()} == {"journal", "set", ".set.lock"}
    assert publish(journal, root, "me/x") == 1
