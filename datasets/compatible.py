"""Whether data of two origins may go into one dataset or one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import TakeHeader
from gaploop.datasets import columns
from gaploop.datasets.layout import DatasetInfo


@dataclass(frozen=True)
class Shape:
    """What two origins must share.

    Attributes:
        where: names the origin in errors.
        fps: frames per second.
        joints: order of state and action.
        features: feature to (dtype, shape).
    """

    where: str
    fps: float
    joints: tuple[str, ...]
    features: Mapping[str, tuple[str, tuple[int, ...]]]

    @classmethod
    def of_take(cls, header: TakeHeader) -> Shape:
        """Return the shape that a take has once published."""
        info = header.info
        table = columns.frame_features(
            info.joint_names, header.environment_state_names, header.cameras
        )
        return cls(f"take {info.uid}", info.fps, info.joint_names, _features(table))

    @classmethod
    def of_dataset(cls, info: DatasetInfo) -> Shape:
        """Return the shape of a dataset."""
        return cls(f"dataset {info.root}", info.fps, info.joint_names, _features(info.features))


def _features(
    table: Mapping[str, Mapping[str, Any]],
) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        name: (str(spec.get("dtype")), tuple(int(n) for n in spec.get("shape") or ()))
        for name, spec in table.items()
        if name not in columns.AUTOMATIC
    }


def require_same(a: Shape, b: Shape, fix: str) -> None:
    """Check that `b` can be appended to `a`.

    Raises:
        UnusableInputError: says the first difference: fps, joints or features.
    """
    if a.fps != b.fps:
        raise UnusableInputError(f"{b.where} has {b.fps:g} fps, {a.where} has {a.fps:g}. {fix}")
    if a.joints != b.joints:
        raise UnusableInputError(
            f"{b.where} has {len(b.joints)} joints ({', '.join(b.joints)}), {a.where} has "
            f"{len(a.joints)} ({', '.join(a.joints)}). {fix}"
        )
    if dict(a.features) == dict(b.features):
        return
    for name in [*a.features, *b.features]:
        if a.features.get(name) != b.features.get(name):
            have, got = a.features.get(name, "absent"), b.features.get(name, "absent")
            raise UnusableInputError(
                f"{b.where} doesn't fit {a.where}: feature {name} is {got}, not {have}. {fix}"
            )
