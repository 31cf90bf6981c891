"""Rules of `check` that decode pictures: they can be decoded, and change while the robot moves."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import columns
from gaploop.datasets.check.findings import DAMAGE, Findings, numbers
from gaploop.datasets.check.scan import Scan
from gaploop.datasets.check.stats import stat_columns
from gaploop.datasets.layout import DatasetInfo, data_files, episode_files
from gaploop.datasets.video import open_video

THUMB: Final = 160
"""Pictures are compared at this width at most [pixels]."""
FROZEN_S: Final = 1.0
"""Shortest stretch of equal pictures that is reported [s]."""
FROZEN_FRAMES: Final = 10
COLOUR: Final = 0.25
"""Difference of mean colour [share of full scale] that no sampling of pictures explains."""
MIXED_UP: Final = 0.01
"""The same between two cameras whose pictures fit each other's statistics."""
_STORED_ROWS: Final = 64
MOVED: Final = 0.05
"""The joints must have covered this share of their range while the pictures stood still."""


@dataclass(frozen=True)
class PictureRun:
    """One episode's pictures in a file.

    Attributes:
        start_s: time of the first one in the file [s].
        frames: how many.
    """

    episode: int
    start_s: float
    frames: int


def look_at(
    info: DatasetInfo,
    key: str,
    path: Path,
    runs: Sequence[PictureRun],
    scan: Scan | None,
    findings: Findings,
) -> dict[int, NDArray[np.float64]]:
    """Decode some episodes of one file; return each one's mean colour, RGB in [0, 1]."""
    broken, frozen = [], []
    colours: dict[int, NDArray[np.float64]] = {}
    for run in runs:
        try:
            thumbs = list(_thumbs(info.fps, path, run))
        except DAMAGE:
            thumbs = []
        if len(thumbs) < run.frames:
            broken.append(run.episode)
            continue
        colours[run.episode] = np.mean([t.mean(axis=(0, 1)) for t in thumbs], axis=0) / 255
        if scan is not None and _stands_still(thumbs, info.fps, run.episode, scan):
            frozen.append(run.episode)
    name = path.relative_to(info.root)
    if broken:
        text = f"{key}: pictures of episodes {numbers(broken)} can't be decoded."
        findings.error("bad_pictures", name, text)
    if frozen:
        text = f"{key}: episodes {numbers(frozen)} show one and the same picture while the robot "
        mend = f"{findings.delete(frozen)}  # keeps the rest"
        findings.warn("frozen_images", name, text + "moves.", mend)
    return colours


def decodes(fps: float, path: Path, run: PictureRun) -> bool:
    """Say whether all pictures of a stretch can be decoded."""
    try:
        return sum(1 for _ in _thumbs(fps, path, run)) == run.frames
    except DAMAGE:
        return False


def _thumbs(fps: float, path: Path, run: PictureRun) -> Iterator[NDArray[np.uint8]]:
    """Yield an episode's pictures, small, RGB, shape (height, width, 3).

    Raises:
        UnusableInputError: the decoder had to make up part of a picture.
    """
    half_s, left = 0.5 / fps, run.frames
    with open_video(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.options = {"err_detect": "explode"}
        stream.thread_type = "AUTO"
        container.seek(max(0, int(run.start_s / stream.time_base)), stream=stream)
        for frame in container.decode(stream):
            if frame.time is None or frame.time < run.start_s - half_s:
                continue
            if frame.is_corrupt:
                raise UnusableInputError(f"{path}: a picture is damaged.")
            width = min(THUMB, frame.width)
            height = max(2, frame.height * width // frame.width)
            small = frame.reformat(width=width, height=height, format="rgb24")
            yield small.to_ndarray()
            left -= 1
            if left == 0:
                return


def _stands_still(
    thumbs: Sequence[NDArray[np.uint8]], fps: float, episode: int, scan: Scan
) -> bool:
    """Say whether equal pictures stand beside joints that move."""
    signals = scan.signals.get(episode, {})
    name = columns.STATE if columns.STATE in signals else columns.ACTION
    if name not in signals or len(signals[name]) != len(thumbs) or len(thumbs) < FROZEN_FRAMES:
        return False
    signal, moments = signals[name], scan.moments[name]
    ranges = moments.high.max(axis=0) - moments.low.min(axis=0)
    same = np.array([np.array_equal(a, b) for a, b in itertools.pairwise(thumbs)])
    needed = min(max(FROZEN_FRAMES, round(FROZEN_S * fps)), len(thumbs))
    for first, last in _stretches(same):
        covered = np.ptp(signal[first : last + 1], axis=0)
        if last - first + 1 >= needed and ((covered > MOVED * ranges) & (ranges > 0)).any():
            return True
    return False


def _stretches(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the first and last picture of each stretch of equal ones."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def check_colours(
    info: DatasetInfo,
    colours: Mapping[str, Mapping[int, NDArray[np.float64]]],
    findings: Findings,
) -> None:
    """Compare pictures with the image statistics that each episode was recorded with.

    Args:
        info: the dataset's description.
        colours: camera to episode to mean colour of the decoded pictures.
        findings: what is wrong is added here.
    """
    said = {key: _written_means(info, key) for key in colours}
    apart = {(a, b): _apart(colours[a], said[b]) for a in colours for b in colours}
    mixed: set[str] = set()
    for a, b in itertools.combinations(colours, 2):
        if _rather(apart[a, b], apart[a, a]) and _rather(apart[b, a], apart[b, b]):
            mixed |= {a, b}
            text = f"Pictures of {a} have the colours that {b} was recorded with, and the other "
            text += "way round: their files are mixed up."
            mend = "Put the video files of the two cameras back in each other's place."
            findings.error("wrong_pictures", f"videos/{a}", text, mend)
    for key, far in apart.items():
        if key[0] == key[1] and key[0] not in mixed and far > COLOUR:
            text = f"Pictures of {key[0]} are {far:.0%} brighter or darker than their statistics."
            mend = "Look at them: another video may lie there, or the statistics were copied."
            findings.warn("wrong_pictures", f"videos/{key[0]}", text, mend)


def _rather(other: float, own: float) -> bool:
    """Say whether pictures fit another camera's statistics and not their own."""
    return own > MIXED_UP and 3 * other < own


def _written_means(info: DatasetInfo, key: str) -> dict[int, NDArray[np.float64]]:
    means: dict[int, NDArray[np.float64]] = {}
    for path in episode_files(info.root):
        table = stat_columns(path, key)
        if table is not None and table["mean"].shape[1] == 3:
            index = table["episode_index"].astype(int).tolist()
            means |= dict(zip(index, table["mean"], strict=True))
    return means


def _apart(
    found: Mapping[int, NDArray[np.float64]], said: Mapping[int, NDArray[np.float64]]
) -> float:
    """Return how far mean colours are from statistics; 0 where those aren't in [0, 1]."""
    far = [
        float(np.abs(mean - said[e]).max())
        for e, mean in found.items()
        if e in said and ((said[e] >= 0) & (said[e] <= 1)).all()
    ]
    return float(np.mean(far)) if far else 0.0


def check_stored(info: DatasetInfo, pictures: int | None, findings: Findings) -> None:
    """Check pictures that stand in the data files themselves (dtype `image`).

    Args:
        info: the dataset's description.
        pictures: how many are decoded at most, spread evenly; None for all.
        findings: what is wrong is added here.
    """
    keys = [k for k, spec in info.features.items() if spec.get("dtype") == "image"]
    total = max(1, info.total_frames * len(keys))
    step = 1 if pictures is None else -(-total // pictures)
    for key in keys:
        shape = list(info.features[key]["shape"])
        for path in data_files(info):
            name = path.relative_to(info.root)
            with findings.guard(f"{name}: {key}"):
                bad = bad_stored(path, key, shape, step)
                if bad:
                    text = f"Pictures in rows {numbers(bad)} are missing, damaged or not {shape}."
                    findings.error("bad_pictures", f"{name}: {key}", text)


def bad_stored(path: Path, key: str, shape: list[int], step: int = 1) -> list[int]:
    """Return rows of a data file whose picture is missing, damaged or of another size.

    Args:
        path: the file.
        key: the feature.
        shape: as the dataset describes it [pixels].
        step: look at every how many rows.
    """
    bad, at = [], 0
    sizes = {(shape[1], shape[0]), (shape[-1], shape[1])}  # width, height; channels last or first
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_STORED_ROWS, columns=[key]):
            column = batch.column(0)
            for i in range(-at % step, len(column), step):
                if not _decodes(column[i].as_py(), sizes):
                    bad.append(at + i)
            at += len(column)
    return bad


def _decodes(stored: object, sizes: set[tuple[int, int]]) -> bool:
    data = stored.get("bytes") if isinstance(stored, dict) else None
    if not isinstance(data, bytes):
        return False
    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()
            return picture.size in sizes
    except (*DAMAGE, SyntaxError):  # Pillow says SyntaxError of a broken PNG
        return False
