"""A mixture as LeRobot trains on it: a torch dataset, its sampler and its statistics.

The sampler yields (dataset, frame) pairs without end; accelerate deals its batches out to the
ranks in turn, which is the order that `mixture.Mixture.batch` has.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from lerobot.datasets import factory
from lerobot.datasets.compute_stats import DEFAULT_QUANTILES, aggregate_stats
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.datasets.feature_utils import DEFAULT_FEATURES
from lerobot.transforms import ImageTransforms
from lerobot.utils.constants import ACTION, IMAGENET_STATS
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.datasets import layout
from gaploop.datasets.frames import load_frames
from gaploop.datasets.harmonise.differences import LEARNED, PICTURES
from gaploop.datasets.mixing.mixture import Floats, Mixture
from gaploop.datasets.mixing.sources import REPORT, MixedTake, OpenMixture, report

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
        opened: the mixture.
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
        self._dropped: list[list[str]] = []
        for info in opened.datasets:
            gone = [name for name in info.features if name not in meta.features]
            self._dropped.append(gone + [f"{name}_is_pad" for name in gone])
        self._tasks: list[dict[int, int]] = []
        for dataset in self._datasets:
            own, index = dataset.meta.tasks, "task_index"
            self._tasks.append(
                {int(own.loc[t, index]): int(meta.tasks.loc[t, index]) for t in own.index}
            )
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
            for place, frame, sample in zip(places, frames, samples, strict=True):
                result[place] = self._fitted(number, frame, dict(sample))
        return [result[i] for i in range(len(keys))]

    def _fitted(self, number: int, frame: int, sample: Sample) -> Sample:
        for name in self._dropped[number]:
            sample.pop(name, None)
        sample[DATASET_INDEX] = torch.tensor(number)
        if "task_index" in sample:
            sample["task_index"] = torch.tensor(self._tasks[number][int(sample["task_index"])])
        padding = sample.get("action_is_pad")
        if padding is not None and self._offsets is not None:
            frames, ends = self._spans[number]
            place = int(np.searchsorted(frames, frame))
            if place < len(frames) and int(frames[place]) == frame:
                end = int(ends[place])
                sample["action_is_pad"] = padding | (frame + self._offsets >= end)
        return sample


def common_meta(opened: OpenMixture, metas: Sequence[Any], shares: Floats) -> Any:
    """Return LeRobot metadata of a mixture as a whole.

    Features are those that all datasets have, tasks are numbered anew, statistics are those of
    what is drawn.

    Args:
        opened: the mixture.
        metas: LeRobot's metadata of its datasets, in order.
        shares: share of each source over the run.
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
    quantiles are means of the takes' quantiles.

    Args:
        opened: the mixture.
        shares: share of each source over the run.
        features: which features.
    """
    parts = opened.take_shares(np.asarray(shares))
    kinds = opened.datasets[0].features
    exact = [n for n in features if n.startswith(LEARNED) and kinds[n].get("dtype") not in PICTURES]
    result = _frame_stats(opened, parts, exact) if exact else {}
    rest = [n for n in features if n not in exact and n not in DEFAULT_FEATURES]
    return result | _take_stats(opened, parts, rest)


def _frame_stats(opened: OpenMixture, parts: Floats, names: Sequence[str]) -> Stats:
    values: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    weights: list[Floats] = []
    for number, info in enumerate(opened.datasets):
        mine = [(t, p) for t, p in zip(opened.takes, parts, strict=True) if t.dataset == number]
        if not mine:
            continue
        table = load_frames(info.root, names, [t.episode.index for t, _ in mine])
        for take, part in mine:
            first = int(take.episode.row.get("dataset_from_index") or 0)
            rows = table.rows_of(take.episode.index).start + take.frames - first
            weights.append(np.full(len(rows), part / len(rows)))
            for name in names:
                values[name].append(table.columns[name][rows].reshape(len(rows), -1))
    weight = np.concatenate(weights)
    return {n: weighted_stats(np.concatenate(v), weight) for n, v in values.items()}


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


def _take_stats(opened: OpenMixture, parts: Floats, names: Sequence[str]) -> Stats:
    listed: list[Stats] = []
    for number, info in enumerate(opened.datasets):
        known = _episode_stats(info, names)
        for take, part in zip(opened.takes, parts, strict=True):
            own = known.get(take.episode.index, {}) if take.dataset == number and part > 0 else {}
            if own:
                count = np.array([part * _COUNTED])
                listed.append({n: {**s, "count": count} for n, s in own.items()})
    return aggregate_stats(listed) if listed else {}


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


# LeRobot's own training on a mixture. `lerobot_train.train` has no place to hand a dataset or a
# sampler in: it calls `make_train_eval_datasets` and `EpisodeAwareSampler` by name. `mixing` puts
# ours behind these two names while it runs; everything else (policies, adapters, accelerate,
# checkpoints, resuming, logging) is LeRobot's. Written against LeRobot 0.6.1.


@contextlib.contextmanager
def mixing(opened: OpenMixture) -> Iterator[None]:
    """Let LeRobot's `train`, called inside, train on a mixture.

    Raises:
        UnusableInputError: from within `train`, where its options don't go with a mixture.
    """
    from lerobot.scripts import lerobot_train  # here: of all that LeRobot trains with

    names = ("make_train_eval_datasets", "EpisodeAwareSampler")
    before = {name: getattr(lerobot_train, name) for name in names}
    hook = _Hook(opened)
    try:
        lerobot_train.make_train_eval_datasets = hook.datasets
        lerobot_train.EpisodeAwareSampler = hook.sampler
        yield
    finally:
        for name, value in before.items():
            setattr(lerobot_train, name, value)


class _Hook:
    """What LeRobot's training finds behind the two names."""

    def __init__(self, opened: OpenMixture) -> None:
        self._opened = opened
        self._config: Any = None

    def datasets(self, config: Any) -> tuple[MixtureDataset, Any]:
        """Stand for `make_train_eval_datasets`."""
        self._config = config
        if config.dataset.streaming or config.dataset.episodes is not None:
            raise UnusableInputError(
                "--dataset.streaming and --dataset.episodes don't go with --mixture: name "
                "datasets and takes in the mixture."
            )
        held: tuple[MixedTake, ...] = ()
        if config.dataset.eval_split:
            self._opened, held = held_out(self._opened, config.dataset.eval_split)
        shares = self._mixture(0).mean_shares(config.steps)
        train = _dataset(self._opened, config, shares, transformed=True)
        if not held:
            return train, None
        whole = _dataset(replace(self._opened, takes=held), config, shares, transformed=False)
        keys = [(t.dataset, int(f)) for t in held for f in t.frames]
        if config.max_eval_samples > 0:
            chosen = np.linspace(0, len(keys) - 1, min(config.max_eval_samples, len(keys)))
            keys = [keys[int(i)] for i in chosen]
        return train, torch.utils.data.Subset(whole, keys)  # type: ignore[arg-type]

    def sampler(self, *_: Any, drop_n_last_frames: int = 0, **__: Any) -> MixtureSampler:
        """Stand for `EpisodeAwareSampler`."""
        from accelerate import PartialState

        mixture = self._mixture(drop_n_last_frames)
        if PartialState().is_main_process:
            folder = self._config.output_dir
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / REPORT, report(self._opened, mixture, self._config.steps))
        return MixtureSampler(mixture)

    def _mixture(self, drop_last: int) -> Mixture:
        from accelerate import PartialState

        ranks = PartialState().num_processes
        return self._opened.mixture(self._config.batch_size, ranks, drop_last)


def _dataset(opened: OpenMixture, config: Any, shares: Any, *, transformed: bool) -> MixtureDataset:
    chosen = config.dataset
    first = opened.datasets[0].root
    reference = LeRobotDatasetMetadata(f"local/{first.name}", root=first)
    offsets = factory.resolve_delta_timestamps(config.trainable_config, reference)
    transforms = chosen.image_transforms
    datasets = [
        # By its name in LeRobot's factory: whoever caches pictures puts another class there.
        factory.LeRobotDataset(
            f"local/{info.root.name}",
            root=info.root,
            delta_timestamps=offsets,
            image_transforms=ImageTransforms(transforms)
            if transformed and transforms.enable
            else None,
            video_backend=chosen.video_backend,
            return_uint8=True,
            depth_output_unit=chosen.depth_output_unit,
            tolerance_s=config.tolerance_s,
        )
        for info in opened.datasets
    ]
    # A cache of smaller pictures says so in its dataset's metadata, not in the folder's.
    meta = common_meta(opened, [d.meta for d in datasets], shares)
    if chosen.use_imagenet_stats:
        for key in set(meta.camera_keys) - set(meta.depth_keys):
            known = {k: torch.tensor(v, dtype=torch.float32) for k, v in IMAGENET_STATS.items()}
            meta.stats.setdefault(key, {}).update(known)
    actions = config.trainable_config.action_delta_indices if ACTION in meta.features else None
    return MixtureDataset(opened, datasets, meta, actions)


def held_out(opened: OpenMixture, fraction: float) -> tuple[OpenMixture, tuple[MixedTake, ...]]:
    """Set the last takes of every source and task aside, as LeRobot's `eval_split` does.

    Raises:
        UnusableInputError: a source has no take left to train on.
    """
    groups: dict[tuple[int, str], list[MixedTake]] = {}
    for take in opened.takes:
        groups.setdefault((take.source, take.episode.info.task), []).append(take)
    aside = [t for g in groups.values() for t in g[len(g) - math.ceil(len(g) * fraction) :]]
    chosen = {id(t) for t in aside}
    kept = tuple(t for t in opened.takes if id(t) not in chosen)
    for number, source in enumerate(opened.spec.sources):
        if all(t.source != number for t in kept):
            raise UnusableInputError(
                f"--dataset.eval_split={fraction:g} leaves no take of source '{source.name}' to "
                "train on. Hold out fewer."
            )
    return replace(opened, takes=kept), tuple(aside)
