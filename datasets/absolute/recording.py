"""A dataset's plain columns as arrays: commands paired with the readings that answer them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.core.grippers import TREMBLE, gripper_columns, is_grip
from gaploop.core.messages import FloatArray
from gaploop.datasets import layout
from gaploop.datasets.columns import ACTION, SENT, STATE
from gaploop.datasets.layout import DatasetInfo

TURN_RAD: Final = 2.0 * math.pi
"""Joints that all stay within are in radians: of an arm in degrees, one moves further."""
TICKS_FROM: Final = 1080.0
"""No joint turns by three turns; encoders of 4096 steps read no less than 0."""
EPISODES: Final = 200
"""Episodes looked at, spread evenly; more tell hardly more."""
FEW: Final = 0.02
"""Share of an episode's rows that may be filled from their neighbours."""
READ: Final = 0.1
"""Share of a correlation's lack, from the command's own row to the next: below it the command
follows from the number."""
_CORRELATED: Final = 0.8
STEPS: Final = 5.0
"""Commands that spread by less than so many of the readings' steps may be steps themselves."""


@dataclass(frozen=True)
class RecordedJoint:
    """One joint: its columns in action and state, and what one unit of these is worth.

    Attributes:
        scale: degrees in one unit; of a gripper, per cent of its travel.
    """

    name: str
    action: int
    state: int
    scale: float
    is_grip: bool


@dataclass(frozen=True)
class Episode:
    """Commands and readings of one episode, shape (n, joints); degrees, of grippers per cent."""

    index: int
    command: FloatArray
    reading: FloatArray


@dataclass(frozen=True)
class MotionRecording:
    """What arm tests look at.

    Attributes:
        lengths: rows of every episode, by its index.
        unit: of the arm's joints as sentences write it: "°", or "" where values may be degrees or
            LeRobot's -100 to 100, which are alike to a half.
        why_not: why there are no joints to look at; "" where there are.
        missing_rows: by episode, how many rows hold something missing, NaN or infinite. Such
            episodes aren't looked at, unless single rows are all.
        missing_in: which entries of action and state do, in words. A joint that most episodes lack
            isn't looked at.
    """

    info: DatasetInfo
    lengths: dict[int, int]
    joints: tuple[RecordedJoint, ...] = ()
    episodes: tuple[Episode, ...] = ()
    unit: str = "°"
    why_not: str = ""
    missing_rows: dict[int, int] = field(default_factory=dict)
    missing_in: tuple[str, ...] = ()

    @property
    def arm(self) -> list[int]:
        """Places of the joints that are no gripper."""
        return [k for k, joint in enumerate(self.joints) if not joint.is_grip]


def read_recording(root: Path, at_most: int = EPISODES) -> MotionRecording:
    """Read a LeRobot v3 dataset's actions and states, of `at_most` episodes.

    Raises:
        UnusableInputError: no such dataset, or its tables can't be read.
    """
    info = layout.read_info(root)
    vectors = [name for name in (ACTION, STATE) if info.width(name)]
    # What the arm was told, where a safety filter let less through than was asked for.
    told = SENT if info.width(SENT) == info.width(ACTION) else ACTION
    columns = sorted({*vectors, told}) if len(vectors) == 2 else vectors
    wanted = ["episode_index", *columns]
    tables = [layout.read_parquet(path, wanted) for path in layout.data_files(root)]
    if not tables or not sum(len(t) for t in tables):
        return MotionRecording(info, {}, why_not="it holds no rows")
    index = np.concatenate([_numbers(t, "episode_index")[:, 0] for t in tables]).astype(np.int64)
    starts = np.r_[0, np.flatnonzero(np.diff(index)) + 1]
    stops = np.r_[starts[1:], len(index)]
    rows = dict(zip(index[starts].tolist(), zip(starts, stops, strict=True), strict=True))
    lengths = {e: int(b - a) for e, (a, b) in rows.items()}
    if len(vectors) < 2:
        lacks = [n for n in (ACTION, STATE) if n not in vectors]
        why = f"there is no {' and '.join(lacks)}"
        if there := [n for n in lacks if n in info.features]:  # as a plan of many actions
            why = f"{' and '.join(there)} isn't one vector a row"
        return MotionRecording(info, lengths, why_not=why)
    action, state = (np.concatenate([_numbers(t, n) for t in tables]) for n in (told, STATE))
    lacks = ~np.isfinite(np.concatenate([action, state], axis=1))
    missing = {e: int(lacks[a:b].any(axis=1).sum()) for e, (a, b) in rows.items()}
    missing = {e: n for e, n in missing.items() if n}
    missing_in = list[str]()
    for name, bad in zip((told, STATE), np.split(lacks, [action.shape[1]], axis=1), strict=True):
        of = [
            str(n)
            for n, odd in zip(info.names(name), list(np.any(bad, axis=0)), strict=False)
            if odd
        ]
        whose = "" if len(of) == bad.shape[1] else f"{layout.numbers(of, 4)} of "
        missing_in += [f"{whose}{name}"] if bad.any() else []
    gone_a, gone_s = (_fill(values, list(rows.values())) for values in (action, state))
    whole = np.isfinite(action[:, ~gone_a]).all(axis=1)
    whole &= np.isfinite(state[:, ~gone_s]).all(axis=1)
    usable = [e for e, (a, b) in rows.items() if whole[a:b].all()]
    usable = [usable[k] for k in evenly(len(usable), at_most)]
    read = [np.where(gone, 0.0, v[whole]) for v, gone in ((action, gone_a), (state, gone_s))]
    pairs = [(a, s) for a, s in _pairs(info, *read) if not gone_a[a] and not gone_s[s]]
    of_missing: dict[str, Any] = {"missing_rows": missing, "missing_in": tuple(missing_in)}
    if not pairs or not usable:
        alike = usable and not gone_a.all() and not gone_s.all()
        why = "no joint of the state answers one of the action" if alike else "values are missing"
        return MotionRecording(info, lengths, why_not=why, **of_missing)
    names = info.names(STATE)
    driven = gripper_columns(
        [names[s] for _, s in pairs],
        [action[rows[e][0] : rows[e][1]][:, [a for a, _ in pairs]] for e in usable],
        info.fps,
    )
    is_hand = [is_grip(names[s]) or k in driven for k, (_, s) in enumerate(pairs)]
    body = [s for (_, s), grip in zip(pairs, is_hand, strict=True) if not grip]
    far = [
        float(np.abs(v[whole][:, of]).max(initial=0.0))
        for v, of in (
            (state, body),
            (action, [a for (a, _), g in zip(pairs, is_hand, strict=True) if not g]),
        )
    ]
    moves = bool(body) and bool(np.ptp(state[whole][:, body], axis=0).any())
    in_radians = bool(body) and far[0 if moves else 1] <= TURN_RAD  # or state was never recorded
    joints = []
    for (a, s), grip in zip(pairs, is_hand, strict=True):
        told, read = action[whole, a], state[whole, s]
        # The noise of one that stands would be its whole travel.
        stands = _trembles(told) and _trembles(read)
        travel = float(np.ptp(np.r_[told, read]))
        scale = math.degrees(1.0) if in_radians and not grip else 1.0
        if grip and not stands:
            scale = 100.0 / (travel or 1.0)
        joints.append(RecordedJoint(names[s].removesuffix(".pos"), a, s, scale, grip))
    scales = np.array([j.scale for j in joints])
    episodes = tuple(
        Episode(
            e,
            action[rows[e][0] : rows[e][1]][:, [j.action for j in joints]] * scales,
            state[rows[e][0] : rows[e][1]][:, [j.state for j in joints]] * scales,
        )
        for e in usable
    )
    unit = "°" if in_radians or far[0] > 101.0 else ""
    recording = MotionRecording(info, lengths, tuple(joints), episodes, unit, "", **of_missing)
    why = _no_positions(recording)
    return MotionRecording(info, lengths, why_not=why, **of_missing) if why else recording


def _fill(values: FloatArray, episodes: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Fill single missing rows where an episode lacks few; return the columns that most lack."""
    lacking = np.zeros(values.shape[1])
    for a, b in episodes:
        bad = ~np.isfinite(values[a:b])
        if not bad.any():
            continue
        lone = bad & (bad.mean(axis=0) <= FEW)
        lone[:1], lone[-1:] = False, False
        lone[1:-1] &= ~bad[:-2] & ~bad[2:]
        for row, column in np.argwhere(lone):
            values[a + row, column] = values[[a + row - 1, a + row + 1], column].mean()
        lacking += (~np.isfinite(values[a:b])).any(axis=0)
    return np.asarray(2 * lacking > len(episodes))


def _trembles(values: FloatArray) -> bool:
    """Say whether numbers go no further than their noise from row to row would."""
    return bool(np.ptp(values) <= TREMBLE * np.std(np.diff(values)) + 1e-9)


def evenly(n: int, count: int) -> list[int]:
    """Return at most `count` places of 0 to n - 1, evenly spread, the ends among them."""
    return np.unique(np.linspace(0, n - 1, min(n, count)).astype(int)).tolist() if n > 0 else []


def recording_of(
    names: Sequence[str], made: Sequence[tuple[FloatArray, FloatArray]], fps: float
) -> MotionRecording:
    """Return commands and readings [deg], shape (n, joints), of episodes made elsewhere."""
    feature = {"dtype": "float32", "shape": (len(names),), "names": [f"{n}.pos" for n in names]}
    features = {ACTION: feature, STATE: feature}
    info = DatasetInfo(Path(), fps, features, "", len(made), sum(len(u) for u, _ in made))
    joints = tuple(RecordedJoint(n, k, k, 1.0, is_grip(n)) for k, n in enumerate(names))
    episodes = tuple(Episode(i, u, y) for i, (u, y) in enumerate(made))
    return MotionRecording(info, {e.index: len(e.command) for e in episodes}, joints, episodes)


def _numbers(table: pa.Table, name: str) -> FloatArray:
    """Return a column of numbers or of vectors, shape (rows, width), NaN where one is missing."""
    column = table[name].combine_chunks()
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))[:, None]
    flat = column.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    width = len(flat) // max(len(table), 1)
    if len(flat) == width * len(table) and not column.null_count:
        return np.asarray(flat, dtype=np.float64).reshape(len(table), width)
    filled = np.full((len(table), max(width, 1)), np.nan)  # a vector is missing or of another width
    for row, values in enumerate(column.to_pylist()):
        if values is not None and len(values) == filled.shape[1]:
            filled[row] = [np.nan if v is None else v for v in values]
    return filled


def _pairs(info: DatasetInfo, action: FloatArray, state: FloatArray) -> list[tuple[int, int]]:
    """Pair columns of action and state: by name, else by place, else by correlation in order.

    A leader of another make has other names and may have a joint less.
    """
    a_names, s_names = info.names(ACTION), info.names(STATE)
    if len(a_names) != action.shape[1] or len(s_names) != state.shape[1]:
        return []
    by_name = {name: k for k, name in enumerate(s_names)}
    if all(name in by_name for name in a_names):
        return [(a, by_name[name]) for a, name in enumerate(a_names)]
    if len(a_names) == len(s_names):
        return [(k, k) for k in range(len(a_names))]
    pairs = [(a, by_name[name]) for a, name in enumerate(a_names) if name in by_name]
    taken = {s for _, s in pairs}
    moving = [s for s in range(state.shape[1]) if s not in taken and np.ptp(state[:, s])]
    for a in (a for a, name in enumerate(a_names) if name not in by_name):
        if not np.ptp(action[:, a]):
            continue
        told = action[:, a]
        scores = {s: float(np.corrcoef(told[:-1], state[1:, s])[0, 1]) for s in moving}
        best = max(scores, key=lambda s: scores[s], default=-1)
        if best < 0 or scores[best] <= _CORRELATED:
            continue
        # What a controller pulls by, such as a distance to its goal, it has read before.
        before = float(np.corrcoef(told, state[:, best])[0, 1])
        if 1.0 - before > READ * (1.0 - scores[best]):
            pairs.append((a, best))
            moving.remove(best)
    return sorted(pairs)


def _no_positions(recording: MotionRecording) -> str:
    """Say why commands can't be set against readings: they are steps, or of a tool."""
    state = [e.reading[:, recording.arm] for e in recording.episodes if recording.arm]
    low, high = (min(x.min() for x in state), max(x.max() for x in state)) if state else (0, 0)
    if max(high, -low) > TICKS_FROM:
        ticks = (
            "joints read encoder ticks: gaploop convert DIR --calibration=FILE makes them angles"
        )
        other = f"joints read {low:.5g} to {high:.5g}, which are no degrees: write them as degrees"
        return ticks if low >= 0 else other
    names = {n.removesuffix(".pos").rsplit("_", 1)[-1] for n in recording.info.names(ACTION)}
    if {"x", "y", "z"} <= names:
        return "the action is a pose, not one of joints"
    level, step, sizes = list[float](), list[float](), list[float]()
    for k in recording.arm:
        u = np.concatenate([e.command[1:, k] for e in recording.episodes])
        y = np.concatenate([e.reading[1:, k] for e in recording.episodes])
        v = np.concatenate([np.diff(e.reading[:, k]) for e in recording.episodes])
        if np.ptp(u) > 0 and np.ptp(y) > 0 and np.ptp(v) > 0:
            level.append(abs(float(np.corrcoef(u, y)[0, 1])))
            step.append(abs(float(np.corrcoef(u, v)[0, 1])))
            sizes.append(float(u.std() / v.std()))
    if level and np.median(level) < 0.5 < np.median(step) and np.median(sizes) < STEPS:
        return "the action looks like a change for each step, not a position"
    return ""
