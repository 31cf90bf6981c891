"""What to train on, how much of each, and when: the file `mixture.yaml`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core import vocabulary
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, load_yaml, mapping, number
from gaploop.datasets.mixing.selection import check_selection

DIMENSION: Final = "dimension"
"""The weight that goes by gap dimension; every other is named like what a take says of itself."""
VALUE: Final = "value"
"""Stands for weights where the number that a take says is itself the weight."""
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
