"""What keeps data of two origins from going into one dataset, one merge or one training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import TakeHeader
from gaploop.datasets import columns
from gaploop.datasets.columns import PICTURES
from gaploop.datasets.layout import DatasetInfo, EpisodeRow

LEARNED: Final = ("observation.", "action")
"""Beginnings of the features that policies are fed."""


@dataclass(frozen=True)
class DatasetDifference:
    """One thing that two datasets don't share.

    Attributes:
        what: `fps`, `units`, `robot_type`, or a feature.
        aspect: of a feature: `presence`, `shape`, `names`; else the same as `what`.
        have: the first dataset's value; `want` is the second's.
    """

    what: str
    aspect: str
    have: Any
    want: Any

    @property
    def message(self) -> str:
        """The difference in words, such as "fps is 30, not 50"."""
        if self.aspect == "presence":
            return f"{self.what} is {'there' if self.have else 'missing'}"
        name = self.what if self.aspect == self.what else f"{self.what} ({self.aspect})"
        return f"{name} is {shown(self.have)}, not {shown(self.want)}"


@dataclass(frozen=True)
class Profile:
    """What data must share with other data.

    Attributes:
        where: names its origin in messages.
        units: of state and action, such as `deg`; "" where no take states any.
        robot: its type.
        features: feature to (dtype, shape, names of its entries); pictures have no names.
    """

    where: str
    fps: float
    units: str
    robot: str
    features: Mapping[str, tuple[str, tuple[int, ...], tuple[str, ...]]]

    @classmethod
    def of_dataset(cls, info: DatasetInfo, units: str = "") -> Profile:
        """Return the profile of a dataset."""
        features: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {}
        for name, spec in info.features.items():
            if name not in columns.AUTOMATIC:
                dtype, shape = str(spec.get("dtype")), spec.get("shape") or ()
                names = () if dtype in PICTURES else info.names(name)
                features[name] = dtype, tuple(map(int, shape)), names
        return cls(f"dataset {info.root}", info.fps, units, info.robot_type, features)

    @classmethod
    def of_take(cls, header: TakeHeader) -> Profile:
        """Return the profile that a take has once published."""
        info, table = header.info, columns.take_features(header)
        published = DatasetInfo(Path(), info.fps, table, info.robot_type, 0, 0)
        return replace(cls.of_dataset(published, info.units), where=f"episode {info.uid}")


def known_units(episodes: Sequence[EpisodeRow], info: DatasetInfo) -> str:
    """Return the units that a dataset's takes state, or ""; UnusableInputError: several."""
    found = sorted({e.info.units for e in episodes if e.info.units})
    if len(found) > 1:
        raise UnusableInputError(
            f"{info.root} holds episodes in several units ({', '.join(found)}). Which, and what "
            f"to do about it: gaploop check {info.root}"
        )
    return "".join(found)


def profile(info: DatasetInfo, episodes: Sequence[EpisodeRow]) -> Profile:
    """Return the profile of a dataset, with the units of its takes; see `known_units`."""
    return Profile.of_dataset(info, known_units(episodes, info))


def differences(a: Profile, b: Profile, learned: bool = True) -> Iterator[DatasetDifference]:
    """Yield what keeps data like `a` and data like `b` apart, `a`'s value first.

    Args:
        learned: only what policies are fed counts, pictures however they are stored and numbers of
            whatever type, of whatever robot.
    """
    if a.fps != b.fps:
        yield DatasetDifference("fps", "fps", a.fps, b.fps)
    if a.units != b.units and a.units and b.units:
        yield DatasetDifference("units", "units", a.units, b.units)
    if a.robot != b.robot and not learned:
        yield DatasetDifference("robot_type", "robot_type", a.robot, b.robot)
    for name in dict.fromkeys((*b.features, *a.features)):
        if learned and not name.startswith(LEARNED):
            continue
        have, want = a.features.get(name), b.features.get(name)
        if have is None or want is None:
            yield DatasetDifference(name, "presence", have is not None, want is not None)
            continue
        kinds = [f[0] if not learned else f[0] in PICTURES for f in (have, want)]
        if kinds[0] != kinds[1]:
            yield DatasetDifference(name, "kind", have[0], want[0])
        elif have[2] != want[2]:
            yield DatasetDifference(name, "names", have[2], want[2])
        elif have[1] != want[1]:
            yield DatasetDifference(name, "shape", have[1], want[1])


def require_same(a: Profile, b: Profile, fix: str) -> None:
    """Check that `b` can be appended to `a`; UnusableInputError says the first difference."""
    for found in differences(b, a, learned=False):
        message, have, want = found.message, found.have, found.want
        if found.what == "fps":
            message = f"it has {have:g} fps, not {want:g}"
        elif found.what == "units":
            message = f"its state and action are in {have}, not {want}"
        elif found.aspect == "names":
            message = f"{found.what} has {len(have)} joints ({', '.join(have)}), not {len(want)} "
            message += f"({', '.join(want)})"
        raise UnusableInputError(f"{b.where} doesn't fit {a.where}: {message}. {fix}")


def require_trainable_together(profiles: Sequence[Profile]) -> None:
    """Check that datasets can be trained on together, whatever robot they name."""
    for other in profiles[1:]:
        for found in differences(other, profiles[0]):
            raise UnusableInputError(
                f"{other.where} doesn't fit {profiles[0].where}: {found.message}. Convert it: "
                f"gaploop edit harmonise {other.where.removeprefix('dataset ')} "
                f"--to={profiles[0].where.removeprefix('dataset ')} --output_dir=OUT"
            )


def shown(value: Any) -> str:
    """Return a value as messages show it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
