"""Pictures of takes in which the arm stood still, with where its joints were.

Where the goals rest for a while there are several pictures of one view: their median has neither
pixel noise nor torn bands. Takes that never rest still begin
at rest: their first picture counts alone.
"""

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import av
import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import CellArm
from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Take
from gaploop.sim.catalogue import from_degrees

RESTS_UNITS: Final = 0.05
"""Goals that change by less than this rest [degree, or percent of the gripper]."""
SETTLES_S: Final = 0.45
"""A goal that has rested so long has been reached, also by a slow arm [s]."""
STANDS_UNITS: Final = 2.5
"""Readings of an arm that stands still differ by less than this, noise included."""
MOST_PICTURES: Final = 25
"""Of one view: more tell nothing more."""
MOST_STILLS: Final = 14
"""Views that are compared: more take longer and tell little more."""


@dataclass(frozen=True)
class Still:
    """One view while the arm stood still.

    Attributes:
        part: of a probe, its part; else "".
        q_rad: where the joints were [rad], shape (n_joints,).
        pictures: what the camera took, RGB, shape (n, height, width, 3).
        taken_s: when [s], shape (n,).
    """

    uid: str
    part: str
    q_rad: FloatArray
    pictures: NDArray[np.uint8]
    taken_s: FloatArray

    @property
    def view(self) -> Image:
        """The median of the pictures, shape (height, width, 3)."""
        if len(self.pictures) == 1:
            return np.asarray(self.pictures[0])
        return np.asarray(np.median(self.pictures, axis=0), dtype=np.uint8)


def stills_of(takes: Sequence[Take], arm: CellArm) -> list[Still]:
    """Return all views of takes in which the arm stood still, those of most pictures first.

    The takes are in degrees, or have telemetry; each one's first camera counts.
    """
    found: list[Still] = []
    for take in takes:
        frames, name = take.frames, next(iter(take.cameras), "")
        q_rad = joints_rad(take, arm) if len(frames) else None
        if q_rad is None or not name:
            continue
        # First row and end of each stretch in which the arm stood still.
        moved = np.abs(np.diff(frames.action, axis=0)).max(axis=1) > RESTS_UNITS
        edges = [0, *(np.flatnonzero(moved) + 1).tolist(), len(frames)]
        spans = []
        for first, end in itertools.pairwise(edges):
            settled = first  # a take begins at rest
            if first:
                rested_s = frames.t_s[first:end] - frames.t_s[first]
                settled += int(np.searchsorted(rested_s, SETTLES_S))
            state = frames.state[settled:end]
            if len(state) >= 3 and np.ptp(state, axis=0).max() < STANDS_UNITS:
                spans.append((settled, end))
        if not any(first == 0 for first, _ in spans):
            spans.insert(0, (0, 1))
        last = max(end for _, end in spans)
        age_s = frames.camera_age_s.get(name, np.zeros(len(frames)))
        taken_s = np.round(frames.t_s - np.where(np.isfinite(age_s), age_s, 0.0), 3)
        kept: list[list[tuple[float, Image]]] = [[] for _ in spans]
        before = -np.inf
        for row, picture in enumerate(take.cameras[name]()):
            if row >= last:
                break
            is_new, before = taken_s[row] > before, taken_s[row]
            for pictures, (first, end) in zip(kept, spans, strict=True):
                if first <= row < end and is_new and len(pictures) < MOST_PICTURES:
                    pictures.append((taken_s[row], picture))
        part = str(take.info.conditions.get("probe", ""))
        for pictures, (first, end) in zip(kept, spans, strict=True):
            if pictures:
                at_rad = np.median(q_rad[first:end], axis=0)
                times_s, images = zip(*pictures, strict=True)
                found.append(
                    Still(take.info.uid, part, at_rad, np.stack(images), np.array(times_s))
                )
    return sorted(found, key=lambda still: -len(still.pictures))


def most_different(stills: Sequence[Still]) -> list[Still]:
    """Return a few views, the most different first."""
    chosen, rest = list(stills[:1]), list(stills[1:])
    while rest and len(chosen) < MOST_STILLS:
        # By pose first, then by how many pictures there are, then by take: each has its own scene.
        seen = np.array([still.q_rad[:-1] for still in chosen])
        takes_seen = {still.uid for still in chosen}

        def novelty(still: Still, seen: FloatArray = seen, old: set[str] = takes_seen) -> float:
            nearest_rad = float(np.abs(seen - still.q_rad[:-1]).max(axis=1).min())
            return nearest_rad + 0.1 * (still.uid not in old) + 0.01 * len(still.pictures)

        best = max(range(len(rest)), key=lambda k: novelty(rest[k]))
        chosen.append(rest.pop(best))
    return chosen


def joints_rad(take: Take, arm: CellArm) -> FloatArray | None:
    """Return the joints' readings at a take's frames [rad], shape (n, n_joints).

    None where nothing says where they were in units that are known.
    """
    names = [f".{joint}.position_rad" for joint in arm.joint_names]
    columns = [
        next((v for k, v in take.telemetry.columns.items() if k.endswith(name)), None)
        for name in names
    ]
    if all(column is not None for column in columns) and len(take.telemetry.t_s) > 1:
        t_s = take.frames.t_s
        return np.stack(
            [np.interp(t_s, take.telemetry.t_s, c) for c in columns if c is not None], 1
        )
    if take.info.units == "deg" and take.frames.state.shape[1] == len(names):
        return np.asarray(from_degrees(take.frames.state, arm))
    return None


OPTIONS: Final = {"preset": "ultrafast", "tune": "zerolatency", "g": "10"}
"""As episodes are encoded."""


def recorded(pictures: Sequence[Image], held: int = 1) -> list[Image]:
    """Return pictures of one size as they come back from a take's video, in order.

    Each is shown for `held` rows: what stands still comes out finer from row to row.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("libx264", rate=50, options=OPTIONS)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for picture in (p for p in pictures for _ in range(held)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    buffer.seek(0)
    with av.open(buffer) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return frames[held - 1 :: held]


SETTLED: Final = 5
"""Rows after which a picture that stands still comes out as fine as it will."""
