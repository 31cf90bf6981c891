"""A mixture's datasets opened: which frames of which takes, how heavy each, and what is drawn.

Read from Parquet; no video is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets import layout
from gaploop.datasets.harmonise.differences import profile, require_trainable_together
from gaploop.datasets.labels import query
from gaploop.datasets.labels.query import Facts
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.mixing import selection
from gaploop.datasets.mixing.mixture import Mixture, MixtureStage, Pool
from gaploop.datasets.mixing.spec import (
    DIMENSION,
    VALUE,
    MixtureSpec,
    SourceSpec,
    WeightTable,
    by_size,
)
from gaploop.datasets.mixing.turns import Floats, Ints

_OWN: Final = ("length", "dataset_from_index", "dataset_to_index", "episode_index")
_TEXTS: Final = ("task", "session", "operator", "station", "calibration", "policy", "plan")


@dataclass(frozen=True)
class MixedTake:
    """A take, or the parts of it that a person drove.

    Attributes:
        source: index of its source.
        dataset: index of its dataset.
        episode: the take.
        frames: frames that a chunk may start at, counted from the dataset's first, shape (n,).
        ends: for each, the frame at which its span or take is over, shape (n,).
        weight: how often its frames are drawn, relative to others of its source.
    """

    source: int
    dataset: int
    episode: EpisodeRow
    frames: Ints
    ends: Ints
    weight: float


@dataclass(frozen=True)
class OpenMixture:
    """A mixture's datasets and takes.

    Attributes:
        spec: what was asked for.
        datasets: the datasets, in the order of `MixedTake.dataset`.
        takes: every take that has frames to learn from and a weight above 0.
    """

    spec: MixtureSpec
    datasets: tuple[DatasetInfo, ...]
    takes: tuple[MixedTake, ...]

    def mixture(self, batch_size: int, world_size: int = 1, drop_last: int = 0) -> Mixture:
        """Return the stream of samples.

        Args:
            batch_size: samples per step and rank.
            world_size: ranks that train together.
            drop_last: leave out the last frames of every take or span, as policies with long
                chunks ask for.

        Raises:
            UnusableInputError: that leaves a source without frames.
        """
        pools = [self._pool(i, s, drop_last) for i, s in enumerate(self.spec.sources)]
        return Mixture(
            pools,
            self.stages([float(p.weight.sum()) for p in pools]),
            batch_size=batch_size,
            world_size=world_size,
            seed=self.spec.seed,
        )

    def _pool(self, index: int, source: SourceSpec, drop_last: int) -> Pool:
        mine = [t for t in self.takes if t.source == index]
        kept = [t.frames[t.frames + drop_last < t.ends] for t in mine]
        if not sum(map(len, kept)):
            raise UnusableInputError(
                f"Source '{source.name}': no frame is left once the last {drop_last} of every take "
                "are dropped. Train with shorter chunks."
            )
        sizes = [len(k) for k in kept]
        return Pool(
            source.name,
            np.repeat([t.dataset for t in mine], sizes).astype(np.int64),
            np.concatenate(kept),
            np.repeat([t.weight for t in mine], sizes).astype(np.float64),
        )

    def stages(self, sizes: Sequence[float]) -> list[MixtureStage]:
        """Return the stages, shares in the order of the sources.

        Args:
            sizes: weights of each source's frames in all, which are its share where none is given.
        """
        if not self.spec.stages:
            return [MixtureStage(tuple(by_size(sizes)))]
        names = [s.name for s in self.spec.sources]
        return [
            MixtureStage(tuple(stage.shares.get(n, 0.0) for n in names), stage.steps)
            for stage in self.spec.stages
        ]

    def take_shares(self, shares: Floats) -> Floats:
        """Return which part of all samples comes from each take.

        Args:
            shares: share of each source.

        Returns:
            Shape (n_takes,), summing to 1, in the order of `takes`.
        """
        mass = np.array([t.weight * len(t.frames) for t in self.takes])
        source = np.array([t.source for t in self.takes])
        total = np.bincount(source, mass, len(self.spec.sources))
        return np.asarray(np.asarray(shares)[source] * mass / total[source])

    def span_ends(self, dataset: int) -> tuple[Ints, Ints]:
        """Return the frames of a dataset's partly used takes, and where the span of each is over.

        Returns:
            Two arrays of shape (n,), the first rising.
        """
        parts = [t for t in self.takes if t.dataset == dataset and len(t.frames) < t.episode.length]
        none = [np.empty(0, dtype=np.int64)]
        frames = np.concatenate([t.frames for t in parts] or none)
        ends = np.concatenate([t.ends for t in parts] or none)
        order = np.argsort(frames)
        return frames[order], ends[order]


def open_mixture(spec: MixtureSpec) -> OpenMixture:
    """Open a mixture's datasets, and check that they can be trained on together.

    Raises:
        UnusableInputError: a dataset is missing, damaged, or doesn't fit the others; a source
            has nothing to learn from; a weight names what no take says of itself.
    """
    datasets: list[DatasetInfo] = []
    found: list[MixedTake] = []
    profiles = []
    for number, source in enumerate(spec.sources):
        for root in source.roots:
            info = layout.read_info(root)
            known = layout.read_episodes(info)
            profiles.append(profile(info, known))
            asked = _asked(known, source)
            chosen = selection.wanted_episodes(root, asked, source.select)
            takes = list(_takes(info, chosen, source.select, number, len(datasets)))
            if not takes:
                raise UnusableInputError(selection.nothing_left(root, asked, source.select))
            datasets.append(info)
            found += takes
    require_trainable_together(profiles)
    weights = take_weights([t.episode for t in found], spec.weights)
    weighted = [_weighted(t, float(w)) for t, w in zip(found, weights, strict=True) if w > 0]
    for number, source in enumerate(spec.sources):
        if all(t.source != number for t in weighted):
            raise UnusableInputError(
                f"Source '{source.name}': every take has weight 0. Raise some weight."
            )
    return OpenMixture(spec, tuple(datasets), tuple(weighted))


def _asked(known: list[EpisodeRow], source: SourceSpec) -> list[EpisodeRow]:
    if not source.where:
        return known
    chosen = query.matching(source.where, Facts.of_episodes(known), f"{source.name}: where")
    if not any(chosen):
        roots = ", ".join(map(str, source.roots))
        raise UnusableInputError(
            f"Source '{source.name}': where: {source.where} chooses none of the takes in {roots}."
        )
    return [e for e, yes in zip(known, chosen, strict=True) if yes]


def _takes(
    info: DatasetInfo, chosen: Sequence[EpisodeRow], select: str, source: int, dataset: int
) -> Iterator[MixedTake]:
    driven = selection.interventions(info, chosen) if select == "demonstrations" else {}
    for episode in chosen:
        usable = selection.usable_frames(episode, select, driven.get(episode.index))
        if usable.any():
            first = int(episode.row.get("dataset_from_index") or 0)
            frames = np.flatnonzero(usable)
            ends = selection.span_ends(usable)[frames]
            yield MixedTake(source, dataset, episode, frames + first, ends + first, 1.0)


def _weighted(take: MixedTake, weight: float) -> MixedTake:
    return MixedTake(take.source, take.dataset, take.episode, take.frames, take.ends, weight)


def take_weights(episodes: Sequence[EpisodeRow], tables: Mapping[str, WeightTable]) -> Floats:
    """Return the weight of each take: the product of what the tables give it, shape (n,).

    Raises:
        UnusableInputError: a field or all values of a table that no take has, or a value that
            should be a number and isn't.
    """
    result = np.ones(len(episodes))
    if not tables:
        return result
    said = [take_fields(episode) for episode in episodes]
    for name, table in tables.items():
        where = f"weights, {name}"
        if name == DIMENSION:
            result *= [_dimension_weight(e, table) for e in episodes]
            continue
        valid = {key for fields in said for key in fields} | {DIMENSION}
        if name not in valid:
            raise unknown_choice("field", name, valid, "weights")
        values = [fields.get(name) for fields in said]
        result *= _by_value(values, table, where)
    return result


def take_fields(episode: EpisodeRow) -> dict[str, Any]:
    """Return what a take says of itself: what weights may go by, besides its dimensions.

    That is outcome, kind, domain and the like, every condition that was set, and every number
    or text that the dataset's episode table holds besides LeRobot's own.
    """
    info = episode.info
    other = {
        k.removeprefix("gap_"): v
        for k, v in episode.row.items()
        if isinstance(v, str | int | float | bool) and "/" not in k and k not in _OWN
    }
    own = {"outcome": episode.outcome.value, "kind": info.kind.value, "domain": info.domain.value}
    own |= {"failure_mode": episode.failure_mode, "phase": episode.phase}
    texts = {name: getattr(info, name) for name in _TEXTS}
    return {**other, **dict(info.conditions), **texts, **own}


def _dimension_weight(episode: EpisodeRow, table: WeightTable) -> float:
    """Return the mean of the weights of a take's dimensions; what no dimension claims counts 1."""
    weights = dict(table) if isinstance(table, Mapping) else {}
    parts = episode.info.dimensions
    scale = max(1.0, sum(parts.values()))
    claimed = sum(p * weights.get(d, 1.0) for d, p in parts.items()) / scale
    return float(claimed + 1.0 - sum(parts.values()) / scale)


def _by_value(values: Sequence[Any], table: WeightTable, where: str) -> Floats:
    if table == VALUE or not isinstance(table, Mapping):
        return np.array([_number(v, where) for v in values])
    seen = {str(v) for v in values if v is not None}
    if table and not seen & set(table):
        raise unknown_choice("value", next(iter(table)), seen, where)
    return np.array([table.get(str(v), 1.0) for v in values])


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < np.inf:
        raise UnusableInputError(
            f"{where}: a take says {value!r}, which is no weight. Every take needs a number ≥ 0 "
            "there; or give a table of value: weight."
        )
    return float(value)
