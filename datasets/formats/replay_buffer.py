"""Diffusion Policy's replay buffer: one Zarr v2 group with `data/*` and `meta/episode_ends`.

As `ReplayBuffer` of real-stanford/diffusion_policy reads it (`copy_from_path`, `copy_from_store`):
every array under `data` has one row per frame of all episodes end to end, `meta/episode_ends`
says where each ends. It is Zarr v2, which the zarr 2.x of those projects reads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.storage import LocalStore, ZipStore

from gaploop.datasets import columns
from gaploop.datasets.formats.carried import NAME, carry
from gaploop.datasets.formats.model import About, Advance, Outgoing, Recording, picture_feature
from gaploop.datasets.formats.umi_pose import PoseOf, pose_of

CHUNK_BYTES: Final = 2_000_000
"""Size that Diffusion Policy aims at for a chunk (`get_optimal_chunks`)."""
STATE_KEYS: Final = ("state", "agent_pos", "robot_joint", "qpos", "robot_eef_pose")
"""Keys that hold the robot's state in buffers of that project."""


class ChunkedRows:
    """An array that grows by rows and is written in whole chunks, each once: a zip can't rewrite.

    Args:
        group: Zarr group.
        rows: how many rows there will be.
        chunk: rows of a chunk; about `CHUNK_BYTES` unless given.
    """

    def __init__(
        self,
        group: Any,
        name: str,
        rows: int,
        shape: tuple[int, ...],
        dtype: Any,
        chunk: int | None = None,
    ) -> None:
        row_bytes = max(1, math.prod(shape)) * np.dtype(dtype).itemsize
        self._chunk = chunk or max(1, min(rows, math.ceil(CHUNK_BYTES / row_bytes)))
        self._array = group.create_array(
            name,
            shape=(rows, *shape),
            chunks=(self._chunk, *shape),
            dtype=dtype,
            compressors=Blosc(cname="lz4", clevel=5, shuffle=Blosc.SHUFFLE),
            chunk_key_encoding={"name": "v2", "separator": "."},
        )
        self._dtype = np.dtype(dtype)
        self._open: list[NDArray[Any]] = []
        self._held = self._done = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows, shape (n, …)."""
        self._open.append(np.asarray(rows, dtype=self._dtype))
        self._held += len(rows)
        if self._held >= self._chunk:
            held = np.concatenate(self._open)
            whole = self._held // self._chunk * self._chunk
            self._write(held[:whole])
            self._open, self._held = [held[whole:]], self._held - whole

    def close(self) -> None:
        """Write what is left over."""
        if self._held:
            self._write(np.concatenate(self._open))
            self._open, self._held = [], 0

    def _write(self, rows: NDArray[Any]) -> None:
        self._array[self._done : self._done + len(rows)] = rows
        self._done += len(rows)


def write_diffusion_policy(out: Outgoing, path: Path, advance: Advance) -> None:
    """Write a dataset as a replay buffer folder.

    Its keys are `action`, `state`, `img` for a single camera (as `PushTImageDataset` reads them),
    else the cameras' names; every other column keeps its name.
    """
    cameras = out.about.cameras
    keys = {columns.STATE: "state", columns.ENVIRONMENT: "environment_state"}
    keys |= {
        picture_feature(out.about, c): "img" if len(cameras) == 1 else _free(c, keys)
        for c in cameras
    }
    with _root(LocalStore(path), out, keys) as root:
        _write(out, root, {n: keys.get(n, n) for n in out.about.features}, advance)


def write_umi(out: Outgoing, path: Path, advance: Advance) -> None:
    """Write a dataset as UMI's `.zarr.zip`: tool poses, gripper widths, `camera0_rgb`, ….

    Joints of an arm that gaploop has a model of become poses by forward kinematics; the dataset's
    own columns come along beside them.

    Raises:
        UnusableInputError: neither poses nor joints with known units and a known arm.
    """
    pose = pose_of(out)
    keys = {columns.ACTION: "lerobot.action", columns.STATE: "lerobot.state"}
    keys |= {
        picture_feature(out.about, c): f"camera{i}_rgb" for i, c in enumerate(out.about.cameras)
    }
    with ZipStore(path, mode="w") as store, _root(store, out, keys) as root:
        all_keys = {n: keys.get(n, n) for n in out.about.features}
        _write(out, root, all_keys, advance, pose)


def _free(name: str, keys: Mapping[str, str]) -> str:
    taken = {"action", "state", *keys.values()}
    return f"{name}_rgb" if name in taken else name


@contextlib.contextmanager
def _root(store: Any, out: Outgoing, keys: Mapping[str, str]) -> Iterator[Any]:
    all_keys = {n: keys.get(n, n) for n in out.about.features}
    attributes = {NAME: carry(out, all_keys)}
    root = zarr.create_group(store, zarr_format=2, attributes=attributes)
    root.create_group("data")
    ends = np.cumsum(out.lengths, dtype=np.int64)
    meta = root.create_group("meta")
    array = meta.create_array(
        "episode_ends", shape=ends.shape, chunks=ends.shape, dtype="int64", compressors=None
    )
    array[:] = ends
    yield root


def _write(
    out: Outgoing,
    root: Any,
    keys: Mapping[str, str],
    advance: Advance,
    pose: PoseOf | None = None,
) -> None:
    rows, data = out.total_frames, root["data"]
    arrays = {name: _array(data, keys[name], rows, out.about, name) for name in out.about.numbers}
    extra = {} if pose is None else {
        name: ChunkedRows(data, name, rows, (width,), np.float32)
        for name, width in pose.widths.items()
    }  # fmt: skip
    pictures = {
        camera: _pictures(data, keys, rows, out.about, camera, single=pose is not None)
        for camera in out.about.cameras
    }
    telemetry = root.create_group("telemetry")
    for episode in out.episodes():
        for name, array in arrays.items():
            array.append(episode.columns[name].reshape(episode.length, -1))
        if pose is not None:
            for name, values in pose(episode).items():
                extra[name].append(values)
        for camera, images in episode.pictures.items():
            for picture in images():
                pictures[camera].append(picture[None])
        _keep_telemetry(telemetry, episode)
        advance()
    for array in (*arrays.values(), *extra.values(), *pictures.values()):
        array.close()


def _array(data: Any, key: str, rows: int, about: About, name: str) -> ChunkedRows:
    spec = about.features[name]
    return ChunkedRows(data, key, rows, tuple(spec["shape"]), np.dtype(spec["dtype"]))


def _pictures(
    data: Any, keys: Mapping[str, str], rows: int, about: About, camera: str, single: bool
) -> ChunkedRows:
    key = keys[picture_feature(about, camera)]
    shape = (*about.size(camera), 3)
    # UMI's sampler takes frames one by one, so there one frame is a chunk.
    return ChunkedRows(data, key, rows, shape, np.uint8, chunk=1 if single else None)


def _keep_telemetry(group: Any, episode: Recording) -> None:
    if episode.telemetry is not None:
        content = np.frombuffer(episode.telemetry, dtype=np.uint8)
        group.create_array(
            episode.uid, shape=content.shape, chunks=content.shape, dtype="uint8", compressors=None
        )[:] = content
