"""What keeps two datasets from being trained on, or merged, together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.layout import DatasetInfo, EpisodeRow

PICTURES: Final = ("video", "image")
LEARNED: Final = ("observation.", "action")
"""Beginnings of the features that policies are fed."""


@dataclass(frozen=True)
class DatasetDifference:
    """One thing that two datasets don't share.

    Attributes:
        what: `fps`, `units`, `robot_type`, or a feature.
        aspect: of a feature: `presence`, `shape`, `names`; else the same as `what`.
        have: the first dataset's value.
        want: the second's.
    """

    what: str
    aspect: str
    have: Any
    want: Any

    @property
    def says(self) -> str:
        """The difference in words, such as "fps is 30, not 50"."""
        if self.aspect == "presence":
            return f"{self.what} is {'there' if self.have else 'missing'}"
        name = self.what if self.aspect == self.what else f"{self.what} ({self.aspect})"
        return f"{name} is {shown(self.have)}, not {shown(self.want)}"


@dataclass(frozen=True)
class Profile:
    """What a dataset must share with another.

    Attributes:
        where: its folder, in messages.
        fps: frames per second.
        robot_type: LeRobot's name of the robot.
        units: of state and action, such as `deg`; "" where no take states any.
        features: feature to (kind, shape, names of its entries); pictures have no names.
    """

    where: str
    fps: float
    robot_type: str
    units: str
    features: Mapping[str, tuple[str, tuple[int, ...], tuple[str, ...]]]


def known_units(episodes: Sequence[EpisodeRow], info: DatasetInfo) -> str:
    """Return the units that a dataset's takes state, or "".

    Raises:
        UnusableInputError: several.
    """
    found = sorted({e.info.units for e in episodes if e.info.units})
    if len(found) > 1:
        raise UnusableInputError(
            f"{info.root} holds takes in several units ({', '.join(found)}). Split it by units "
            "with gaploop edit split, and convert a part with gaploop harmonise."
        )
    return "".join(found)


def profile(info: DatasetInfo, episodes: Sequence[EpisodeRow]) -> Profile:
    """Return the profile of a dataset.

    Raises:
        UnusableInputError: its takes are in several units.
    """
    features: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {}
    for name in (n for n in info.features if n.startswith(LEARNED)):
        spec = info.features[name]
        shape = tuple(int(n) for n in spec.get("shape") or ())
        is_picture = spec.get("dtype") in PICTURES
        features[name] = (
            ("picture", shape, ()) if is_picture else ("numbers", shape, info.names(name))
        )
    units = known_units(episodes, info)
    return Profile(str(info.root), info.fps, info.robot_type, units, features)


def differences(a: Profile, b: Profile) -> Iterator[DatasetDifference]:
    """Yield what keeps data like `a` and data like `b` from one training, `a`'s value first."""
    if a.fps != b.fps:
        yield DatasetDifference("fps", "fps", a.fps, b.fps)
    if a.units != b.units and a.units and b.units:
        yield DatasetDifference("units", "units", a.units, b.units)
    for name in dict.fromkeys((*b.features, *a.features)):
        have, want = a.features.get(name), b.features.get(name)
        if have is None or want is None:
            yield DatasetDifference(name, "presence", have is not None, want is not None)
            continue
        for k, aspect in enumerate(("kind", "shape", "names")):
            if have[k] != want[k]:
                yield DatasetDifference(name, aspect, have[k], want[k])
                break


def require_trainable_together(profiles: Sequence[Profile]) -> None:
    """Check that datasets can be trained on together, whatever robot they name.

    Raises:
        UnusableInputError: the first difference, and the command that fixes it.
    """
    for other in profiles[1:]:
        for found in differences(other, profiles[0]):
            raise UnusableInputError(
                f"{other.where} doesn't fit {profiles[0].where}: {found.says}. Convert it: "
                f"gaploop harmonise {other.where} --to={profiles[0].where} --output_dir=OUT"
            )


def shown(value: Any) -> str:
    """Return a value as messages show it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
