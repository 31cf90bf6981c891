"""When a simulated station's bus was down, by its episodes' own rows.

Outages come at random: no replay by a gap's size has them where the episodes have them. But a
simulation repeats itself to the bit, so that one replay can follow an episode row by row: where it
leaves it, the command before hadn't arrived, or arrived again. What can't be followed so far
isn't an outage. Readings that repeat to the bit while the simulation's move weren't read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray

type Mask = NDArray[np.bool_]
type Replay = Callable[[FloatArray], FloatArray]
"""From commands, shape (n, n_action), to states, shape (n, n_state), each before its command; it
may end once it has left the take."""

LAG: Final = 3
"""Rows after which a command shows at last."""
MOST_TURNS: Final = 40
"""Ends of outages in one take."""
SEEN: Final = 0.02
"""Least share of rows that repeat, where the simulation's never do."""
FOLLOWED: Final = 0.5
"""Least share of the rows, after episodes left the simulation, that they are followed for, all
together; what touches hard gets away."""
RESAMPLED: Final = 400


@dataclass(frozen=True)
class Outages:
    """Of each take, whether a row's command didn't arrive, as far as it could be followed.

    Attributes:
        columns: numbers of the state that repeated meanwhile.
    """

    down: tuple[Mask, ...]
    columns: Mask

    def read(self, take: int, true: FloatArray) -> FloatArray:
        """Return what was read instead of states, shape (n, n_state)."""
        return np.where(self.columns, last(self.down[take][: len(true)], true), true)

    def further(
        self, take: int, states: FloatArray, sent: FloatArray, replay: Replay, off: FloatArray
    ) -> Mask:
        """Return when the bus was down in more rows of a take, as far as they can be followed."""
        if self.columns.any():
            again = (np.diff(states[:, self.columns], axis=0) == 0).all(axis=1)
            return np.concatenate([[False], again])
        mask, row = followed(states, sent, replay, off, self.down[take])
        return mask[:row]

    def values(self, period_s: float) -> dict[str, tuple[float, float, float]]:
        """Return the share of time and the length [s] of outages, each with its 90 % interval.

        What a take's end cuts short counts by its time, and as no end.
        """
        runs: tuple[list[tuple[int, bool]], ...] = ([], [])  # while it is up, and while it is down
        for mask in self.down:
            edges = [0, *(np.flatnonzero(np.diff(mask)) + 1), len(mask)]
            for k, (start, end) in enumerate(itertools.pairwise(edges)):
                runs[int(mask[start])].append((end - start, k < len(edges) - 2))
        rng, rows = np.random.default_rng(0), list[tuple[float, float]]()
        known = [np.array(r, dtype=float) for r in runs]
        for k in range(RESAMPLED + 1):
            drawn = [r if k == 0 else rng.choice(r, len(r)) for r in known]
            up, down = (r[:, 0].sum() / max(r[:, 1].sum(), 1.0) for r in drawn)
            rows.append((down / (down + up), down * period_s))
        low, high = np.quantile(np.array(rows), (0.05, 0.95), axis=0)
        names = ("stale_fraction", "burst_s")
        return {n: (rows[0][k], float(low[k]), float(high[k])) for k, n in enumerate(names)}


def last(down: Mask, values: FloatArray) -> FloatArray:
    """Return each row, or while the bus is down the last one before."""
    rows = np.maximum.accumulate(np.where(down, 0, np.arange(len(down))))
    return np.asarray(values[rows])


def same_until(told: FloatArray, states: FloatArray, off: FloatArray) -> int:
    """Return the first row at which two runs of states are further apart than `off`."""
    apart = (np.abs(told - states[: len(told)]) > off).any(axis=1)
    return int(np.argmax(apart)) if apart.any() else len(told)


def find(
    states: Sequence[FloatArray], sent: Sequence[FloatArray], replays: Sequence[Replay],
    simulated: Sequence[FloatArray], off: FloatArray,
) -> Outages | None:  # fmt: skip
    """Return the outages that takes show; None where they show none.

    Args:
        states: of each take, shape (n, n_state).
        sent: the commands after each state, shape (n, n_action).
        replays: of each take, from its own start.
        simulated: states of the commands sent; may end sooner.
        off: by how much each number of two equal states may differ, shape (n_state,).
    """
    again = [np.vstack([np.zeros((1, s.shape[1]), bool), np.diff(s, axis=0) == 0]) for s in states]
    never = np.concatenate([np.diff(s, axis=0) != 0 for s in simulated]).mean(axis=0) > 0.999
    columns = never & (np.concatenate(again).mean(axis=0) > SEEN)
    masks = [a[:, columns].all(axis=1) & columns.any() for a in again]
    if (down := np.concatenate(masks)).mean() > SEEN:
        return Outages(tuple(masks), np.concatenate(again)[down].all(axis=0))
    columns[:] = False
    rows = until = 0
    masks = []
    for s, a, replay, told in zip(states, sent, replays, simulated, strict=True):
        mask, row = followed(s, a, replay, off)
        masks.append(mask[:row])
        left = same_until(told, s, off)
        rows, until = rows + len(s) - left, until + row - left
        if not row or until < FOLLOWED * rows:
            return None
    return Outages(tuple(masks), columns) if any(m.any() for m in masks) else None


def followed(
    states: FloatArray,
    sent: FloatArray,
    replay: Replay,
    off: FloatArray,
    known: Mask | tuple[()] = (),
) -> tuple[Mask, int]:
    """Return which commands didn't arrive, and how many rows can be followed so.

    Args:
        known: of the first rows.
    """

    def leaves(mask: Mask) -> int:
        return same_until(replay(last(mask, sent)), states, off)

    n = len(states)
    mask = np.zeros(n, dtype=bool)
    mask[: len(known)] = known
    at = leaves(mask)
    for _ in range(MOST_TURNS):
        best, further = mask, at
        for k in range(at - 1, max(at - 1 - LAG, -1), -1):
            if at == n or further > min(at + LAG, n - 1):
                break
            turned = mask.copy()
            turned[k:] = not mask[k]
            if (until := leaves(turned)) > further:
                best, further = turned, until
        if further == at:
            break
        mask, at = best, further
    mask[at:] = False
    return mask, at
