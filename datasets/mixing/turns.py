"""Who is next where parts take turns by quota: a pure function of shares, key and place."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

type Ints = NDArray[np.int64]
type Floats = NDArray[np.float64]

_MARGIN: Final = 2.0**-20
"""Turns keep this far from whole quotas, so that rounding can't move one across."""
_MASK: Final = (1 << 64) - 1


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
    due = (number + _phase(part, number, key)) / shares[part]
    order = np.lexsort((part, due))
    return part[order], number[order], int(low.sum())


def _phase(part: Ints, number: Ints, key: tuple[int, int]) -> Floats:
    """Return a number in (0, 1) for each turn, a hash of (key, part, number).

    The mixer is SplitMix64's (Steele, Lea, Flood 2014).
    """
    salt = np.uint64((key[0] * 0x9E3779B97F4A7C15 + key[1] * 0xD1B54A32D192ED03) & _MASK)
    x = _mixed(part.astype(np.uint64) ^ salt) + number.astype(np.uint64)
    return _MARGIN + (1 - 2 * _MARGIN) * (_mixed(x) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
