"""What to train on, how much of each, and when: `mixture.yaml`, and which takes and frames count.

Successful demonstrations count whole, rollouts only where a person had taken over. A failed
rollout is never a demonstration by accident: that takes `select="all"`. Nothing learns from a
probe.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core import vocabulary
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, mapping, number
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns
from gaploop.datasets.frames import load_frames
from gaploop.datasets.layout import DatasetInfo, EpisodeRow, is_dataset

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
        select: which takes, see `selection.SELECTIONS`.
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


def by_size(sizes: Sequence[float], share: float = 1.0) -> list[float]:
    """Divide a share by size, such as the frames of each part."""
    total = math.fsum(sizes)
    return [share * size / total for size in sizes]


SELECTIONS: Final = {
    "demonstrations": "successful demonstrations whole, rollouts where a person had taken over",
    "successful": "every successful episode whole, whoever drove",
    "all": "every episode that isn't discarded or interrupted, whatever its outcome",
}
log = logging.getLogger(__name__)
_GONE: Final = (Outcome.DISCARDED, Outcome.INTERRUPTED)


def check_selection(select: str, option: str = "--select") -> None:
    """Check that `select` is one of `SELECTIONS`.

    Raises:
        UnknownChoiceError: it isn't.
    """
    if select not in SELECTIONS:
        raise unknown_choice("selection", select, SELECTIONS, option)


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
    bare = [
        e.index
        for e in episodes
        if e.outcome is Outcome.UNLABELLED and e.info.kind not in (TakeKind.ROLLOUT, TakeKind.PROBE)
    ]
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
