"""Pictures of a recording's cameras: which are decoded, and how sharp a picture is.

Decoded are one picture at each episode's start, some seconds of a few episodes in which the arm
moves most, and of those whose pictures take least while it moves.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.datasets import layout
from gaploop.datasets.absolute.recording import MotionRecording, evenly
from gaploop.datasets.check.findings import reason
from gaploop.datasets.video import open_video, shown_frames

STARTS: Final = 60
"""Episodes whose first picture is decoded."""
RUNS: Final = 8
"""Episodes of which `RUN_S` are decoded."""
RUN_S: Final = 3.0
MOST_BYTES: Final = 2e9
"""Of larger videos not every packet is read."""
THIN: Final = 0.5
THINNEST: Final = 4
"""So many episodes are decoded whose pictures take so little of what the others' do."""
MOVES_DEG: Final = 0.15
"""A row, over all joints."""
THUMB: Final = (96, 72)
SHARP: Final = 640
"""Width at which blur is measured [pixels]."""
COARSE: Final = 160
"""Width below which a lens out of focus doesn't show [pixels]: drawn shades look like edges."""
FROZEN_S: Final = 1.0


@dataclass
class Run:
    """Pictures of one episode from a row on, grey, shape (n, height, width).

    `keys` says which were encoded whole, shape (n,), where a video says so.
    """

    episode: int
    start: int
    grey: FloatArray
    keys: NDArray[np.bool_] | None = None


@dataclass
class CameraLook:
    """What was decoded of one camera; `starts` by episode: colour, blur and edges at full size."""

    key: str
    starts: dict[int, FloatArray] = field(default_factory=dict)
    blur: dict[int, float] = field(default_factory=dict)
    edges_px: dict[int, float] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    thin: list[Run] | None = None
    """Those of all episodes whose pictures take least while the arm moves; None: not looked for."""
    broken: str = ""

    @property
    def name(self) -> str:
        """The camera's name as people use it."""
        return self.key.removeprefix("observation.images.")


def look(
    recording: MotionRecording, opened: Callable[[Path], Any] = open_video
) -> list[CameraLook]:
    """Decode what the tests need, two cameras at a time.

    Args:
        opened: opens a video by its path in the dataset: a local one, or one on a Hub by ranges.
    """
    info = recording.info
    rows = {int(r["episode_index"]): r for r in layout.episode_rows(info.root)}
    whole = {e.index: e for e in recording.episodes}
    indices = sorted(set(rows) & set(recording.lengths))
    starts = [indices[k] for k in evenly(len(indices), STARTS)]
    span = max(8, round(RUN_S * info.fps))
    pauses: dict[int, int] = {}
    for index in [indices[k] for k in evenly(len(indices), RUNS)]:
        length = recording.lengths[index]
        if length < 8:
            continue
        begin = 0
        if index in whole and length > span:
            speed = np.abs(np.diff(whole[index].reading, axis=0)).sum(axis=1)
            begin = int(np.convolve(speed, np.ones(span - 1), "valid").argmax())
        pauses[index] = begin

    def place(key: str, index: int) -> tuple[Path, float]:
        names = ("chunk_index", "file_index", "from_timestamp")
        chunk, file, start_s = (rows[index][f"videos/{key}/{name}"] for name in names)
        return info.root / info.video_name(key, chunk, file), float(start_s)

    def shown(key: str, index: int, begin: int, count: int) -> Iterator[Any]:
        path, start_s = place(key, index)
        with opened(path) as container:
            if count == 1:  # the others would decode what nobody looks at
                container.streams.video[0].thread_type = "SLICE"
            start_s += begin / info.fps
            yield from shown_frames(path, container, start_s, count, info.fps)

    def decoded(key: str, begins: Mapping[int, int]) -> list[Run]:
        runs = list[Run]()
        for index, begin in begins.items():
            count = min(span, recording.lengths[index] - begin)
            run = [(_small(f, "gray"), f.key_frame) for f in shown(key, index, begin, count)]
            if len(run) >= 8:
                rows, keys = zip(*run, strict=True)
                runs.append(Run(index, begin, np.stack(rows), np.array(keys, dtype=bool)))
        return runs

    def thin(key: str) -> dict[int, int]:
        """Return some episodes and rows where a second of pictures takes least, as frozen ones."""
        few, taken = max(5, round(FROZEN_S * info.fps) - 4), dict[Path, tuple[FloatArray, ...]]()
        usual, least = list[float](), list[tuple[float, int, int]]()
        for index in (e for e in indices if e in whole):
            path, start_s = place(key, index)
            taken[path] = taken.get(path) or _packets(path)
            at_s, new = taken[path]
            at = start_s + (np.arange(recording.lengths[index]) - 0.5) / info.fps
            rows = np.searchsorted(at_s, at)
            if len(rows) <= few or rows[-1] >= len(at_s):
                continue
            steps = np.diff(whole[index].reading[:, recording.arm], axis=0)
            moves = np.r_[0.0, np.linalg.norm(steps, axis=1)] > MOVES_DEG
            mean, moving = (np.convolve(x, np.ones(few) / few, "valid") for x in (new[rows], moves))
            mean[moving <= 0.3] = np.inf
            if np.isfinite(mean).any():
                usual.append(float(np.median(mean[np.isfinite(mean)])))
                least.append((float(mean.min()), index, max(0, int(mean.argmin()) - 1)))
        limit = THIN * float(np.median(usual or [0.0]))
        some = sorted(x for x in least if x[0] < limit)[:THINNEST]
        return {e: max(0, min(row, recording.lengths[e] - span)) for _, e, row in some}

    def one(key: str) -> CameraLook:
        seen = CameraLook(key)
        try:
            if opened is open_video and not all(place(key, e)[0].is_file() for e in starts):
                seen.broken = "its videos are missing"
                return seen
            for index in starts:
                for frame in shown(key, index, 0, 1):
                    seen.starts[index] = _small(frame, "rgb24")
                    if len(seen.blur) < RUNS and frame.width >= COARSE:
                        grey = blur_sized(frame.reformat(format="gray").to_ndarray())
                        seen.blur[index], seen.edges_px[index] = blur(grey), edge_width_px(grey)
            seen.runs = decoded(key, pauses)
            files = {place(key, e)[0] for e in indices}
            local = opened is open_video and all(f.is_file() for f in files)
            if local and sum(f.stat().st_size for f in files) < MOST_BYTES:
                seen.thin = decoded(key, thin(key))
        except (UnusableInputError, OSError, KeyError, TypeError, ValueError) as error:
            seen.broken = reason(error)
        return seen

    cv2.setNumThreads(1)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, [k for k in info.camera_keys if k in info.video_keys]))


def _packets(path: Path) -> tuple[FloatArray, ...]:
    """Return when each picture is shown [s], and what of it is new [bytes].

    Of one that is encoded whole, by how much it differs in size from the last such one.
    """
    with open_video(path) as container:
        found = sorted(
            (float(p.pts * p.time_base), p.is_keyframe, p.size)
            for p in container.demux(container.streams.video[0]) if p.pts is not None
        )  # fmt: skip
    at_s, whole, size = (np.array(column) for column in zip(*found, strict=True))
    new = size.astype(np.float64)
    new[whole] = np.abs(np.diff(new[whole], prepend=0.0))
    return at_s, new


def _small(frame: Any, colours: str) -> FloatArray:
    small = frame.reformat(width=THUMB[0], height=THUMB[1], format=colours).to_ndarray()
    return np.asarray(small, dtype=np.float32)


def blur_sized(grey: NDArray[np.uint8]) -> FloatArray:
    """Return a grey picture at the size at which blur is measured."""
    if grey.shape[1] > SHARP:
        size = (SHARP, round(grey.shape[0] * SHARP / grey.shape[1]))
        grey = np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    return grey.astype(np.float32)


def edge_width_px(f: FloatArray) -> float:
    """Return the width of the sharpest tenth of a picture's strong edges; NaN without any."""
    strong = max(24.0, 0.4 * float(np.ptp(np.percentile(f, [1, 99]))))
    widths = []
    for axis, kernel in ((0, np.ones((17, 1))), (1, np.ones((1, 17)))):
        steepest = cv2.dilate(np.abs(np.diff(f, axis=axis)), kernel)
        rise = (cv2.dilate(f, kernel) - cv2.erode(f, kernel))[tuple(map(slice, steepest.shape))]
        here = rise > strong
        if here.sum() > 50:
            widths.append(float(np.percentile(rise[here] / steepest[here], 10)))
    return min(widths, default=math.nan)


def blur(f: FloatArray) -> float:
    """Return Crete's blur of a grey picture, 0 sharp to 1: what blurring it again leaves."""
    worst = 0.0
    for axis, kernel in ((0, (1, 9)), (1, (9, 1))):
        again = cv2.blur(f, kernel)
        own = np.abs(np.diff(f, axis=axis))
        left = np.abs(np.diff(again, axis=axis))
        total = float(own.sum())
        if total > 0:
            worst = max(worst, (total - float(np.maximum(own - left, 0).sum())) / total)
    return worst
