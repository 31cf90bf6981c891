"""What to train on, how much of each, and when: `mixture.yaml`, and its datasets opened.

Successful demonstrations count whole, rollouts only where a person had taken over. A failed
rollout is never a demonstration by accident: that takes `select="all"`. Nothing learns from a
probe. Datasets are read from Parquet; no video is opened.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core import vocabulary
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, mapping, number
from gaploop.core.vocabulary import SELECTIONS, Outcome, TakeKind, check_selection
from gaploop.datasets import columns, layout
from gaploop.datasets.differences import profile, require_trainable_together
from gaploop.datasets.labels import queried_values, where
from gaploop.datasets.layout import DatasetInfo, EpisodeRow, is_dataset
from gaploop.datasets.mixing.mixture import Floats, Ints, Mixture, MixtureStage, Pool
from gaploop.datasets.v3_files import load_frames

DIMENSION: Final = "dimension"
"""The weight that goes by gap dimension; every other is named like what an episode says of
itself."""
VALUE: Final = "value"
"""Stands for weights where the number that an episode says is itself the weight."""
MAX_WEIGHT: Final = 1e6

type WeightTable = Mapping[str, float] | str
"""Value of a take's field to weight, or `VALUE`."""


@dataclass(frozen=True)
class SourceSpec:
    """One source of a mixture.

    Attributes:
        select: which takes, see `vocabulary.SELECTIONS`.
        where: only takes that this query chooses, see `query`; all of them if empty.
    """

    name: str
    roots: tuple[Path, ...]
    select: str = "demonstrations"
    where: str = ""


@dataclass(frozen=True)
class StageSpec:
    """One stretch of training: source to relative share, for so many steps.

    Sources that aren't named have no share; only a last stage may go without steps.
    """

    shares: Mapping[str, float]
    steps: int | None = None
    name: str = ""


@dataclass(frozen=True)
class MixtureSpec:
    """What `mixture.yaml` says.

    Without stages every frame is drawn equally often. A take's weights multiply: `weights` is a
    field of a take to its table.
    """

    sources: tuple[SourceSpec, ...]
    stages: tuple[StageSpec, ...] = ()
    weights: Mapping[str, WeightTable] = field(default_factory=dict)
    seed: int = 0


def load_mixture(path: Path) -> MixtureSpec:
    """Read a `mixture.yaml`; the folders it names are relative to its own.

    Raises:
        UnusableInputError: missing, not YAML, or something in it that makes no sense.
    """
    if is_dataset(path):
        raise UnusableInputError(
            f"{path} is a dataset, where a mixture's YAML file is meant. To train on it: "
            f"--real='[{path}]', or --sim for simulated episodes."
        )
    value, where = load_yaml(path, "Mixture"), str(path)
    check_keys(value, ("sources", "shares", "stages", "weights", "seed"), where, ("sources",))
    given = mapping(value["sources"], f"{where}, sources", "name: folder")
    if not given:
        raise UnusableInputError(f"{where}: sources is empty. Name some: 'real: [DIR]'.")
    sources = []
    for name, source in given.items():
        here = f"{where}, source '{name}'"
        entry = source if isinstance(source, Mapping) else {"roots": source}
        check_keys(entry, ("roots", "select", "where"), here, ("roots",))
        roots = entry["roots"] if isinstance(entry["roots"], list) else [entry["roots"]]
        if not roots or not all(isinstance(r, str) and r for r in roots):
            raise UnusableInputError(f"{here}: roots must be folders of datasets, got {roots!r}.")
        select = str(entry.get("select", "demonstrations"))
        check_selection(select, f"{here}, select")
        folders = tuple(path.parent / Path(r).expanduser() for r in roots)
        sources.append(SourceSpec(str(name), folders, select, str(entry.get("where") or "")))
    seed = value.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UnusableInputError(f"{where}: seed {seed!r} must be a whole number, at least 0.")
    stages = _stages(value, [s.name for s in sources], where)
    weights: dict[str, WeightTable] = {}
    given = mapping(value.get("weights"), f"{where}, weights", "field: {value: weight}")
    for name, table in given.items():
        here = f"{where}, weights, {name}"
        if table == VALUE and name != DIMENSION:
            weights[str(name)] = VALUE
            continue
        rows = mapping(table, here, "value: weight")
        for dimension in rows if name == DIMENSION else ():
            vocabulary.dimension(dimension, here)
        weights[str(name)] = {
            str(k): number(v, f"{here}, {k}", 0, MAX_WEIGHT) for k, v in rows.items()
        }
    return MixtureSpec(tuple(sources), stages, weights, seed)


def _stages(value: Mapping[str, Any], names: Sequence[str], where: str) -> tuple[StageSpec, ...]:
    if "shares" in value and "stages" in value:
        raise UnusableInputError(f"{where} has both shares and stages. Keep one of them.")
    if "shares" in value:
        return (StageSpec(_shares(value["shares"], names, f"{where}, shares")),)
    listed = value.get("stages", [])
    if not isinstance(listed, list) or ("stages" in value and not listed):
        raise UnusableInputError(f"{where}: stages must be a list of steps and shares.")
    stages = []
    for n, given in enumerate(listed, 1):
        here = f"{where}, stage {n}"
        stage = mapping(given, here, "key: value")
        check_keys(stage, ("name", "steps", "shares"), here, ("shares",))
        steps = stage.get("steps")
        if steps is None and n < len(listed):
            raise UnusableInputError(
                f"{here}: steps is missing; only the last stage may go without."
            )
        is_count = isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1
        if steps is not None and not is_count:
            raise UnusableInputError(f"{here}: steps {steps!r} must be a whole number, at least 1.")
        shares = _shares(stage["shares"], names, f"{here}, shares")
        stages.append(StageSpec(shares, steps, str(stage.get("name", ""))))
    return tuple(stages)


def _shares(value: Any, names: Sequence[str], where: str) -> dict[str, float]:
    given = mapping(value, where, "source: share")
    for name in given:
        if name not in names:
            raise unknown_choice("source", name, names, where)
    shares = {str(k): number(v, f"{where}, {k}", 0, MAX_WEIGHT) for k, v in given.items()}
    if not any(shares.values()):
        raise UnusableInputError(f"{where}: no source has a share above 0, such as 'real: 0.5'.")
    return shares


def by_size(sizes: Sequence[float]) -> list[float]:
    """Return shares by size, such as the frames of each part."""
    total = math.fsum(sizes)
    return [size / total for size in sizes]


log = logging.getLogger(__name__)
_GONE: Final = (Outcome.DISCARDED, Outcome.INTERRUPTED)


def wanted_episodes(root: Path, episodes: Sequence[EpisodeRow], select: str) -> list[EpisodeRow]:
    """Return the episodes that may be learned from.

    Raises:
        UnusableInputError: some takes without an outcome, of which nobody knows. Where nobody
            said how any demonstration went, as in plain datasets, all of them count.
    """
    judged = [e for e in episodes if e.info.kind not in (TakeKind.ROLLOUT, TakeKind.PROBE)]
    if (
        judged
        and select == "demonstrations"
        and all(e.outcome is Outcome.UNLABELLED for e in judged)
    ):
        log.warning(
            "%s: nobody said how its %d episodes went; all of them count as demonstrations. Leave "
            "some out: gaploop label --outcome=failure.", root, len(judged),
        )  # fmt: skip
        return [e for e in episodes if e.info.kind is not TakeKind.PROBE
                and (e.outcome not in _GONE)]  # fmt: skip
    bare = [e.index for e in judged if e.outcome is Outcome.UNLABELLED]
    if bare and select != "all":
        raise UnusableInputError(
            f"{root}: {len(bare)} of {len(episodes)} episodes have no outcome (first: episode "
            f"{bare[0]}). Say how they went with gaploop label, or train on every episode with "
            "--select=all."
        )

    def is_wanted(episode: EpisodeRow) -> bool:
        if episode.outcome in _GONE or episode.info.kind is TakeKind.PROBE:
            return False
        if select == "all":
            return True
        driven = select == "demonstrations" and episode.info.kind is TakeKind.ROLLOUT
        return driven or episode.outcome is Outcome.SUCCESS

    return [e for e in episodes if is_wanted(e)]


def wanted_frames(
    info: DatasetInfo, episodes: Sequence[EpisodeRow], select: str
) -> list[tuple[EpisodeRow, NDArray[np.bool_]]]:
    """Return the takes that are learned from, each with which of its frames, shape (n_frames,).

    Raises:
        UnusableInputError: takes without an outcome, or none is left.
    """
    chosen = wanted_episodes(info.root, episodes, select)
    usable: dict[int, NDArray[np.bool_]]
    usable = {e.index: np.ones(e.length, dtype=bool) for e in chosen}
    rollouts = [e for e in chosen if e.info.kind is TakeKind.ROLLOUT]
    if rollouts and select == "demonstrations":  # only where a person drove, as far as it is said
        usable |= {e.index: np.zeros(e.length, dtype=bool) for e in rollouts}
        if columns.INTERVENTION in info.features:
            table = load_frames(info.root, [columns.INTERVENTION], [e.index for e in rollouts])
            driven = table.columns[columns.INTERVENTION].reshape(-1) > 0
            usable |= {e.index: driven[table.rows_of(e.index)] for e in rollouts}
    found = [(e, usable[e.index]) for e in chosen if usable[e.index].any()]
    if not found:
        if not episodes:
            raise UnusableInputError(
                f"{info.root} has no episodes. Record some with gaploop record."
            )
        counts = Counter(f"{e.outcome.value} {e.info.kind.value}s" for e in episodes)
        held = ", ".join(f"{n} {what}" for what, n in counts.items())
        raise UnusableInputError(
            f"{info.root}: --select={select} ({SELECTIONS[select]}) leaves none of its episodes "
            f"({held}). Record demonstrations, or choose another --select."
        )
    return found


def span_ends(usable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, for each frame, the first one after it that isn't usable, or the episode's end.

    A chunk of actions that starts at a usable frame is learned from up to there.
    """
    n = len(usable)
    breaks = np.append(np.flatnonzero(~usable), n)
    return breaks[np.searchsorted(breaks, np.arange(n), side="left")]


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
                    "episode are dropped. Train with shorter chunks."
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
    for nth, source in enumerate(spec.sources):
        every: list[EpisodeRow] = []
        for root in source.roots:
            info = layout.read_info(root)
            known = layout.read_episodes(info)
            profiles.append(profile(info, known))
            every += known
            if source.where:
                chosen = set(where(source.where, known, f"{source.name}: where"))
                known = [e for e in known if e.index in chosen]
            for episode, usable in (
                wanted_frames(info, known, source.select) if known or not source.where else ()
            ):
                first = int(episode.row.get("dataset_from_index") or 0)
                frames = np.flatnonzero(usable)
                ends = span_ends(usable)[frames]
                place = (nth, len(datasets), episode)
                found.append(MixedTake(*place, frames + first, ends + first, 1.0))
            datasets.append(info)
        if source.where and all(t.source != nth for t in found):
            there = queried_values(source.where, every).items()
            raise UnusableInputError(
                f"Source '{source.name}': where: {source.where} chooses none of its {len(every)} "
                f"episodes; {'; '.join(f'{name} is {", ".join(said)}' for name, said in there)}."
            )
    require_trainable_together(profiles)
    weights = _take_weights([t.episode for t in found], spec.weights)
    weighted = [replace(t, weight=float(w)) for t, w in zip(found, weights, strict=True) if w > 0]
    for nth, source in enumerate(spec.sources):
        if all(t.source != nth for t in weighted):
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
        place = f"weights, {name}"
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
                        f"{place}: an episode has {value!r}, which is no weight. Every episode "
                        "needs a number ≥ 0 there; or give a table of value: weight."
                    )
            result *= np.array(values, dtype=np.float64)
            continue
        seen = {str(v) for v in values if v is not None}
        if rows and not seen & set(rows):
            raise unknown_choice("value", next(iter(rows)), seen, place)
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
