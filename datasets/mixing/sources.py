"""A mixture's datasets opened: which frames of which takes, how heavy each, and what is drawn.

Read from Parquet; no video is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets import layout
from gaploop.datasets.differences import profile, require_trainable_together
from gaploop.datasets.labels import query
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.mixing.mixture import Floats, Ints, Mixture, MixtureStage, Pool
from gaploop.datasets.mixing.spec import (
    DIMENSION,
    VALUE,
    MixtureSpec,
    WeightTable,
    by_size,
    span_ends,
    wanted_frames,
)

_OWN: Final = ("length", "dataset_from_index", "dataset_to_index", "episode_index")
_TEXTS: Final = ("task", "session", "operator", "station", "calibration", "policy", "plan")
REPORT: Final = "mixture.json"
"""Beside LeRobot's checkpoints: what was drawn from which source."""


@dataclass(frozen=True)
class MixedTake:
    """A take, or the parts of it that a person drove, with the indices of its source and dataset.

    Attributes:
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
    """A mixture's datasets, and the takes with frames to learn from and a weight above 0."""

    spec: MixtureSpec
    datasets: tuple[DatasetInfo, ...]
    takes: tuple[MixedTake, ...]

    def mixture(self, batch_size: int, world_size: int = 1, drop_last: int = 0) -> Mixture:
        """Return the stream of samples.

        `drop_last` frames of every take or span are left out, as policies with long chunks ask for.

        Raises:
            UnusableInputError: that leaves a source without frames.
        """
        pools = []
        for index, source in enumerate(self.spec.sources):
            mine = [t for t in self.takes if t.source == index]
            kept = [t.frames[t.frames + drop_last < t.ends] for t in mine]
            sizes = list(map(len, kept))
            if not any(sizes):
                raise UnusableInputError(
                    f"Source '{source.name}': no frame is left once the last {drop_last} of every "
                    "take are dropped. Train with shorter chunks."
                )
            datasets = np.repeat([t.dataset for t in mine], sizes).astype(np.int64)
            weights = np.repeat([t.weight for t in mine], sizes).astype(np.float64)
            pools.append(Pool(source.name, datasets, np.concatenate(kept), weights))
        stages = self.stages([float(p.weight.sum()) for p in pools])
        seed = self.spec.seed
        return Mixture(pools, stages, batch_size=batch_size, world_size=world_size, seed=seed)

    def stages(self, sizes: Sequence[float]) -> list[MixtureStage]:
        """Return the stages, shares in the order of the sources; `sizes` where none are given."""
        if not self.spec.stages:
            return [MixtureStage(tuple(by_size(sizes)))]
        names = [s.name for s in self.spec.sources]
        return [
            MixtureStage(tuple(stage.shares.get(n, 0.0) for n in names), stage.steps)
            for stage in self.spec.stages
        ]

    def take_shares(self, shares: Floats) -> Floats:
        """Return which part of all samples comes from each of `takes`, by the sources' shares."""
        mass = np.array([t.weight * len(t.frames) for t in self.takes])
        source = np.array([t.source for t in self.takes])
        total = np.bincount(source, mass, len(self.spec.sources))
        return np.asarray(np.asarray(shares)[source] * mass / total[source])

    def span_ends(self, dataset: int) -> tuple[Ints, Ints]:
        """Return the frames of a dataset's partly used takes, rising, and where their spans end."""
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
        every: list[EpisodeRow] = []
        for root in source.roots:
            info = layout.read_info(root)
            known = layout.read_episodes(info)
            profiles.append(profile(info, known))
            every += known
            if source.where:
                chosen = set(query.where(source.where, known, f"{source.name}: where"))
                known = [e for e in known if e.index in chosen]
            for episode, usable in (
                wanted_frames(info, known, source.select) if known or not source.where else ()
            ):
                first = int(episode.row.get("dataset_from_index") or 0)
                frames = np.flatnonzero(usable)
                ends = span_ends(usable)[frames]
                place = (number, len(datasets), episode)
                found.append(MixedTake(*place, frames + first, ends + first, 1.0))
            datasets.append(info)
        if source.where and all(t.source != number for t in found):
            there = query.queried_values(source.where, every).items()
            raise UnusableInputError(
                f"Source '{source.name}': where: {source.where} chooses none of its {len(every)} "
                f"episodes; {'; '.join(f'{name} is {", ".join(said)}' for name, said in there)}."
            )
    require_trainable_together(profiles)
    weights = _take_weights([t.episode for t in found], spec.weights)
    weighted = [replace(t, weight=float(w)) for t, w in zip(found, weights, strict=True) if w > 0]
    for number, source in enumerate(spec.sources):
        if all(t.source != number for t in weighted):
            raise UnusableInputError(
                f"Source '{source.name}': every episode has weight 0. Raise some weight."
            )
    return OpenMixture(spec, tuple(datasets), tuple(weighted))


def _take_weights(episodes: Sequence[EpisodeRow], tables: Mapping[str, WeightTable]) -> Floats:
    """Return the weight of each take: the product of what the tables give it, shape (n,)."""
    result = np.ones(len(episodes))
    said: list[dict[str, Any]] = []  # what weights may go by
    for episode in episodes if tables else ():
        info = episode.info
        fields: dict[str, Any] = {  # numbers and texts in others' columns
            k.removeprefix("gap_"): v
            for k, v in episode.row.items()
            if isinstance(v, str | int | float | bool) and "/" not in k and k not in _OWN
        }
        fields |= info.conditions
        fields |= {name: getattr(info, name) for name in _TEXTS}
        fields |= {"kind": info.kind.value, "domain": info.domain.value}
        fields |= {"outcome": episode.outcome.value, "failure_mode": episode.failure_mode}
        said.append(fields | {"phase": episode.phase})
    for name, table in tables.items():
        where = f"weights, {name}"
        rows = table if isinstance(table, Mapping) else {}
        if name == DIMENSION:
            # The mean of the weights of a take's dimensions; what none claims counts 1.
            for k, episode in enumerate(episodes):
                parts = episode.info.dimensions
                scale = max(1.0, sum(parts.values()))
                claimed = sum(p * rows.get(d, 1.0) for d, p in parts.items()) / scale
                result[k] *= claimed + 1.0 - sum(parts.values()) / scale
            continue
        valid = {key for fields in said for key in fields} | {DIMENSION}
        if name not in valid:
            raise unknown_choice("field", name, valid, "weights")
        values = [fields.get(name) for fields in said]
        if table == VALUE:
            for value in values:
                if type(value) not in (int, float) or not 0 <= float(value or 0) < np.inf:
                    raise UnusableInputError(
                        f"{where}: an episode has {value!r}, which is no weight. Every episode "
                        "needs a number ≥ 0 there; or give a table of value: weight."
                    )
            result *= np.array(values, dtype=np.float64)
            continue
        seen = {str(v) for v in values if v is not None}
        if rows and not seen & set(rows):
            raise unknown_choice("value", next(iter(rows)), seen, where)
        result *= np.array([rows.get(str(v), 1.0) for v in values])
    return result


def report(opened: OpenMixture, mixture: Mixture, steps: int) -> dict[str, Any]:
    """Return what `mixture.json` holds of a run of `steps` training steps."""
    return {
        "schema": "gaploop.mixture.v1",
        "steps": steps,
        "batch_size": mixture.batch_size,
        "ranks": mixture.world_size,
        "seed": opened.spec.seed,
        "sources": describe(opened, mixture, steps),
    }


def describe(opened: OpenMixture, mixture: Mixture, steps: int) -> list[dict[str, Any]]:
    """Return, for each source, what it holds and how often it is drawn in `steps` steps."""
    drawn, result = mixture.counts(steps), []
    for index, source in enumerate(opened.spec.sources):
        mine = [t for t in opened.takes if t.source == index]
        frames = sum(len(t.frames) for t in mine)
        # How many samples are expected to serve each dimension.
        mass = sum(t.weight * len(t.frames) for t in mine)
        served: dict[str, float] = {}
        for take in mine:
            for dimension, part in take.episode.info.dimensions.items():
                samples = part * int(drawn[index]) * take.weight * len(take.frames) / mass
                served[str(dimension)] = served.get(str(dimension), 0) + samples
        result.append(
            {
                "name": source.name,
                "datasets": [str(r) for r in source.roots],
                "domains": sorted({t.episode.info.domain.value for t in mine}),
                "takes": len(mine),
                "frames": frames,
                "samples": int(drawn[index]),
                "share": float(drawn[index] / max(1, steps * mixture.per_step)),
                "epochs": float(drawn[index] / frames),
                "dimensions": served,
            }
        )
    return result
