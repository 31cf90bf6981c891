"""Which of a dataset's joints are grippers, by their names or by what they do.

A gripper is commanded to one of two levels, changes fast from one to the other, and where it closes
it stops at what it holds, short of its command. Its values may be angles, metres, per cent or 0 and
1, and 0 may be open or closed; the takes of a dataset together tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray

GRIPS: Final = ("grip", "jaw", "finger", "claw", "hand", "thumb", "pinky")
"""A joint named so stops at what it holds, which is no fault."""
LEVEL: Final = 0.1
"""Share of a gripper's travel within which it is at a level."""
AT_LEVELS: Final = 0.8
"""A joint without such a name is a gripper's only if it is commanded to levels for this share."""
CHANGES_S: Final = 0.5
"""and goes from one to the other so fast, in most changes,"""
MOST_CHANGES: Final = 0.8
REST_S: Final = 0.4
"""A gripper that was told so long ago where to go is there, or at what it holds."""
TREMBLE: Final = 7.0
"""Noise alone goes at most so many times as far as from row to row."""
LONG_S: Final = 1.5
"""A closing that lasts so long shows where the jaws stay."""
SHORT: Final = 0.03
"""Share of its travel by which it stops short of its command at something held."""
HOLDS: Final = 0.25
"""Share of the episodes in which something is held, at least, for that to tell where it closes:"""
CLEARLY: Final = 2.0
"""so many times as often as it stops short of the other level."""
ALIKE: Final = 0.98
"""Correlation of two fingers of one gripper."""
DIFFER: Final = 0.05
"""Share of the episodes in which another width is held, or nothing, where readings have other
units."""
BEGINS: Final = 0.8
"""Share of episodes that begin with a gripper open, where nothing else tells how that reads."""


@dataclass(frozen=True)
class Gripper:
    """One gripper: the column of its joint, and what open and closed are there.

    Attributes:
        sent_closed, sent_open: commands, in the dataset's units.
        read_closed, read_open: readings; NaN where these come in units that nothing explains.
        settles_s: from the command to close to jaws at rest [s], in three quarters of closings.
    """

    column: int
    sent_closed: float
    sent_open: float
    read_closed: float
    read_open: float
    settles_s: float = 0.0

    def opened(self, values: FloatArray, *, read: bool) -> FloatArray:
        """Return how far open it is, 0 closed to 1 open; by readings that don't tell, always 0."""
        closed, opened = (
            (self.read_closed, self.read_open) if read else (self.sent_closed, self.sent_open)
        )
        if np.isnan(closed):
            return np.zeros(values.shape)
        return np.asarray((values - closed) / (opened - closed))


def is_grip(name: str) -> bool:
    """Say whether a joint's name is that of a gripper or a hand."""
    return any(word in name.lower() for word in GRIPS)


def _side(name: str) -> str:
    low = name.lower()
    called = (s for s in ("left", "right") if s in low or low.startswith(f"{s[0]}_"))
    return next(called, "")


def sides_of(names: Sequence[str]) -> list[str]:
    """Return which arm of a pair each joint is on by its name: "left", "right" or "".

    A left finger is on no left arm where no other joint is called left.
    """
    arms = {_side(name) for name in names if not is_grip(name)}
    return [_side(name) if _side(name) in arms else "" for name in names]


def gripper_columns(
    names: Sequence[str], sent: Sequence[FloatArray], fps: float
) -> tuple[int, ...]:
    """Return the column of each arm's gripper; of two fingers that move together, the first.

    Where no joint is named so, the last one of an arm, or of each half of a pair, is a gripper's if
    it alone is driven as one. A hand of several fingers that move on their own has none.

    Args:
        names: of the joints, in order of the columns.
        sent: commands of each episode, shape (n, n_joints).
        fps: rows a second.
    """
    named = [k for k, name in enumerate(names) if is_grip(name)]
    found = list[int]()
    sides = sides_of(names)
    for side in dict.fromkeys(sides[k] for k in named):
        columns = [k for k in named if sides[k] == side]
        grips = [k for k in columns if "grip" in names[k].lower()]
        if len(columns) == 1 or len(grips) == 1 or _move_together(sent, columns):
            found.append((grips or columns)[0])
        elif len(columns) == 2 and len({_side(names[k]) for k in columns} - {""}) == 2:
            found += columns
    if named or len(names) < 3:
        return tuple(found)
    driven = [k for k in range(len(names)) if _is_switched([s[:, k] for s in sent], fps)]
    last = len(names) - 1
    ends = [[last], [last // 2, last]] if len(names) % 2 == 0 else [[last]]
    return tuple(driven) if driven in ends else ()


def _move_together(sent: Sequence[FloatArray], columns: Sequence[int]) -> bool:
    values = np.concatenate([s[:, columns] for s in sent]) if sent else np.empty((0, 1))
    values = values[np.isfinite(values).all(axis=1)]
    if len(columns) != 2 or len(values) < 2 or not np.ptp(values, axis=0).all():
        return False
    return bool(abs(np.corrcoef(values.T)[0, 1]) > ALIKE)


def _levels(values: FloatArray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    low, high = np.percentile(values, (1, 99)) if len(values) else (0.0, 0.0)
    return float(low), float(high)


def _is_switched(sent: Sequence[FloatArray], fps: float) -> bool:
    """Say whether commands of a joint, one array an episode, jump between two levels."""
    low, high = _levels(np.concatenate(sent)) if sent else (0.0, 0.0)
    if not high > low:
        return False
    share = [(s - low) / (high - low) for s in sent]
    at_low, at_high = ([s <= LEVEL for s in share], [s >= 1.0 - LEVEL for s in share])
    apart = np.mean(np.concatenate(at_low)), np.mean(np.concatenate(at_high))
    if min(apart) < 0.5 * (1.0 - AT_LEVELS) or sum(apart) < AT_LEVELS:
        return False
    rows, episodes = list[int](), 0
    for below, above in zip(at_low, at_high, strict=True):
        at = np.flatnonzero(below | above)
        changes = np.diff(at)[np.diff(above[at].astype(np.int8)) != 0]
        rows += changes.tolist()
        episodes += len(changes) > 0
    fast = np.array(rows) <= max(2.0, CHANGES_S * fps)
    return 2 * episodes >= len(sent) and bool(np.mean(fast) >= MOST_CHANGES)


def gripper_of(
    column: int, sent: Sequence[FloatArray], read: Sequence[FloatArray], fps: float, *, named: bool
) -> Gripper | None:
    """Return what open and closed are for a gripper; None if it isn't used, or nothing tells.

    It closes towards the level where it stops short of its command, in a quarter of the episodes or
    more. Where nothing is held so often, LeRobot's convention holds for what is named so, lower is
    closed; else the episodes have to begin open.

    Args:
        column: of the joint.
        sent: its commands, one array of shape (n,) an episode.
        read: its readings, likewise.
        fps: rows a second.
        named: its name says that it is a gripper.
    """
    low, high = _levels(np.concatenate(sent))
    travel = high - low
    steps = np.concatenate([np.diff(s) for s in sent])
    steps = steps[np.abs(steps) < 0.5 * travel]  # between levels it may go at once
    if not travel > TREMBLE * float(np.std(steps) if len(steps) else 0.0) + 1e-9:
        return None  # or it stands
    rest = max(1, round(REST_S * fps))
    at = {level: _rests_at(sent, read, level, LEVEL * travel, rest) for level in (low, high)}
    if any(np.isnan(values).all() for values in at.values()):  # never told to be quite there
        reads, far = _levels(np.concatenate(read)), LEVEL * travel
        if named and low - far <= reads[0] and reads[1] <= high + far:
            return Gripper(column, low, high, low, high)
        return None
    middle = {level: float(np.nanmedian(values)) for level, values in at.items()}
    reads = _levels(np.concatenate(read))
    of_one_unit = reads[1] - reads[0] > 2.0 * LEVEL * travel and any(
        abs(middle[level] - level) <= LEVEL * travel for level in at
    )
    if of_one_unit:
        told = {level: _rests_at(sent, sent, level, LEVEL * travel, rest) for level in at}
        apart = {low: at[low] - told[low], high: told[high] - at[high]}
        least, holds = SHORT * travel, HOLDS
    else:  # what is held is of several widths, or none: there its readings are spread
        apart = {level: np.abs(values - middle[level]) for level, values in at.items()}
        least, holds = LEVEL * (reads[1] - reads[0]), DIFFER
    short = {level: float(np.mean(np.nan_to_num(v) > least)) for level, v in apart.items()}
    closed, other = (low, high) if short[low] >= short[high] else (high, low)
    tells = short[closed] >= max(holds, CLEARLY * short[other])
    if not tells:
        begins = float(np.mean([s[0] > low + 0.5 * travel for s in sent]))
        if not named and max(begins, 1.0 - begins) < BEGINS:
            return None
        closed = low if named or begins > 0.5 else high
    opened = high if closed == low else low
    settles_s = _settles_s(sent, read, closed, LEVEL * travel, fps)
    if of_one_unit:
        return Gripper(column, closed, opened, closed, opened, settles_s)
    toward = 1.0 if middle[closed] > middle[opened] else -1.0
    reads_closed = toward * float(np.nanmax(toward * at[closed]))
    if not tells or abs(reads_closed - middle[opened]) <= least:
        # One width throughout: is that an object's, or none?
        return Gripper(column, closed, opened, np.nan, np.nan, settles_s)
    return Gripper(column, closed, opened, reads_closed, middle[opened], settles_s)


def _rests_at(
    sent: Sequence[FloatArray], read: Sequence[FloatArray], level: float, within: float, rows: int
) -> FloatArray:
    """Return each episode's reading once a level has been commanded for some rows; NaN if never."""
    found = np.full(len(sent), np.nan)
    for k, (commands, readings) in enumerate(zip(sent, read, strict=True)):
        there = np.abs(commands - level) <= within
        since = np.convolve(there, np.ones(rows))[: len(there)]
        if (settled := since > rows - 0.5).any():
            found[k] = np.median(readings[settled])
    return found


def _settles_s(
    sent: Sequence[FloatArray], read: Sequence[FloatArray], closed: float, within: float, fps: float
) -> float:
    """Return how long a gripper takes from its command to where it first comes to rest [s].

    What slips out later lets the jaws go on: that is no part of it.
    """
    found, (low, high) = list[float](), _levels(np.concatenate(read))
    far, rest = LEVEL * (high - low), max(2, round(REST_S * fps))
    for commands, readings in zip(sent, read, strict=True):
        there = np.r_[False, np.abs(commands - closed) <= within, False]
        edges = np.flatnonzero(np.diff(there.astype(np.int8)))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            if start == 0 or (stop - start) / fps < LONG_S:
                continue
            part = readings[start:stop]
            goes = np.ptp(np.lib.stride_tricks.sliding_window_view(part, rest), axis=1)
            left = np.abs(part[: len(goes)] - readings[start - 1]) > far
            stands = np.flatnonzero(left & (goes <= far))
            found.append(float(stands[0]) / fps if len(stands) else 0.0)
    return float(np.percentile(found, 75)) if found else 0.0
