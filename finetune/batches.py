"""What training reads: demonstrations in memory, and a seeded, weighted stream of batches.

A batch is a pure function of (seed, step). That makes resuming exact: nothing about the
sampler has to be saved, and an interrupted run draws what the uninterrupted one would have.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain

type Float32Array = NDArray[np.float32]

FLAGS: Final = ("visible", "domain")
"""Entries of the environment state that are 0 or 1; scaled as such, however rare one value is."""
DOMAIN: Final = "domain"
CONSTANT: Final = 1e-4
"""A spread below this fraction of the mean (or of 1) is a constant; it is not divided by."""


@dataclass(frozen=True)
class Signature:
    """What a policy is fed and what it answers.

    Attributes:
        fps: policy rate [Hz].
        state_names: entries of `observation.state`.
        environment_names: entries of `observation.environment_state`.
        action_names: entries of `action`.
        units: LeRobot units of state and action, such as `deg`.
        robot_type: LeRobot's name of the follower.
    """

    fps: float
    state_names: tuple[str, ...]
    environment_names: tuple[str, ...]
    action_names: tuple[str, ...]
    units: str = ""
    robot_type: str = ""


@dataclass(frozen=True)
class Episode:
    """One take as training sees it; arrays have one row per frame.

    Attributes:
        uid: the take's uid.
        index: episode index in its dataset.
        state: shape (n, n_state), LeRobot units.
        environment: shape (n, n_environment).
        action: requested action, shape (n, n_action), LeRobot units.
        usable: frames a chunk may be learned from, bool, shape (n,).
        plan: id of the plan item it was collected for, or "".
    """

    uid: str
    index: int
    state: Float32Array
    environment: Float32Array
    action: Float32Array
    usable: NDArray[np.bool_]
    plan: str = ""


@dataclass(frozen=True)
class Source:
    """The selected takes of one dataset.

    Attributes:
        root: the dataset's folder, as given.
        domain: where its takes were recorded.
        signature: features, rate and units, the same for every source of a mixture.
        episodes: the selected takes.
    """

    root: str
    domain: Domain
    signature: Signature
    episodes: tuple[Episode, ...]


@dataclass(frozen=True)
class Batch:
    """Training samples; b samples, chunks of k actions.

    Attributes:
        state: shape (b, n_state), LeRobot units.
        environment: shape (b, n_environment).
        action: shape (b, k, n_action), LeRobot units.
        is_pad: actions past the end of a take or span, bool, shape (b, k).
        source: index of the source each sample came from, shape (b,).
    """

    state: Float32Array
    environment: Float32Array
    action: Float32Array
    is_pad: NDArray[np.bool_]
    source: NDArray[np.int64]


@dataclass(frozen=True)
class Moments:
    """Mean and spread by which one feature is normalised; arrays of shape (n,)."""

    mean: Float32Array
    std: Float32Array


class _Pool:
    """One source's frames end to end, and where each frame's take or span ends."""

    def __init__(self, source: Source) -> None:
        episodes = source.episodes
        self.state = np.concatenate([e.state for e in episodes])
        self.environment = np.concatenate([e.environment for e in episodes])
        self.action = np.concatenate([e.action for e in episodes])
        usable = np.concatenate([e.usable for e in episodes])
        starts = np.cumsum([0] + [len(e.usable) for e in episodes])
        self.end = np.empty(len(usable), dtype=np.int64)
        for first, last in itertools.pairwise(starts):
            breaks = np.append(np.flatnonzero(~usable[first:last]) + first, last)
            rows = np.arange(first, last)
            self.end[first:last] = breaks[np.searchsorted(breaks, rows, side="left")]
        self.rows = np.flatnonzero(usable)


class Mixture:
    """Draws batches from several sources with fixed shares.

    Args:
        sources: what to draw from, each with at least one usable frame.
        shares: relative share of each source; normalised to sum to 1.
        chunk: actions per sample.
        batch_size: samples per batch.
        seed: decides every draw.
        randomise_domain: draw the `domain` entry anew for each sample, so that a base trained
            on one domain neither relies on the entry nor breaks when it changes.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        shares: Sequence[float],
        *,
        chunk: int,
        batch_size: int,
        seed: int,
        randomise_domain: bool = False,
    ) -> None:
        weights = np.asarray(shares, dtype=np.float64)
        if len(sources) != len(weights) or not len(sources):
            raise UnusableInputError(f"{len(sources)} sources with {len(weights)} shares.")
        if (weights < 0).any() or not weights.sum() > 0:
            raise UnusableInputError(f"Mixture shares {list(shares)} must be ≥ 0, one above 0.")
        self.signature = common_signature(sources)
        self.shares = weights / weights.sum()
        self.chunk, self.batch_size, self.seed = chunk, batch_size, seed
        self._pools = [_Pool(s) for s in sources]
        names = self.signature.environment_names
        self._domain = names.index(DOMAIN) if randomise_domain and DOMAIN in names else None

    def batch(self, step: int) -> Batch:
        """Return the batch of training step `step`, the same whenever it is asked for."""
        rng = np.random.default_rng((self.seed, step))
        source = np.sort(rng.choice(len(self._pools), size=self.batch_size, p=self.shares))
        parts = [
            _draw(pool, rng, int((source == i).sum()), self.chunk)
            for i, pool in enumerate(self._pools)
        ]
        state, environment, action, is_pad = (
            np.concatenate([p[k] for p in parts]) for k in range(4)
        )
        if self._domain is not None:
            environment[:, self._domain] = rng.integers(0, 2, size=self.batch_size)
        return Batch(state, environment, action, is_pad.astype(bool), source.astype(np.int64))

    def moments(self) -> dict[str, Moments]:
        """Return `state`, `environment` and `action` moments over the usable frames, by share."""
        result = {}
        names = {
            "state": self.signature.state_names,
            "environment": self.signature.environment_names,
            "action": self.signature.action_names,
        }
        for key, entries in names.items():
            pools = [getattr(p, key)[p.rows].astype(np.float64) for p in self._pools]
            mean = sum(w * p.mean(axis=0) for w, p in zip(self.shares, pools, strict=True))
            square = sum(
                w * ((p - mean) ** 2).mean(axis=0) for w, p in zip(self.shares, pools, strict=True)
            )
            result[key] = _guarded(np.asarray(mean), np.sqrt(np.asarray(square)), entries)
        return result


def chunks_at(episode: Episode, rows: NDArray[np.int64], chunk: int) -> Batch:
    """Return the samples that start at `rows` of one take, padded past its end."""
    index = rows[:, None] + np.arange(chunk)
    is_pad = index >= len(episode.action)
    action = episode.action[np.minimum(index, len(episode.action) - 1)]
    none = np.zeros(len(rows), dtype=np.int64)
    return Batch(episode.state[rows], episode.environment[rows], action, is_pad, none)


def common_signature(sources: Sequence[Source]) -> Signature:
    """Return the signature all sources share.

    Raises:
        UnusableInputError: two differ in rate, joints, features or units.
    """
    first = sources[0]
    for other in sources[1:]:
        check_signature(other.signature, first.signature, other.root, first.root)
    return first.signature


def check_signature(given: Signature, wanted: Signature, where: str, by: str) -> None:
    """Check that data of signature `given` fits what `by` was made with.

    Raises:
        UnusableInputError: saying what differs and how to mend it.
    """
    mends = {
        "fps": "Record or resample both at one rate.",
        "state_names": "Use the same arm with the joints in the same order.",
        "action_names": "Use the same arm with the joints in the same order.",
        "environment_names": "Record both with the same tracker.",
        "units": "Record or convert both in the same units.",
    }
    for name, mend in mends.items():
        ours, theirs = getattr(given, name), getattr(wanted, name)
        if ours != theirs and not (name == "units" and "" in (ours, theirs)):
            raise UnusableInputError(
                f"{where}: {name.replace('_', ' ')} {_short(ours)} where {by} has "
                f"{_short(theirs)}. {mend}"
            )


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}] ({len(value)})"
    return repr(value)


def _draw(
    pool: _Pool, rng: np.random.Generator, n: int, chunk: int
) -> tuple[Float32Array, Float32Array, Float32Array, NDArray[np.bool_]]:
    rows = pool.rows[rng.integers(0, len(pool.rows), size=n)]
    index = rows[:, None] + np.arange(chunk)
    end = pool.end[rows][:, None]
    return (
        pool.state[rows],
        pool.environment[rows],
        pool.action[np.minimum(index, end - 1)],
        index >= end,
    )


def _guarded(
    mean: NDArray[np.float64], std: NDArray[np.float64], names: tuple[str, ...]
) -> Moments:
    constant = std < CONSTANT * np.maximum(np.abs(mean), 1.0)
    std = np.where(constant, 1.0, std)
    flags = np.array([name in FLAGS for name in names])
    mean, std = np.where(flags, 0.5, mean), np.where(flags, 0.5, std)
    return Moments(mean.astype(np.float32), std.astype(np.float32))
