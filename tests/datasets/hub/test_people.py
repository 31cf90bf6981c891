"""People in pictures: what leaves shows none that was found, what stays here is as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loopback_hub import LoopbackHub

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.hub.upload import Pushed
from gaploop.datasets.lerobot_publish import publish_takes
from gaploop.datasets.lerobot_read import read_takes
from gaploop.datasets.people import RECORD, Box, FoundPeople, PeopleDetector, people_detector
from gaploop.datasets.whole_stats import of_images
from gaploop.scripts.cli import main

type Push = Callable[..., Pushed]
NAME = "me/cube"
CAMERA = "observation.images.overhead"
FRAMES, CODE, AT = 60, 0b0101_0101, 50
"""Of a take in which somebody is found in picture AT; barcodes with edges in the upper half."""
BOX: Box = (0, 0, 64, 32)


@pytest.fixture
def detector(barcodes: tuple[Callable, Callable[[np.ndarray], int]]) -> PeopleDetector:
    """Return what finds somebody in the upper half of one picture."""
    return PeopleDetector("one", lambda p: [BOX] * (barcodes[1](p) == CODE + AT))


def steps(picture: np.ndarray) -> int:
    """Return the largest step between neighbours in the box: 200 where a barcode shows."""
    return int(np.abs(np.diff(picture[:32, :, 0].astype(int), axis=1)).max())


def blurred_rows(root: Path, episode: int) -> list[int]:
    take = list(read_takes(root))[episode]
    return [k for k, picture in enumerate(take.cameras["overhead"]()) if steps(picture) < 100]


def content(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_pushed_shows_nobody_who_was_found_and_the_folder_stays(
    tmp_path: Path, write_take: Callable[..., str], detector: PeopleDetector, hub: LoopbackHub,
    push: Push,
) -> None:  # fmt: skip
    journal, root, there = tmp_path / "journal", tmp_path / "cube", tmp_path / "there"
    uid = write_take(journal, FRAMES, code=CODE)
    other = write_take(journal, 19, code=185)
    publish_takes(journal, root)
    before = content(tmp_path / "cube")
    assert push(root, blur=detector).uploaded
    assert content(root) == before
    assert not (tmp_path / ".cube.blurred").exists()
    for name, data in hub.files(NAME).items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(data)
    # Half a second around the one picture that was found.
    assert blurred_rows(there, 0) == list(range(AT - 25, FRAMES))
    assert not blurred_rows(there, 1)
    assert [f.code for f in check(there, deep=True)] == [f.code for f in check(root, deep=True)]
    stated = layout.read_parquet(layout.episode_files(there)[0])[f"stats/{CAMERA}/mean"][0]
    pictures = next(iter(read_takes(there))).cameras["overhead"]
    assert np.allclose(np.ravel(stated.as_py()), np.ravel(of_images(pictures(), FRAMES)["mean"]))
    record = json.loads((there / RECORD).read_text())["episodes"]
    assert record[uid]["boxes"] == {CAMERA: 1}
    assert record[other]["boxes"] == {CAMERA: 0}
    assert "blurred in 2 of 2 episodes (one)" in (there / "README.md").read_text()
    assert push(root, blur=detector).uploaded == ()


def test_what_is_published_shows_nobody_who_was_found_and_the_journal_stays(
    tmp_path: Path, write_take: Callable[..., str], detector: PeopleDetector, hub: LoopbackHub,
    push: Push,
) -> None:  # fmt: skip
    journal, root = tmp_path / "journal", tmp_path / "cube"
    uid = write_take(journal, FRAMES, code=CODE)
    before = content(journal)
    assert publish_takes(journal, root, blur=detector).people == {uid: 1}
    assert content(journal) == before
    write_take(journal, 19, code=185)
    publish_takes(journal, root, blur=detector)
    assert [p.name for p in tmp_path.iterdir() if "blur" in p.name or "staging" in p.name] == []
    assert blurred_rows(root, 0) == list(range(AT - 25, FRAMES))
    assert not blurred_rows(root, 1)
    assert not [f for f in check(root, deep=True) if f.severity == "error"]
    # What the same detector has blurred is pushed as it is.
    push(root, blur=detector)
    names = [n for n in hub.files(NAME) if n.endswith(".mp4")]
    assert names
    assert all(hub.files(NAME)[n] == (root / n).read_bytes() for n in names)


def test_a_box_is_blurred_around_its_picture_and_nothing_else_is() -> None:
    shown = np.random.default_rng(0).integers(0, 256, (80, 100, 3), np.uint8)
    found = FoundPeople({10: ((40, 20, 20, 30),), 30: ((-5, 60, 30, 40),)}, 2, hold=4)
    for row in (5, 15, 35):
        assert np.array_equal(found.blurred(shown, row), shown)
    for row, part in ((6, np.s_[20:50, 40:60]), (14, np.s_[20:50, 40:60]), (30, np.s_[60:, :25])):
        hidden = found.blurred(shown, row)
        assert hidden[part].std() < 0.4 * shown[part].std()
        assert np.array_equal(hidden[:10], shown[:10])


def message(*fields: tuple[int, bytes | str | int]) -> bytes:
    """Return a protobuf message of these fields, by number."""

    def varint(value: int) -> bytes:
        low = value & 0x7F
        return bytes([low]) if value < 0x80 else bytes([low | 0x80]) + varint(value >> 7)

    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            raw = value.encode() if isinstance(value, str) else value
            parts.append(varint(number << 3 | 2) + varint(len(raw)) + raw)
    return b"".join(parts)


def bright_detector() -> bytes:
    """Return a detector in YOLO's layout, as ONNX: 100 cells of 32 pixels, scored by brightness."""

    def array(name: str, values: np.ndarray) -> bytes:
        kind = 7 if values.dtype == np.int64 else 1
        dims = [(1, n) for n in values.shape]
        return message(*dims, (2, kind), (8, name), (9, values.tobytes()))

    def value(name: str, *shape: int) -> bytes:
        dims = message(*((1, message((1, n))) for n in shape))
        return message((1, name), (2, message((1, message((1, 1), (2, dims))))))

    def node(kind: str, inputs: str, output: str, *attributes: bytes) -> bytes:
        named = [(1, name) for name in inputs.split()]
        return message(*named, (2, output), (4, kind), *((5, a) for a in attributes))

    k, ones = np.arange(100), np.ones(100)
    boxes = np.stack([k % 10 * 32 + 16, k // 10 * 32 + 16, 32 * ones, 32 * ones])[None]
    stride = message((1, "strides"), (8, 32), (8, 32), (20, 7))
    graph = message(
        (1, node("Conv", "x w", "mean", stride)),
        (1, node("Reshape", "mean shape", "score")),
        (1, node("Concat", "boxes score zero", "y", message((1, "axis"), (3, 1), (20, 2)))),
        (2, "bright"),
        (5, array("w", np.full((1, 3, 32, 32), 1 / 3072, np.float32))),
        (5, array("shape", np.array([1, 1, 100]))),
        (5, array("boxes", boxes.astype(np.float32))),
        (5, array("zero", np.zeros((1, 1, 100), np.float32))),
        (11, value("x", 1, 3, 320, 320)),
        (12, value("y", 1, 6, 100)),
    )
    return message((1, 8), (7, graph), (8, message((1, ""), (2, 13))))


def test_a_detector_of_the_users_own_finds_what_it_was_made_for(tmp_path: Path) -> None:
    path = tmp_path / "bright.onnx"
    path.write_bytes(bright_detector())
    detector = people_detector(str(path))
    assert detector is not None
    picture = np.zeros((480, 640, 3), np.uint8)
    assert detector.find(picture) == []
    picture[128:192, 320:384] = 255  # a cell of 32 in a picture of 320 is 64 here
    assert detector.find(picture) == [(320, 128, 64, 64)]
    path.write_bytes(b"no network")
    for bad, fault in ((path, "can't be used"), (tmp_path / "none.onnx", "isn't there")):
        with pytest.raises(UnusableInputError, match=fault):
            people_detector(str(bad))


def test_opencvs_own_detectors_read_any_picture() -> None:
    """HOG fails on what is smaller than its window."""
    detector = people_detector("true")
    assert detector is not None
    for size in ((40, 60), (240, 320)):
        assert detector.find(np.full((*size, 3), 90, np.uint8)) == []
    assert people_detector("false") is None


def test_the_commands_say_how_many_and_that_some_are_missed(
    dataset: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(dataset), "--people=true", "--json"]) in (0, 1)
    people = json.loads(capsys.readouterr().out)["people"]
    assert people["by_episode"] == {"0": [0, 5], "1": [0, 5], "2": [0, 5]}
    push = ["push", str(dataset), f"--repo_id={NAME}", "--blur_people=true"]
    assert main([*push, "--dry_run", "--json"]) == 0
    would = json.loads(capsys.readouterr().out)
    assert not hub.log
    assert main(push) == 0
    said = capsys.readouterr()
    assert "Detectors miss people" in said.out + said.err
    assert RECORD in hub.files(NAME)
    assert set(would["files"]) <= set(hub.files(NAME))
