"""The frame cache gives LeRobot's items, survives kills, damage and change, and keeps its bound."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lerobot.datasets import EpisodeAwareSampler
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import v2

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.cache import folder as frame_cache
from gaploop.datasets.cache.folder import INDEX, PACK, CacheOptions, parse_size
from gaploop.datasets.cache.lerobot_cached import CachedLeRobotDataset

CAMERAS = {"observation.images.front": (48, 64), "observation.images.wrist": (32, 48)}
FPS = 10
LENGTHS = (5, 4, 6)
DELTAS = {
    "action": [k / FPS for k in range(-2, 6)],
    "observation.state": [0.0],
    "observation.images.front": [-0.3, 0.0, 0.2],
    "observation.images.wrist": [0.0],
    "grid": [-0.1, 0.1],
    "flag": [-0.1, 0.0],
    "level": [0.0, 0.1],
}


def write_dataset(
    root: Path, seed: int = 0, lengths: tuple[int, ...] = LENGTHS, *, still: bool = True
) -> Path:
    """Two cameras of different sizes, numbers of every kind, two tasks, perhaps still pictures."""
    features: dict[str, Any] = {
        "action": {"dtype": "float32", "shape": (4,), "names": list("abcd")},
        "observation.state": {"dtype": "float64", "shape": (3,), "names": list("xyz")},
        "grid": {"dtype": "float32", "shape": (2, 3), "names": None},
        "flag": {"dtype": "bool", "shape": (1,), "names": None},
        "level": {"dtype": "float64", "shape": (1,), "names": None},
        "count": {"dtype": "int32", "shape": (2,), "names": None},
    }
    picture = {"dtype": "image", "shape": (8, 8, 3), "names": ["height", "width", "channels"]}
    if still:
        features["observation.images.still"] = picture
    for camera, size in CAMERAS.items():
        names = ["height", "width", "channels"]
        features[camera] = {"dtype": "video", "shape": (*size, 3), "names": names}
    dataset = LeRobotDataset.create("x/y", FPS, features, root=root, robot_type="arm")
    draw = np.random.default_rng(seed)
    for number, length in enumerate(lengths):
        for k in range(length):
            frame: dict[str, Any] = {
                "action": draw.normal(size=4).astype(np.float32),
                "observation.state": draw.normal(size=3),
                "grid": draw.normal(size=(2, 3)).astype(np.float32),
                "flag": np.array([k % 2 == 0]),
                "level": draw.normal(size=1),
                "count": draw.integers(0, 100, 2, dtype=np.int32),
                "task": ("wave", "point")[number % 2],
            }
            if still:
                frame["observation.images.still"] = draw.integers(0, 255, (8, 8, 3), np.uint8)
            for camera, (height, width) in CAMERAS.items():
                blocks = draw.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
                frame[camera] = np.kron(blocks, np.ones((8, 8, 1), dtype=np.uint8))
            dataset.add_frame(frame)
        dataset.save_episode()
    dataset.finalize()
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("cached") / "set")


@pytest.fixture
def raw(tmp_path: Path) -> CacheOptions:
    return CacheOptions(dir=tmp_path / "cache")


def cached(root: Path, options: CacheOptions, **kwargs: Any) -> CachedLeRobotDataset:
    return CachedLeRobotDataset("x/y", root=root, cache=options, **kwargs)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert (ours[key].dtype, ours[key].shape) == (value.dtype, value.shape), key
            assert torch.equal(ours[key], value), key
        else:
            assert ours[key] == value, key


@pytest.fixture
def shown() -> tuple[list[int], Callable[..., Any]]:
    """How many pictures each build announced, and the progress bar that notes it."""
    totals: list[int] = []

    @contextlib.contextmanager
    def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
        del description
        totals.append(total)
        yield lambda _: None

    return totals, progress


@pytest.mark.members(1)
@pytest.mark.parametrize(
    "how",
    [
        {"delta_timestamps": None, "episodes": None, "return_uint8": False},
        {"delta_timestamps": DELTAS, "episodes": None, "return_uint8": True},
        {"delta_timestamps": DELTAS, "episodes": [2, 0], "return_uint8": False},
    ],
    ids=["frames", "windows", "windows of two episodes"],
)
def test_every_item_is_lerobots_bit_by_bit(root: Path, raw: CacheOptions, how: Any) -> None:
    plain = LeRobotDataset("x/y", root=root, **how)
    fast = cached(root, raw, **how)
    assert set(fast.cached) == set(CAMERAS)
    for name in ("num_frames", "num_episodes", "features", "absolute_to_relative_idx"):
        assert getattr(fast, name) == getattr(plain, name)
    assert len(fast) == len(plain)
    items = [plain[k] for k in range(len(plain))]
    for ours, theirs in zip(fast.__getitems__(range(len(plain))), items, strict=True):
        assert_same(dict(ours), theirs)
    for k in (0, -1, len(plain) // 2):
        assert_same(fast[k], items[k])
    with pytest.raises(IndexError):
        fast[len(plain)]


def test_image_transforms_draw_and_change_the_same(root: Path, raw: CacheOptions) -> None:
    jitter = v2.RandomApply([v2.ColorJitter(0.5, 0.5), v2.RandomHorizontalFlip()], p=0.8)
    how = {"image_transforms": jitter, "delta_timestamps": DELTAS, "return_uint8": True}
    torch.manual_seed(3)
    plain = LeRobotDataset("x/y", root=root, **how)
    theirs = [plain[k] for k in (2, 0, 9)]
    fast = cached(root, raw, **how)
    torch.manual_seed(3)
    for ours, item in zip(fast.__getitems__([2, 0, 9]), theirs, strict=True):
        assert_same(ours, item)
    fast.clear_image_transforms()
    assert_same(fast[2], LeRobotDataset("x/y", root=root, **{**how, "image_transforms": None})[2])


@pytest.fixture(scope="module")
def videos_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset without still pictures: nothing is left to LeRobot's own reader."""
    folder = tmp_path_factory.mktemp("videos") / "set"
    return write_dataset(folder, seed=1, still=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_gives_the_items_stacked(
    videos_only: Path, tmp_path: Path, workers: int
) -> None:
    """Batches that are passed on whole equal those that PyTorch stacks item by item."""
    options = CacheOptions(dir=tmp_path)
    fast = cached(videos_only, options, delta_timestamps=DELTAS, return_uint8=True)
    episodes = fast.meta.episodes
    order = EpisodeAwareSampler(
        episodes["dataset_from_index"], episodes["dataset_to_index"], shuffle=True, seed=4
    )
    picked = list(EpisodeAwareSampler.__iter__(copy.copy(order)))
    loader = DataLoader(fast, batch_size=4, sampler=order, num_workers=workers)
    batches = list(loader)
    assert sum(len(b["index"]) for b in batches) == len(fast)
    for batch, at in zip(batches, itertools.batched(picked, 4), strict=True):
        assert_same(batch, default_collate([fast[k] for k in at]))


def test_what_a_wrapper_adds_to_items_is_not_lost(videos_only: Path, raw: CacheOptions) -> None:
    fast = cached(videos_only, raw)
    items = fast.__getitems__([1, 2])
    assert default_collate(items)["index"].tolist() == [1, 2]
    for item in items:
        item["weight"] = 0.5
    assert default_collate(items)["weight"].tolist() == [0.5, 0.5]
    assert default_collate(items[:1])["index"].tolist() == [1]


def test_a_pickled_dataset_reads_on(videos_only: Path, raw: CacheOptions) -> None:
    fast = cached(videos_only, raw)
    assert_same(pickle.loads(pickle.dumps(fast))[3], fast[3])


@pytest.mark.parametrize("keep", [True, False])
def test_scaled_pictures_are_lerobots_scaled(root: Path, tmp_path: Path, keep: bool) -> None:
    options = CacheOptions(size="16x24", dir=tmp_path, keep=keep)
    plain = LeRobotDataset("x/y", root=root, return_uint8=True)
    fast = cached(root, options, return_uint8=True)
    for camera in CAMERAS:
        assert fast.features[camera]["shape"] == (24, 16, 3)
        for k in (0, 8):
            picture = plain[k][camera].permute(1, 2, 0).numpy()
            wanted = cv2.resize(picture, (16, 24), interpolation=cv2.INTER_AREA)
            np.testing.assert_array_equal(fast[k][camera].permute(1, 2, 0).numpy(), wanted)
    assert plain.features["action"] == fast.features["action"]


def test_videos_are_decoded_once(root: Path, raw: CacheOptions, shown: Any) -> None:
    totals, progress = shown
    cached(root, raw, episodes=[1], progress=progress)
    cached(root, raw, progress=progress)
    cached(root, raw, progress=progress)
    frames = [len(CAMERAS) * n for n in (LENGTHS[1], LENGTHS[0] + LENGTHS[2])]
    assert totals == frames


FORK = multiprocessing.get_context("fork")


def build_and_die(root: Path, options: CacheOptions) -> None:
    """Build until the first episode is cached, then be killed."""

    @contextlib.contextmanager
    def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
        del description, total
        yield lambda _: os.kill(os.getpid(), signal.SIGKILL)

    cached(root, options, progress=progress)


def test_a_killed_build_goes_on_where_it_was(root: Path, raw: CacheOptions, shown: Any) -> None:
    totals, progress = shown
    assert raw.dir is not None
    process = FORK.Process(target=build_and_die, args=(root, raw))
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGKILL
    pack = next(raw.dir.rglob(f"*{PACK}"))
    with pack.open("ab") as stream:
        stream.write(b"half a picture")
    with pack.with_suffix(INDEX).open("ab") as stream:
        stream.write(b"half a li")
    fast = cached(root, raw, return_uint8=True, progress=progress)
    assert 0 < totals[0] < len(CAMERAS) * sum(LENGTHS)
    plain = LeRobotDataset("x/y", root=root, return_uint8=True)
    for k in range(len(plain)):
        assert_same(fast[k], plain[k])


def build_beside(root: Path, options: CacheOptions, waits: Any, results: Any) -> None:
    """Build; whoever has the lock goes on only when the other one says that it waits for it."""
    done = 0

    @contextlib.contextmanager
    def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
        del description, total
        results.put(("saw the other wait", waits.wait(100)))

        def advance(pictures: int) -> None:
            nonlocal done
            done += pictures

        yield advance

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting" in record.getMessage():
                waits.set()

    logging.getLogger("gaploop").setLevel(logging.INFO)
    logging.getLogger("gaploop").addHandler(Watch())
    fast = cached(root, options, progress=progress)
    results.put(("built", done, len(fast.cached)))


def test_of_two_processes_one_builds_and_the_other_waits(root: Path, raw: CacheOptions) -> None:
    waits, results = FORK.Event(), FORK.Queue()
    processes = [FORK.Process(target=build_beside, args=(root, raw, waits, results)) for _ in "ab"]
    for process in processes:
        process.start()
    said = sorted(results.get(timeout=100) for _ in range(3))
    for process in processes:
        process.join(100)
    everything = len(CAMERAS) * sum(LENGTHS)
    assert said == [("built", 0, 2), ("built", everything, 2), ("saw the other wait", True)]


def test_a_damaged_picture_is_never_shown(
    root: Path, raw: CacheOptions, shown: Any, caplog: pytest.LogCaptureFixture
) -> None:
    totals, progress = shown
    plain = LeRobotDataset("x/y", root=root, return_uint8=True)
    assert raw.dir is not None
    cached(root, raw)
    pack = next(p for p in raw.dir.rglob(f"*{PACK}") if "front" in p.name)
    data = bytearray(pack.read_bytes())
    data[10] ^= 1
    pack.write_bytes(data)
    fast = cached(root, raw, return_uint8=True, progress=progress)
    for k in range(len(plain)):
        assert_same(fast[k], plain[k])
    assert "damaged" in caplog.text
    again = cached(root, raw, return_uint8=True, progress=progress)
    assert totals == [LENGTHS[0]], "only the damaged episode is made anew"
    assert_same(again[0], plain[0])


def test_a_pack_that_was_cut_is_made_whole(root: Path, raw: CacheOptions, shown: Any) -> None:
    totals, progress = shown
    assert raw.dir is not None
    cached(root, raw)
    pack = next(p for p in raw.dir.rglob(f"*{PACK}") if "wrist" in p.name)
    os.truncate(pack, pack.stat().st_size - 1)
    fast = cached(root, raw, return_uint8=True, progress=progress)
    assert totals == [LENGTHS[-1]]
    plain = LeRobotDataset("x/y", root=root, return_uint8=True)
    assert_same(fast[len(plain) - 1], plain[len(plain) - 1])


def test_a_changed_dataset_is_cached_anew(tmp_path: Path, raw: CacheOptions, shown: Any) -> None:
    totals, progress = shown
    assert raw.dir is not None
    folder = write_dataset(tmp_path / "set", seed=1, lengths=(3,))
    cached(folder, raw, progress=progress)
    before = set(raw.dir.rglob(f"*{PACK}"))
    shutil.rmtree(folder)
    write_dataset(folder, seed=2, lengths=(3,))
    fast = cached(folder, raw, return_uint8=True, progress=progress)
    assert_same(fast[1], LeRobotDataset("x/y", root=folder, return_uint8=True)[1])
    assert before.isdisjoint(raw.dir.rglob(f"*{PACK}")), "what is stale takes no room"
    for video in folder.rglob("*.mp4"):
        os.utime(video)
    cached(folder, raw, progress=progress)
    assert len(totals) == 2, "a new time of change alone decodes nothing"


def test_short_of_room_the_videos_are_read(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = CacheOptions(max_gb=1e-6, dir=tmp_path)
    fast = cached(root, options, delta_timestamps=DELTAS)
    assert not fast.cached
    assert_same(fast[7], LeRobotDataset("x/y", root=root, delta_timestamps=DELTAS)[7])
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("gaploop")]
    assert "--cache.max_gb" in line
    assert frame_cache.folder_bytes(tmp_path) == 0


def test_the_bound_holds_for_all_datasets_together(tmp_path: Path) -> None:
    """The least recently used cache makes room, but never one that is being read."""
    one, two, three = (
        write_dataset(tmp_path / name, seed=k, lengths=(3,), still=False)
        for k, name in enumerate("abc")
    )
    size = 3 * sum(3 * h * w for h, w in CAMERAS.values())
    options = CacheOptions(max_gb=2.8 * size / 1e9, dir=tmp_path / "cache")
    assert options.dir is not None
    first = cached(one, options)
    cached(two, options)
    assert cached(three, options).cached, "the second made room though the first is older"
    held = {pack.parent.parent.name[0] for pack in options.dir.rglob(f"*{PACK}")}
    assert held == {"a", "c"}
    assert len(first.__getitems__(range(3))) == 3
    assert frame_cache.folder_bytes(options.dir) <= 2.8 * size
    del first
    for side in (8, 16, 24, 32):  # sizes that were tried and left make room, too
        small = replace(options, size=str(side), max_gb=0.6 * size / 1e9)
        assert cached(one, small).cached
        assert frame_cache.folder_bytes(options.dir) <= 0.6 * size


def test_a_row_without_a_picture_is_refused_in_one_line(tmp_path: Path, raw: CacheOptions) -> None:
    folder = write_dataset(tmp_path / "set", lengths=(3, 3), still=False)
    (path,) = (folder / "meta" / "episodes").rglob("*.parquet")
    table = pq.read_table(path)
    name = "videos/observation.images.wrist/from_timestamp"
    at = table.schema.get_field_index(name)
    moved = pa.array([t + 0.05 * k for k, t in enumerate(table[name].to_pylist())])
    pq.write_table(table.set_column(at, name, moved), path)
    with pytest.raises(UnusableInputError, match=r"wrist.*episode 1 .*gaploop check"):
        cached(folder, raw)
    assert cached(folder, raw, episodes=[0]).cached, "the sound episode can be used"


def test_options_are_checked() -> None:
    assert parse_size("native") is None
    assert parse_size("224") == (224, 224)
    assert parse_size("320x240") == (240, 320)
    for text in ("0", "axb", "224x", "-5"):
        with pytest.raises(UnusableInputError, match="WIDTHxHEIGHT"):
            parse_size(text)
    with pytest.raises(UnusableInputError, match="max_gb"):
        CacheOptions(max_gb=float("nan"))
