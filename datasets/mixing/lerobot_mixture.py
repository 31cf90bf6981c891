"""A mixture as LeRobot trains on it: a torch dataset, its sampler and its statistics.

The sampler yields (dataset, frame) pairs without end; accelerate deals its batches out to the
ranks in turn, which is the order that `mixture.Mixture.batch` has.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from lerobot.datasets.compute_stats import DEFAULT_QUANTILES, aggregate_stats
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.datasets.feature_utils import DEFAULT_FEATURES
from numpy.typing import NDArray

from gaploop.datasets import layout
from gaploop.datasets.columns import PICTURES
from gaploop.datasets.differences import LEARNED
from gaploop.datasets.mixing.mixture import Floats, Mixture
from gaploop.datasets.mixing.sources import OpenMixture
from gaploop.datasets.v3_files import load_frames

DATASET_INDEX: Final = "dataset_index"
"""Entry of every sample: which dataset it is from, as in LeRobot's MultiLeRobotDataset."""
ENDLESS: Final = 1 << 40
"""What the sampler gives as its length: no run is that long."""
_COUNTED: Final = 1e9
"""Shares become counts of this many in all, which is how LeRobot weighs statistics."""

type Sample = dict[str, Any]
type Key = tuple[int, int]
"""Dataset, and frame in it."""
type Stats = dict[str, dict[str, NDArray[Any]]]


class MixtureSampler(torch.utils.data.Sampler[Key]):
    """Yields the samples of a mixture, from wherever training stands.

    Its state is that of LeRobot's `EpisodeAwareSampler`, and LeRobot's `compute_sampler_state`
    finds it from the step alone.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        self._first = 0

    def __iter__(self) -> Iterator[Key]:
        return self.mixture.samples(self._first)

    def __len__(self) -> int:
        return ENDLESS

    def state_dict(self) -> dict[str, int]:
        """Return where the stream is taken up."""
        return {"epoch": 0, "start_index": self._first}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Take the stream up at a sample."""
        self._first = int(state["start_index"])


class MixtureDataset(torch.utils.data.Dataset[Sample]):
    """Samples of several LeRobot datasets under (dataset, frame) keys.

    Every sample has the features that all datasets share, `dataset_index`, and `task_index` in
    the numbering of `meta.tasks`. `index` and `episode_index` count within their dataset. Where
    a take is learned from in parts, actions behind the end of a part are marked as padding.

    Args:
        datasets: its datasets, in order: LeRobot's, or any that yield the same samples for
            frame numbers, one at a time or by `__getitems__`.
        meta: metadata of the whole, see `common_meta`.
        actions: offsets of the actions in a sample [frames], or None for one action.
    """

    episodes = None
    absolute_to_relative_idx = None

    def __init__(
        self,
        opened: OpenMixture,
        datasets: Sequence[Any],
        meta: LeRobotDatasetMetadata,
        actions: Sequence[int] | None = None,
    ) -> None:
        self._datasets = list(datasets)
        self.meta = meta
        self.num_frames = sum(len(t.frames) for t in opened.takes)
        self.num_episodes = len(opened.takes)
        gone = [[n for n in info.features if n not in meta.features] for info in opened.datasets]
        self._dropped = [[*names, *(f"{name}_is_pad" for name in names)] for names in gone]
        new_tasks = meta.tasks["task_index"]
        self._tasks = [
            {int(old): int(new_tasks[task]) for task, old in d.meta.tasks["task_index"].items()}
            for d in self._datasets
        ]
        self._spans = [opened.span_ends(i) for i in range(len(self._datasets))]
        self._offsets = None if actions is None else torch.tensor(list(actions))

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, key: Key) -> Sample:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Key]) -> list[Sample]:
        """Return the samples under `keys`, those of one dataset fetched together."""
        result: dict[int, Sample] = {}
        for number, dataset in enumerate(self._datasets):
            places = [i for i, key in enumerate(keys) if key[0] == number]
            frames = [keys[i][1] for i in places]
            if hasattr(dataset, "__getitems__"):
                samples = dataset.__getitems__(frames) if frames else []
            else:
                samples = [dataset[frame] for frame in frames]
            dropped, (starts, ends) = self._dropped[number], self._spans[number]
            for at, frame, read in zip(places, frames, samples, strict=True):
                sample = result[at] = {k: v for k, v in read.items() if k not in dropped}
                sample[DATASET_INDEX] = torch.tensor(number)
                if "task_index" in sample:
                    task = self._tasks[number][int(sample["task_index"])]
                    sample["task_index"] = torch.tensor(task)
                padding = sample.get("action_is_pad")
                if padding is None or self._offsets is None:
                    continue
                span = int(np.searchsorted(starts, frame))
                if span < len(starts) and int(starts[span]) == frame:
                    sample["action_is_pad"] = padding | (frame + self._offsets >= int(ends[span]))
        return [result[i] for i in range(len(keys))]


def common_meta(opened: OpenMixture, metas: Sequence[Any], shares: Floats) -> Any:
    """Return LeRobot metadata of a mixture as a whole, of its datasets' in order.

    Features are those that all datasets have, tasks are numbered anew, statistics are those of
    what is drawn by the sources' shares over the run.
    """
    meta = copy.copy(metas[0])
    meta.info = copy.copy(metas[0].info)
    common = [n for n in metas[0].features if all(n in m.features for m in metas)]
    meta.info.features = {n: metas[0].features[n] for n in common}
    names = list(dict.fromkeys(t for m in metas for t in m.tasks.index))
    index = pd.Index(names, name=metas[0].tasks.index.name)
    meta.tasks = pd.DataFrame({"task_index": range(len(names))}, index=index)
    meta.stats = statistics(opened, shares, common)
    return meta


def statistics(opened: OpenMixture, shares: Floats, features: Sequence[str]) -> Stats:
    """Return LeRobot statistics of the frames of a mixture, each as often as it is drawn.

    Numbers that policies see are weighed frame by frame, quantiles included. Pictures and the
    rest are put together from the statistics of whole takes, as LeRobot puts episodes together:
    quantiles are means of the takes' quantiles. `shares` are each source's over the run.
    """
    parts = opened.take_shares(np.asarray(shares))
    kinds = opened.datasets[0].features
    exact = [n for n in features if n.startswith(LEARNED) and kinds[n].get("dtype") not in PICTURES]
    rest = [n for n in features if n not in exact and n not in DEFAULT_FEATURES]
    values: dict[str, list[NDArray[Any]]] = {name: [] for name in exact}
    weights: list[Floats] = []
    of_takes: list[Stats] = []
    for number, info in enumerate(opened.datasets):
        mine = [(t, p) for t, p in zip(opened.takes, parts, strict=True) if t.dataset == number]
        if mine and exact:
            table = load_frames(info.root, exact, [t.episode.index for t, _ in mine])
        known = _episode_stats(info, rest)
        for take, part in mine:
            if exact:
                first = int(take.episode.row.get("dataset_from_index") or 0)
                rows = table.rows_of(take.episode.index).start + take.frames - first
                weights.append(np.full(len(rows), part / len(rows)))
                for name in exact:
                    values[name].append(table.columns[name][rows].reshape(len(rows), -1))
            own = known.get(take.episode.index, {})
            if own and part > 0:
                count = np.array([part * _COUNTED])
                of_takes.append({n: {**s, "count": count} for n, s in own.items()})
    stats = aggregate_stats(of_takes) if of_takes else {}
    weight = np.concatenate(weights or [np.empty(0)])
    return {n: weighted_stats(np.concatenate(v), weight) for n, v in values.items()} | stats


def weighted_stats(values: NDArray[Any], weight: Floats) -> dict[str, NDArray[Any]]:
    """Return statistics of rows, shape (n, width), that count as often as `weight` says."""
    kept = weight > 0
    values, weight = values[kept].astype(np.float64), weight[kept] / weight[kept].sum()
    mean = weight @ values
    stats = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": mean,
        "std": np.sqrt(weight @ (values - mean) ** 2),
        "count": np.array([len(values)]),
    }
    order = np.argsort(values, axis=0, kind="stable")
    rising = np.take_along_axis(values, order, axis=0)
    below = np.cumsum(weight[order], axis=0)
    for quantile in DEFAULT_QUANTILES:
        place = np.minimum((below < quantile).sum(axis=0), len(values) - 1)
        stats[f"q{round(quantile * 100):02d}"] = rising[place, np.arange(values.shape[1])]
    return stats


def _episode_stats(info: layout.DatasetInfo, names: Sequence[str]) -> dict[int, Stats]:
    """Return the statistics that `meta/episodes` holds of each episode."""
    result: dict[int, Stats] = {}
    for path in layout.episode_files(info.root):
        table = layout.read_parquet(path)
        found = {
            (name, column.rpartition("/")[2]): table[column].to_pylist()
            for name in names
            for column in table.column_names
            if column.startswith(f"stats/{name}/") and not column.endswith("/count")
        }
        for row, index in enumerate(table["episode_index"].to_pylist()):
            own = result.setdefault(int(index), {})
            for (name, stat), values in found.items():
                own.setdefault(name, {})[stat] = np.asarray(values[row], dtype=np.float64)
    return result
