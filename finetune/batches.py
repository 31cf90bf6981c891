"""What training reads of takes without pictures: which takes, in memory, and batches of a mixture.

They are read from a published dataset's Parquet, without any video. Which samples make up a batch
is decided by `datasets.mixing.mixture`, a pure function of seed and step.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain, check_selection
from gaploop.datasets import columns, layout
from gaploop.datasets.mixing.mixture import Mixture, MixtureStage, Pool
from gaploop.datasets.mixing.sources import OpenMixture, span_ends, wanted_frames
from gaploop.datasets.v3_files import load_frames

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
        units: LeRobot units of state and action, such as `deg`.
        robot_type: LeRobot's name of the follower.
        cameras: keys of what pictures it was trained on.
    """

    fps: float
    state_names: tuple[str, ...]
    environment_names: tuple[str, ...]
    action_names: tuple[str, ...]
    units: str = ""
    robot_type: str = ""
    cameras: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingEpisode:
    """One take as training sees it; arrays have one row per frame.

    Attributes:
        state: shape (n, n_state), LeRobot units.
        environment: shape (n, n_environment).
        action: requested action, shape (n, n_action), LeRobot units.
        usable: frames a chunk may be learned from, bool, shape (n,).
        plan: id of the plan item it was collected for, or "".
        weight: how often its frames are drawn, relative to other takes of its source.
        dimensions: gap dimension to weight, as it is tagged.
    """

    uid: str
    index: int
    state: Float32Array
    environment: Float32Array
    action: Float32Array
    usable: NDArray[np.bool_]
    plan: str = ""
    weight: float = 1.0
    session: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingSource:
    """The selected takes of one dataset.

    Attributes:
        signature: features, rate and units, the same for every source of a mixture.
    """

    root: str
    domain: Domain
    signature: Signature
    episodes: tuple[TrainingEpisode, ...]

    @property
    def frames(self) -> int:
        """Frames that a chunk may be learned from."""
        return sum(int(e.usable.sum()) for e in self.episodes)


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
class FeatureMoments:
    """Mean and spread by which one feature is normalised, LeRobot units; arrays of shape (n,)."""

    mean: NDArray[np.floating[Any]]
    std: NDArray[np.floating[Any]]


class _Frames:
    """One source's frames end to end, and where each frame's take or span ends."""

    def __init__(self, source: TrainingSource) -> None:
        episodes = source.episodes
        self.state = np.concatenate([e.state for e in episodes])
        self.environment = np.concatenate([e.environment for e in episodes])
        self.action = np.concatenate([e.action for e in episodes])
        starts = np.cumsum([0] + [len(e.usable) for e in episodes[:-1]])
        self.end = np.concatenate(
            [span_ends(e.usable) + first for e, first in zip(episodes, starts, strict=True)]
        )
        self.usable = np.flatnonzero(np.concatenate([e.usable for e in episodes]))
        self.weight = np.repeat([e.weight for e in episodes], [e.usable.sum() for e in episodes])

    def chunks(self, rows: NDArray[np.int64], chunk: int) -> tuple[NDArray[Any], ...]:
        """Return state, environment, action and padding of the samples that start at `rows`."""
        index, end = rows[:, None] + np.arange(chunk), self.end[rows][:, None]
        action = self.action[np.minimum(index, end - 1)]
        return self.state[rows], self.environment[rows], action, index >= end


class MixedBatches:
    """Batches of several sources, mixed by `datasets.mixing.mixture`.

    Args:
        sources: what to draw from, each with at least one usable frame.
        randomise_domain: draw the `domain` entry anew for each sample, so that a base trained
            on one domain neither relies on the entry nor breaks when it changes.

    Raises:
        UnusableInputError: two sources differ in rate, joints, features or units.
    """

    def __init__(
        self,
        sources: Sequence[TrainingSource],
        stages: Sequence[MixtureStage],
        *,
        chunk: int,
        batch_size: int,
        seed: int,
        randomise_domain: bool = False,
    ) -> None:
        self.chunk, self.batch_size, self.seed = chunk, batch_size, seed
        self._frames = [_Frames(s) for s in sources]
        pools = [
            Pool(s.root, np.full(len(f.usable), i, dtype=np.int64), f.usable, f.weight)
            for i, (s, f) in enumerate(zip(sources, self._frames, strict=True))
        ]
        self.mixture = Mixture(pools, stages, batch_size=batch_size, seed=seed)
        self.signature = sources[0].signature
        for other in sources[1:]:
            check_signature(other.signature, self.signature, other.root, sources[0].root)
        names = self.signature.environment_names
        self._domain = names.index(DOMAIN) if randomise_domain and DOMAIN in names else None

    def stream(self, first: int) -> Iterator[Batch]:
        """Yield the batches of steps `first`, `first + 1`, … without end."""
        return map(self.batch, itertools.count(first))

    def batch(self, step: int) -> Batch:
        """Return the batch of training step `step`, the same whenever asked for."""
        drawn = self.mixture.batch(step)
        order = np.argsort(drawn.source, kind="stable")
        source, rows = drawn.source[order], drawn.frame[order]
        parts = [f.chunks(rows[source == i], self.chunk) for i, f in enumerate(self._frames)]
        state, environment, action, is_pad = map(np.concatenate, zip(*parts, strict=True))
        if self._domain is not None:
            flags = np.random.default_rng((self.seed, step)).integers(0, 2, self.batch_size)
            environment[:, self._domain] = flags
        return Batch(state, environment, action, is_pad, source)

    def moments(self, steps: int = 1) -> dict[str, FeatureMoments]:
        """Return `state`, `environment` and `action` moments over the frames, as often as drawn."""
        weights = self._weights(steps)
        result = {}
        for key in ("state", "environment", "action"):
            entries = getattr(self.signature, f"{key}_names")
            rows = [getattr(f, key)[f.usable].astype(np.float64) for f in self._frames]
            mean = sum(w @ r for w, r in zip(weights, rows, strict=True))
            square = sum(w @ (r - mean) ** 2 for w, r in zip(weights, rows, strict=True))
            std = np.sqrt(np.asarray(square))
            constant = std < CONSTANT * np.maximum(np.abs(mean), 1.0)
            std = np.where(constant, 1.0, std)
            flags = np.array([name in FLAGS for name in entries])
            mean, std = np.where(flags, 0.5, mean), np.where(flags, 0.5, std)
            result[key] = FeatureMoments(mean.astype(np.float32), std.astype(np.float32))
        return result

    def weighted(self, key: str, steps: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the frames of `state`, `environment` or `action`, and how often each is drawn.

        Returns:
            Rows, shape (n, width), and weights, shape (n,), that sum to 1.
        """
        rows = [getattr(f, key)[f.usable] for f in self._frames]
        return np.concatenate(rows), np.concatenate(self._weights(steps))

    def _weights(self, steps: int) -> list[NDArray[np.float64]]:
        shares = self.mixture.mean_shares(steps)
        return [w * f.weight / f.weight.sum() for w, f in zip(shares, self._frames, strict=True)]


def chunks_at(episode: TrainingEpisode, rows: NDArray[np.int64], chunk: int) -> Batch:
    """Return the samples that start at `rows` of one take, padded past its end."""
    index = rows[:, None] + np.arange(chunk)
    is_pad = index >= len(episode.action)
    action = episode.action[np.minimum(index, len(episode.action) - 1)]
    none = np.zeros(len(rows), dtype=np.int64)
    return Batch(episode.state[rows], episode.environment[rows], action, is_pad, none)


def check_signature(given: Signature, wanted: Signature, where: str, by: str) -> None:
    """Check that data of signature `given` fits what `by` was made with.

    Raises:
        UnusableInputError: saying what differs and how to fix it.
    """
    fixes = {
        "fps": "Resample one of them with gaploop edit harmonise.",
        "state_names": "Name and order the joints alike with gaploop edit harmonise.",
        "action_names": "Name and order the joints alike with gaploop edit harmonise.",
        "environment_names": "Record both with the same tracker.",
        "units": "Convert one of them with gaploop edit harmonise.",
    }
    for name, fix in fixes.items():
        ours, theirs = getattr(given, name), getattr(wanted, name)
        if ours != theirs and not (name == "units" and "" in (ours, theirs)):
            raise UnusableInputError(
                f"{where}: {name.replace('_', ' ')} {_short(ours)} where {by} has "
                f"{_short(theirs)}. {fix}"
            )


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}] ({len(value)})"
    return repr(value)


def load_source(
    root: Path, select: str = "demonstrations", episodes: Sequence[int] | None = None
) -> TrainingSource:
    """Read the selected takes of one dataset.

    Args:
        episodes: only these episode indices; all of them if None.

    Raises:
        UnusableInputError: no dataset, a feature missing, takes of several domains or without
            an outcome, NaN in what would be trained on, or nothing selected.
    """
    check_selection(select)
    info = layout.read_info(root)
    wanted = wanted_frames(info, layout.read_episodes(info, episodes), select)
    rows = [episode for episode, _ in wanted]
    for feature in (columns.STATE, columns.ACTION):
        if feature not in info.features:
            raise UnusableInputError(
                f"{info.root} has no {feature}, which a policy is trained on. Record or import it "
                "with joint states and actions."
            )
    optional = [c for c in (columns.ENVIRONMENT,) if c in info.features]
    read = [columns.STATE, columns.ACTION, *optional]
    table = load_frames(info.root, read, [e.index for e in rows])
    none = np.empty((len(table), 0), dtype=np.float32)
    taken = []
    for episode, usable in wanted:
        mine = table.rows_of(episode.index)
        take = TrainingEpisode(
            episode.info.uid,
            episode.index,
            np.asarray(table.columns[columns.STATE][mine], dtype=np.float32),
            np.asarray(table.columns.get(columns.ENVIRONMENT, none)[mine], dtype=np.float32),
            np.asarray(table.columns[columns.ACTION][mine], dtype=np.float32),
            usable,
            episode.info.plan,
            session=episode.info.session,
            dimensions=dict(episode.info.dimensions),
        )
        for name in ("state", "environment", "action"):
            check_finite(root, take.index, name, getattr(take, name))
        taken.append(take)
    domains = sorted({e.info.domain for e in rows})
    if len(domains) > 1:
        raise UnusableInputError(
            f"{root} mixes episodes of {' and '.join(domains)}. Split it by domain with gaploop "
            "edit split, so that each gets its share."
        )
    return TrainingSource(
        str(root),
        domains[0],
        Signature(
            info.fps,
            info.names(columns.STATE),
            info.names(columns.ENVIRONMENT),
            info.names(columns.ACTION),
            rows[0].info.units,
            info.robot_type,
        ),
        tuple(taken),
    )


def sources_in_memory(opened: OpenMixture) -> tuple[list[TrainingSource], list[MixtureStage]]:
    """Read the takes of a mixture: a source for each dataset, which share their source's share.

    Raises:
        UnusableInputError: as `load_source`.
    """
    sources, of, mass = list[TrainingSource](), list[int](), list[float]()
    for number, source in enumerate(opened.spec.sources):
        for place, info in enumerate(opened.datasets):
            weights = {
                t.episode.index: t.weight
                for t in opened.takes
                if t.source == number and t.dataset == place
            }
            if weights:
                read = load_source(info.root, source.select, sorted(weights))
                taken = tuple(replace(e, weight=weights[e.index]) for e in read.episodes)
                sources.append(replace(read, episodes=taken))
                of.append(number)
                mass.append(sum(e.weight * int(e.usable.sum()) for e in taken))
    totals = np.bincount(of, mass)
    part = np.array(mass) / totals[of]
    stages = [
        MixtureStage(tuple((np.array(stage.shares)[of] * part).tolist()), stage.steps)
        for stage in opened.stages(totals.tolist())
    ]
    return sources, stages


def check_all_finite(opened: OpenMixture, names: Set[str]) -> None:
    """Refuse NaN before a step is trained: joints, scene and actions are read, no video.

    Raises:
        UnusableInputError: where the first is.
    """
    for number, info in enumerate(opened.datasets):
        takes = [t.episode for t in opened.takes if t.dataset == number]
        if not takes:
            continue
        held = sorted(names & info.features.keys())
        table = load_frames(info.root, held, [e.index for e in takes])
        for episode in takes:
            rows = table.rows_of(episode.index)
            for name in held:
                values = np.asarray(table.columns[name][rows], dtype=np.float64)
                check_finite(info.root, episode.index, name, values)


def check_finite(root: Path, episode: int, name: str, values: NDArray[Any]) -> None:
    """Refuse a take with NaN among what would be trained on; `values` has a row for each frame.

    Raises:
        UnusableInputError: where the first is.
    """
    bad = np.argwhere(~np.isfinite(values.reshape(len(values), -1)))
    if len(bad):
        frame, entry = bad[0].tolist()
        raise UnusableInputError(
            f"{root}: episode {episode} has NaN or infinite {name}, entry {entry}, at frame "
            f"{frame}. Remove the episode with gaploop edit delete, or record it "
            "again."
        )
