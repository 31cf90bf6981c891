"""A weighted stream of training samples from several sources: seeded, resumable, shared by ranks.

Sample n of the stream is a pure function of the seed and n, so nothing has to be saved: whoever
resumes at a step draws what an uninterrupted run would have drawn there, and ranks that take
different samples of one stream never meet.

Who is next is decided by quotas, not by dice. Part i gets its k-th turn when its quota
`share_i · n` is somewhere between k and k + 1 (where, is drawn from the seed). Counts
therefore stay within the number of parts of what was asked, and after any number of samples of
which every part's quota is whole they are exact. Within a part, rows come in epochs: each one
once, in a seeded order, before any comes again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError

_BLOCK: Final = 4096
"""Samples that `Mixture.samples` works out at once; the more, the less each costs."""
type Ints = NDArray[np.int64]
type Floats = NDArray[np.float64]
_MARGIN: Final = 2.0**-20
"""Turns keep this far from whole quotas, so that rounding can't move one across."""
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Pool:
    """What one source has to draw from: dataset and frame of each row, shape (n_rows,).

    `weight`, above 0, is how often a row is drawn, relative to the others of this source.
    """

    name: str
    dataset: Ints
    frame: Ints
    weight: Floats


@dataclass(frozen=True)
class MixtureStage:
    """A stretch of training with fixed shares of the pools, in their order, normalised to sum to 1.

    Only a last stage may last without end (`steps` None).
    """

    shares: tuple[float, ...]
    steps: int | None = None


@dataclass(frozen=True)
class Draws:
    """Samples of the stream, in order: pool, row in it, dataset and frame, of shape (n,) each."""

    source: Ints
    row: Ints
    dataset: Ints
    frame: Ints

    def __len__(self) -> int:
        return len(self.source)


class Mixture:
    """The stream of samples that training reads.

    Args:
        stages: shares over the steps of a run; the last one holds on when its steps are over.
        batch_size: samples per step and rank.
        world_size: ranks that train together.

    Raises:
        UnusableInputError: shares that make no sense, or a source without rows.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        stages: Sequence[MixtureStage],
        *,
        batch_size: int,
        world_size: int = 1,
        seed: int = 0,
    ) -> None:
        if batch_size < 1 or world_size < 1:
            raise UnusableInputError(
                f"Batch size {batch_size} and {world_size} ranks must be at least 1."
            )
        self.names = tuple(pool.name for pool in pools)
        self.batch_size, self.world_size, self.seed = batch_size, world_size, seed
        self.per_step = batch_size * world_size
        self._pools = [_Rows(pool, (seed, i)) for i, pool in enumerate(pools)]
        self._shares = []
        for stage in stages:
            weights = np.asarray(stage.shares, dtype=np.float64)
            if len(weights) != len(pools) or not len(pools):
                raise UnusableInputError(f"{len(pools)} sources with {len(weights)} shares.")
            if not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
                given = ", ".join(f"{n}: {s:g}" for n, s in zip(self.names, weights, strict=True))
                raise UnusableInputError(f"Mixture shares ({given}) must be ≥ 0, one above 0.")
            self._shares.append(np.asarray(weights / weights.sum()))
        if not stages:
            raise UnusableInputError("A mixture needs at least one stage. Give it shares.")
        # The first sample of each stage, and what every source has given before it.
        self._starts = [0]
        self._given = [np.zeros(len(self.names), dtype=np.int64)]
        for number, stage in enumerate(stages[:-1]):
            if stage.steps is None or stage.steps < 1:
                raise UnusableInputError(
                    f"Stage {number + 1} of {len(stages)} needs steps, at least 1; only the last "
                    "stage may run without end."
                )
            length = stage.steps * self.per_step
            turns = turns_before(self._shares[number], length, self._key(number))
            self._starts.append(self._starts[-1] + length)
            self._given.append(np.asarray(self._given[-1] + turns))

    def draws(self, first: int, stop: int) -> Draws:
        """Return samples `first` to `stop - 1` of the stream, the same whenever asked for."""
        parts = []
        ends = [*self._starts[1:], stop]
        for stage, (begin, end) in enumerate(zip(self._starts, ends, strict=True)):
            low, high = max(first, begin), max(first, begin, min(stop, end))
            if low < min(stop, end) or (first == stop and stage == 0):
                key = self._key(stage)
                turn = interleaved(self._shares[stage], low - begin, high - begin, key)
                parts.append((turn[0], turn[1] + self._given[stage][turn[0]]))
        source, number = (np.concatenate([p[k] for p in parts]) for k in range(2))
        row, dataset, frame = (np.zeros(len(source), dtype=np.int64) for _ in range(3))
        for i, pool in enumerate(self._pools):
            mine = np.flatnonzero(source == i)
            if len(mine):
                row[mine] = pool.rows(int(number[mine[0]]), int(number[mine[-1]]) + 1)
                dataset[mine] = pool.pool.dataset[row[mine]]
                frame[mine] = pool.pool.frame[row[mine]]
        return Draws(source, row, dataset, frame)

    def batch(self, step: int, rank: int = 0) -> Draws:
        """Return what one rank trains on in one step: `batch_size` samples."""
        first = (step * self.world_size + rank) * self.batch_size
        return self.draws(first, first + self.batch_size)

    def samples(self, first: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (dataset, frame) for ever, from sample `first` of the stream on."""
        while True:
            stop = first + _BLOCK
            drawn = self.draws(first, stop)
            yield from zip(drawn.dataset.tolist(), drawn.frame.tolist(), strict=True)
            first = stop

    def counts(self, step: int) -> Ints:
        """Return how many samples of each source all ranks together read before a step."""
        position = step * self.per_step
        stage = int(np.searchsorted(self._starts, position, side="right")) - 1
        here = turns_before(self._shares[stage], position - self._starts[stage], self._key(stage))
        return np.asarray(self._given[stage] + here)

    def mean_shares(self, steps: int) -> Floats:
        """Return the share asked for of each source, averaged over the first `steps` steps."""
        last = max(1, steps) * self.per_step
        ends = [*self._starts[1:], last]
        spans = [max(0, min(e, last) - b) for b, e in zip(self._starts, ends, strict=True)]
        return np.asarray(np.average(self._shares, axis=0, weights=spans))

    def _key(self, stage: int) -> tuple[int, int]:
        return self.seed, -1 - stage


class _Rows:
    """One source's rows in the order in which they are drawn.

    Rows of equal weight form a class; classes take turns by quota, and each class goes through
    its rows in epochs.
    """

    def __init__(self, pool: Pool, key: tuple[int, int]) -> None:
        if not len(pool.frame):
            raise UnusableInputError(
                f"Source '{pool.name}' has nothing to draw from."
                " Take it out of the mixture, or record episodes for it."
            )
        if not (np.isfinite(pool.weight) & (pool.weight > 0)).all():
            raise UnusableInputError(f"Source '{pool.name}': weights must be finite and above 0.")
        self.pool, self._key = pool, key
        values, kind = np.unique(pool.weight, return_inverse=True)
        order = np.argsort(kind, kind="stable")
        sizes = np.bincount(kind)
        self._members = np.split(order, np.cumsum(sizes)[:-1])
        total = values * sizes
        self._shares = total / total.sum()
        self._orders: dict[int, tuple[int, Ints]] = {}

    def rows(self, first: int, stop: int) -> Ints:
        """Return the rows of draws `first` to `stop - 1` of this source."""
        kind, number = interleaved(self._shares, first, stop, self._key)
        result = np.empty(len(kind), dtype=np.int64)
        for i in np.unique(kind).tolist():
            mine = kind == i
            members = self._members[i]
            epoch, place = np.divmod(number[mine], len(members))
            drawn = np.empty(len(epoch), dtype=np.int64)
            for e in np.unique(epoch).tolist():
                known = self._orders.get(i)
                if known is None or known[0] != e:
                    order = np.random.default_rng((*self._key, i, e)).permutation(len(members))
                    known = self._orders[i] = (e, order.astype(np.int64))
                now = epoch == e
                drawn[now] = members[known[1][place[now]]]
            result[mine] = drawn
        return result


# Who is next where parts take turns by quota: a pure function of shares, key and place.


def interleaved(shares: Floats, first: int, stop: int, key: tuple[int, int]) -> tuple[Ints, Ints]:
    """Return whose turn it is at positions `first` to `stop - 1`, and its how manyeth."""
    part, number, before = _window(shares, first, stop, key)
    here = slice(first - before, stop - before)
    return part[here], number[here]


def turns_before(shares: Floats, position: int, key: tuple[int, int]) -> Ints:
    """Return how many turns each part has had before a position."""
    part, number, before = _window(shares, position, position, key)
    had = number[: position - before], part[: position - before]
    result = _first_turns(shares, position)
    np.maximum.at(result, had[1], had[0] + 1)
    return result


def _first_turns(shares: Floats, position: int) -> Ints:
    """Return a number of turns that each part surely has had before a position."""
    sure = np.floor(shares * (position - len(shares))) - 1
    return np.asarray(np.maximum(sure, 0).astype(np.int64))


def _window(shares: Floats, first: int, stop: int, key: tuple[int, int]) -> tuple[Ints, Ints, int]:
    """Return the turns around some positions in order: part, its turn, and how many came before.

    Part i's turn k is due at (k + u) / share_i with 0 < u < 1, so at time t it has had
    between share_i · t - 1 and share_i · t + 1 turns, and all of n parts together between t - n
    and t + n: turns further than that from the positions asked for needn't be looked at.
    """
    low = _first_turns(shares, first)
    high = np.ceil(shares * (stop + len(shares) + 1)).astype(np.int64) + 2
    high = np.where(shares > 0, high, low)
    part = np.repeat(np.arange(len(shares)), high - low)
    offset = np.repeat(np.cumsum(high - low) - (high - low), high - low)
    number = np.arange(len(part)) - offset + low[part]
    # u is a hash of (key, part, number). The mixer is SplitMix64's (Steele, Lea, Flood 2014).
    salt = np.uint64((key[0] * 0x9E3779B97F4A7C15 + key[1] * 0xD1B54A32D192ED03) & _MASK)
    x = _mixed(_mixed(part.astype(np.uint64) ^ salt) + number.astype(np.uint64))
    u = _MARGIN + (1 - 2 * _MARGIN) * (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
    due = (number + u) / shares[part]
    order = np.lexsort((part, due))
    return part[order], number[order], int(low.sum())


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
